// Reads from a run's configuration which ranks hold the same weights.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_REPLICAS_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_REPLICAS_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace statcollect::query {

class RunView;

using Ranks = std::vector<std::uint32_t>;  // ascending

struct ReplicaLayout {
  std::vector<Ranks> groups;  // contains every rank; ranks of a group are replicas of each other
  std::vector<std::array<std::uint32_t, 2>>
      places;  // tensor and pipeline parallel rank of each group
  bool stated =
      false;  // stated by the configuration; otherwise all ranks are assumed to be replicas
  bool weights_sharded = false, gradients_sharded = false, state_sharded = false;
  bool experts_differ =
      false;  // tensors with "expert" in their name differ between the ranks of a group
  std::vector<std::string> notes;  // what was read, and what could not be used
  std::vector<std::string>
      sharded;  // what says that something is sharded: a sentence for each setting
};

// `configs`: each rank's own. Recognised by the last component of a key, in any case
// (docs/ranks.md):
//   tp_rank, pp_rank, ... of every rank: ranks with equal ones (except dp and cp) are replicas
//   tp, pp, cp, dp sizes: ranks are numbered tp fastest, then cp, dp, pp
//   fsdp, sharding_strategy, zero_stage, distributed_optimizer: what is sharded over the replicas
ReplicaLayout FindReplicas(
    const std::map<std::uint32_t, std::map<std::string, std::string>>& configs,
    std::uint32_t world_size);

// From the newest configuration of each of the run's ranks.
ReplicaLayout FindReplicas(const RunView& view);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_REPLICAS_H_
