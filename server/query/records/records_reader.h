// Reads a run's records in parts of limited size, for exports.
#ifndef STATCOLLECT_SERVER_QUERY_RECORDS_RECORDS_READER_H_
#define STATCOLLECT_SERVER_QUERY_RECORDS_RECORDS_READER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "common/records.h"
#include "common/status.h"
#include "server/query/reports.h"
#include "server/store/record_reader.h"

namespace statcollect::query {

struct RecordsRequest {
  std::string run;
  std::vector<std::uint32_t> ranks;  // empty: all
  std::string steps;                 // as for StepSet::Parse
  std::vector<Kind>
      kinds;  // empty: all, with scalars, events and step ends; otherwise only statistics
  bool sketches = false, samples = false;
  bool whole = false;  // put together what is cut over ranks, whatever `ranks` says
};

// All or some records of one rank in one step. Ids are those of the launch and rank.
struct RecordsPart {
  std::uint32_t attempt = 0;  // number of the launch, from 1
  std::uint32_t rank = 0;
  std::vector<std::uint32_t> ranks;  // ascending: who holds these tensors, whose parts were put
                                     // together, rank is 0; empty: the rank's own
  RecordBatch records;               // first_seq is 0
  std::span<const Layout>
      layouts;        // of launch and rank, by id: all that are known; valid during the call
  Progress progress;  // counts this rank and step as done
};

// May block, which is how a slow reader slows the scan down. An error ends the scan.
using OnRecords = std::function<Status(RecordsPart part)>;

// Calls `take` for every rank and step of the run's view (each step from the newest launch that has
// it), by step, then rank, at least once each, with no records if none match. Statistics come in
// order of execution, then scalars, events and the step's end. Definitions come once, before their
// first use, dense from 0 for each launch and rank. Memory: one step of one rank, the definitions,
// the events. kNotFound: no such run, or none of the ranks; errors of `take` are returned. With
// `whole`, a step of a run that is cut begins with its whole tensors, which have definitions of
// their own; the ranks' records are then those that could not be put together. Memory: one step of
// all ranks.
Status ReadRecords(RecordReader& store, const RecordsRequest& request, const OnRecords& take,
                   const std::stop_token& stop);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RECORDS_RECORDS_READER_H_
