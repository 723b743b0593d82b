// How the distance between two runs grows from step to step.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_GROWTH_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_GROWTH_H_

#include <vector>

#include "server/query/reports.h"

namespace statcollect::query {

// `points`: one per step, ascending, from the first step that is not identical. The factor is the
// least-squares slope of the distances' logarithms over the steps.
Growth SummariseGrowth(const std::vector<GrowthPoint>& points);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_GROWTH_H_
