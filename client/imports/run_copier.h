// Copies one run from one collector to another, and compares the two: what statctl move migrate
// does for each run.
#ifndef STATCOLLECT_CLIENT_IMPORTS_RUN_COPIER_H_
#define STATCOLLECT_CLIENT_IMPORTS_RUN_COPIER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "client/rpc/collector.h"
#include "common/status.h"
#include "statcollect/v1/transfer.pb.h"

namespace statcollect::client {

// A run as its collector describes it, without configuration, documents and events.
struct RunOutline {
  std::uint32_t streams_open = 0;
  std::vector<v1::CopiedAttempt> attempts;
  std::map<std::pair<std::uint32_t, std::uint32_t>, v1::CopiedRank> ranks;  // by launch and rank
  std::uint64_t records() const;
};

// kNotFound: there is no such run.
Result<RunOutline> Outline(Collector& collector, const std::string& run);

// How much of a run the target has.
enum class Copied { kNothing, kSome, kAll };
// kAlreadyExists: the target's run is not a copy of the source's.
Result<Copied> CompareOutlines(const std::string& run, const RunOutline& source,
                               const RunOutline& target);

// What both sides hold.
struct CopyCheck {
  std::uint64_t records = 0;  // compared
  std::vector<std::string>
      differences;  // one sentence each, the first few; empty: both hold the same
};

// Thread: one; the collectors may be cancelled from others.
class RunCopier {
 public:
  // `patience`: how long to go on without progress while a collector does not answer. `progress`:
  // records that the target has. Borrows both.
  RunCopier(Collector& source, Collector& target, std::chrono::milliseconds patience,
            std::function<void(std::uint64_t records)> progress)
      : source_(source), target_(target), patience_(patience), progress_(std::move(progress)) {}

  // Copies what the target lacks. Waits for collectors that come back.
  Status Copy(const std::string& run, const RunOutline& outline);
  // Reads everything on both sides.
  Result<CopyCheck> Compare(const std::string& run, const RunOutline& outline);

 private:
  // Repeats the work until it succeeds, fails for good, or has made no progress for `patience_`.
  Status Persist(const std::function<Status()>& work);
  Status CopyRank(const std::string& run, const v1::CopiedRank& rank);
  Status ReadInto(const std::string& run, const v1::CopiedRank& rank, CopyStream& stream);
  Status CopyParts(const std::string& run);
  Status CompareParts(const std::string& run, CopyCheck* found);
  Status CompareRank(const std::string& run, std::uint32_t attempt, std::uint32_t rank,
                     CopyCheck* found);

  Collector& source_;
  Collector& target_;
  const std::chrono::milliseconds patience_;
  const std::function<void(std::uint64_t)> progress_;
  std::uint64_t before_ = 0;  // records of ranks that are done
  std::chrono::steady_clock::time_point advanced_;
};

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_IMPORTS_RUN_COPIER_H_
