// The distances of one step of a rank, which are added to its tally in one order.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_STEP_DISTANCES_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_STEP_DISTANCES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "server/query/compare/rank_step_diff.h"

namespace statcollect::query {

// Sums depend on their order, by a rounding: this is that of A's blocks, in whichever order they are compared.
class StepDistances {
 public:
  // The distances from here on are of pairs in this block.
  void BeginBlock(std::uint32_t block) {
    sorted_ = sorted_ && (distances_.empty() || distances_.back().block <= block);
    block_ = block;
  }
  void Add(double distance) {  // finite
    if (distance > 0) distances_.push_back({block_, distance});
  }
  // Leaves none here.
  void MoveTo(Tally& tally) {
    if (!sorted_) {
      std::stable_sort(distances_.begin(), distances_.end(),
                       [](const Measured& x, const Measured& y) { return x.block < y.block; });
    }
    for (const Measured& measured : distances_) tally.AddDistance(measured.distance);
    distances_.clear();
    sorted_ = true;
  }

 private:
  struct Measured {
    std::uint32_t block = 0;
    double distance = 0;
  };
  std::vector<Measured> distances_;
  std::uint32_t block_ = 0;
  bool sorted_ = true;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_STEP_DISTANCES_H_
