#include "server/query/compare/paired_step.h"

#include <utility>

namespace statcollect::query {

PairedStep::PairedStep(const Alignment& alignment, std::span<const Observation> a,
                       std::span<const Observation> b, Kinds kinds)
    : alignment_(&alignment), of_b_(b, alignment.b().activations.size()) {
  const ById of_a(a, alignment.a().activations.size());
  const auto is_asked_for = [&](const TensorDef& def, const ActivationTraits& traits) {
    return kinds == Kinds::kAll ? def.key.kind != Kind::kOperator : traits.wanted;
  };
  PartsOfB parts;
  pairs_.reserve(a.size());
  for (const Observation& seen : a) {
    const std::uint32_t id = seen.def->id;
    const ActivationTraits& traits = alignment.traits_a(id);
    if (!is_asked_for(*seen.def, traits)) continue;
    if (const AlignedGroup* const group = alignment.GroupAt(id)) AddGroup(*group, of_a, parts);
    if (traits.grouped) continue;
    if (const Observation* const other = of_b_.Find(alignment.b_of(id))) {
      pairs_.push_back({.a = seen, .b = *other});
    } else {
      only_a_.push_back({.record = seen});
    }
  }
  for (const AlignedGroup& group : alignment.groups()) {
    const std::uint32_t first = group.a.front();
    if (of_a.Find(first) == nullptr &&
        is_asked_for(alignment.a().activations[first], alignment.traits_a(first)))
      AddGroup(group, of_a, parts);
  }
  std::optional<LoneRecord::Orders> behind;
  for (const Observation& seen : b) {
    const std::uint32_t id = seen.def->id;
    const ActivationTraits& traits = alignment.traits_b(id);
    if (!is_asked_for(*seen.def, traits)) continue;
    if (const Observation* const other = of_a.Find(alignment.a_of(id))) {
      behind = {.a = other->order, .b = seen.order};
    } else if (const auto part = parts.find(id); part != parts.end()) {
      behind = part->second;
    } else if (!traits.grouped) {
      only_b_.push_back({.record = seen, .behind = behind});
    }
  }
}

void PairedStep::AddGroup(const AlignedGroup& group, const ById& of_a, PartsOfB& parts) {
  const auto a = PartsOf(group.a, of_a), b = PartsOf(group.b, of_b_);
  for (const Observation& part : b) {
    auto& behind = parts[part.def->id];
    if (!a.empty()) behind = {.a = a.front().order, .b = part.order};
  }
  if (auto fused = FuseGroup(group, a, b)) {
    const FusedPair& kept = fused_.emplace_back(*std::move(fused));
    pairs_.push_back({.a = kept.a.observation(a.front().order),
                      .b = kept.b.observation(b.front().order),
                      .group = &group});
    return;
  }
  for (const Observation& part : a) only_a_.push_back({.record = part});
  for (const Observation& part : b)
    only_b_.push_back({.record = part, .behind = parts[part.def->id]});
}

Observation PairedStep::InPlaceOfA(std::uint32_t id_a, const ById& others) {
  if (const AlignedGroup* const group = alignment_->GroupAt(id_a)) {
    const auto parts = PartsOf(group->a, others);
    auto fused = FuseGroup(*group, parts, PartsOf(group->b, of_b_));
    return fused ? fused_.emplace_back(*std::move(fused)).a.observation(parts.front().order)
                 : Observation();
  }
  const Observation* const other = others.Find(id_a);
  return other == nullptr ? Observation() : *other;
}

}  // namespace statcollect::query
