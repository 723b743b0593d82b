// The float64 path: any piece, component by component (piece.h).
#ifndef STATCOLLECT_AGENT_STATS_CUDA_WIDE_H_
#define STATCOLLECT_AGENT_STATS_CUDA_WIDE_H_

#include <cstdint>

#include "agent/stats/cuda/fingerprint_rows.h"
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

// Counts, extremes and hash.
template <typename C>
STATCOLLECT_WARP void ClassifyWide(const Piece& piece, const LaneKeys& keys, Totals& totals) {
  constexpr int n = kVectorComponents<C>;
  WideLane own;
  std::uint64_t hash = 0;
  const PieceMixes<C> mixes(piece.number);
  const int rows = RowsOf<C, true>(piece);
  STATCOLLECT_UNROLL_BY(1)
  for (int base = 0; base < rows; base += kHashRows) {
    std::uint64_t block_hash[4] = {};
    STATCOLLECT_UNROLL
    for (int i = 0; i < kHashRows; ++i) {
      const int v = (base + i) * kWarpLanes + Lane();
      const Vector vector = C::Clean(piece.vectors[v]);
      const int valid = ValidIn<C, true>(piece, v);
      STATCOLLECT_UNROLL
      for (int j = 0; j < n; ++j) {
        if (j < valid) own.Add(static_cast<double>(C::Value(vector, j)));
      }
      AddToHash(vector, keys.rows[i], block_hash);
    }
    hash += mixes.Factor(base) * TreeSum<4>(block_hash);
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

// The sums of the sketch, twice over the piece: float64 slots of half of the sums fit.
template <typename C>
STATCOLLECT_WARP void SketchWide(const Piece& piece, double scale, const float* sign_table,
                                 const SketchSlots& sketch, double* sums_out) {
  constexpr int n = kVectorComponents<C>, kBlockRows = SketchPlace<C>::kBlockRows;
  auto* slots = reinterpret_cast<double*>(sketch.slots);
  const std::uint32_t half = sketch.width / 2;
  const PieceMixes<C> mixes(piece.number);
  for (std::uint32_t from = 0; from < sketch.width; from += half) {
    for (std::uint32_t sum = 0; sum < half; ++sum)
      slots[sum * kWarpLanes + static_cast<std::uint32_t>(Lane())] = 0;
    STATCOLLECT_UNROLL_BY(1)
    for (int first = 0; first < RowsOf<C, true>(piece); first += kBlockRows) {
      FoldSums<C, double> folds(mixes, piece.number, first / kBlockRows, sign_table);
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
    FlushSlots(slots, half, sums_out + from);
  }
}

// Overwrites `totals`, whose level it chooses.
template <typename C>
STATCOLLECT_WARP void ReduceWide(const Piece& piece, const LaneKeys& keys, Totals& totals) {
  ClassifyWide<C>(piece, keys, totals);
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
  moments.magnitudes = SumWide<C>(piece, [&](double value) { return (value < 0 ? -value : value) * scale; });
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
template <typename C>
STATCOLLECT_WARP void AppendWide(const Piece& piece, const LaneKeys& keys, const float* signs,
                                 const SketchSlots& sketch, const UnitSums& unit) {
  Totals next;
  ReduceWide<C>(piece, keys, next);
  if (next.moments.count != 0) {
    const Moments& so_far = unit.totals->moments;
    const int before = so_far.level;
    const bool some = so_far.count != 0;
    const int level = !some || next.moments.level > before ? next.moments.level : before;
    if (some && level > before) {
      const double factor = RaisingFactor(before, level);
      for (auto sum = static_cast<std::uint32_t>(Lane()); sum < sketch.width; sum += kWarpLanes)
        unit.sums[sum] *= factor;
    }
    SketchWide<C>(piece, ScaleOf(level), signs, sketch, unit.sums);
  }
  AppendTotals(unit, next);
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_WIDE_H_
