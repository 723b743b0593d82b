// Compares two runs step by step. docs/divergence.md says what the answer means.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_H_

#include <stop_token>

#include "common/status.h"
#include "server/query/query.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// Memory: one step of one rank of both runs, the definitions of all ranks, the report's rows.
Result<DiffReport> DiffRuns(RunView& a, RunView& b, const DiffRequest& request,
                            const IsStreamOpen& is_stream_open, const OnProgress& progress,
                            const std::stop_token& stop);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_H_
