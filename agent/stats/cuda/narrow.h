// The float32 path: pieces of narrow components whose values are in range (piece.h).
#ifndef STATCOLLECT_AGENT_STATS_CUDA_NARROW_H_
#define STATCOLLECT_AGENT_STATS_CUDA_NARROW_H_

#include <cmath>
#include <cstdint>

#include "agent/stats/cuda/fingerprint_rows.h"
#include "agent/stats/cuda/piece.h"

namespace statcollect::stats::cuda {

// --- first pass

// Of a lane's components; NaN if there is one.
struct LaneRange {
  float min, max;
};

template <typename C, bool kPartial>
STATCOLLECT_WARP LaneRange RangeOf(const Piece& piece) {
  typename C::Range range;
  const int rows = RowsOf<C, kPartial>(piece);
  STATCOLLECT_UNROLL_BY(1)
  for (int base = 0; base < rows; base += kRowsAtOnce) {
    STATCOLLECT_UNROLL
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int v = (base + i) * kWarpLanes + Lane();
      const Vector vector = C::Clean(piece.vectors[v]);
      const int valid = ValidIn<C, kPartial>(piece, v);
      if (valid > 0) range.Add(kPartial ? FilledUp<C>(vector, valid) : vector);
    }
  }
  return {range.Min(), range.Max()};
}

// Of the piece.
STATCOLLECT_WARP LaneRange RangeOverLanes(const LaneRange& own) {
  return {FloatOfOrdered(__reduce_min_sync(kAllLanes, OrderedBits(own.min))),
          FloatOfOrdered(__reduce_max_sync(kAllLanes, OrderedBits(own.max)))};
}

// See RANGE in piece.h. Lanes that have no components have min > max.
template <typename C, bool kPartial>
STATCOLLECT_WARP bool IsInRange(const LaneRange& own) {
  constexpr float kLargest = 0x1p60f, kSmallestSpread = 0x1p-56f;
  if constexpr (C::kAlwaysInRange) return true;
  const bool empty = kPartial && own.min > own.max;
  if (!__all_sync(kAllLanes, empty || (own.min > -kLargest && own.max < kLargest))) return false;
  if (__any_sync(kAllLanes, own.max - own.min >= kSmallestSpread)) return true;
  // The lanes' spreads are tiny, not necessarily the piece's.
  const LaneRange range = RangeOverLanes(own);
  return range.min == range.max || range.max - range.min >= kSmallestSpread;
}

// --- second pass

// What a lane keeps of a piece in range.
struct NarrowLane {
  std::uint32_t count = 0, zero = 0, neg = 0;
  float sum = 0, magnitudes = 0;
  float deviations = 0,
        squares = 0;  // from the piece's center and their squares; C::kExactSums: no deviations
  std::uint64_t hash = 0;
};

// Zeros of the lane's components; *negative_zeros of them have their sign bit set.
template <typename C, bool kPartial>
STATCOLLECT_CALL std::uint32_t CountZeros(Piece piece, std::uint32_t* negative_zeros) {
  std::uint32_t zeros = 0, negative = 0;
  STATCOLLECT_UNROLL_BY(1)
  for (int row = 0; row < RowsOf<C, kPartial>(piece); ++row) {
    const int v = row * kWarpLanes + Lane();
    const Vector vector = C::Clean(piece.vectors[v]);
    STATCOLLECT_UNROLL
    for (int j = 0; j < kVectorComponents<C>; ++j) {
      const float value = C::Value(vector, j);
      if (value != 0 || j >= ValidIn<C, kPartial>(piece, v)) continue;
      ++zeros;
      negative += BitsAs<std::uint32_t>(value) >> 31;
    }
  }
  *negative_zeros = negative;
  return zeros;
}

// Hash and sketch of the piece's rows as they come.
template <typename C>
struct FingerprintOfRows {
  const LaneKeys& keys;
  const float* signs;  // of the block (launch.h)
  const SketchSlots& sketch;
  const PieceMixes<C> mixes;

  class Block {
   public:
    STATCOLLECT_WARP Block(const FingerprintOfRows& of, const Piece& piece, int first)
        : of_(of), folds_(of.mixes, piece.number, first / SketchPlace<C>::kBlockRows, of.signs) {}
    // The vector of row base + i of the block, base % kHashRows being 0.
    STATCOLLECT_WARP void Add(int base, int i, const Vector& vector,
                              const float (&values)[kVectorComponents<C>], std::uint64_t& hash) {
      folds_.Add(base + i, values);
      AddToHash(vector, of_.keys.rows[i], hash);
    }
    // Of the rows from `row` of the piece.
    STATCOLLECT_WARP std::uint64_t HashOf(int row, std::uint64_t& hash) const {
      return of_.mixes.Factor(row) * hash;
    }
    STATCOLLECT_WARP void Finish() {
      folds_.AddTo(of_.sketch.slots, of_.sketch.width, 0, of_.sketch.width);
    }

   private:
    const FingerprintOfRows& of_;
    FoldSums<C, float> folds_;
  };
};

// Neither: they are computed elsewhere.
template <typename C>
struct NoFingerprint {
  struct Block {
    STATCOLLECT_WARP Block(const NoFingerprint&, const Piece&, int) {}
    STATCOLLECT_WARP void Add(int, int, const Vector&, const float (&)[kVectorComponents<C>],
                              std::uint64_t&) {}
    STATCOLLECT_WARP std::uint64_t HashOf(int, std::uint64_t&) const { return 0; }
    STATCOLLECT_WARP void Finish() {}
  };
};

// Over a piece in range, whose center is 0. Fingerprint: one of those above.
template <typename C, bool kPartial, typename Fingerprint>
STATCOLLECT_WARP NarrowLane ReduceNarrow(const Piece& piece, const Fingerprint& fingerprint) {
  constexpr int n = kVectorComponents<C>, kBlockRows = SketchPlace<C>::kBlockRows;
  NarrowLane own;
  float sums[2] = {0, 0}, magnitudes[2] = {0, 0}, squares[2] = {0, 0};
  typename C::Signs signs;
  const int rows = RowsOf<C, kPartial>(piece);
  STATCOLLECT_UNROLL_BY(1)
  for (int first = 0; first < rows; first += kBlockRows) {
    typename Fingerprint::Block block(fingerprint, piece, first);
    STATCOLLECT_UNROLL_BY(1)
    for (int base = 0; base < kBlockRows; base += kHashRows) {
      if (kPartial && first + base >= rows) break;
      std::uint64_t block_hash = 0;
      STATCOLLECT_UNROLL
      for (int i = 0; i < kHashRows; ++i) {
        const int v = (first + base + i) * kWarpLanes + Lane();
        const Vector vector = C::Clean(piece.vectors[v]);
        float values[n], terms[n], absolute[n], square[2] = {0, 0};
        STATCOLLECT_UNROLL
        for (int j = 0; j < n; ++j) {
          values[j] = terms[j] = C::Value(vector, j);
          absolute[j] = fabsf(values[j]);
          square[j % 2] = fmaf(values[j], values[j], square[j % 2]);
        }
        sums[i % 2] += TreeSum<n>(terms);
        magnitudes[i % 2] += TreeSum<n>(absolute);
        squares[i % 2] += square[0] + square[1];
        signs.Add(vector);
        if constexpr (kPartial) own.count += static_cast<std::uint32_t>(ValidIn<C, true>(piece, v));
        block.Add(base, i, vector, values, block_hash);
      }
      own.hash += block.HashOf(first + base, block_hash);
    }
    block.Finish();
  }
  if constexpr (!kPartial) own.count = kPieceComponents<C> / kWarpLanes;
  own.sum = own.deviations = sums[0] + sums[1];
  own.magnitudes = magnitudes[0] + magnitudes[1];
  own.squares = squares[0] + squares[1];
  own.neg = signs.Negatives();
  if (signs.AnyZero()) {
    std::uint32_t negative_zeros;
    own.zero = CountZeros<C, kPartial>(piece, &negative_zeros);
    own.neg -= negative_zeros;
  }
  return own;
}

// Whether the lane's squares are mostly its mean's: what is left of them beside that would be too
// rough. Also if they are too small for float32.
template <typename C, bool kPartial>
STATCOLLECT_WARP bool IsFarFromZero(const NarrowLane& lane) {
  constexpr float kCondition = 0.8f;
  const auto count = static_cast<float>(kPartial ? lane.count : kPieceComponents<C> / kWarpLanes);
  return lane.sum != 0 && lane.sum * (lane.sum / count) >= kCondition * lane.squares;
}

// Of a lane's components, from a center.
struct Deviations {
  float center, sum, squares;
};

// From about the mean, and from the value itself where all are equal.
template <typename C, bool kPartial>
STATCOLLECT_CALL Deviations DeviationsFromMean(Piece piece, LaneRange own, float sum) {
  constexpr int n = kVectorComponents<C>;
  const LaneRange range = RangeOverLanes(own);
  const float mean =
      SumOverLanes(sum) / static_cast<float>(kPartial ? piece.components : kPieceComponents<C>);
  const float center = mean < range.min ? range.min : mean > range.max ? range.max : mean;
  float deviations[2] = {0, 0}, squares[2] = {0, 0};
  const int rows = RowsOf<C, kPartial>(piece);
  STATCOLLECT_UNROLL_BY(1)
  for (int base = 0; base < rows; base += kRowsAtOnce) {
    STATCOLLECT_UNROLL
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int v = (base + i) * kWarpLanes + Lane();
      const Vector vector = C::Clean(piece.vectors[v]);
      const int valid = ValidIn<C, kPartial>(piece, v);
      float deviation[n], square[2] = {0, 0};
      STATCOLLECT_UNROLL
      for (int j = 0; j < n; ++j) {
        deviation[j] = !kPartial || j < valid ? C::Value(vector, j) - center : 0.0f;
        square[j % 2] = fmaf(deviation[j], deviation[j], square[j % 2]);
      }
      squares[i % 2] += square[0] + square[1];
      if constexpr (!C::kExactSums) deviations[i % 2] += TreeSum<n>(deviation);
    }
  }
  return {center, deviations[0] + deviations[1], squares[0] + squares[1]};
}

// --- a unit's pieces in range

// What a lane keeps of them.
struct NarrowSums {
  std::uint64_t hash = 0;
  std::uint32_t pieces = 0;  // whole ones; of one that is not, 1
  std::uint32_t count = 0, zero = 0, neg = 0;
  float origin = 0;  // the same in all lanes
  float min = kFloatInfinity, max = -kFloatInfinity;
  double deviations = 0, squares = 0, magnitudes = 0;  // deviations from the origin

  template <typename C>
  STATCOLLECT_WARP void Add(const LaneRange& range, float center, const NarrowLane& lane) {
    if (pieces == 0) origin = center;
    ++pieces;
    count += lane.count;
    zero += lane.zero;
    neg += lane.neg;
    hash += lane.hash;
    min = fminf(min, range.min);
    max = fmaxf(max, range.max);
    magnitudes += static_cast<double>(lane.magnitudes);
    // From the piece's center to the unit's origin.
    const auto components = static_cast<double>(lane.count), from = static_cast<double>(center);
    const double sum = C::kExactSums ? static_cast<double>(lane.sum) - components * from
                                     : static_cast<double>(lane.deviations);
    const double way = from - static_cast<double>(origin);
    deviations += sum + components * way;
    squares += static_cast<double>(lane.squares) + way * (2 * sum + components * way);
  }
};

// Appends what the lanes have to the unit.
STATCOLLECT_WARP void FinishNarrow(const NarrowSums& own, const UnitSums& unit) {
  if (own.pieces == 0) return;
  Totals totals;
  totals.components = __reduce_add_sync(kAllLanes, own.count);
  totals.zero = __reduce_add_sync(kAllLanes, own.zero);
  totals.neg = __reduce_add_sync(kAllLanes, own.neg);
  totals.hash = SumOverLanes(own.hash);
  const LaneRange range = RangeOverLanes({own.min, own.max});
  totals.min = static_cast<double>(range.min);
  totals.max = static_cast<double>(range.max);
  const double deviations = SumOverLanes(own.deviations), squares = SumOverLanes(own.squares);
  Moments& moments = totals.moments;
  moments.count = totals.components;
  moments.origin = static_cast<double>(own.origin);
  moments.magnitudes = SumOverLanes(own.magnitudes);
  if (range.min != range.max) {
    moments.offset = deviations / static_cast<double>(moments.count);
    const double squared = squares - deviations * moments.offset;
    moments.squared_deviations = squared > 0 ? squared : 0;
  }
  AppendTotals(unit, totals);
}

// Pieces whose sketch the slots may hold before it goes to the sums.
inline constexpr std::uint32_t kHeldMax = 8;

// Adds a piece of narrow components, if it is in range; else returns false. reduce() gives what its
// lane has to add, and `released` is called once the vectors are no longer needed. What is added to
// the sketch stays in the slots, beside that of `held` pieces before: the caller counts them and
// calls FlushSlots after kHeldMax at most, before AppendWide, and at the unit's end.
template <typename C, bool kPartial, typename Reduce, typename Released>
STATCOLLECT_WARP bool AddNarrow(const Piece& piece, const SketchSlots& sketch, std::uint32_t held,
                                NarrowSums* sums, const Reduce& reduce, const Released& released) {
  const LaneRange range = RangeOf<C, kPartial>(piece);
  if (!IsInRange<C, kPartial>(range)) return false;
  if (held == 0) ClearSlots(sketch);
  NarrowLane lane = reduce();
  float center = 0;
  if (__any_sync(kAllLanes, IsFarFromZero<C, kPartial>(lane))) {
    const Deviations deviations = DeviationsFromMean<C, kPartial>(piece, range, lane.sum);
    center = deviations.center;
    lane.deviations = deviations.sum;
    lane.squares = deviations.squares;
  }
  released();
  sums->template Add<C>(range, center, lane);
  return true;
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_NARROW_H_
