// Finds ranks of two runs that hold the same weights although the runs have different numbers of
// ranks.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_MERGE_RANKS_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_MERGE_RANKS_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "common/types.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// A rank of A and the rank of B that it is compared with.
struct RankPair {
  std::uint32_t a = 0, b = 0;
  bool operator==(const RankPair&) const = default;
};

struct MergedRanks {
  std::vector<RankPair>
      pairs;  // by A's rank, then B's; every rank of both runs is in at least one pair
  std::array<bool, kKindCount>
      replicated{};  // kinds that replicas have in common; weights unless sharded
  std::vector<std::string> notes;
  std::string incomparable;  // why no ranks correspond; empty: `pairs` do
};

// Attempts of A and B, by step.
using StepAttempts = std::map<std::uint64_t, std::pair<std::size_t, std::size_t>>;

// The replicas that each run's configuration states (replicas.h), confirmed by the weights in the
// first of `steps` that has some: in each group, at least half of the elements of every rank's
// weights must equal the first rank's. Gradients that differ between ranks because they are reduced
// within the optimizer count as not replicated. Reads at most one step of each rank.
Result<MergedRanks> MergeRanks(RunView& a, RunView& b, const StepAttempts& steps);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_MERGE_RANKS_H_
