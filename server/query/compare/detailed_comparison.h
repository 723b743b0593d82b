// Compares one step of a rank in full detail, for the report.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_DETAILED_COMPARISON_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_DETAILED_COMPARISON_H_

#include <vector>

#include "common/status.h"
#include "server/query/compare/rank_step_diff.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// `a`, `b`: all records of the step, in the order of execution. `to` already has its alignment and
// tally; adds the diverged rows, missing and out-of-place records, and the forward trace.
Status CompareInDetail(const DiffContext& context, const std::vector<Observation>& a,
                       const std::vector<Observation>& b, RankStepFindings& to);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_DETAILED_COMPARISON_H_
