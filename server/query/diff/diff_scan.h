// Compares the steps of a diff on several threads and passes the results on in order.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_DIFF_SCAN_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_DIFF_SCAN_H_

#include <cstdint>
#include <functional>
#include <stop_token>
#include <vector>

#include "common/status.h"
#include "server/query/compare/diff_plan.h"
#include "server/query/compare/rank_step_diff.h"
#include "server/query/diff/diff.h"

namespace statcollect::query {

// One step, all ranks.
struct StepResult {
  std::uint64_t step = 0;
  std::vector<RankStepFindings> ranks;
};

// Called with each step in order, on the calling thread. False: later steps are not needed.
using TakeStep = std::function<Result<bool>(StepResult step)>;

// Works in waves: compares the rank-steps of a wave on several threads, then passes on their
// findings in order. Waves grow, so that a first difference near the beginning is found quickly.
// kCancelled if it was stopped.
Status ScanSteps(const DiffContext& context, const DiffPlan& plan, const TakeStep& take,
                 const OnProgress& progress, const std::stop_token& stop);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_DIFF_SCAN_H_
