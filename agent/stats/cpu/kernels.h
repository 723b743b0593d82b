// Inner loops of the CPU engine, one set for each instruction set; internal to agent/stats. All sets give the
// same bits.
#ifndef STATCOLLECT_AGENT_STATS_CPU_KERNELS_H_
#define STATCOLLECT_AGENT_STATS_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "agent/stats/accumulate.h"
#include "common/types.h"

namespace statcollect::stats {

// A chunk is walked in blocks, which stay in the second-level cache if they have to be gathered.
inline constexpr std::size_t kBlockComponents = 2048;
static_assert(kChunkComponents % kBlockComponents == 0 && kBlockComponents % kLanes == 0);

// ORDER OF SUMMATION. Chunks of kChunkComponents components, counted from the shard's start; component i of
// a chunk belongs to lane i % 16. Lanes are combined in the order 0 .. 15, chunks in index order.
//
// float32 path (f16 bf16 f8 f32 i8 i16 u8 u16 bool): a chunk is cut into spans of kSpanComponents, a
// shorter last one once more at its last multiple of kChains * 16. In a span,
// each lane has kChains sums in float32, group g in chain g % kChains, in order; chains are added as (0 + 1)
// + (2 + 3) and the result, rounded at most 10 times, is added to the lane's float64 total. sum(x), sum(|x|),
// and sum(x^2) by fused multiply-add. Sketch sums are kept in float32 for each lane of the chunk, then added
// in float64, lane i with lane i + 8, then i + 4, i + 2, i + 1.
//   If sum(x^2) > kCondition * sum((x - mean)^2), the deviations are summed again about s = float32(mean).
//   If a component is not finite, a sum is not, or all magnitudes are below kNarrowMagnitudeMin, the chunk is
//   summed again on the float64 path.
//
// float64 path (f64 i32 i64 u32 u64): with s the chunk's first finite component and over finite components
// only, each lane sums x - s, (x - s)^2, |x| and x^2 in index order, products rounded before they are added.
// As s is one of the values, the cancellation in sum((x-s)^2) - sum(x-s)^2/n costs at most a factor n <=
// 16384 of float64's precision. Sketch sums are kept for each lane and added in the order 0 .. 15.
inline constexpr std::size_t kSpanComponents = 512;
inline constexpr int kChains = 4;
inline constexpr double kCondition = 5;
inline constexpr double kNarrowMagnitudeMin = 0x1p-40;
static_assert(kBlockComponents % kSpanComponents == 0 && kSpanComponents % (kChains * kLanes) == 0);

// Accumulators of one chunk.
struct ChunkState {
  std::uint64_t components = 0;
  std::uint64_t nan = 0, pos_inf = 0, neg_inf = 0, zero = 0, neg = 0;
  double min = __builtin_inf(), max = -__builtin_inf();  // infinite while finite() == 0
  bool has_shift = false;  // float64 path: `shift` is set by the first block that has a finite component
  double shift = 0;        // s, unscaled
  int level = 0;
  std::uint64_t hash = 0;
  ChunkLanes lanes;
  std::uint32_t sketch_width = 0;
  // First sketch_width rows used, one of the two.
  alignas(64) float narrow_sketch[kSketchSums][kLanes];
  alignas(64) double sketch[kSketchSums][kLanes];

  std::uint64_t finite() const { return components - nan - pos_inf - neg_inf; }
};

// `components` consecutive components at `data`, at most kBlockComponents; a multiple of kLanes unless they
// end the shard. `first_group`: global number of the first group.
using BlockFunction = void (*)(const void* data, std::size_t components, std::uint64_t first_group,
                               ChunkState& state);

struct DTypeKernels {
  BlockFunction add;  // everything; null for kUnspecified
  // Null on the float64 path.
  BlockFunction exact;    // everything but the hash, on the float64 path
  BlockFunction shifted;  // sum(x - s) and sum((x - s)^2) only, s = state.shift
};

struct CpuKernels {
  DTypeKernels of[kDTypeCount];
  // Moments and sketch again, at state.level; for float64 components only. The rest of the state stays.
  BlockFunction scaled;
  // Adds up the lanes of the narrow sketch: sketch_width results in `sums`.
  void (*finish_narrow_sketch)(ChunkState& state, double* sums);
};

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

// Null if this build or this processor has not got the set; kBaseline is always there.
const CpuKernels* KernelsFor(InstructionSet set);
// The fastest there is.
const CpuKernels& BestKernels();

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_CPU_KERNELS_H_
