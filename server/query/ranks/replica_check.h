// Checks whether replicas agree on weights, gradients and optimizer state.
#ifndef STATCOLLECT_SERVER_QUERY_RANKS_REPLICA_CHECK_H_
#define STATCOLLECT_SERVER_QUERY_RANKS_REPLICA_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/query/compare/replicas.h"
#include "server/query/ranks/finding_list.h"
#include "server/query/ranks/frozen.h"
#include "server/query/ranks/group_step.h"

namespace statcollect::query {

class ReplicaCheck {
 public:
  // Borrows all arguments. `weights` must not have followed a step before that step has been
  // checked here.
  ReplicaCheck(const RanksRequest& request, const ReplicaLayout& layout, const FrozenCheck& weights,
               KeyTable& keys, FindingList& findings)
      : request_(request), layout_(layout), weights_(weights), keys_(keys), findings_(findings) {}

  void Check(const GroupStep& at);
  // Call once, at the end. If nothing was ever equal on two ranks, they are not replicas: withdraws
  // its findings and returns what to do instead; otherwise empty.
  std::string Conclude(std::uint32_t world_size);

  const Compared& compared() const {
    return compared_;
  }  // tensors of a rank, each against its replicas

 private:
  // The ranks that differ in a tensor, and from which.
  struct OddRanks {
    Ranks ranks, others;
    bool outvoted = false;
  };
  // The values of a tensor on all ranks of a group.
  struct Consensus {
    const TensorCell* first = nullptr;
    std::uint64_t present = 0;  // ranks that have it
    bool equal = true, same_bits = true, same_layout = true;
  };

  std::vector<std::uint32_t> ComparedKeys(const GroupStep& at, bool* mostly_equal) const;
  Consensus ConsensusOf(std::uint32_t id, bool bits, const GroupStep& at) const;
  void CompareKey(std::uint32_t id, bool bits, const GroupStep& at);
  void TakeEqual(const Consensus& found, KeyInfo& info, std::uint64_t step);
  void AddDifference(std::uint32_t id, bool bits, const Consensus& found, const OddRanks& odd,
                     const GroupStep& at);
  OddRanks FindOdd(std::uint32_t id, bool bits, const GroupStep& at) const;
  OddRanks WhoKeptOld(std::uint32_t id, const GroupStep& at) const;
  bool IsExcused(std::uint32_t id, const GroupStep& at) const;
  bool AreReplicas(std::uint32_t id) const;

  const RanksRequest& request_;
  const ReplicaLayout& layout_;
  const FrozenCheck& weights_;
  KeyTable& keys_;
  FindingList& findings_;
  Compared compared_;
  std::map<std::size_t, OddRanks> known_odd_;  // by group, as of its first conclusive difference
  std::uint64_t equal_varied_ = 0, differences_ = 0;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RANKS_REPLICA_CHECK_H_
