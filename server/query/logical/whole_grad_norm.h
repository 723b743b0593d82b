// The norm of all weight gradients of a run whose ranks hold parts of the model.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_WHOLE_GRAD_NORM_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_WHOLE_GRAD_NORM_H_

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "common/step_set.h"
#include "server/query/run_view.h"
#include "server/store/run_reader.h"

namespace statcollect::query {

// The scalar that an agent adds to each step: the norm of the weight gradients that its rank
// recorded.
inline constexpr std::string_view kGradNorm = "grad_norm";

struct WholeNorm {
  std::uint64_t step = 0;
  double value = 0;
  std::vector<std::uint32_t> ranks;  // of the step's launch, whose parts it sums; ascending
};

// One a step: the square root of the sum of squares over all elements of all weight gradients, each
// counted once, however they are cut and copied. As the agent's scalar, it is not finite if an
// element is not. Steps without gradients, and those that a rank has not ended, are left out.
// Absent: every rank holds the whole model, or nothing says how a gradient is cut. Cost: reads all
// statistics of the steps.
Result<std::optional<std::vector<WholeNorm>>> WholeGradNorm(RunReader& store, RunView& by_rank,
                                                            const StepSet& steps,
                                                            const std::stop_token& stop);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_WHOLE_GRAD_NORM_H_
