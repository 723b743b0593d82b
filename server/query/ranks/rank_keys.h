// Numbers the tensors of all ranks and attempts of a check, and maps gradients to their weights.
#ifndef STATCOLLECT_SERVER_QUERY_RANKS_RANK_KEYS_H_
#define STATCOLLECT_SERVER_QUERY_RANKS_RANK_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/records.h"
#include "server/query/compare/replicas.h"

namespace statcollect::query {

// The role of a kind in the check. Replicas must agree on roles up to kGradient.
enum class TensorRole : std::uint8_t { kWeight, kState, kGradient, kBatch, kActivation };

TensorRole RoleOf(const TensorKey& key);
inline bool IsReplicated(TensorRole role) { return role <= TensorRole::kGradient; }

// One tensor, over all ranks and attempts.
struct KeyInfo {
  TensorKey key;
  std::string class_name;
  TensorRole role = TensorRole::kActivation;
  std::uint32_t slot = 0;  // of the same tensor after an update: key without call, with `init` as `train`
  // key of the same name after the update; of its gradient before it
  std::int64_t weight = -1, gradient = -1;
  bool agreed = false;  // all replicas were equal bit for bit in an earlier step
};

// Not thread-safe.
class KeyTable {
 public:
  // The number of a rank's tensor; assigns numbers to it, its slot and its counterpart if they are new.
  std::uint32_t IdOf(std::size_t attempt, std::uint32_t rank, const TensorDef& def);
  // Null if no rank has it.
  const KeyInfo* Find(const TensorKey& key) const;

  std::uint32_t size() const { return static_cast<std::uint32_t>(keys_.size()); }
  KeyInfo& operator[](std::uint32_t id) { return keys_[id]; }
  const KeyInfo& operator[](std::uint32_t id) const { return keys_[id]; }

 private:
  std::uint32_t Intern(const TensorKey& key, const std::string& class_name);

  std::map<TensorKey, std::uint32_t> ids_;
  std::vector<KeyInfo> keys_;
  std::map<std::pair<std::size_t, std::uint32_t>, std::vector<std::int64_t>> id_of_def_;  // attempt, rank
};

// Whether replicas must agree on the tensor: it is neither sharded nor an expert.
bool IsCompared(const KeyInfo& info, const ReplicaLayout& layout);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RANKS_RANK_KEYS_H_
