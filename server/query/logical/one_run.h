// Questions about one run whose tensors are cut over its ranks: answered for the whole tensors.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_ONE_RUN_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_ONE_RUN_H_

#include <memory>
#include <stop_token>
#include <vector>

#include "common/status.h"
#include "server/query/logical/logical_run.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"
#include "server/query/top.h"

namespace statcollect::query {

// Whether a rank holds a part of a tensor. Reads the definitions.
Result<bool> HoldsParts(RunView& view);

// Null if no rank holds a part of a tensor, so that ranks are shown as they are. Reads the definitions; otherwise
// also the first steps of all ranks.
Result<std::unique_ptr<LogicalRun>> OpenIfCut(RunReader& store, RunView& view);

// Also if none does: the stages of a pipeline hold whole tensors, but different ones.
Result<std::unique_ptr<LogicalRun>> OpenWhole(RunReader& store, const RunView& view);

// Adds the ranks that hold each tensor.
void DescribeRanks(const LogicalRun& run, std::vector<SeriesPoint>& points);

// Whole tensors and, rank by rank, those of which nothing says how they are cut. Without a step: the newest that all
// ranks have reached. Errors as FindTop.
Result<TopReport> FindTopOfWhole(LogicalRun& run, RunView& by_rank, const TopRequest& request,
                                 const std::stop_token& stop);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_ONE_RUN_H_
