// What the list of runs says of one.
#ifndef STATCOLLECT_SERVER_QUERY_RUN_SUMMARY_H_
#define STATCOLLECT_SERVER_QUERY_RUN_SUMMARY_H_

#include <cstdint>
#include <map>
#include <string>

#include "common/rank_set.h"
#include "common/status.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"
#include "server/query/types.h"

namespace statcollect::query {

// The ranks of an attempt that record, as those of them that are there say; all of its world if
// none is.
RankSet RanksThatRecord(const AttemptMeta& attempt, const std::map<std::uint32_t, RankMeta>& ranks);

// "running" while a stream is open, else "finished" or "interrupted".
std::string StateOf(bool open, bool finished);

// Reads steps only where the ranks' tallies do not tell their number: several attempts, or ranks
// that began at different steps.
Result<RunSummary> Summarise(const RunView& view, const IsStreamOpen& is_stream_open);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RUN_SUMMARY_H_
