#include "server/query/verdict/noise_jumps.h"

#include <cmath>
#include <utility>

#include "server/query/compare/noise.h"

namespace statcollect::query {

double NoiseOfStep::Of(const TensorPair& pair) const {
  return pair.loss == nullptr && pair.a.def->id < by_id.size() ? by_id[pair.a.def->id] : 0;
}

std::optional<double> NoiseOfStep::TimesOf(const TensorPair& pair) const {
  const double noise = Of(pair);
  return noise > 0 && std::isfinite(noise) ? std::optional(pair.distance / noise) : std::nullopt;
}

Result<NoiseOfStep> ReadNoise(const DiffContext& context, const NoisePlace& place) {
  NoiseOfStep noise;
  if (context.noise == nullptr || context.exact) return noise;
  STATCOLLECT_ASSIGN_OR_RETURN(auto by_id,
                               context.noise->At(place.attempt_a, place.rank_a, place.step));
  noise.by_id = std::move(by_id);
  return noise;
}

Status LeaveOutNoise(const DiffContext& context, const NoisePlace& place, const NoiseOfStep& noise,
                     std::span<const Explained> step, std::vector<Jump>& jumps) {
  if (context.noise == nullptr || context.exact) return Status::Ok();
  std::vector<Jump> left;
  for (const Jump& jump : jumps) {
    const TensorPair& pair = *step[jump.index].pair;
    double of_repeats = noise.Of(pair);
    if (pair.loss != nullptr) {
      STATCOLLECT_ASSIGN_OR_RETURN(
          of_repeats,
          context.noise->OfLoss(place.rank_a, place.step, /*micro_batch=*/0, *pair.loss));
    }
    if (!(pair.distance <= kNoiseFactor * of_repeats)) left.push_back(jump);
  }
  jumps = std::move(left);
  return Status::Ok();
}

}  // namespace statcollect::query
