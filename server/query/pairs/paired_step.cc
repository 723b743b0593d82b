#include "server/query/pairs/paired_step.h"

namespace statcollect::query {

ById IndexById(const StepData& step, std::size_t size) {
  ById all(size, nullptr);
  for (const Observation& seen : step.observations) all[seen.def->id] = &seen;
  return all;
}

PairedStep::PairedStep(const StepData& a, const StepData& b, const Alignment& alignment)
    : alignment_(&alignment), of_b_(IndexById(b, alignment.b().activations.size())) {
  const ById of_a = IndexById(a, alignment.a().activations.size());
  const auto add = [&](const Observation& x, const Observation& y) {
    pairs_.push_back({.a = x, .b = y, .distance = DistanceBetween(x, y)});
  };
  pairs_.reserve(a.observations.size());
  for (const Observation& seen : a.observations) {
    const ActivationTraits& traits = alignment.traits_a(seen.def->id);
    if (const AlignedGroup* const group = alignment.GroupAt(seen.def->id)) {
      const auto parts_a = PartsOf(group->a, of_a), parts_b = PartsOf(group->b, of_b_);
      if (parts_a.size() < group->a.size() || parts_b.size() < group->b.size()) continue;
      const FusedPair& fused = fused_.emplace_back(Fuse(group->relation, parts_a, parts_b));
      add(fused.a.observation(seen.order), fused.b.observation(parts_b.front().order));
      continue;
    }
    const std::uint32_t other = alignment.b_of(seen.def->id);
    if (traits.grouped || other == Alignment::kNone || of_b_[other] == nullptr) continue;
    add(seen, *of_b_[other]);
  }
}

std::vector<Observation> PairedStep::InPlaceOfA(std::span<const TensorPair> pairs,
                                                const ById& others) {
  std::vector<Observation> found;
  found.reserve(pairs.size());
  for (const TensorPair& pair : pairs) {
    Observation& other = found.emplace_back();
    if (pair.loss != nullptr) continue;
    const std::uint32_t id = pair.a.def->id;
    if (const AlignedGroup* const group = alignment_->GroupAt(id)) {
      const auto parts = PartsOf(group->a, others);
      if (parts.size() < group->a.size()) continue;
      const FusedPair& fused =
          fused_.emplace_back(Fuse(group->relation, parts, PartsOf(group->b, of_b_)));
      other = fused.a.observation(parts.front().order);
    } else if (others[id] != nullptr) {
      other = *others[id];
    }
  }
  return found;
}

}  // namespace statcollect::query
