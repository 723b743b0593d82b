// Statistics of one tensor: definitions, and the engine that computes them.
//
// Elements are read in logical row-major order, whatever the strides. A complex element is two
// components (real, imaginary). Integers and bools are converted to float64 first, so |x| > 2^53 is
// rounded.
//
//   nan, pos_inf, neg_inf   number of such elements
//   zero, neg, pos          number of elements that are 0 (or -0), finite and < 0, finite and > 0.
//                           nan + pos_inf + neg_inf + zero + neg + pos == components
//   min .. l2               over the finite components; no value if there are none. std is that of
//   the
//                           population: sqrt(sum((x - mean)^2) / n). Chunks are combined as in
//                           Chan, Golub, LeVeque (1983).
//   hash, sketch            see fingerprint.h: sums over components, which add up over shards
//
// Determinism: components are split into chunks of a fixed size, each chunk is reduced in a fixed
// order, and chunks are combined in index order (cpu/kernels.h, cpu/engine.h). Results therefore do
// not depend on threads, strides or instruction set.
#ifndef STATCOLLECT_AGENT_STATS_STATS_H_
#define STATCOLLECT_AGENT_STATS_STATS_H_

#include <cstdint>
#include <span>

#include "common/placement.h"
#include "common/records.h"
#include "common/status.h"

namespace statcollect::stats {

// Borrowed view of a CPU tensor. Strides in elements; empty strides: contiguous row-major.
struct CpuTensor {
  const void* data = nullptr;
  DType dtype = DType::kUnspecified;
  std::span<const std::int64_t> shape;
  std::span<const std::int64_t> strides;
};

// Checks pointer, dtype, shape and strides without reading the data. kInvalidArgument: null data
// with elements, unknown dtype, negative size, different lengths of strides and shape, more than
// 2^62 elements, data not aligned to the element.
Status Validate(const CpuTensor& tensor);

// Where a shard lies in a logical tensor, whose statistics are what those of its shards add up to:
// counts, min, max and hash exactly, sketch and moments to rounding (merge.h). With boxes, or with
// ranges of the flattened tensor, or (without both) the whole. Several boxes are equal but in one
// dimension, along which they follow each other in the shard: context parallelism's zigzag.
// Borrowed.
using Placement = PlacementView;

// Also checks that the shard's shape and the placement fit each other, and that nothing overlaps.
// Cost: n log n of boxes or ranges.
Status Validate(const CpuTensor& tensor, const Placement& placement);

class CpuWorkers;

// Computes everything in one pass, without allocation. `sketch` has k = 0, 16, 32 or 64 entries and
// is overwritten; `samples` receives the first min(samples.size(), components) components, and
// *samples_written their number. `workers` (may be null) share the work on tensors of several
// stripes (cpu/engine.h). `placement` (null: the tensor is the whole) decides where hash and sketch
// take the components. Precondition: Validate(tensor) or Validate(tensor, *placement) is OK.
TensorStats ComputeCpu(const CpuTensor& tensor, std::span<double> sketch, std::span<double> samples,
                       std::uint32_t* samples_written, CpuWorkers* workers = nullptr,
                       const Placement* placement = nullptr) noexcept;

// Copies the first `elements` elements bit by bit, in row-major order. Precondition:
// Validate(tensor) is OK, and it has at least that many.
void CopyElements(const CpuTensor& tensor, std::uint64_t elements, void* to) noexcept;

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_STATS_H_
