#include "server/query/ranks/rank_keys.h"

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

std::uint32_t KeyTable::Intern(const TensorKey& key, const std::string& class_name) {
  const auto [entry, fresh] = ids_.try_emplace(key, size());
  if (fresh) {
    keys_.push_back({.key = key, .class_name = class_name, .role = RoleOf(key)});
    keys_.back().slot = entry->second;
  }
  return entry->second;
}

std::uint32_t KeyTable::IdOf(std::size_t attempt, std::uint32_t rank, const TensorDef& def) {
  auto& known = id_of_def_[{attempt, rank}];
  if (def.id >= known.size()) known.resize(def.id + 1, -1);
  if (known[def.id] >= 0) return static_cast<std::uint32_t>(known[def.id]);
  const std::uint32_t id = Intern(def.key, def.class_name);
  const TensorRole role = keys_[id].role;
  if (role == TensorRole::kWeight || role == TensorRole::kState) {
    TensorKey slot = def.key;
    slot.mode = Mode::kTrain;
    slot.call = 0;
    const std::uint32_t slot_id = Intern(slot, def.class_name);
    keys_[id].slot = slot_id;
  }
  if (role == TensorRole::kWeight || role == TensorRole::kGradient) {
    TensorKey other = def.key;
    other.kind = role == TensorRole::kWeight ? Kind::kWeightGrad : Kind::kWeight;
    const std::uint32_t other_id = Intern(other, def.class_name);
    (role == TensorRole::kWeight ? keys_[id].gradient : keys_[id].weight) = other_id;
  }
  known[def.id] = id;
  return id;
}

const KeyInfo* KeyTable::Find(const TensorKey& key) const {
  const auto found = ids_.find(key);
  return found == ids_.end() ? nullptr : &keys_[found->second];
}

bool IsCompared(const KeyInfo& info, const ReplicaLayout& layout) {
  if (layout.experts_differ && info.key.name.find("expert") != std::string::npos) return false;
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
