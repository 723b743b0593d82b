// Where the elements of a shard lie in the logical tensor; internal to agent/stats.
#ifndef STATCOLLECT_AGENT_STATS_PLACEMENT_H_
#define STATCOLLECT_AGENT_STATS_PLACEMENT_H_

#include <cstdint>
#include <span>

#include "agent/stats/stats.h"

namespace statcollect::stats {

// Elements that follow each other both in the shard and in the logical tensor.
struct ElementRun {
  std::uint64_t first = 0;  // index in the logical tensor
  std::uint64_t count = 0;
  // Runs of `row` elements that follow this one in the shard, each `stride` further in the logical
  // tensor.
  std::uint64_t rows = 0, row = 0, stride = 0;  // stride 0: in an unordered dimension
};

// The runs of a shard. Copies nothing: the placement must outlive it. Threads: any.
class PlacementRuns {
 public:
  // Precondition: Validate(tensor, placement) is OK.
  PlacementRuns(const CpuTensor& tensor, const Placement& placement) noexcept;

  // What follows from the shard's element `element` on (below its number of elements), to the run's
  // end. Cost: a few divisions for each dimension, and a step for each box or range.
  ElementRun At(std::uint64_t element) const noexcept;

 private:
  ElementRun InBoxes(std::uint64_t element) const noexcept;
  ElementRun InRanges(std::uint64_t element) const noexcept;
  std::uint64_t BoxOffset(std::size_t box, std::size_t dim) const noexcept;
  std::uint64_t BoxSize(std::size_t box, std::size_t dim) const noexcept;
  // Place in the logical tensor of `place` along the joined dimension, and how far it is to its
  // box's end.
  ElementRun AlongJoined(std::uint64_t place) const noexcept;

  const Placement& placement_;
  const std::span<const std::int64_t> shape_;  // of the shard
  const std::size_t dims_;
  const std::size_t boxes_;
  const std::size_t unordered_;  // dimension; kDimsMax or more: none
  std::size_t joined_ =
      0;  // dimension along which the boxes follow each other, if there are several
  std::size_t run_dim_ = 0;  // all dimensions behind it are whole
  std::uint64_t inner_ = 1;  // elements of those
};

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_PLACEMENT_H_
