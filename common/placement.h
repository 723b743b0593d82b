// Checks where a rank's tensor lies in the logical tensor that several ranks hold together. See
// Placement in common/records.h for what the numbers mean.
#ifndef STATCOLLECT_COMMON_PLACEMENT_H_
#define STATCOLLECT_COMMON_PLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/records.h"
#include "common/status.h"

namespace statcollect {

// Of all boxes or of all ranges: 10,922 boxes of a matrix, 32,768 ranges. Half a MiB on the wire at
// most, so that a batch of 4 MiB has room for any definition.
inline constexpr std::size_t kPlacementNumbersMax = std::size_t{1} << 16;

// A Placement that borrows its numbers.
struct PlacementView {
  std::span<const std::int64_t> global_shape;
  std::span<const std::int64_t>
      boxes;  // for each box: its offset, then its size, in each dimension
  std::span<const std::int64_t>
      ranges;  // for each range: start, stop; they follow each other in the shard
  bool partial = false;
  std::uint32_t piece = 0, pieces = 1;
  std::uint32_t unordered = 0;
};

PlacementView View(const Placement& placement);  // must not outlive it
Placement Copy(const PlacementView& view);
bool Matches(const Placement& placement, const PlacementView& view);

// kInvalidArgument, with shape, box and rule: a shard of this shape does not fit the placement,
// boxes or ranges leave the tensor or overlap, numbers are negative or too many, an unordered
// dimension has a place. Cost: n log n of boxes or ranges.
Status CheckPlacement(std::span<const std::int64_t> shape, const PlacementView& placement);

// Whether each element of the shard has the same index in the logical tensor: hash and sketch are
// then those of the shard without a placement. Safe for any numbers, but without meaning if
// CheckPlacement is not OK. Cost: a few comparisons for each box or range.
bool IsWhole(const PlacementView& placement);

// The dimension in which boxes differ; the first if there is one box. kDimsMax: they differ in
// several.
std::size_t JoinedDimension(const PlacementView& placement);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_PLACEMENT_H_
