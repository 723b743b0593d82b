// The CPU engine in parts: ranges of a tensor, shards of a larger tensor, and a chosen instruction
// set. ComputeCpu of stats.h is the whole tensor in one call.
#ifndef STATCOLLECT_AGENT_STATS_CPU_ENGINE_H_
#define STATCOLLECT_AGENT_STATS_CPU_ENGINE_H_

#include <cstdint>
#include <span>

#include "agent/stats/accumulate.h"
#include "agent/stats/cpu/kernels.h"
#include "agent/stats/cpu/workers.h"
#include "agent/stats/placement.h"
#include "agent/stats/stats.h"

namespace statcollect::stats {

// Elements of a tensor, complex ones twice.
std::uint64_t ComponentCount(const CpuTensor& tensor) noexcept;

// Components [begin, begin + count) of a tensor whose component 0 has the global index `first`;
// with `runs`, those say what index each component has.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
  std::uint64_t first = 0;
  const PlacementRuns* runs = nullptr;
};

// Chunks are appended to a stripe of kStripeComponents, stripes to the tensor, both in index order.
inline constexpr std::uint64_t kStripeComponents = 16 * kChunkComponents;

// Appends the range to `partial`, whose sketch has `sketch_width` sums (0, 16, 32, 64).
// Preconditions: Validate(tensor) is OK; the range lies in the tensor, in whole elements; begin is
// a multiple of kStripeComponents if the moments must equal those of one call over everything bit
// by bit. `workers`, if not null, share the work of several stripes; they change no bit. Any
// floating-point environment; it is as before on return. Cost: one read of each chunk that lies in
// blocks of the tensor, from its first component on; of others a second look at each block in the
// first-level cache. No allocation.
void Accumulate(const CpuTensor& tensor, const Range& range, std::uint32_t sketch_width,
                const CpuKernels& kernels, Partial& partial,
                CpuWorkers* workers = nullptr) noexcept;

// What has been accumulated, for a tensor of `numel` elements. `sketch` is overwritten.
TensorStats Finished(const Partial& partial, std::uint64_t numel,
                     std::span<double> sketch) noexcept;

// First components of the tensor as float64; returns how many.
std::uint32_t CopySamples(const CpuTensor& tensor, std::span<double> samples) noexcept;

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_CPU_ENGINE_H_
