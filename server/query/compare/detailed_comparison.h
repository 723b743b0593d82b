// Compares one step of a rank with everything that a report may say of it.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_DETAILED_COMPARISON_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_DETAILED_COMPARISON_H_

#include <vector>

#include "common/status.h"
#include "server/query/compare/rank_step_diff.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// `a`, `b`: all of the step, in the order of execution. `to` has its alignment and tally; gets the rows that
// diverged, what is missing or out of place, and the forward trace.
Status CompareInDetail(const DiffContext& context, const std::vector<Observation>& a,
                       const std::vector<Observation>& b, RankStepFindings& to);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_DETAILED_COMPARISON_H_
