#include "server/query/verdict/noise_jumps.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "common/names.h"
#include "server/query/compare/noise.h"

namespace statcollect::query {
namespace {

// Relative distance of tensors of which a part p of the rows are others: sqrt(2 p) if all are as
// large. Some are larger.
constexpr double kOfOtherRows = 3;

// Whether the pair is what a router chose.
bool AreChoices(const NearTie& tie, const TensorPair& pair) {
  return pair.loss == nullptr && pair.a.def->key.kind == Kind::kOutput &&
         pair.a.def->key.name == tie.router && IsWholeNumber(pair.a.layout->dtype) &&
         pair.a.stats->numel <= tie.choices;
}

}  // namespace

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
          context.noise->OfLoss(place.rank_a, place.step, pair.loss_micro_batch, *pair.loss));
    }
    if (!(pair.distance <= kNoiseFactor * of_repeats)) left.push_back(jump);
  }
  jumps = std::move(left);
  return Status::Ok();
}

bool IsWithin(const NearTie& tie, std::string_view module) {
  return tie.share > 0 && !tie.within.empty() && module.starts_with(tie.within) &&
         (module.size() == tie.within.size() || module[tie.within.size()] == '.');
}

bool AnyElsewhere(const NearTies& ties) {
  return std::any_of(ties.begin(), ties.end(), [](const auto& of_step) {
    return std::any_of(of_step.second.begin(), of_step.second.end(),
                       [](const NearTie& tie) { return tie.share > 0; });
  });
}

void LeaveOutNearTies(const NearTies& ties, std::uint64_t step_number,
                      std::span<const Explained> step, std::vector<Jump>& jumps) {
  const auto of_step = ties.find(step_number);
  if (of_step == ties.end()) return;
  for (const NearTie& tie : of_step->second) {
    const auto router = std::find_if(step.begin(), step.end(), [&](const Explained& one) {
      return one.pair->loss == nullptr && one.pair->a.def->key.kind == Kind::kOutput &&
             one.pair->a.def->key.name == tie.router;
    });
    if (router == step.end()) continue;
    const auto at = static_cast<std::size_t>(router - step.begin());
    const double most = kOfOtherRows * std::sqrt(tie.share);
    std::erase_if(jumps, [&](const Jump& jump) {
      const TensorPair& pair = *step[jump.index].pair;
      if (AreChoices(tie, pair)) return true;
      const double observed = step[jump.index].observed;
      return (!std::isfinite(observed) || observed <= most) && jump.index > at &&
             jump.kind != JumpKind::kSetting && pair.loss == nullptr &&
             IsWithin(tie, pair.a.def->key.name);
    });
  }
}

}  // namespace statcollect::query
