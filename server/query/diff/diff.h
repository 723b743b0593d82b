// Compares two runs step by step. docs/divergence.md describes the answer.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_DIFF_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_DIFF_H_

#include <stop_token>

#include "common/status.h"
#include "server/query/compare/noise.h"
#include "server/query/pairs/twins.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"
#include "server/query/types.h"

namespace statcollect::query {

// Memory: one step of a rank of both runs per thread, the definitions of all ranks, the details of
// up to 1,024 ranks and steps, and the report's rows. `noise`, `twins`: null if unknown. Runs on
// the caller's thread and up to three more.
Result<DiffReport> DiffRuns(RunView& a, RunView& b, const DiffRequest& request,
                            const IsStreamOpen& is_stream_open, NoiseFloor* noise,
                            const Twins* twins, const OnProgress& progress,
                            const std::stop_token& stop);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_DIFF_H_
