// How a warp hashes and sketches the rows of a piece: definitions in fingerprint.h.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_FINGERPRINT_ROWS_H_
#define STATCOLLECT_AGENT_STATS_CUDA_FINGERPRINT_ROWS_H_

#include <cmath>
#include <cstdint>

#include "agent/stats/accumulate.h"
#include "agent/stats/cuda/components.h"
#include "agent/stats/cuda/device.h"
#include "agent/stats/cuda/launch.h"
#include "agent/stats/cuda/layout.h"
#include "agent/stats/fingerprint.h"

namespace statcollect::stats::cuda {

// --- tables

// Fills the signs of a block (launch.h). All threads; wants a barrier before they are used.
STATCOLLECT_WARP void WriteSigns(const KernelTables& tables, float* signs) {
  for (unsigned i = threadIdx.x; i < kSketchFrames * kSketchRows * 2; i += blockDim.x) {
    const unsigned frame = i / (2 * kSketchRows), row = i / 2 % kSketchRows, half = i % 2 * 8;
    const std::uint32_t minus = tables.signs.minus[frame][row];
    float* const out = signs + frame * kFrameFloats + row * kLanes + half;
    STATCOLLECT_UNROLL
    for (unsigned j = 0; j < 8; ++j) {
      const std::uint32_t bits = 0x3f800000u | ((minus >> (half + j)) & 1u) << 31;
      out[j] = BitsAs<float>(bits);
    }
  }
}

// Hash keys of the words that a lane meets: four rows are one block, of any dtype.
inline constexpr int kHashRows = kHashWords / (4 * kWarpLanes);
struct LaneKeys {
  Vector rows[kHashRows];
};

STATCOLLECT_WARP LaneKeys KeysOf(const KernelTables& tables) {
  LaneKeys keys;
  STATCOLLECT_UNROLL
  for (int row = 0; row < kHashRows; ++row)
    keys.rows[row] = reinterpret_cast<const Vector*>(tables.keys.words)[row * kWarpLanes + Lane()];
  return keys;
}

// a * b + c, by one instruction: the compiler takes more for 64-bit factors that it has seen to be
// of 32 bits.
STATCOLLECT_WARP std::uint64_t MultiplyAddWide(std::uint32_t a, std::uint32_t b, std::uint64_t c) {
#if defined(__CUDA_ARCH__)
  std::uint64_t result;
  asm("{.reg .u32 low, high;\n mov.b64 {low, high}, %3;\n mad.lo.cc.u32 low, %1, %2, low;\n"
      " madc.hi.u32 high, %1, %2, high;\n mov.b64 %0, {low, high};}"
      : "=l"(result)
      : "r"(a), "r"(b), "l"(c));
  return result;
#else
  return static_cast<std::uint64_t>(a) * b + c;
#endif
}

// Adds the vector's words.
STATCOLLECT_WARP void AddToHash(const Vector& vector, const Vector& keys, std::uint64_t& hash) {
  STATCOLLECT_UNROLL
  for (int i = 0; i < 4; ++i) hash = MultiplyAddWide(vector.words[i], keys.words[i], hash);
}

// --- positions

// Where a lane's vectors lie in the sketch.
template <typename C>
struct SketchPlace {
  static constexpr int kFolds =
      C::kBytes < 4 ? 1 : C::kBytes / 2;  // of rows with row % kFolds = 0, 1, ...
  static constexpr int kBlockRows = C::kBytes == 1   ? 4
                                    : C::kBytes == 2 ? 8
                                                     : 16;  // rows of a piece in a block
  static constexpr int kBlocks =
      kRows / kBlockRows;  // of a piece; of 8-byte types, two pieces share one

  STATCOLLECT_WARP static std::uint64_t FirstBlock(std::uint64_t piece) {
    return C::kBytes == 8 ? piece / 2 : piece * kBlocks;
  }
  STATCOLLECT_WARP static int FoldOf(int i) {
    return C::kBytes == 1 ? Lane() % kSketchFolds
                          : i * (kWarpLanes / C::kBytes) + Lane() / C::kBytes;
  }
  // Place of the vector's first component in its group.
  STATCOLLECT_WARP static int FirstLane() { return kVectorComponents<C> * (Lane() % C::kBytes); }
  // The fold's row that the vector of a row of the block belongs to.
  STATCOLLECT_WARP static int RowOf(std::uint64_t piece, int row) {
    if constexpr (C::kBytes == 1) return 2 * row + Lane() / kSketchFolds;
    if constexpr (C::kBytes == 2) return row;
    if constexpr (C::kBytes == 4) return row / 2;
    return static_cast<int>(piece % 2) * 4 + row / 4;
  }
};

inline constexpr std::uint64_t kBlockSeed = 0x53544154424c4f43u, kSketchSeed = 0x53544154534b4554u;
static_assert((SplitMix(kBlockSeed, std::uint64_t{7}) | 1) == BlockFactor(7));
static_assert(SplitMix(kSketchSeed, std::uint64_t{4 * 7 + 1}) == SketchMix(7, 5));

// The mixes of a piece: a lane computes one, others fetch it.
template <typename C>
class PieceMixes {
 public:
  STATCOLLECT_WARP explicit PieceMixes(std::uint64_t piece) {
    const int lane = Lane();
    const bool hash = lane < kHashBlocks;
    const std::uint64_t first = hash ? kHashBlocks * piece : 4 * SketchPlace<C>::FirstBlock(piece);
    mix_ = SplitMix(hash ? kBlockSeed : kSketchSeed,
                    first + static_cast<unsigned>(hash ? lane : lane - kHashBlocks));
  }
  // Of a piece whose blocks lie anywhere in the logical tensor. `block`: the number there of the
  // block of the sketch that is number BlockOfLane() in the piece.
  STATCOLLECT_WARP static PieceMixes AtBlock(std::uint64_t block) {
    const auto lane = static_cast<unsigned>(Lane());
    const bool hash = lane < kHashBlocks;
    constexpr unsigned kHashOfSketch =
        kHashBlocks / SketchPlace<C>::kBlocks;  // blocks of the hash in one
    PieceMixes mixes;
    mixes.mix_ =
        SplitMix(hash ? kBlockSeed : kSketchSeed,
                 hash ? kHashOfSketch * block + lane % kHashOfSketch : 4 * block + lane % 4);
    return mixes;
  }
  // Which of the piece's blocks the lane needs to know; those without one take the last.
  STATCOLLECT_WARP static int BlockOfLane() {
    constexpr int kBlocks = SketchPlace<C>::kBlocks;
    const int block =
        Lane() < kHashBlocks ? Lane() / (kHashBlocks / kBlocks) : (Lane() - kHashBlocks) / 4;
    return block < kBlocks ? block : kBlocks - 1;
  }
  // M of the hash block of rows `row` .. row + kHashRows - 1 of the piece.
  STATCOLLECT_WARP std::uint64_t Factor(int row) const {
    return FromLane(mix_, row / kHashRows) | 1;
  }
  // The lane's fold `i` of the piece's block.
  STATCOLLECT_WARP SketchFold Fold(int block, int i) const {
    const int fold = SketchPlace<C>::FoldOf(i);
    return SketchFold::Of(FromLane(mix_, kHashBlocks + 4 * block + fold / 4), fold);
  }

 private:
  static constexpr int kHashBlocks = kRows / kHashRows;  // of a piece
  static_assert(kHashBlocks % 4 == 0);

  PieceMixes() = default;

  std::uint64_t mix_;
};

// The sums of a lane over the rows of a block. T: float or double.
template <typename C, typename T>
class FoldSums {
 public:
  static constexpr int kFolds = SketchPlace<C>::kFolds, n = kVectorComponents<C>;

  STATCOLLECT_WARP FoldSums(const PieceMixes<C>& mixes, std::uint64_t piece, int block,
                            const float* signs) {
    STATCOLLECT_UNROLL
    for (int i = 0; i < kFolds; ++i) {
      folds_[i] = mixes.Fold(block, i);
      signs_[i] = signs + folds_[i].frame() * kFrameFloats + SketchPlace<C>::FirstLane() +
                  SketchPlace<C>::RowOf(piece, 0) * kLanes;
      STATCOLLECT_UNROLL
      for (int j = 0; j < n; ++j) sums_[i][j] = 0;
    }
  }
  // Component j of the lane's vector in a row of the block.
  STATCOLLECT_WARP void Add(int row, const T (&values)[n]) {
    const float* const signs =
        signs_[row % kFolds] +
        (SketchPlace<C>::RowOf(0, row) - SketchPlace<C>::RowOf(0, 0)) * kLanes;
    STATCOLLECT_UNROLL
    for (int j = 0; j < n; j += kAtOnce) {
      Signs some;
      memcpy(&some, __builtin_assume_aligned(signs + j, sizeof(some)), sizeof(some));
      STATCOLLECT_UNROLL
      for (int l = 0; l < kAtOnce; ++l) {
        T& sum = sums_[row % kFolds][j + l];
        sum = MultiplyAdd(values[j + l], static_cast<T>(some.signs[l]), sum);
      }
    }
  }
  // Adds to those slots whose sums are from .. from + slot_sums - 1.
  STATCOLLECT_WARP void AddTo(T* slots, std::uint32_t width, std::uint32_t from,
                              std::uint32_t slot_sums) const {
    STATCOLLECT_UNROLL
    for (int i = 0; i < kFolds; ++i) {
      const std::uint32_t bits = 0x3f800000u | folds_[i].sign();
      const auto sign = static_cast<T>(BitsAs<float>(bits));
      const std::uint32_t first = folds_[i].SumOf(SketchPlace<C>::FirstLane(), width);
      // Sums follow each other up to the bank's last; behind it comes the bank's first.
      const auto until_last = static_cast<int>(kLanes - first % kLanes);
      T* const slot = slots + static_cast<int>((first - from) * kWarpLanes) + Lane();
      T* const wrapped = slot - kLanes * kWarpLanes;
      STATCOLLECT_UNROLL
      for (int j = 0; j < n; ++j) {
        const bool wraps = j >= until_last;
        const std::uint32_t sum = first - from + static_cast<unsigned>(j) - (wraps ? kLanes : 0);
        if (slot_sums != width && sum >= slot_sums) continue;
        T& to = (wraps ? wrapped : slot)[j * kWarpLanes];
        to = MultiplyAdd(sums_[i][j], sign, to);
      }
    }
  }

 private:
  static constexpr int kAtOnce = n < 4 ? n : 4;
  struct alignas(4 * kAtOnce) Signs {
    float signs[kAtOnce];
  };
  STATCOLLECT_WARP static float MultiplyAdd(float a, float b, float c) { return fmaf(a, b, c); }
  STATCOLLECT_WARP static double MultiplyAdd(double a, double b, double c) { return fma(a, b, c); }

  SketchFold folds_[kFolds];
  const float* signs_[kFolds];
  T sums_[kFolds][n];
};

// --- sketch slots

STATCOLLECT_WARP void ClearSlots(const SketchSlots& sketch) {
  STATCOLLECT_UNROLL_BY(8)
  for (std::uint32_t sum = 0; sum < sketch.width; ++sum)
    sketch.slots[sum * kWarpLanes + static_cast<std::uint32_t>(Lane())] = 0;
}

// Adds each sum's slots, in an order fixed by the width, to sums[0..width).
template <typename T>
STATCOLLECT_WARP void FlushSlots(const T* slots, std::uint32_t width, double* sums) {
  __syncwarp();
  // Lanes share the columns of a sum; they start at different columns so that they meet in no bank.
  const std::uint32_t at_once = width < kWarpLanes ? width : kWarpLanes;
  const std::uint32_t columns = at_once;  // 32 / (32 / at_once), powers of two
  const auto lane = static_cast<std::uint32_t>(Lane());
  for (std::uint32_t base = 0; base < width; base += at_once) {
    const T* row = slots + (base + (lane & (at_once - 1))) * kWarpLanes + (lane & ~(at_once - 1));
    double sum = 0;
    STATCOLLECT_UNROLL_BY(8)
    for (std::uint32_t j = 0; j < columns; ++j)
      sum += static_cast<double>(row[(j + lane) & (columns - 1)]);
    for (std::uint32_t mask = kWarpLanes / 2; mask >= at_once; mask /= 2)
      sum += Exchanged(sum, static_cast<int>(mask));
    if (lane < at_once) sums[base + lane] += sum;
  }
  __syncwarp();
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_FINGERPRINT_ROWS_H_
