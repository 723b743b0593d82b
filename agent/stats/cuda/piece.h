// One piece of a tensor reduced by one warp: the inner loop of the CUDA engine.
//
// PIECE. 8 KiB of consecutive components, staged in shared memory as 16 rows of 32 vectors; lane t
// has vector t of each row. A tensor's last piece may hold fewer; what it lacks is staged as zero
// bytes.
//
// ORDER OF SUMMATION. A lane adds the components of a vector as a balanced tree, its vectors
// alternately to two sums in float32 (float64 for kWide), in row order, and the two in the end. On
// its way there a component's part is rounded to float32 at most 4 + 8 + 1 times, its square's 8 +
// 1 + 8 + 1 times (8-bit types; fewer for wider ones). Deviations are taken from the piece's
// center: 0, where that is near; where the squares of any lane are mostly its mean's (80 %, |mean|
// > 2 std), a number near the piece's mean, in one more pass over shared memory. So nothing cancels
// when |mean| >> std, and less than a factor of 5 otherwise. Whole pieces in range go on in
// float64, lane by lane, to the unit's end, with deviations from one origin, the first piece's
// center; only then are lanes added, as a butterfly (of 16, 8, 4, 2, 1) in float64, and what they
// give is appended to the unit's other pieces (narrow.h). Sums of squares follow from mean and
// deviations (totals.h).
//
// SKETCH. A lane adds its components of a fold over the fold's rows in float32, then to its slot of
// the sum; slots of up to kHeldMax pieces are added in float64.
//
// RANGE. A piece with components that are not finite, or whose squares or deviations would leave
// float32's range, is reduced by itself, in float64, component by component (wide.h). So is a
// tensor's last piece if it is not whole, in float32 where it is in range. A first pass over shared
// memory looks for the range alone.
//
// Nothing depends on the launch: sums are functions of the unit's bytes alone.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_PIECE_H_
#define STATCOLLECT_AGENT_STATS_CUDA_PIECE_H_

#include <cmath>
#include <cstdint>

#include "agent/stats/accumulate.h"
#include "agent/stats/cuda/components.h"
#include "agent/stats/cuda/device.h"
#include "agent/stats/cuda/layout.h"
#include "agent/stats/cuda/totals.h"

namespace statcollect::stats::cuda {

inline constexpr int kRowsAtOnce = 4;  // unrolled together

// Valid components of vector `v` of the piece.
template <typename C, bool kPartial>
STATCOLLECT_WARP int ValidIn(const Piece& piece, int v) {
  if constexpr (!kPartial) return kVectorComponents<C>;
  const int left = static_cast<int>(piece.components) - v * kVectorComponents<C>;
  return left < 0 ? 0 : left > kVectorComponents<C> ? kVectorComponents<C> : left;
}

// Rows that hold components, rounded up to what is unrolled.
template <typename C, bool kPartial>
STATCOLLECT_WARP int RowsOf(const Piece& piece) {
  if constexpr (!kPartial) return kRows;
  constexpr int kAtOnce = kRowsAtOnce * kWarpLanes * kVectorComponents<C>;
  return (static_cast<int>(piece.components) + kAtOnce - 1) / kAtOnce * kRowsAtOnce;
}

// The vector with its missing components replaced by its first. Precondition: valid > 0.
template <typename C>
STATCOLLECT_WARP Vector FilledUp(const Vector& vector, int valid) {
  Vector out = vector;
  if constexpr (C::kBytes >= 4) {
    constexpr int kWords = C::kBytes / 4;
    STATCOLLECT_UNROLL
    for (int i = kWords; i < 4; ++i)
      out.words[i] = i / kWords < valid ? vector.words[i] : vector.words[i % kWords];
  } else {
    const std::uint32_t first = C::kBytes == 2 ? (vector.words[0] & 0xffffu) * 0x10001u
                                               : (vector.words[0] & 0xffu) * 0x01010101u;
    STATCOLLECT_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int bytes = valid * C::kBytes - 4 * i;  // that hold, in this word
      const std::uint32_t mask = bytes >= 4 ? ~0u : bytes <= 0 ? 0u : (1u << (8 * bytes)) - 1;
      out.words[i] = (vector.words[i] & mask) | (first & ~mask);
    }
  }
  return out;
}

// Adds n numbers as a balanced tree, in place.
template <int n, typename T>
STATCOLLECT_WARP T TreeSum(T* values) {
  STATCOLLECT_UNROLL
  for (int stride = 1; stride < n; stride *= 2) {
    STATCOLLECT_UNROLL
    for (int i = 0; i + stride < n; i += 2 * stride) values[i] += values[i + stride];
  }
  return values[0];
}

// Float bits in an order that integers have: NaN lie outside the infinities.
STATCOLLECT_WARP std::int32_t OrderedBits(float value) {
  const auto bits = BitsAs<std::int32_t>(value);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
STATCOLLECT_WARP float FloatOfOrdered(std::int32_t ordered) {
  const std::int32_t bits = ordered ^ ((ordered >> 31) & 0x7fffffff);
  return BitsAs<float>(bits);
}

STATCOLLECT_WARP bool IsFinite(double value) { return value - value == 0; }

STATCOLLECT_WARP void AppendTotals(const UnitSums& unit, const Totals& next) {
  __syncwarp();
  if (Lane() == 0) Append(*unit.totals, next);
  __syncwarp();
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_PIECE_H_
