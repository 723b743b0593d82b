// The arithmetic of the statistics, once, for host and device: what a component adds to moments,
// and how partial results combine. Header-only; no containers, no allocation, no libm beyond sqrt.
// Hash and sketch are defined in fingerprint.h.
//
// MOMENTS. Each engine documents its order of summation (cpu/kernels.h, cuda/engine.cuh); it
// depends on nothing but dtype and number of components, so that each repeats its own bits on every
// machine of its kind and both agree within 1e-6. Chunks combine after Chan, Golub, LeVeque (1983)
// in float64, in index order. Compile without contraction to fused multiply-add (-ffp-contract=off,
// nvcc -fmad=false): fused operations are written where they are meant.
//
// SCALE. Squares of float64 components overflow or underflow. A chunk whose largest magnitude is
// above 2^400 (below 2^-400) is reduced with its components times 2^-600 (2^600): its `level` is 1
// (-1), and what is stored times 2^(600 * level) is meant.
#ifndef STATCOLLECT_AGENT_STATS_ACCUMULATE_H_
#define STATCOLLECT_AGENT_STATS_ACCUMULATE_H_

#include <cmath>
#include <cstdint>

#include "agent/stats/fingerprint.h"
#include "common/narrow_float.h"

namespace statcollect::stats {

inline constexpr std::uint64_t kChunkComponents = 16384;
inline constexpr int kSketchSums = 64;  // at most

// --- moments

// One lane of a chunk (V: double), or several neighbouring lanes (V: a vector of double).
template <typename V>
struct LaneMoments {
  V shifted_sum, shifted_squares, magnitudes, squares;

  // `value` scaled; `shifted` = value - s; all three 0 for a component that is not finite.
  STATCOLLECT_HD void Add(const V& value, const V& shifted, const V& magnitude) {
    shifted_sum += shifted;
    shifted_squares += shifted * shifted;
    magnitudes += magnitude;
    squares += value * value;
  }
};

// The lanes of a chunk, side by side.
struct ChunkLanes {
  double shifted_sum[kLanes] = {}, shifted_squares[kLanes] = {}, magnitudes[kLanes] = {},
         squares[kLanes] = {};
};

inline constexpr double kLevelUp = 0x1p600, kLevelDown = 0x1p-600;

// Level of a chunk of float64 with this largest magnitude; other components are always of level 0.
STATCOLLECT_HD int LevelOf(double magnitude_max) {
  if (magnitude_max > 0x1p400) return 1;
  return magnitude_max < 0x1p-400 ? -1 : 0;
}

// What the components of a chunk of that level are multiplied by.
STATCOLLECT_HD double ScaleOf(int level) {
  return level > 0 ? kLevelDown : level < 0 ? kLevelUp : 1.0;
}

// Moments of `count` finite components: mean = origin + offset; squared_deviations = sum((x -
// mean)^2).
struct Moments {
  std::uint64_t count = 0;
  int level = 0;
  double origin = 0, offset = 0, squared_deviations = 0;
  double magnitudes = 0, squares = 0;
};

// `count`: finite components of the chunk. `shift`: s, scaled.
STATCOLLECT_HD Moments CombineLanes(const ChunkLanes& lanes, std::uint64_t count, int level,
                                    double shift) {
  Moments moments;
  if (count == 0) return moments;
  double sum = 0, squares = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    sum += lanes.shifted_sum[lane];
    squares += lanes.shifted_squares[lane];
    moments.magnitudes += lanes.magnitudes[lane];
    moments.squares += lanes.squares[lane];
  }
  moments.count = count;
  moments.level = level;
  moments.origin = shift;
  moments.offset = sum / static_cast<double>(count);
  const double deviations = squares - sum * moments.offset;
  moments.squared_deviations = deviations > 0 ? deviations : 0;
  return moments;
}

// Rewrites `moments` for a higher level. What underflows is below rounding beside the values that
// made the level high.
STATCOLLECT_HD void RaiseLevel(Moments& moments, int level) {
  for (; moments.level < level; ++moments.level) {
    moments.origin *= kLevelDown;
    moments.offset *= kLevelDown;
    moments.magnitudes *= kLevelDown;
    moments.squared_deviations = moments.squared_deviations * kLevelDown * kLevelDown;
    moments.squares = moments.squares * kLevelDown * kLevelDown;
  }
}

// Appends what comes after `a` in index order.
STATCOLLECT_HD void Append(Moments& a, Moments b) {
  if (b.count == 0) return;
  if (a.count == 0) {
    a = b;
    return;
  }
  RaiseLevel(a, b.level);
  RaiseLevel(b, a.level);
  const double delta = (b.origin - a.origin) + (b.offset - a.offset);
  const double count_a = static_cast<double>(a.count);
  const double share_b = static_cast<double>(b.count) / static_cast<double>(a.count + b.count);
  a.count += b.count;
  a.offset += delta * share_b;
  a.squared_deviations += b.squared_deviations + delta * delta * (count_a * share_b);
  a.magnitudes += b.magnitudes;
  a.squares += b.squares;
}

// --- everything about a range of components

// All but the sketch.
struct Totals {
  std::uint64_t components = 0;
  std::uint64_t nan = 0, pos_inf = 0, neg_inf = 0, zero = 0, neg = 0;
  std::uint64_t hash = 0;
  double min = 0, max = 0;  // finite components; meaningless if moments.count == 0
  Moments moments;
};

// Appends what comes after `a` in index order. An empty Totals changes nothing, on either side.
STATCOLLECT_HD void Append(Totals& a, const Totals& b) {
  a.components += b.components;
  a.nan += b.nan;
  a.pos_inf += b.pos_inf;
  a.neg_inf += b.neg_inf;
  a.zero += b.zero;
  a.neg += b.neg;
  a.hash += b.hash;
  if (b.moments.count == 0) return;
  a.min = a.moments.count == 0 || b.min < a.min ? b.min : a.min;
  a.max = a.moments.count == 0 || b.max > a.max ? b.max : a.max;
  Append(a.moments, b.moments);
}

struct Partial : Totals {
  double sketch[kSketchSums] = {};  // first `width` used; of moments.level
};

STATCOLLECT_HD void RaiseLevel(Partial& partial, int level, std::uint32_t width) {
  for (int l = partial.moments.level; l < level; ++l) {
    for (std::uint32_t i = 0; i < width; ++i) partial.sketch[i] *= kLevelDown;
  }
  RaiseLevel(partial.moments, level);
}

// Appends the next range in index order, both with sketches of `width` sums. `b` may be rewritten.
STATCOLLECT_HD void Append(Partial& a, Partial& b, std::uint32_t width) {
  if (b.moments.count != 0) {
    if (a.moments.count == 0) a.moments.level = b.moments.level;
    RaiseLevel(a, b.moments.level, width);
    RaiseLevel(b, a.moments.level, width);
    for (std::uint32_t i = 0; i < width; ++i) a.sketch[i] += b.sketch[i];
  }
  Append(static_cast<Totals&>(a), b);
}

// A stored value of `level` as a plain number; infinite if there is no such number.
STATCOLLECT_HD double AtLevel(double stored, int level) {
  return level > 0 ? stored * kLevelUp : level < 0 ? stored * kLevelDown : stored;
}

// Results a reader sees. min <= mean <= max; -0 comes out as 0. Precondition: moments.count > 0.
struct FiniteStats {
  double min, max, mean, std, l1, l2;
};

STATCOLLECT_HD FiniteStats Finish(const Partial& partial) {
  const Moments& m = partial.moments;
  FiniteStats stats;
  stats.min = partial.min + 0.0;
  stats.max = partial.max + 0.0;
  const double mean = AtLevel(m.origin + m.offset, m.level) + 0.0;
  stats.mean = mean < stats.min ? stats.min : mean > stats.max ? stats.max : mean;
  stats.std = AtLevel(sqrt(m.squared_deviations / static_cast<double>(m.count)), m.level);
  stats.l1 = AtLevel(m.magnitudes, m.level);
  stats.l2 = AtLevel(sqrt(m.squares), m.level);
  return stats;
}

// A sketch sum a reader sees: always finite; beyond float64's range, its largest number.
STATCOLLECT_HD double FinishSketchSum(double stored, int level) {
  constexpr double kLargest = 0x1.fffffffffffffp1023;
  const double value = AtLevel(stored, level) + 0.0;
  return value > kLargest ? kLargest : value < -kLargest ? -kLargest : value;
}

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_ACCUMULATE_H_
