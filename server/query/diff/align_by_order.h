// Names of a diff's runs that differ, aligned by the order in which their tensors were executed.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_ALIGN_BY_ORDER_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_ALIGN_BY_ORDER_H_

#include <stop_token>

#include "common/status.h"
#include "server/query/compare/diff_plan.h"
#include "server/query/compare/rank_step_diff.h"

namespace statcollect::query {

// Sets the matches of each rank in the context's aligner, from the first step in which both runs
// have statistics of it. kCancelled if it was stopped.
Status AlignByOrder(const DiffContext& context, const DiffPlan& plan, const std::stop_token& stop);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_ALIGN_BY_ORDER_H_
