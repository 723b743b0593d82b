// Which ranks of a run hold the same weights: read from the parallel layout in its configuration.
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
  std::vector<Ranks> groups;  // every rank in one of them; ranks of a group are replicas of each other
  std::vector<std::array<std::uint32_t, 2>> places;  // of each group: tensor and pipeline parallel rank
  bool stated = false;  // the configuration says so; otherwise all ranks are taken as replicas
  bool weights_sharded = false, gradients_sharded = false, state_sharded = false;
  bool experts_differ = false;     // names with "expert" are not the same on the ranks of a group
  std::vector<std::string> notes;  // what was read where, and what could not be used
};

// `configs`: of each rank, its own. Understood, by the last component of a key in any case (docs/ranks.md):
//   tp_rank, pp_rank, ... of every rank: ranks with equal ones (dp and cp aside) are replicas
//   tp, pp, cp, dp sizes: ranks numbered tp fastest, then cp, dp, pp
//   fsdp, sharding_strategy, zero_stage, distributed_optimizer: what is sharded over the replicas
ReplicaLayout FindReplicas(const std::map<std::uint32_t, std::map<std::string, std::string>>& configs,
                           std::uint32_t world_size);

// Of the newest configuration of each of a run's ranks.
ReplicaLayout FindReplicas(const RunView& view);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_REPLICAS_H_
