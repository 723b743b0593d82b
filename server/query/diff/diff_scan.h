// Compares the steps of a diff on several threads and passes the results on in order.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_DIFF_SCAN_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_DIFF_SCAN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <utility>
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

// Works in waves: compares the rank-steps of a wave on several threads, then passes on their
// findings in order. Waves grow, so that a first difference near the beginning is found quickly.
class DiffScan {
 public:
  // Borrows both.
  DiffScan(const DiffContext& context, const DiffPlan& plan) : context_(context), plan_(plan) {}

  // Called with each step in order, on the calling thread. False: later steps are not needed.
  using Take = std::function<Result<bool>(StepResult step)>;
  // Call it once. kCancelled if it was stopped.
  Status Run(const Take& take, const OnProgress& progress, const std::stop_token& stop);

 private:
  using Steps = decltype(DiffPlan::steps);
  // Steps of one rank that one thread compares.
  struct Unit {
    RankSteps steps;
    std::size_t rank_index = 0, first_step_index = 0;
    Status status;
  };

  std::vector<StepResult> CutWave(Steps::const_iterator& next, std::size_t steps);
  std::vector<Unit> CutUnits(const std::vector<StepResult>& wave) const;
  Status CompareWave(std::vector<StepResult>& wave, const std::stop_token& stop) const;

  const DiffContext& context_;
  const DiffPlan& plan_;
  std::pair<std::size_t, std::size_t> attempts_;  // of the wave at hand
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_DIFF_SCAN_H_
