// Keeps differences that repeats of A also show from becoming roots.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_NOISE_JUMPS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_NOISE_JUMPS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "server/query/compare/rank_step_diff.h"
#include "server/query/reports.h"
#include "server/query/verdict/explain.h"
#include "server/query/verdict/jumps.h"

namespace statcollect::query {

// The noise of one rank's tensors in a step; empty if there are no repeats.
struct NoiseOfStep {
  std::vector<double> by_id;                // A's
  double Of(const TensorPair& pair) const;  // 0: unknown, or a loss
  // The difference as a multiple of the noise; empty if the noise is not known.
  std::optional<double> TimesOf(const TensorPair& pair) const;
};

struct NoisePlace {
  std::size_t attempt_a = 0;
  std::uint32_t rank_a = 0;
  std::uint64_t step = 0;
};

// Without repeats, or in an exact comparison, reads nothing and returns an empty result.
Result<NoiseOfStep> ReadNoise(const DiffContext& context, const NoisePlace& place);
// Removes the jumps of at most kNoiseFactor times the noise, except in an exact comparison.
Status LeaveOutNoise(const DiffContext& context, const NoisePlace& place, const NoiseOfStep& noise,
                     std::span<const Explained> step, std::vector<Jump>& jumps);

// Whether tokens went to other experts, and the module lies where the router has them.
bool IsWithin(const NearTie& tie, std::string_view module);
// Whether tokens went to other experts anywhere.
bool AnyElsewhere(const NearTies& ties);

// Drops the jumps of a step behind a router that rounding alone made choose otherwise, in the
// module that has its experts, as far as rows of other tokens explain them. Numbers of experts that
// a router returns are no jump: as rows of tokens they were compared without their order.
void LeaveOutNearTies(const NearTies& ties, std::uint64_t step_number,
                      std::span<const Explained> step, std::vector<Jump>& jumps);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_NOISE_JUMPS_H_
