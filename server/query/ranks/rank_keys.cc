#include "server/query/ranks/rank_keys.h"

#include "common/mix_bits.h"
#include "common/placement.h"

namespace statcollect::query {

TensorRole RoleOf(const TensorKey& key) {
  switch (key.kind) {
    case Kind::kWeight:
      return TensorRole::kWeight;
    case Kind::kOptimizerState:
      return TensorRole::kState;
    case Kind::kWeightGrad:
      return TensorRole::kGradient;
    case Kind::kBatch:
      return TensorRole::kBatch;
    default:
      return TensorRole::kActivation;
  }
}

std::uint64_t PartOf(const TensorKey& key, const Layout& layout, std::uint32_t rank) {
  if (!layout.placement || !IsReplicated(RoleOf(key))) return 0;
  const Placement& place = *layout.placement;
  if (IsWhole(View(place)) && !place.partial) return 0;
  std::uint64_t part = place.partial ? MixBits(rank + 1) : 0;
  for (const auto* numbers : {&place.global_shape, &place.boxes, &place.ranges}) {
    part = MixBits(part + numbers->size() + 1);
    for (const std::int64_t number : *numbers)
      part = MixBits(part ^ static_cast<std::uint64_t>(number));
  }
  return part == 0 ? 1 : part;
}

std::uint32_t KeyTable::Intern(const TensorKey& key, std::uint64_t part,
                               const std::string& class_name) {
  const auto [entry, fresh] = ids_.try_emplace({key, part}, size());
  if (fresh) {
    keys_.push_back({.key = key, .part = part, .class_name = class_name, .role = RoleOf(key)});
    keys_.back().slot = entry->second;
  }
  return entry->second;
}

std::uint32_t KeyTable::IdOf(std::size_t attempt, std::uint32_t rank, const TensorDef& def,
                             const Layout& layout) {
  auto& of_rank = known_[{attempt, rank}];
  if (def.id >= of_rank.size()) of_rank.resize(def.id + 1);
  Known& known = of_rank[def.id];
  if (known.id >= 0 && known.layout == &layout) return static_cast<std::uint32_t>(known.id);
  const std::uint64_t part = PartOf(def.key, layout, rank);
  // Fast path: ranks mostly number their tensors alike.
  if (def.id < newest_.size()) {
    KeyInfo& info = keys_[newest_[def.id]];
    if (info.part == part && info.key == def.key) {
      info.placed = info.placed || layout.placement.has_value();
      known = {.id = newest_[def.id], .layout = &layout};
      return newest_[def.id];
    }
  }
  const std::uint32_t id = Intern(def.key, part, def.class_name);
  if (def.id >= newest_.size()) newest_.resize(def.id + 1, id);
  newest_[def.id] = id;
  keys_[id].placed = keys_[id].placed || layout.placement.has_value();
  const TensorRole role = keys_[id].role;
  if (role == TensorRole::kWeight || role == TensorRole::kState) {
    TensorKey slot = def.key;
    slot.mode = Mode::kTrain;
    slot.call = 0;
    const std::uint32_t slot_id = Intern(slot, part, def.class_name);
    keys_[id].slot = slot_id;
  }
  if (role == TensorRole::kWeight || role == TensorRole::kGradient) {
    TensorKey other = def.key;
    other.kind = role == TensorRole::kWeight ? Kind::kWeightGrad : Kind::kWeight;
    const std::uint32_t other_id = Intern(other, part, def.class_name);
    (role == TensorRole::kWeight ? keys_[id].gradient : keys_[id].weight) = other_id;
  }
  known = {.id = id, .layout = &layout};
  return id;
}

const KeyInfo* KeyTable::Find(const TensorKey& key) const {
  const auto found = ids_.lower_bound({key, 0});
  return found == ids_.end() || found->first.first != key ? nullptr : &keys_[found->second];
}

bool IsCompared(const KeyInfo& info, const ReplicaLayout& layout) {
  if (layout.experts_differ && info.key.name.find("expert") != std::string::npos) return false;
  if (info.placed && IsReplicated(info.role)) return true;
  switch (info.role) {
    case TensorRole::kWeight:
      return !layout.weights_sharded;
    case TensorRole::kState:
      return !layout.state_sharded;
    case TensorRole::kGradient:
      return !layout.gradients_sharded;
    default:
      return false;
  }
}

}  // namespace statcollect::query
