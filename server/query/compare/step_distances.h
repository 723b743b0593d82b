// The distances of one step of a rank, which are added to its tally in one order.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_STEP_DISTANCES_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_STEP_DISTANCES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "server/query/compare/rank_step_diff.h"

namespace statcollect::query {

// Rounding makes a sum depend on its order, so distances are added in the order of A's blocks,
// whichever are compared first.
class StepDistances {
 public:
  // Distances from here on belong to pairs in this block.
  void BeginBlock(std::uint32_t block) {
    if (!blocks_.empty() && blocks_.back().first == distances_.size()) blocks_.pop_back();
    sorted_ = sorted_ && (blocks_.empty() || blocks_.back().number <= block);
    blocks_.push_back({block, distances_.size()});
  }
  void Add(double distance) {  // finite
    if (distance > 0) distances_.push_back(distance);
  }
  // Leaves this empty.
  void MoveTo(Tally& tally) {
    if (sorted_) {
      tally.AddDistances(distances_);
    } else {
      AddInOrder(tally);
    }
    blocks_.clear();
    distances_.clear();
    sorted_ = true;
  }

 private:
  struct Block {
    std::uint32_t number = 0;
    std::size_t first = 0;  // of its distances
  };
  void AddInOrder(Tally& tally) {
    blocks_.push_back({~std::uint32_t{0}, distances_.size()});
    std::vector<std::pair<std::uint32_t, std::span<const double>>> parts;
    for (std::size_t i = 0; i + 1 < blocks_.size(); ++i)
      parts.emplace_back(
          blocks_[i].number,
          std::span(distances_).subspan(blocks_[i].first, blocks_[i + 1].first - blocks_[i].first));
    std::stable_sort(parts.begin(), parts.end(),
                     [](const auto& x, const auto& y) { return x.first < y.first; });
    for (const auto& [number, distances] : parts) tally.AddDistances(distances);
  }

  std::vector<Block> blocks_;
  std::vector<double> distances_;
  bool sorted_ = true;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_STEP_DISTANCES_H_
