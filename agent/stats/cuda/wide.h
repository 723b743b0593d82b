// The float64 path: any piece, component by component (piece.h).
#ifndef STATCOLLECT_AGENT_STATS_CUDA_WIDE_H_
#define STATCOLLECT_AGENT_STATS_CUDA_WIDE_H_

#include <cstdint>

#include "agent/stats/cuda/fingerprint_rows.h"
#include "agent/stats/cuda/fingerprint_runs.h"
#include "agent/stats/cuda/piece.h"

namespace statcollect::stats::cuda {

// Sum over the piece's finite components of what term(value) gives, in the order of piece.h.
template <typename C, typename Term>
STATCOLLECT_WARP double SumWide(const Piece& piece, const Term& term) {
  constexpr int n = kVectorComponents<C>;
  double sums[2] = {0, 0};
  const int rows = RowsOf<C, true>(piece);
  STATCOLLECT_UNROLL_BY(1)
  for (int row = 0; row < rows; row += 2) {
    STATCOLLECT_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int v = (row + i) * kWarpLanes + Lane();
      const Vector vector = C::Clean(piece.vectors[v]);
      const int valid = ValidIn<C, true>(piece, v);
      double terms[n];
      STATCOLLECT_UNROLL
      for (int j = 0; j < n; ++j) {
        const auto value = static_cast<double>(C::Value(vector, j));
        terms[j] = j < valid && IsFinite(value) ? term(value) : 0.0;
      }
      sums[i] += TreeSum<n>(terms);
    }
  }
  return SumOverLanes(sums[0] + sums[1]);
}

// Counts and extremes of what a lane has seen.
struct WideLane {
  std::uint32_t nan = 0, pos_inf = 0, neg_inf = 0, zero = 0, neg = 0;
  double min = __builtin_huge_val(), minus_max = __builtin_huge_val();

  STATCOLLECT_WARP void Add(double value) {
    if (value != value) {
      ++nan;
    } else if (!IsFinite(value)) {
      pos_inf += value > 0;
      neg_inf += value < 0;
    } else {
      zero += value == 0;
      neg += value < 0;
      min = value < min ? value : min;
      minus_max = -value < minus_max ? -value : minus_max;
    }
  }
};

// Hash and sketch of a piece's rows where they lie.
struct WideRows {
  static constexpr bool kInPlace = true;
  const LaneKeys& keys;
  const float* signs;  // of the block (launch.h)
  const SketchSlots& sketch;
};

// The same, run by run.
struct WideRuns {
  static constexpr bool kInPlace = false;
  const std::uint64_t* map;
  const KernelTables* tables;
  const float* signs;
  const SketchSlots& sketch;
};

// Counts and extremes, and the hash of rows. Fingerprint: one of those above.
template <typename C, typename Fingerprint>
STATCOLLECT_WARP void ClassifyWide(const Piece& piece, const Fingerprint& fingerprint,
                                   Totals& totals) {
  constexpr int n = kVectorComponents<C>;
  WideLane own;
  std::uint64_t hash = 0;
  const PieceMixes<C> mixes(piece.number);
  const int rows = RowsOf<C, true>(piece);
  STATCOLLECT_UNROLL_BY(1)
  for (int base = 0; base < rows; base += kHashRows) {
    std::uint64_t block_hash = 0;
    STATCOLLECT_UNROLL
    for (int i = 0; i < kHashRows; ++i) {
      const int v = (base + i) * kWarpLanes + Lane();
      const Vector vector = C::Clean(piece.vectors[v]);
      const int valid = ValidIn<C, true>(piece, v);
      STATCOLLECT_UNROLL
      for (int j = 0; j < n; ++j) {
        if (j < valid) own.Add(static_cast<double>(C::Value(vector, j)));
      }
      if constexpr (Fingerprint::kInPlace) AddToHash(vector, fingerprint.keys.rows[i], block_hash);
    }
    if constexpr (Fingerprint::kInPlace) hash += mixes.Factor(base) * block_hash;
  }
  totals.components = piece.components;
  totals.nan = __reduce_add_sync(kAllLanes, own.nan);
  totals.pos_inf = __reduce_add_sync(kAllLanes, own.pos_inf);
  totals.neg_inf = __reduce_add_sync(kAllLanes, own.neg_inf);
  totals.zero = __reduce_add_sync(kAllLanes, own.zero);
  totals.neg = __reduce_add_sync(kAllLanes, own.neg);
  totals.hash = SumOverLanes(hash);
  totals.min = MinOverLanes(own.min);
  totals.max = -MinOverLanes(own.minus_max);
  totals.moments.count = totals.components - totals.nan - totals.pos_inf - totals.neg_inf;
}

// Calls add(slots, from, half) for each half of the sketch's sums, whose float64 slots fit, and
// adds them up.
template <typename Add>
STATCOLLECT_WARP void SketchHalves(const SketchSlots& sketch, double* sums_out, const Add& add) {
  auto* slots = reinterpret_cast<double*>(sketch.slots);
  const std::uint32_t half = sketch.width / 2;
  for (std::uint32_t from = 0; from < sketch.width; from += half) {
    for (std::uint32_t sum = 0; sum < half; ++sum)
      slots[sum * kWarpLanes + static_cast<std::uint32_t>(Lane())] = 0;
    add(slots, from, half);
    FlushSlots(slots, half, sums_out + from);
  }
}

// Twice over the piece.
template <typename C>
STATCOLLECT_WARP void SketchWide(const Piece& piece, double scale, const WideRows& fingerprint,
                                 double* sums_out) {
  constexpr int n = kVectorComponents<C>, kBlockRows = SketchPlace<C>::kBlockRows;
  const SketchSlots& sketch = fingerprint.sketch;
  const PieceMixes<C> mixes(piece.number);
  SketchHalves(sketch, sums_out, [&](double* slots, std::uint32_t from, std::uint32_t half) {
    STATCOLLECT_UNROLL_BY(1)
    for (int first = 0; first < RowsOf<C, true>(piece); first += kBlockRows) {
      FoldSums<C, double> folds(mixes, piece.number, first / kBlockRows, fingerprint.signs);
      STATCOLLECT_UNROLL_BY(1)
      for (int base = 0; base < kBlockRows; base += kRowsAtOnce) {
        STATCOLLECT_UNROLL
        for (int i = 0; i < kRowsAtOnce; ++i) {
          const Vector vector = C::Clean(piece.vectors[(first + base + i) * kWarpLanes + Lane()]);
          double values[n];
          STATCOLLECT_UNROLL
          for (int j = 0; j < n; ++j) {
            const auto value = static_cast<double>(C::Value(vector, j));
            values[j] = IsFinite(value) ? value * scale : 0.0;
          }
          folds.Add(base + i, values);
        }
      }
      folds.AddTo(slots, sketch.width, from, half);
    }
  });
}

template <typename C>
STATCOLLECT_WARP void SketchWide(const Piece& piece, double scale, const WideRuns& fingerprint,
                                 double* sums_out) {
  const SketchSlots& sketch = fingerprint.sketch;
  SketchHalves(sketch, sums_out, [&](double* slots, std::uint32_t from, std::uint32_t half) {
    (void)AddRuns<C, double>(
        piece, fingerprint.map, scale,
        {fingerprint.tables, fingerprint.signs, slots, sketch.width, from, half});
  });
}

// Overwrites `totals`, whose level it chooses.
template <typename C, typename Fingerprint>
STATCOLLECT_WARP void ReduceWide(const Piece& piece, const Fingerprint& fingerprint,
                                 Totals& totals) {
  ClassifyWide<C>(piece, fingerprint, totals);
  if constexpr (!Fingerprint::kInPlace) {
    const RunsTarget<double> hash_alone = {fingerprint.tables, fingerprint.signs, nullptr, 0, 0, 0};
    totals.hash = SumOverLanes(AddRuns<C, double>(piece, fingerprint.map, 1.0, hash_alone));
  }
  Moments& moments = totals.moments;
  if (moments.count == 0) return;
  if constexpr (C::kWide && C::kBytes == 8) {
    const double low = totals.min < 0 ? -totals.min : totals.min,
                 high = totals.max < 0 ? -totals.max : totals.max;
    moments.level = LevelOf(low > high ? low : high);
  }
  const double scale = ScaleOf(moments.level);
  const auto count = static_cast<double>(moments.count);
  const double sum = SumWide<C>(piece, [&](double value) { return value * scale; });
  const double center = sum / count;
  const double low = totals.min * scale, high = totals.max * scale;
  moments.origin = center < low ? low : center > high ? high : center;
  moments.magnitudes =
      SumWide<C>(piece, [&](double value) { return (value < 0 ? -value : value) * scale; });
  const double origin = moments.origin;
  const double deviations = SumWide<C>(piece, [&](double value) { return value * scale - origin; });
  const double squares = SumWide<C>(piece, [&](double value) {
    const double deviation = value * scale - origin;
    return deviation * deviation;
  });
  moments.offset = deviations / count;
  const double squared = squares - deviations * moments.offset;
  moments.squared_deviations = squared > 0 ? squared : 0;
}

// Appends any piece, in float64.
template <typename C, typename Fingerprint>
STATCOLLECT_WARP void AppendWide(const Piece& piece, const Fingerprint& fingerprint,
                                 const UnitSums& unit) {
  Totals next;
  ReduceWide<C>(piece, fingerprint, next);
  if (next.moments.count != 0) {
    const Moments& so_far = unit.totals->moments;
    const int before = so_far.level;
    const bool some = so_far.count != 0;
    const int level = !some || next.moments.level > before ? next.moments.level : before;
    if (some && level > before) {
      const double factor = RaisingFactor(before, level);
      for (auto sum = static_cast<std::uint32_t>(Lane()); sum < fingerprint.sketch.width;
           sum += kWarpLanes)
        unit.sums[sum] *= factor;
    }
    SketchWide<C>(piece, ScaleOf(level), fingerprint, unit.sums);
  }
  AppendTotals(unit, next);
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_WIDE_H_
