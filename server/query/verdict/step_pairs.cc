#include "server/query/verdict/step_pairs.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/loss_names.h"
#include "server/query/compare/distance.h"
#include "server/query/compare/loss_diff.h"
#include "server/query/compare/step_order.h"

namespace statcollect::query {
namespace {

// Then a loss that differs was logged after an update, by an evaluation say.
bool OnlyUpdatesDiffer(const std::vector<TensorPair>& pairs) {
  const auto differs_in = [&](auto... stages) {
    return std::any_of(pairs.begin(), pairs.end(), [&](const TensorPair& pair) {
      return pair.distance > 0 && pair.a.def->key.mode != Mode::kEval &&
             ((StageOf(pair.a.def->key) == stages) || ...);
    });
  };
  return differs_in(Stage::kOptimizer) &&
         !differs_in(Stage::kForward, Stage::kBackward, Stage::kGrad);
}

// After the last forward record before the first gradient of its segment and micro-batch.
std::size_t PlaceOfLoss(const std::vector<TensorPair>& pairs, const StepOrder& order,
                        std::uint32_t segment, std::uint32_t micro_batch) {
  std::size_t place = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const TensorKey& key = pairs[i].a.def->key;
    const Stage stage = StageOf(key);
    const std::uint32_t in = order.At(pairs[i].a.order).segment;
    const bool of_gradient = stage == Stage::kBackward && key.micro_batch >= micro_batch;
    if (in > segment || (in == segment && (of_gradient || stage == Stage::kGrad))) break;
    if (stage == Stage::kForward || in < segment) place = i + 1;
  }
  return place;
}

}  // namespace

Status StepPairsReader::Read(std::uint64_t step, StepPairs& to) const {
  const auto [attempt_a, attempt_b] = plan_.stored.at(step);
  STATCOLLECT_ASSIGN_OR_RETURN(auto a, context_.a.Read(attempt_a, ranks_.a, step));
  STATCOLLECT_ASSIGN_OR_RETURN(auto b, context_.b.Read(attempt_b, ranks_.b, step));
  to = {.a = std::move(a), .b = std::move(b)};
  if (context_.losses) {
    const StepBounds only{.first = step, .last = step};
    STATCOLLECT_ASSIGN_OR_RETURN(auto losses_a, context_.a.Scalars(attempt_a, ranks_.a, only));
    STATCOLLECT_ASSIGN_OR_RETURN(auto losses_b, context_.b.Scalars(attempt_b, ranks_.b, only));
    to.losses_a = std::move(losses_a);
    to.losses_b = std::move(losses_b);
  }
  STATCOLLECT_RETURN_IF_ERROR(Pair(step, to));
  to.loss_scales = LossScales::Of(step, to.losses_a, to.losses_b);
  if (const auto ratio = to.loss_scales.Ratio()) DivideGradients(*ratio, to.pairs, to.divided);
  if (order_ == Order::kReport) Arrange(to);
  AddLosses(to);
  return Status::Ok();
}

Status StepPairsReader::Pair(std::uint64_t step, StepPairs& to) const {
  const auto [attempt_a, attempt_b] = plan_.stored.at(step);
  STATCOLLECT_ASSIGN_OR_RETURN(auto a, context_.a.Catalogue(attempt_a, ranks_.a));
  STATCOLLECT_ASSIGN_OR_RETURN(auto b, context_.b.Catalogue(attempt_b, ranks_.b));
  to.paired =
      PairedStep(context_.aligner.For(place_, *a, *b), to.a.observations, to.b.observations);
  to.pairs.reserve(to.paired.pairs().size());
  for (const RecordPair& pair : to.paired.pairs())
    to.pairs.push_back({.a = pair.a, .b = pair.b, .distance = DistanceBetween(pair.a, pair.b)});
  return Status::Ok();
}

void StepPairsReader::Arrange(StepPairs& to) const {
  const StepOrder order(to.a.observations);
  std::vector<std::pair<ReportOrder, TensorPair>> placed;
  placed.reserve(to.pairs.size());
  for (const TensorPair& pair : to.pairs)
    placed.emplace_back(order.PlaceOf(pair.a, ranks_.a), pair);
  std::stable_sort(placed.begin(), placed.end(),
                   [](const auto& x, const auto& y) { return x.first < y.first; });
  std::transform(placed.begin(), placed.end(), to.pairs.begin(),
                 [](const auto& one) { return one.second; });
}

// A loss that differs although only updates differ is placed after those.
void StepPairsReader::AddLosses(StepPairs& to) const {
  std::erase_if(to.losses_a, [](const ScalarRecord& scalar) { return !IsLoss(scalar.name); });
  const StepOrder order(to.a.observations);
  const std::vector<Spot> spots = SpotsOfLosses(to.a.observations, to.losses_a);
  const bool only_updates = OnlyUpdatesDiffer(to.pairs);
  std::map<std::size_t, std::vector<TensorPair>> losses;  // by what they stand before
  const auto counterparts = PairLosses(to.losses_a, to.losses_b);
  for (std::size_t i = 0; i < to.losses_a.size(); ++i) {
    const ScalarRecord& a = to.losses_a[i];
    const ScalarRecord* const b = counterparts[i];
    if (b == nullptr) continue;
    const std::uint32_t segment = spots.empty() ? 0 : spots[i].segment;
    const double value_b = b->value * LossFactor(context_, a.value, b->value);
    const double distance = RelativeDifference(a.value, value_b);
    const bool late = only_updates && distance > 0;
    losses[late ? to.pairs.size() : PlaceOfLoss(to.pairs, order, segment, a.micro_batch)].push_back(
        {.distance = distance,
         .loss = &a.name,
         .loss_a = a.value,
         .loss_b = value_b,
         .loss_micro_batch = a.micro_batch});
  }
  for (auto at = losses.rbegin(); at != losses.rend(); ++at) {
    to.pairs.insert(to.pairs.begin() + static_cast<std::ptrdiff_t>(at->first), at->second.begin(),
                    at->second.end());
  }
}

}  // namespace statcollect::query
