// One step of a group of replicas, put together rank by rank.
#ifndef STATCOLLECT_SERVER_QUERY_RANKS_GROUP_STEP_H_
#define STATCOLLECT_SERVER_QUERY_RANKS_GROUP_STEP_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "server/query/compare/distance.h"
#include "server/query/compare/replicas.h"
#include "server/query/ranks/rank_keys.h"
#include "server/query/ranks/ranks.h"
#include "server/query/ranks/scan.h"

namespace statcollect::query {

struct GroupStep {
  std::uint64_t step = 0;
  std::size_t attempt = 0, group = 0;
  const Ranks* ranks = nullptr;
  std::vector<bool> recorded;                    // by rank's index
  std::optional<RankStep> reference;             // of the first that recorded something
  std::vector<std::vector<TensorCell>> cells;    // by rank's index, by key
  std::map<std::uint32_t, Comparison> measured;  // by key: a rank that differs from the reference
};

// Measures distances while two ranks' records are at hand, and keeps only the reference rank's. Not
// thread-safe.
class GroupCollector {
 public:
  // Borrows all of them.
  GroupCollector(const RanksRequest& request, const std::vector<Ranks>& groups, KeyTable& keys)
      : request_(request), groups_(groups), keys_(keys) {}

  // The ranks of a group in their order. Returns the group's step with its last rank, otherwise null; it is
  // valid until the next call.
  const GroupStep* Add(RankStep& read);

 private:
  bool Wanted(Kind kind) const;
  void Take(const RankStep& read);
  void Measure(const RankStep& read);

  const RanksRequest& request_;
  const std::vector<Ranks>& groups_;
  KeyTable& keys_;
  GroupStep at_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RANKS_GROUP_STEP_H_
