#include "server/query/verdict/measured_model.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/query/compare/loss_diff.h"

namespace statcollect::query {
namespace {

std::vector<double> NoiseOf(const std::vector<TwinOf>& twins) {
  std::vector<double> ulps;
  ulps.reserve(twins.size());
  for (const TwinOf& twin : twins) ulps.push_back(twin.ulps);
  return ulps;
}

// Of each loss, the twin's value.
std::vector<std::optional<double>> LossesOf(std::span<const TensorPair> pairs,
                                            std::span<const ScalarRecord> of_a,
                                            std::span<const ScalarRecord> of_twin) {
  const auto counterparts = PairLosses(of_a, of_twin);
  std::vector<std::optional<double>> losses(pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    for (std::size_t own = 0; own < of_a.size(); ++own) {
      if (pairs[i].loss == &of_a[own].name && counterparts[own] != nullptr)
        losses[i] = counterparts[own]->value;
    }
  }
  return losses;
}

}  // namespace

MeasuredModel::MeasuredModel(const Twins& twins, std::uint32_t rank, OtherConvolutions convolutions,
                             Others others)
    : twins_(twins),
      rank_(rank),
      others_(std::move(others)),
      rule_(NoiseOf(twins.all()), convolutions) {}

std::map<std::uint64_t, bool> MeasuredModel::StepsFor(const Twins& twins, const DiffPlan& plan,
                                                      const std::set<std::uint64_t>& wanted,
                                                      std::optional<std::uint64_t> last_step) {
  std::vector<std::uint64_t> shared;  // ascending
  for (const auto& [step, attempts] : plan.stored) {
    const auto of_twins = twins.steps().find(step);
    const bool usable = of_twins != twins.steps().end() && of_twins->second == attempts.first;
    if (usable && !(last_step && step > *last_step)) shared.push_back(step);
  }
  std::map<std::uint64_t, bool> steps;
  const auto add = [&](std::uint64_t step) { steps[step] = plan.steps.contains(step); };
  for (std::size_t i = 0; i < std::min(kStepsAtFirst, shared.size()); ++i) add(shared[i]);
  const auto first = std::lower_bound(shared.begin(), shared.end(), *wanted.begin());
  if (first != shared.begin()) add(*std::prev(first));
  std::size_t in_a_row = 0;
  for (auto step = first; step != shared.end() && in_a_row < kStepsInARow; ++step, ++in_a_row)
    add(*step);
  for (const std::uint64_t one : wanted) {
    const auto step = std::lower_bound(shared.begin(), shared.end(), one);
    if (step == shared.end() || *step != one) continue;
    add(one);
    if (step != shared.begin()) add(*std::prev(step));
  }
  for (auto& [step, judged] : steps) judged = judged && step >= *wanted.begin();
  return steps;
}

Result<MeasuredStep> MeasuredModel::Measure(std::uint64_t step, StepPairs& now,
                                            std::vector<Twins::Step>& twins) const {
  twins.resize(twins_.all().size());
  MeasuredStep measured{.pairs = now.pairs};
  for (std::size_t t = 0; t < twins.size(); ++t) {
    STATCOLLECT_RETURN_IF_ERROR(twins_.Read(t, rank_, step, twins[t]));
    std::vector<Observation>& in_place = measured.twins.emplace_back();
    for (const TensorPair& pair : now.pairs) {
      in_place.push_back(pair.loss != nullptr
                             ? Observation()
                             : now.paired.InPlaceOfA(pair.a.def->id, twins[t].by_id));
    }
    measured.losses.push_back(LossesOf(now.pairs, now.losses_a, twins[t].scalars));
  }
  return measured;
}

Result<RankTrail> MeasuredModel::Follow(std::uint64_t step, StepPairs& now) {
  std::vector<Twins::Step> twins;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto measured, Measure(step, now, twins));
  return rule_.Follow(measured);
}

Result<JudgedStep> MeasuredModel::Judge(std::uint64_t step, StepPairs& now) {
  std::vector<Twins::Step> twins;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto measured, Measure(step, now, twins));
  std::vector<const RankTrail*> others;
  if (others_) {
    STATCOLLECT_ASSIGN_OR_RETURN(others, others_(step));
  }
  return rule_.Judge(measured, others);
}

}  // namespace statcollect::query
