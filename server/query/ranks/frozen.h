// Follows each rank's weights over the steps, and finds those that never change although they have
// a gradient.
#ifndef STATCOLLECT_SERVER_QUERY_RANKS_FROZEN_H_
#define STATCOLLECT_SERVER_QUERY_RANKS_FROZEN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>

#include "server/query/ranks/finding_list.h"
#include "server/query/ranks/group_step.h"

namespace statcollect::query {

class FrozenCheck {
 public:
  FrozenCheck(const KeyTable& keys, FindingList& findings) : keys_(keys), findings_(findings) {}

  // Call it with each rank's steps in ascending order.
  void Follow(const GroupStep& at);
  // Whether the rank's weight had this content in the previous step, as far as it was followed.
  bool Had(std::uint32_t rank, std::uint32_t slot, std::uint64_t hash) const;
  // `steps`: those of the report.
  void Conclude(const std::optional<StepRange>& steps);

 private:
  // A weight of one rank over the steps.
  struct WeightHistory {
    std::uint64_t hash = 0;
    bool seen = false, changed = false;
    std::uint32_t still = 0;  // steps in which it did not change although its gradient was not zero
    std::uint64_t first_still = 0;
    double gradient = 0;  // rms of the gradient in the first of them
  };

  void FollowRank(std::uint64_t step, const std::vector<TensorCell>& cells,
                  std::unordered_map<std::uint32_t, WeightHistory>& histories) const;

  const KeyTable& keys_;
  FindingList& findings_;
  std::map<std::uint32_t, std::unordered_map<std::uint32_t, WeightHistory>>
      weights_;  // by rank, slot
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RANKS_FROZEN_H_
