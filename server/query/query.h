// Answers queries about stored runs. Uses only DocumentStore.
//
// Every answer is about the run's view over its attempts: each step comes from the newest attempt
// that has it.
//
// Errors common to all: kNotFound for an unknown run (lists the existing names, closest first),
// kInvalidArgument for steps that do not parse, kCancelled after a stop request, kResourceExhausted
// for more rows or more read bytes than allowed, and errors of the store (kDataLoss names the
// block).
//
// A stop request ends every query soon: nothing is read after it (limited_store.h), and what may go
// on for long without a read asks for it.
#ifndef STATCOLLECT_SERVER_QUERY_QUERY_H_
#define STATCOLLECT_SERVER_QUERY_QUERY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <type_traits>
#include <vector>

#include "common/status.h"
#include "server/query/context.h"
#include "server/query/limited_store.h"
#include "server/query/noise/noise_profile.h"
#include "server/query/ranks/ranks.h"
#include "server/query/reports.h"
#include "server/query/types.h"
#include "server/store/document_store.h"

namespace statcollect::query {

// Of stored bytes, by default: about 1.6 billion records.
inline constexpr std::uint64_t kReadBytesMax = std::uint64_t{64} << 30;

// Thread-safe: has no state of its own. Calls block while they scan, so run them on a separate
// pool, never on a stream's thread. A default-constructed stop_token never stops.
class QueryEngine {
 public:
  // Borrows the store, which must outlive the engine. `may_come_back`: for a rank that is not
  // connected and has not said goodbye. `read_bytes_max`: stored bytes that one query may read;
  // Stream has no such limit.
  explicit QueryEngine(DocumentStore& store, IsStreamOpen is_stream_open = {},
                       IsStreamOpen may_come_back = {},
                       std::uint64_t read_bytes_max = kReadBytesMax);

  // The same for the runs of one project, by their plain names. Borrows what this one borrows.
  // Cheap.
  std::shared_ptr<const QueryEngine> Of(const std::string& project) const;

  // Answers one of the queries whose answer is a message, such as ListLosses (answers/losses.h).
  template <typename Request, typename Response>
  Status Ask(Leaf<Request, Response>* query, const std::type_identity_t<Request>& request,
             Response& out, const std::stop_token& stop = {}) const {
    LimitedStore store = Limited(stop, read_bytes_max_);
    return query({.store = store, .links = links_, .stop = stop}, request, out);
  }

  // Calls query(context), without a limit of bytes, for what hands on its answer in parts, such as
  // ReadRecords (records/records_reader.h).
  template <typename Query>
  Status Stream(const Query& query, const std::stop_token& stop = {}) const {
    LimitedStore store = Limited(stop, ReadBudget::kNoLimit);
    return query(Context{.store = store, .links = links_, .stop = stop});
  }

  // The projects that have runs, sorted.
  Result<std::vector<std::string>> ListProjects(const std::stop_token& stop = {}) const;

  // What a list says of a run.
  Result<RunSummary> Summary(const std::string& run, const std::stop_token& stop = {}) const;

  // Compares two runs; see docs/divergence.md. Memory: one
  // step of one rank of both runs, the definitions, and the rows of the report.
  Result<DiffReport> Diff(const DiffRequest& request, const OnProgress& progress = {},
                          const std::stop_token& stop = {}) const;

  // Measures the noise of a run from its repeats and stores it with the run; Diff then uses it.
  // Cost: reads all of them once. Errors as for RepeatNoise::Open.
  Result<NoiseProfile> SaveNoise(const SaveNoiseRequest& request, const OnProgress& progress = {},
                                 const std::stop_token& stop = {}) const;
  // See ranks.h.
  Result<RanksReport> CheckRanks(const RanksRequest& request, const OnProgress& progress = {},
                                 const std::stop_token& stop = {}) const;

 private:
  // `store`: as the query sees it. `a`, `b`: the runs as they are.
  Result<DiffReport> DiffViews(RecordReader& store, RunView& a, RunView& b, DiffRequest request,
                               const OnProgress& progress, const std::stop_token& stop) const;

  LimitedStore Limited(const std::stop_token& stop, std::uint64_t bytes_max) const {
    return {store_, project_, bytes_max, stop};
  }

  DocumentStore& store_;
  const RankLinks links_;
  const std::uint64_t read_bytes_max_;
  std::optional<std::string> project_;  // absent: all
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_QUERY_H_
