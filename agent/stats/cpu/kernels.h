// Inner loops of the CPU engine, one set for each instruction set; internal to agent/stats. All
// sets give the same bits.
#ifndef STATCOLLECT_AGENT_STATS_CPU_KERNELS_H_
#define STATCOLLECT_AGENT_STATS_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "agent/stats/accumulate.h"
#include "common/types.h"

namespace statcollect::stats {

// A chunk is walked in blocks of the sketch, which stay in the first-level cache for several
// passes.
inline constexpr std::size_t kBlockComponents = kSketchBlockComponents;
inline constexpr int kBlockGroups = kSketchRows * kSketchFolds;
static_assert(kChunkComponents % kBlockComponents == 0 &&
              kBlockComponents == kBlockGroups * kLanes);

// ORDER OF SUMMATION. Chunks of kChunkComponents components, counted from the shard's start, and
// blocks of kBlockComponents; component i of a chunk belongs to lane i % 16, group g = i / 16 of a
// block to its fold g % 16 and row g / 16, as in the sketch (fingerprint.h; but counted from the
// shard's start). Lanes are combined in the order 0 .. 15, chunks in index order.
//
// float32 path (f16 bf16 f8 f32 i8 i16 u8 u16 bool): in each lane, the 8 rows of a fold are added
// in order, in float32; then the folds of a block in pairs: (0 + 1), (2 + 3), ..., those in pairs,
// until one is left, in float32. It has been rounded at most 11 times, and is added to the lane's
// float64 total. sum(x), sum(|x|), and sum(x^2) by fused multiply-add. Each sum of the sketch gets
// the folds of a block in order, in float32, and that is added to its float64 total.
//   A shard whose blocks are not those of the tensor: the sketch of each run of whole groups in a
// block of the tensor by itself, in float32. Of a full block made of whole quads, each row of the
// tensor's folds (several if they follow each other in the shard, in one block of the tensor) is
// added in float32, in the shard's order, to the list of its bank and rotation, with its signs; at
// the chunk's end, the lists to the sketch's sums in float32, by their number, and that to the
// float64 totals.
//   If sum(x^2) > kCondition * sum((x - mean)^2), the deviations are summed again about
// s = float32(mean). If a component is not finite, a sum is not, or all magnitudes are below
// kNarrowMagnitudeMin, the chunk is summed again on the float64 path.
//
// float64 path (f64 i32 i64 u32 u64): with s the chunk's first finite component and over finite
// components only, each lane sums x - s, (x - s)^2, |x| and x^2 in index order, products rounded
// before they are added. As s is one of the values, the cancellation in sum((x-s)^2) - sum(x-s)^2/n
// costs at most a factor n <= 16384 of float64's precision. Each sum of the sketch gets the folds
// in order, in float64.
inline constexpr double kCondition = 5;
inline constexpr double kNarrowMagnitudeMin = 0x1p-40;

// What is asked for while a block is computed. It changes no result.
struct ReadAheadOf {
  std::size_t bytes = 0;      // from the block on
  bool second_level = false;  // into that cache, instead of the first
};

// Accumulators of one chunk.
struct ChunkState {
  std::uint64_t components = 0;
  std::uint64_t nan = 0, pos_inf = 0, neg_inf = 0, zero = 0, neg = 0;
  double min = __builtin_inf(), max = -__builtin_inf();  // infinite while finite() == 0
  bool has_shift =
      false;         // float64 path: `shift` is set by the first block that has a finite component
  double shift = 0;  // s, unscaled
  int level = 0;
  std::uint64_t hash = 0;
  ChunkLanes lanes;
  std::uint32_t sketch_width = 0;  // 0: none
  // Whether blocks of the shard are blocks of the tensor: only then do `add` and `exact` compute
  // hash and sketch.
  bool in_place = true;
  ReadAheadOf read_ahead;
  alignas(64) double sketch[kSketchSums];  // sketch_width of them used

  std::uint64_t finite() const { return components - nan - pos_inf - neg_inf; }
};

// `components` consecutive components at `data`, at most kBlockComponents; as many unless they end
// the shard. `group`: number in the tensor of their first group; a multiple of kBlockGroups for
// hash and sketch.
using BlockFunction = void (*)(const void* data, std::size_t components, std::uint64_t group,
                               ChunkState& state);

// Whole groups at `data`, of one block of the tensor: `groups` of them from number `group` of the
// tensor on.
struct GroupRun {
  const void* data;
  std::uint64_t group;
  std::uint32_t groups;
};
// Adds hash and sketch of runs: each run's sketch by itself, in index order, as if the rest of its
// block were 0.
using RunsFunction = void (*)(const GroupRun* runs, std::size_t count, ChunkState& state);

// Groups that share a mix of the sketch and a block of the hash, of any dtype, if their first one's
// number is a multiple of it.
inline constexpr int kQuadGroups = 4;
inline constexpr int kQuadComponents = kQuadGroups * kLanes;
inline constexpr int kBlockQuads = kBlockGroups / kQuadGroups;

// A full block whose quads have these numbers in the tensor (kBlockQuads of them): everything at
// once.
using QuadsFunction = void (*)(const void* data, const std::uint64_t* quads, ChunkState& state);

struct DTypeKernels {
  BlockFunction add;  // everything; null for kUnspecified
  // Null on the float64 path.
  BlockFunction exact;    // everything but the hash, on the float64 path
  BlockFunction shifted;  // sum(x - s) and sum((x - s)^2) only, s = state.shift
  // Hash and sketch of shards that are not in place: on the float32 path (null for other dtypes);
  // on the float64 path, at state.level.
  RunsFunction narrow_runs, exact_runs;
  QuadsFunction add_quads;  // null on the float64 path
};

inline constexpr std::uint32_t kNoiseIndexFactor = 0x9e3779b1u;
inline constexpr std::uint32_t kNoiseFactors[] = {0x7feb352du,
                                                  0x846ca68bu};  // of lowbias32, by C. Wellons

// What the noise of a tensor (noise.h) has in common. `scale`: of the odd whole numbers, up to
// 2^24.
struct NoiseWords {
  std::uint32_t first, second;
  double scale;
};
// `count` components one after the other; the first one's index is `index`, that of each next one
// `step` more.
using NoiseFunction = void (*)(const void* from, void* to, std::size_t count, std::uint32_t index,
                               std::uint32_t step, const NoiseWords& words);
struct NoiseFunctions {
  NoiseFunction differences, values;
};

struct CpuKernels {
  DTypeKernels of[kDTypeCount];
  // Moments and sketch again, at state.level; for float64 components only. The rest of the state
  // stays.
  BlockFunction scaled;
  NoiseFunctions noise_f64, noise_f32, noise_f16, noise_bf16;
};

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

// Null if this build or this processor has not got the set; kBaseline is always there.
const CpuKernels* KernelsFor(InstructionSet set);
// The fastest there is.
const CpuKernels& BestKernels();

// For this processor, by the size of a component.
ReadAheadOf BestReadAhead(std::size_t component_bytes);

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_CPU_KERNELS_H_
