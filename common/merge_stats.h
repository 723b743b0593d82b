// Statistics of a logical tensor from those of its shards.
#ifndef STATCOLLECT_COMMON_MERGE_STATS_H_
#define STATCOLLECT_COMMON_MERGE_STATS_H_

#include <span>

#include "common/records.h"

namespace statcollect {

// Adds the shard `b` to `a`, in any order: numel, counts, hash, min and max exactly, the moments to
// rounding. An empty TensorStats changes nothing. Precondition: the shards do not overlap, and were
// computed with their placements in the same logical tensor.
void Merge(TensorStats& a, const TensorStats& b) noexcept;

// Adds the sums of a sketch. Precondition: equal widths.
void MergeSketch(std::span<double> a, std::span<const double> b) noexcept;

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_MERGE_STATS_H_
