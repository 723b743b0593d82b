// One piece of a tensor reduced by one warp: the inner loop of the CUDA engine.
//
// PIECE. 8 KiB of consecutive components, staged in shared memory as 16 rows of 32 vectors; lane t has vector
// t of each row. A tensor's last piece may hold fewer; what it lacks is staged as zero bytes.
//
// ORDER OF SUMMATION. A lane adds the components of a vector as a balanced tree, its vectors alternately to
// two sums in float32 (float64 for kWide), in row order, and the two in the end; lanes are added as a
// butterfly (of 16, 8, 4, 2, 1) in float64. On its way there a component's part is rounded to float32 at most
// 4 + 8 + 1 times, its square's 8 + 1 + 8 + 1 times (8-bit types; fewer for wider ones). Deviations are taken
// from the piece's own mean, rounded to float32, in a second pass over shared memory: nothing cancels when
// |mean| >> std. If sums are not exact (kExactSums), the deviations' own sum corrects the mean. Sums of
// squares follow from both (totals.h).
//
// RANGE. A piece with components that are not finite, or whose squares or deviations would leave float32's
// range, is reduced by ReduceWide: the same in float64, component by component.
//
// Nothing depends on the launch: sums are functions of the piece's bytes alone.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_PIECE_H_
#define STATCOLLECT_AGENT_STATS_CUDA_PIECE_H_

#include <cmath>
#include <cstdint>

#include "agent/stats/accumulate.h"
#include "agent/stats/cuda/components.h"
#include "agent/stats/cuda/totals.h"
#include "agent/stats/cuda/warp.h"

namespace statcollect::stats::cuda {

inline constexpr int kRows = 16;
inline constexpr int kRowsAtOnce = 4;  // unrolled together
inline constexpr int kPieceVectors = kRows * kWarpLanes;
inline constexpr int kPieceBytes = kPieceVectors * kVectorBytes;

template <typename C>
inline constexpr int kVectorComponents = kVectorBytes / C::kBytes;
template <typename C>
inline constexpr int kPieceComponents = kPieceBytes / C::kBytes;

// A piece and where it lies in the tensor.
struct Piece {
  const Vector* vectors;     // kPieceVectors
  std::uint32_t components;  // 1 .. kPieceComponents
  std::uint64_t number;      // of the piece in the tensor, from 0
};

// A sketch of `width` sums under construction. A lane owns one slot of each sum: slot (sum, lane) lies at sum
// * 32
// + lane, so that lanes never wait for each other or for a bank.
struct SketchSlots {
  float* slots;  // width * kWarpLanes; room for half as many doubles
  std::uint32_t width;
};

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
    const std::uint32_t first =
        C::kBytes == 2 ? (vector.words[0] & 0xffffu) * 0x10001u : (vector.words[0] & 0xffu) * 0x01010101u;
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

// The component with its sign flipped if bit `bit` of `signs` is set.
STATCOLLECT_WARP float Signed(float value, std::uint32_t signs, int bit) {
  const std::uint32_t bits = BitsAs<std::uint32_t>(value) ^ ((signs << (31 - bit)) & 0x80000000u);
  return BitsAs<float>(bits);
}
STATCOLLECT_WARP double Signed(double value, std::uint32_t signs, int bit) {
  return ((signs >> bit) & 1u) != 0 ? -value : value;
}

// --- positions: which group and which hash block a vector belongs to

template <typename C>
struct Positions {
  static constexpr int kPairComponents = 2 * kLanes;  // two groups share a mix
  static constexpr int kPairs = kPieceComponents<C> / kPairComponents;
  static constexpr int kRowsPerMix =
      kRows / (kPairs / kWarpLanes);  // a lane computes one mix for so many rows
  static constexpr int kVectorsPerGroup = kLanes / kVectorComponents<C>;

  // Lane that computed the mix of the group of vector `lane` in row `row` of its kRowsPerMix.
  STATCOLLECT_WARP static int MixLane(int row, int lane) {
    return (row * kWarpLanes + lane) / (2 * kVectorsPerGroup);
  }
  // Bits of the vector's first component in the pair's mix.
  STATCOLLECT_WARP static int MixShift(int lane) {
    return (lane / kVectorsPerGroup) % 2 * 32 + (lane % kVectorsPerGroup) * kVectorComponents<C>;
  }

  static constexpr int kBlocks = kPieceComponents<C> / kHashComponents;
  // A vector of each of so many rows belongs to one block.
  static constexpr int kRowsPerBlock = C::kBytes < 2 ? 1 : C::kBytes / 2;
  static constexpr int kBlocksPerRow = C::kBytes < 2 ? 2 : 1;
  STATCOLLECT_WARP static int BlockOf(int row, int lane) {
    return row / kRowsPerBlock * kBlocksPerRow + lane / (kWarpLanes / kBlocksPerRow);
  }
  // Number of the vector's first hash key, keys numbered by pairs of words.
  STATCOLLECT_WARP static int KeyOf(int row, int lane) {
    return 2 * (row % kRowsPerBlock * kWarpLanes + lane % (kWarpLanes / kBlocksPerRow));
  }
};

// Keys of the pairs that a lane meets: of its vectors in the rows of one block.
template <typename C>
struct LaneKeys {
  std::uint64_t keys[Positions<C>::kRowsPerBlock][2];
};

template <typename C>
STATCOLLECT_WARP LaneKeys<C> KeysOf(int lane, const std::uint64_t* all) {
  LaneKeys<C> keys;
  STATCOLLECT_UNROLL
  for (int row = 0; row < Positions<C>::kRowsPerBlock; ++row) {
    const int key = Positions<C>::KeyOf(row, lane);
    keys.keys[row][0] = all[key];
    keys.keys[row][1] = all[key + 1];
  }
  return keys;
}

STATCOLLECT_WARP std::uint64_t VectorHash(const Vector& vector, const std::uint64_t keys[2]) {
  const auto pair = [&](std::uint32_t a, std::uint32_t b, std::uint64_t key) {
    return PairHash(a + static_cast<std::uint32_t>(key), b + static_cast<std::uint32_t>(key >> 32));
  };
  return pair(vector.words[0], vector.words[1], keys[0]) + pair(vector.words[2], vector.words[3], keys[1]);
}

// What the lanes of a warp keep while they hash and sketch a piece row by row.
template <typename C, typename Warp>
struct RowState {
  typename Warp::template Lanes<std::uint64_t> factors;  // lane t: that of block t of the piece
  typename Warp::template Lanes<std::uint64_t>
      mixes;  // lane t: that of pair t of the current kRowsPerMix rows
  typename Warp::template Lanes<std::uint64_t> block_hash, hash;

  STATCOLLECT_WARP explicit RowState(const Piece& piece) {
    Warp::ForEach([&](int lane) {
      factors[lane] = BlockFactor(piece.number * Positions<C>::kBlocks + static_cast<unsigned>(lane));
      mixes[lane] = 0;
      block_hash[lane] = 0;
      hash[lane] = 0;
    });
  }

  // Call at the beginning of each row.
  STATCOLLECT_WARP void BeginRow(const Piece& piece, int row) {
    if (row % Positions<C>::kRowsPerMix != 0) return;
    Warp::ForEach([&](int lane) {
      const int pair = row / Positions<C>::kRowsPerMix * kWarpLanes + lane;
      mixes[lane] = GroupPairMix(piece.number * Positions<C>::kPairs + static_cast<unsigned>(pair));
    });
  }

  // w of each lane's group in the row, shifted so that bit 0 is the sign of the vector's first component; the
  // bits that choose the sum in `sums`.
  STATCOLLECT_WARP void GroupBitsOf(int row, typename Warp::template Lanes<std::uint32_t>& signs,
                                    typename Warp::template Lanes<std::uint32_t>& sums) {
    typename Warp::template Lanes<int> source;
    Warp::ForEach(
        [&](int lane) { source[lane] = Positions<C>::MixLane(row % Positions<C>::kRowsPerMix, lane); });
    const auto mix = Warp::template Gather<std::uint64_t>(mixes, source);
    Warp::ForEach([&](int lane) {
      const int shift = Positions<C>::MixShift(lane);
      const auto half = static_cast<std::uint32_t>(mix[lane] >> (shift & 32));
      signs[lane] = half >> (shift & 31);
      sums[lane] = half >> 16;
    });
  }

  // Call after each row's vectors were added to block_hash.
  STATCOLLECT_WARP void EndRow(int row) {
    if ((row + 1) % Positions<C>::kRowsPerBlock != 0) return;
    typename Warp::template Lanes<int> source;
    Warp::ForEach([&](int lane) { source[lane] = Positions<C>::BlockOf(row, lane); });
    const auto factor = Warp::template Gather<std::uint64_t>(factors, source);
    Warp::ForEach([&](int lane) {
      hash[lane] += factor[lane] * block_hash[lane];
      block_hash[lane] = 0;
    });
  }
};

// True if vector `v` belongs to a group that the piece has.
template <typename C, bool kPartial>
STATCOLLECT_WARP bool IsHashed(const Piece& piece, int v) {
  if constexpr (!kPartial) return true;
  return v * kVectorComponents<C> < static_cast<int>((piece.components + kLanes - 1) / kLanes * kLanes);
}

// --- sketch slots

template <typename Warp>
STATCOLLECT_WARP void ClearSlots(const SketchSlots& sketch) {
  Warp::ForEach([&](int lane) {
    STATCOLLECT_UNROLL_BY(8)
    for (std::uint32_t sum = 0; sum < sketch.width; ++sum) sketch.slots[sum * kWarpLanes + lane] = 0;
  });
}

// Adds each sum's slots, in an order fixed by the width, to sums[0..width).
template <typename Warp, typename T>
STATCOLLECT_WARP void FlushSlots(const T* slots, std::uint32_t width, double* sums) {
  Warp::Sync();
  // Lanes share the columns of a sum; they start at different columns so that they meet in no bank.
  const std::uint32_t at_once = width < kWarpLanes ? width : kWarpLanes;
  const std::uint32_t columns = at_once;  // 32 / (32 / at_once), powers of two
  for (std::uint32_t base = 0; base < width; base += at_once) {
    typename Warp::template Lanes<double> total;
    Warp::ForEach([&](int lane) {
      const auto l = static_cast<std::uint32_t>(lane);
      const T* row = slots + (base + (l & (at_once - 1))) * kWarpLanes + (l & ~(at_once - 1));
      double sum = 0;
      STATCOLLECT_UNROLL_BY(8)
      for (std::uint32_t j = 0; j < columns; ++j) sum += static_cast<double>(row[(j + l) & (columns - 1)]);
      total[lane] = sum;
    });
    for (std::uint32_t mask = kWarpLanes / 2; mask >= at_once; mask /= 2) {
      const auto other = Warp::template Exchange<double>(total, static_cast<int>(mask));
      Warp::ForEach([&](int lane) { total[lane] += other[lane]; });
    }
    Warp::ForEach([&](int lane) {
      if (static_cast<std::uint32_t>(lane) < at_once)
        sums[base + static_cast<std::uint32_t>(lane)] += total[lane];
    });
  }
  Warp::Sync();
}

// --- the float32 path

struct FirstPass {
  double sum;
  float min, max;  // NaN if there is one

  // See RANGE above. Constant pieces have no deviations.
  STATCOLLECT_WARP bool InRange() const {
    constexpr float kLargest = 0x1p60f, kSmallestSpread = 0x1p-56f;
    if (!(min > -kLargest && max < kLargest)) return false;
    return min == max || max - min >= kSmallestSpread;
  }
};

template <typename C, bool kPartial, typename Warp>
STATCOLLECT_WARP FirstPass SumAndRange(const Piece& piece) {
  constexpr int n = kVectorComponents<C>;
  struct Lane {
    float sums[2] = {0, 0};
    typename C::Range range;
  };
  typename Warp::template Lanes<Lane> lanes;
  Warp::ForEach([&](int lane) { lanes[lane] = Lane(); });
  const int rows = RowsOf<C, kPartial>(piece);
  STATCOLLECT_UNROLL_BY(1)
  for (int base = 0; base < rows; base += kRowsAtOnce) {
    Warp::ForEach([&](int lane) {
      STATCOLLECT_UNROLL
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const int v = (base + i) * kWarpLanes + lane;
        const Vector vector = C::Clean(piece.vectors[v]);
        float values[n];
        STATCOLLECT_UNROLL
        for (int j = 0; j < n; ++j) values[j] = C::Value(vector, j);
        lanes[lane].sums[i % 2] += TreeSum<n>(values);
        const int valid = ValidIn<C, kPartial>(piece, v);
        if (valid > 0) lanes[lane].range.Add(kPartial ? FilledUp<C>(vector, valid) : vector);
      }
    });
  }
  typename Warp::template Lanes<double> sum;
  typename Warp::template Lanes<std::int32_t> min, max;
  Warp::ForEach([&](int lane) {
    sum[lane] = static_cast<double>(lanes[lane].sums[0] + lanes[lane].sums[1]);
    min[lane] = OrderedBits(lanes[lane].range.Min());
    max[lane] = OrderedBits(lanes[lane].range.Max());
  });
  SumOverLanes<Warp, double>(sum);
  return {Warp::Any(sum), FloatOfOrdered(Warp::Min(min)), FloatOfOrdered(Warp::Max(max))};
}

// What a lane keeps of a piece in range, besides FirstPass.
template <typename C>
struct NarrowLane {
  float magnitudes[2] = {0, 0}, deviations[2] = {0, 0}, squares[2] = {0, 0};
  typename C::Signs signs;
  std::uint32_t padding = 0;  // components counted as zeros that are not there
  std::uint64_t hash = 0;
};

// What deviations are taken from: the mean, as far as float32 has it.
STATCOLLECT_WARP float CenterOf(const Piece& piece, const FirstPass& first) {
  const auto center = static_cast<float>(first.sum / static_cast<double>(piece.components));
  return center < first.min ? first.min : center > first.max ? first.max : center;
}

// The second pass, over a piece in range; adds to the slots.
template <typename C, bool kPartial, typename Warp>
STATCOLLECT_WARP void ReduceNarrow(const Piece& piece, float center,
                                   const typename Warp::template Lanes<LaneKeys<C>>& keys,
                                   const SketchSlots& sketch,
                                   typename Warp::template Lanes<NarrowLane<C>>& lanes) {
  constexpr int n = kVectorComponents<C>;
  Warp::ForEach([&](int lane) { lanes[lane] = NarrowLane<C>(); });
  RowState<C, Warp> state(piece);
  const int rows = RowsOf<C, kPartial>(piece);
  STATCOLLECT_UNROLL_BY(1)
  for (int base = 0; base < rows; base += kRowsAtOnce) {
    STATCOLLECT_UNROLL
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int row = base + i;
      typename Warp::template Lanes<std::uint32_t> signs, sums;
      state.BeginRow(piece, row);
      state.GroupBitsOf(row, signs, sums);
      Warp::ForEach([&](int lane) {
        NarrowLane<C>& own = lanes[lane];
        const int v = row * kWarpLanes + lane;
        const Vector vector = C::Clean(piece.vectors[v]);
        const int valid = ValidIn<C, kPartial>(piece, v);
        float magnitudes[n], deviations[n], signed_values[n];
        float squares[2] = {0, 0};
        STATCOLLECT_UNROLL
        for (int j = 0; j < n; ++j) {
          const float value = C::Value(vector, j);
          magnitudes[j] = fabsf(value);
          signed_values[j] = Signed(value, signs[lane], j);
          const float deviation = value - center;
          deviations[j] = !kPartial || j < valid ? deviation : 0.0f;
          squares[j % 2] = fmaf(deviations[j], deviations[j], squares[j % 2]);
        }
        own.magnitudes[i % 2] += TreeSum<n>(magnitudes);
        own.squares[i % 2] += squares[0] + squares[1];
        if constexpr (!C::kExactSums) own.deviations[i % 2] += TreeSum<n>(deviations);
        own.signs.Add(vector);
        if constexpr (kPartial) own.padding += static_cast<std::uint32_t>(n - valid);
        sketch.slots[(sums[lane] & (sketch.width - 1)) * kWarpLanes + static_cast<std::uint32_t>(lane)] +=
            TreeSum<n>(signed_values);
        if (IsHashed<C, kPartial>(piece, v)) {
          state.block_hash[lane] += VectorHash(vector, keys[lane].keys[i % Positions<C>::kRowsPerBlock]);
        }
      });
      state.EndRow(row);
    }
  }
  Warp::ForEach([&](int lane) { lanes[lane].hash = state.hash[lane]; });
}

// What the lanes have found, together.
template <typename C, typename Warp>
STATCOLLECT_WARP Totals FinishNarrow(const Piece& piece, const FirstPass& first, float center,
                                     const typename Warp::template Lanes<NarrowLane<C>>& lanes) {
  typename Warp::template Lanes<double> magnitudes, deviations, squares;
  typename Warp::template Lanes<std::uint32_t> zero, neg;
  typename Warp::template Lanes<std::uint64_t> hash;
  Warp::ForEach([&](int lane) {
    const NarrowLane<C>& own = lanes[lane];
    magnitudes[lane] = static_cast<double>(own.magnitudes[0] + own.magnitudes[1]);
    squares[lane] = static_cast<double>(own.squares[0] + own.squares[1]);
    deviations[lane] = static_cast<double>(own.deviations[0] + own.deviations[1]);
    zero[lane] = own.signs.Zeros() - own.padding;
    neg[lane] = own.signs.Negatives();
    hash[lane] = own.hash;
  });
  SumOverLanes<Warp, double>(magnitudes);
  SumOverLanes<Warp, double>(squares);
  if constexpr (!C::kExactSums) SumOverLanes<Warp, double>(deviations);
  SumOverLanes<Warp, std::uint64_t>(hash);

  Totals totals;
  totals.components = piece.components;
  totals.zero = Warp::Sum(zero);
  totals.neg = Warp::Sum(neg);
  totals.hash = Warp::Any(hash);
  totals.min = static_cast<double>(first.min);
  totals.max = static_cast<double>(first.max);
  Moments& moments = totals.moments;
  moments.count = piece.components;
  moments.origin = static_cast<double>(center);
  moments.magnitudes = Warp::Any(magnitudes);
  const auto count = static_cast<double>(piece.components);
  const bool constant = first.min == first.max;
  const double from_center = constant        ? 0.0
                             : C::kExactSums ? first.sum - count * moments.origin
                                             : Warp::Any(deviations);
  moments.offset = from_center / count;
  const double squared = Warp::Any(squares) - from_center * moments.offset;
  moments.squared_deviations = squared > 0 && !constant ? squared : 0;
  return totals;
}

// --- the float64 path

STATCOLLECT_WARP bool IsFinite(double value) { return value - value == 0; }

// Sum over the piece's finite components of what term(value) gives, in the order above.
template <typename C, typename Warp, typename Term>
STATCOLLECT_WARP double SumWide(const Piece& piece, const Term& term) {
  constexpr int n = kVectorComponents<C>;
  typename Warp::template Lanes<double> even, odd;
  Warp::ForEach([&](int lane) { even[lane] = odd[lane] = 0; });
  const int rows = RowsOf<C, true>(piece);
  STATCOLLECT_UNROLL_BY(1)
  for (int row = 0; row < rows; row += 2) {
    Warp::ForEach([&](int lane) {
      STATCOLLECT_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int v = (row + i) * kWarpLanes + lane;
        const Vector vector = C::Clean(piece.vectors[v]);
        const int valid = ValidIn<C, true>(piece, v);
        double terms[n];
        STATCOLLECT_UNROLL
        for (int j = 0; j < n; ++j) {
          const auto value = static_cast<double>(C::Value(vector, j));
          terms[j] = j < valid && IsFinite(value) ? term(value) : 0.0;
        }
        (i == 0 ? even : odd)[lane] += TreeSum<n>(terms);
      }
    });
  }
  Warp::ForEach([&](int lane) { even[lane] += odd[lane]; });
  SumOverLanes<Warp, double>(even);
  return Warp::Any(even);
}

// Counts, extremes and hash.
template <typename C, typename Warp>
STATCOLLECT_WARP void ClassifyWide(const Piece& piece, const typename Warp::template Lanes<LaneKeys<C>>& keys,
                                   Totals& totals) {
  constexpr int n = kVectorComponents<C>;
  struct Lane {
    std::uint32_t nan = 0, pos_inf = 0, neg_inf = 0, zero = 0, neg = 0;
    double min = __builtin_huge_val(), minus_max = __builtin_huge_val();
  };
  typename Warp::template Lanes<Lane> lanes;
  Warp::ForEach([&](int lane) { lanes[lane] = Lane(); });
  RowState<C, Warp> state(piece);
  const int rows = RowsOf<C, true>(piece);
  STATCOLLECT_UNROLL_BY(1)
  for (int base = 0; base < rows; base += Positions<C>::kRowsPerBlock) {
    STATCOLLECT_UNROLL
    for (int i = 0; i < Positions<C>::kRowsPerBlock; ++i) {
      const int row = base + i;
      Warp::ForEach([&](int lane) {
        Lane& own = lanes[lane];
        const int v = row * kWarpLanes + lane;
        const Vector vector = C::Clean(piece.vectors[v]);
        const int valid = ValidIn<C, true>(piece, v);
        STATCOLLECT_UNROLL
        for (int j = 0; j < n; ++j) {
          if (j >= valid) continue;
          const auto value = static_cast<double>(C::Value(vector, j));
          if (value != value) {
            ++own.nan;
          } else if (!IsFinite(value)) {
            own.pos_inf += value > 0;
            own.neg_inf += value < 0;
          } else {
            own.zero += value == 0;
            own.neg += value < 0;
            own.min = value < own.min ? value : own.min;
            own.minus_max = -value < own.minus_max ? -value : own.minus_max;
          }
        }
        if (IsHashed<C, true>(piece, v)) state.block_hash[lane] += VectorHash(vector, keys[lane].keys[i]);
      });
      state.EndRow(row);
    }
  }
  const auto total = [&](std::uint32_t Lane::*member) {
    typename Warp::template Lanes<std::uint32_t> values;
    Warp::ForEach([&](int lane) { values[lane] = lanes[lane].*member; });
    return Warp::Sum(values);
  };
  totals.components = piece.components;
  totals.nan = total(&Lane::nan);
  totals.pos_inf = total(&Lane::pos_inf);
  totals.neg_inf = total(&Lane::neg_inf);
  totals.zero = total(&Lane::zero);
  totals.neg = total(&Lane::neg);
  SumOverLanes<Warp, std::uint64_t>(state.hash);
  totals.hash = Warp::Any(state.hash);
  typename Warp::template Lanes<double> min, minus_max;
  Warp::ForEach([&](int lane) {
    min[lane] = lanes[lane].min;
    minus_max[lane] = lanes[lane].minus_max;
  });
  totals.min = MinOverLanes<Warp>(min);
  totals.max = -MinOverLanes<Warp>(minus_max);
  totals.moments.count = totals.components - totals.nan - totals.pos_inf - totals.neg_inf;
}

// The sums of the sketch, twice over the piece: float64 slots of half of the sums fit.
template <typename C, typename Warp>
STATCOLLECT_WARP void SketchWide(const Piece& piece, double scale, const SketchSlots& sketch,
                                 double* sums_out) {
  constexpr int n = kVectorComponents<C>;
  auto* slots = reinterpret_cast<double*>(sketch.slots);
  const std::uint32_t half = sketch.width / 2;
  const int rows = RowsOf<C, true>(piece);
  for (std::uint32_t from = 0; from < sketch.width; from += half) {
    Warp::ForEach([&](int lane) {
      for (std::uint32_t sum = 0; sum < half; ++sum)
        slots[sum * kWarpLanes + static_cast<std::uint32_t>(lane)] = 0;
    });
    RowState<C, Warp> state(piece);
    STATCOLLECT_UNROLL_BY(1)
    for (int row = 0; row < rows; ++row) {
      typename Warp::template Lanes<std::uint32_t> signs, sums;
      state.BeginRow(piece, row);
      state.GroupBitsOf(row, signs, sums);
      Warp::ForEach([&](int lane) {
        const int v = row * kWarpLanes + lane;
        const std::uint32_t sum = (sums[lane] & (sketch.width - 1)) - from;
        if (sum >= half) return;
        const Vector vector = C::Clean(piece.vectors[v]);
        double values[n];
        STATCOLLECT_UNROLL
        for (int j = 0; j < n; ++j) {
          const auto value = static_cast<double>(C::Value(vector, j));
          values[j] = IsFinite(value) ? Signed(value * scale, signs[lane], j) : 0.0;
        }
        slots[sum * kWarpLanes + static_cast<std::uint32_t>(lane)] += TreeSum<n>(values);
      });
    }
    FlushSlots<Warp>(slots, half, sums_out + from);
  }
}

// Overwrites `totals`, whose level it chooses.
template <typename C, typename Warp>
STATCOLLECT_WARP void ReduceWide(const Piece& piece, const typename Warp::template Lanes<LaneKeys<C>>& keys,
                                 Totals& totals) {
  ClassifyWide<C, Warp>(piece, keys, totals);
  Moments& moments = totals.moments;
  if (moments.count == 0) return;
  if constexpr (C::kWide && C::kBytes == 8) {
    const double low = totals.min < 0 ? -totals.min : totals.min,
                 high = totals.max < 0 ? -totals.max : totals.max;
    moments.level = LevelOf(low > high ? low : high);
  }
  const double scale = ScaleOf(moments.level);
  const auto count = static_cast<double>(moments.count);
  const double sum = SumWide<C, Warp>(piece, [&](double value) { return value * scale; });
  const double center = sum / count;
  const double low = totals.min * scale, high = totals.max * scale;
  moments.origin = center < low ? low : center > high ? high : center;
  moments.magnitudes =
      SumWide<C, Warp>(piece, [&](double value) { return (value < 0 ? -value : value) * scale; });
  const double origin = moments.origin;
  const double deviations = SumWide<C, Warp>(piece, [&](double value) { return value * scale - origin; });
  const double squares = SumWide<C, Warp>(piece, [&](double value) {
    const double deviation = value * scale - origin;
    return deviation * deviation;
  });
  moments.offset = deviations / count;
  const double squared = squares - deviations * moments.offset;
  moments.squared_deviations = squared > 0 ? squared : 0;
}

// --- one piece

// Where a unit's results grow: memory of the warp.
struct UnitSums {
  Totals* totals;
  double* sums;  // of the sketch, of totals' level
};

template <typename Warp>
STATCOLLECT_WARP void AppendTotals(const UnitSums& unit, const Totals& next) {
  Warp::Sync();
  Warp::ForEach([&](int lane) {
    if (lane == 0) Append(*unit.totals, next);
  });
  Warp::Sync();
}

// Appends any piece, in float64.
template <typename C, typename Warp>
STATCOLLECT_WARP void AppendWide(const Piece& piece, const typename Warp::template Lanes<LaneKeys<C>>& keys,
                                 const SketchSlots& sketch, const UnitSums& unit) {
  Totals next;
  ReduceWide<C, Warp>(piece, keys, next);
  if (next.moments.count != 0) {
    const Moments& so_far = unit.totals->moments;
    const int before = so_far.level;
    const bool some = so_far.count != 0;
    const int level = !some || next.moments.level > before ? next.moments.level : before;
    if (some && level > before) {
      const double factor = RaisingFactor(before, level);
      Warp::ForEach([&](int lane) {
        for (auto sum = static_cast<std::uint32_t>(lane); sum < sketch.width; sum += kWarpLanes) {
          unit.sums[sum] *= factor;
        }
      });
    }
    SketchWide<C, Warp>(piece, ScaleOf(level), sketch, unit.sums);
  }
  AppendTotals<Warp>(unit, next);
}

// Pieces whose sketch the slots may hold before it goes to the sums.
inline constexpr std::uint32_t kHeldMax = 8;

// Appends a piece of narrow components, if it is in range; else returns false. `released` is called once the
// vectors are no longer needed. What it adds to the sketch stays in the slots, beside that of `held` pieces
// before: the caller counts them and calls FlushSlots after kHeldMax at most, before AppendWide, and at the
// unit's end.
template <typename C, bool kPartial, typename Warp, typename Released>
STATCOLLECT_WARP bool AppendNarrow(const Piece& piece, const typename Warp::template Lanes<LaneKeys<C>>& keys,
                                   const SketchSlots& sketch, std::uint32_t held, const UnitSums& unit,
                                   const Released& released) {
  const FirstPass first = SumAndRange<C, kPartial, Warp>(piece);
  if (!C::kAlwaysInRange && !first.InRange()) return false;
  if (held == 0) ClearSlots<Warp>(sketch);
  const float center = CenterOf(piece, first);
  typename Warp::template Lanes<NarrowLane<C>> lanes;
  ReduceNarrow<C, kPartial, Warp>(piece, center, keys, sketch, lanes);
  released();
  AppendTotals<Warp>(unit, FinishNarrow<C, Warp>(piece, first, center, lanes));
  return true;
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_PIECE_H_
