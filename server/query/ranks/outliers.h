// Finds activations whose norm on one rank is far from that of its peers, step after step.
#ifndef STATCOLLECT_SERVER_QUERY_RANKS_OUTLIERS_H_
#define STATCOLLECT_SERVER_QUERY_RANKS_OUTLIERS_H_

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/query/ranks/finding_list.h"
#include "server/query/ranks/group_step.h"

namespace statcollect::query {

class OutlierCheck {
 public:
  OutlierCheck(const KeyTable& keys, FindingList& findings) : keys_(keys), findings_(findings) {}

  void Check(const GroupStep& at);
  // Reports only outliers that last.
  void Conclude(const std::vector<Ranks>& groups);

 private:
  struct History {
    std::uint64_t first_step = 0, hits = 0, first_checked = 0;
    double value = 0, median = 0;
    TensorCell cell;  // of the first of these steps
  };
  // The logarithms of a tensor's norms on all ranks.
  struct Norms {
    std::uint32_t id = 0;
    double median = 0, spread = 0;
  };

  std::map<Kind, std::vector<Norms>> NormsOf(const GroupStep& at) const;
  void TakeHits(const Norms& norms, double limit, const GroupStep& at);

  const KeyTable& keys_;
  FindingList& findings_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, History> outliers_;  // by rank, key
  std::unordered_map<std::uint32_t, std::uint64_t> checked_steps_;       // by key
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RANKS_OUTLIERS_H_
