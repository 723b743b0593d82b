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

// Which part of a weight, its gradient or its state a rank holds: a number that is equal on ranks
// with the same part. 0: the whole, or no placement says otherwise. A term of a sum is each rank's
// own.
std::uint64_t PartOf(const TensorKey& key, const Layout& layout, std::uint32_t rank);

// One tensor or part of one, over all ranks and attempts.
struct KeyInfo {
  TensorKey key;
  std::uint64_t part = 0;  // PartOf
  bool placed = false;     // a placement says which part it is
  std::string class_name;
  TensorRole role = TensorRole::kActivation;
  std::uint32_t slot =
      0;  // of the same tensor after an update: key without call, with `init` as `train`
  // key of the same name after the update; of its gradient before it
  std::int64_t weight = -1, gradient = -1;
  bool agreed = false;      // all replicas were equal bit for bit in an earlier step
  bool held_alike = false;  // of a slot: the same, as loaded or after an update, and no constant
};

// Not thread-safe.
class KeyTable {
 public:
  // The number of a rank's tensor; assigns numbers to it, its slot and its counterpart if they are
  // new.
  std::uint32_t IdOf(std::size_t attempt, std::uint32_t rank, const TensorDef& def,
                     const Layout& layout);
  // Any part of it. Null if no rank has it.
  const KeyInfo* Find(const TensorKey& key) const;

  std::uint32_t size() const { return static_cast<std::uint32_t>(keys_.size()); }
  KeyInfo& operator[](std::uint32_t id) { return keys_[id]; }
  const KeyInfo& operator[](std::uint32_t id) const { return keys_[id]; }

 private:
  struct Known {  // of a definition
    std::int64_t id = -1;
    const Layout* layout = nullptr;  // the newest, from which the part was found
  };

  std::uint32_t Intern(const TensorKey& key, std::uint64_t part, const std::string& class_name);

  std::map<std::pair<TensorKey, std::uint64_t>, std::uint32_t> ids_;  // with the part
  std::vector<KeyInfo> keys_;
  std::map<std::pair<std::size_t, std::uint32_t>, std::vector<Known>> known_;  // attempt, rank
  std::vector<std::uint32_t> newest_;  // by a definition's id: the last key that IdOf gave to one
};

// Whether ranks that have the tensor must agree on it: it is not an expert, and the configuration
// does not say that it is sharded in a way that no placement tells.
bool IsCompared(const KeyInfo& info, const ReplicaLayout& layout);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RANKS_RANK_KEYS_H_
