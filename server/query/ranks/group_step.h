// One step of a group of replicas, collected rank by rank.
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

// A rank's tensor that differs from the reference's.
struct MeasuredReplica {
  Comparison comparison;
  std::optional<double> factor;  // times the reference's, if that is all
  std::uint32_t rank = 0;
};

struct GroupStep {
  std::uint64_t step = 0;
  std::size_t attempt = 0, group = 0;
  const Ranks* ranks = nullptr;
  std::vector<bool> recorded;                            // by index of the rank
  std::vector<std::optional<std::uint64_t>> data_parts;  // the same; RankStep::data_part
  std::optional<RankStep> reference;                  // of the first rank that recorded something
  std::vector<std::vector<TensorCell>> cells;         // by index of the rank, then key
  std::map<std::uint32_t, MeasuredReplica> measured;  // by key: the first that differs
};

// Measures distances while the records of two ranks are in memory, and keeps only the reference
// rank's. Not thread-safe.
class GroupCollector {
 public:
  // Borrows all arguments.
  GroupCollector(const RanksRequest& request, const std::vector<Ranks>& groups, KeyTable& keys)
      : request_(request), groups_(groups), keys_(keys) {}

  // Takes the ranks of a group in order. With the last rank it returns the group's step, valid
  // until the next call; otherwise null.
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
