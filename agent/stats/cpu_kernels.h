// Inner loops of the CPU engine, one set for each instruction set; internal to agent/stats. All sets give the
// same bits.
#ifndef STATCOLLECT_AGENT_STATS_CPU_KERNELS_H_
#define STATCOLLECT_AGENT_STATS_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "agent/stats/accumulate.h"
#include "common/types.h"

namespace statcollect::stats {

// A chunk is walked in blocks that stay in the first-level cache over the passes made on each.
inline constexpr std::size_t kBlockComponents = 2048;
static_assert(kChunkComponents % kBlockComponents == 0 && kBlockComponents % kLanes == 0);

// Accumulators of one chunk.
struct ChunkState {
  std::uint64_t components = 0;
  std::uint64_t nan = 0, pos_inf = 0, neg_inf = 0, zero = 0, neg = 0;
  double min, max;         // meaningless while finite() == 0
  bool has_shift = false;  // `shift` is set by the first block that has a finite component
  double shift = 0;        // s, unscaled
  int level = 0;
  std::uint64_t hash = 0;
  ChunkLanes lanes;
  std::uint32_t sketch_width = 0;
  double sketch[kSketchSums][kLanes];  // first sketch_width rows used

  std::uint64_t finite() const { return components - nan - pos_inf - neg_inf; }
};

// `components` consecutive components at `data`, at most kBlockComponents; a multiple of kLanes unless they
// end the shard. `first_group`: global number of the first group.
using BlockFunction = void (*)(const void* data, std::size_t components, std::uint64_t first_group,
                               ChunkState& state);

struct CpuKernels {
  BlockFunction add[kDTypeCount];  // everything, at level 0; null for kUnspecified
  // Moments and sketch again, at state.level; for float64 components only. The rest of the state stays.
  BlockFunction add_scaled;
};

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

// Null if this build or this processor has not got the set; kBaseline is always there.
const CpuKernels* KernelsFor(InstructionSet set);
// The fastest there is.
const CpuKernels& BestKernels();

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_CPU_KERNELS_H_
