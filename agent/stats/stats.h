// Statistics of one tensor: definitions, and the engine that computes them.
//
// Elements are taken in logical row-major order, whatever the strides. Complex tensors are taken as twice as
// many real components (real, imaginary, real, ...). Integers and bools are converted to float64 first (|x| >
// 2^53 is rounded).
//
//   nan, pos_inf, neg_inf   elements
//   zero, neg, pos          == 0 (-0 too), finite < 0, finite > 0; nan + pos_inf + neg_inf + zero + neg + pos
//   == components min .. l2               over the finite components; no value if there are none. std is the
//   population value:
//                           sqrt(sum((x - mean)^2) / n). Combined over chunks after Chan, Golub, LeVeque
//                           (1983).
//   hash                    see accumulate.h: sum modulo 2^64 over groups of 16 components
//   sketch                  see accumulate.h: k signed sums over groups of 16 components (a count-sketch of
//   the groups,
//                           Charikar, Chen, Farach-Colton 2002, with a sign for each element)
//
// Determinism: components are cut into chunks of a fixed size; each chunk is reduced in a fixed order and
// chunks are combined in index order (cpu/kernels.h, cpu/engine.h), so that a result does not depend on
// threads, strides or instruction set.
#ifndef STATCOLLECT_AGENT_STATS_STATS_H_
#define STATCOLLECT_AGENT_STATS_STATS_H_

#include <cstdint>
#include <span>

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

// Checks pointer, dtype, shape, strides without touching the data. kInvalidArgument: null data with elements,
// unknown dtype, negative size, strides of another length than shape, element count beyond 2^62, data not
// aligned to the element.
Status Validate(const CpuTensor& tensor);

class CpuWorkers;

// One pass over the data. `sketch` has k = 0, 16, 32 or 64 entries and is overwritten; `samples` receives the
// first min(samples.size(), components) components; returns how many in *samples_written. `workers` (may be
// null) share the work on tensors of several stripes (cpu/engine.h). Cost: one read of the tensor, no
// allocation. Precondition: Validate(tensor) is OK.
TensorStats ComputeCpu(const CpuTensor& tensor, std::span<double> sketch, std::span<double> samples,
                       std::uint32_t* samples_written, CpuWorkers* workers = nullptr) noexcept;

// Copies the first `elements` elements, in row-major order, as they lie in memory. Precondition:
// Validate(tensor) is OK; it has as many.
void CopyElements(const CpuTensor& tensor, std::uint64_t elements, void* to) noexcept;

// Binary exponents floor(log2(|x|)) of the finite components that are not 0: counts[e - lowest] of exponent
// e; the first and the last count take what lies beyond them. float64 reaches from -1074 to 1023. A pass of
// its own, at about 2 ns a component: for whoever asks. Precondition: Validate(tensor) is OK.
void CountExponents(const CpuTensor& tensor, int lowest, std::span<std::uint64_t> counts) noexcept;

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_STATS_H_
