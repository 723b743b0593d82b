// Hash and sketch of a piece whose blocks are not blocks of the logical tensor: a shard's, cut
// anywhere.
//
// Each lane walks its own vectors, each component to its index in the logical tensor (index_map.h).
// A vector that lies in one group there, at a multiple of its size, is added as a whole; others
// component by component. Consecutive vectors of a lane usually belong to one fold, whose sums stay
// in registers until the fold changes.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_FINGERPRINT_RUNS_H_
#define STATCOLLECT_AGENT_STATS_CUDA_FINGERPRINT_RUNS_H_

#include <cstdint>

#include "agent/stats/cuda/fingerprint_rows.h"
#include "agent/stats/cuda/index_map.h"
#include "agent/stats/cuda/piece.h"

namespace statcollect::stats::cuda {

// Where components go.
template <typename T>
struct RunsTarget {
  const KernelTables* tables;
  const float* signs;  // of the block (launch.h)
  T* slots;            // as SketchSlots; of double, only those of sums from .. from + slot_sums - 1
  std::uint32_t width;            // of the sketch
  std::uint32_t from, slot_sums;  // of float: 0 and width
};

// Hash and sketch of what a lane gives it, run by run. T: float or double.
//
// Within a run, the lower 32 bits of an index tell all there is to tell: its word, group, row and
// lane. Full indices are needed only where a block or a fold begins.
template <typename C, typename T>
class RunsLane {
 public:
  static constexpr int n = kVectorComponents<C>;

  STATCOLLECT_WARP explicit RunsLane(const RunsTarget<T>& to) : to_(to) {
    to_.slots = InBlockMemory(to.slots) + Lane();
    STATCOLLECT_UNROLL
    for (int j = 0; j < n; ++j) sums_[j] = 0;
  }

  // `base`: what to add to a component's number in the piece for its index in the logical tensor,
  // modulo 2^64.
  STATCOLLECT_WARP void BeginRun(std::uint64_t base) {
    LeaveLanes();
    base_ = base;
    block_ = fold_ = kNone;
  }

  // A vector of components that follow each other in the run. Precondition: the first one's index
  // is a multiple of n.
  STATCOLLECT_WARP void Add(int component, const Vector& vector, const T (&values)[n]) {
    const std::uint32_t at = At(component);
    if (BlockAt(at) != block_) EnterBlock(component);
    const Vector keys = *reinterpret_cast<const Vector*>(KeysAt(at));
    STATCOLLECT_UNROLL
    for (int i = 0; i < 4; ++i) words_ = MultiplyAddWide(vector.words[i], keys.words[i], words_);
    if ((at & ~kRowBits) != lanes_) EnterLanes(component);
    const float* const signs =
        signs_ + (at & kRowBits) / (kSketchFolds * kLanes) * kLanes + at % kLanes;
    STATCOLLECT_UNROLL
    for (int j = 0; j < n; j += kAtOnce) {
      Signs some;
      memcpy(&some, __builtin_assume_aligned(signs + j, sizeof(some)), sizeof(some));
      STATCOLLECT_UNROLL
      for (int l = 0; l < kAtOnce; ++l)
        sums_[j + l] = MultiplyAdd(values[j + l], static_cast<T>(some.signs[l]), sums_[j + l]);
    }
  }

  // One component. `bits`: of a vector that begins with it.
  STATCOLLECT_WARP void AddOne(int component, const Vector& bits, T value) {
    const std::uint32_t at = At(component);
    if (BlockAt(at) != block_) EnterBlock(component);
    const std::uint32_t* const keys = KeysAt(at);
    if constexpr (C::kBytes == 8) {
      words_ =
          MultiplyAddWide(bits.words[0], keys[0], MultiplyAddWide(bits.words[1], keys[1], words_));
    } else {
      const std::uint32_t shift = at * C::kBytes % 4 * 8;
      words_ = MultiplyAddWide(bits.words[0] << shift, keys[0], words_);
    }
    if ((at & ~kRowBits & ~kLaneBits) != fold_) EnterFold(component);
    const float sign = signs_[(at & kRowBits) / (kSketchFolds * kLanes) * kLanes + at % kLanes];
    AddToSlot(at % kLanes, value * static_cast<T>(sign));
  }

  // Adds what has not reached its slot. Returns the hash of everything.
  STATCOLLECT_WARP std::uint64_t Finish() {
    LeaveLanes();
    LeaveBlock();
    return hash_;
  }

 private:
  static constexpr int kAtOnce = n < 4 ? n : 4;
  struct alignas(4 * kAtOnce) Signs {
    float signs[kAtOnce];
  };
  // Of an index: the lane, and the row of its fold.
  static constexpr std::uint32_t kLaneBits = kLanes - 1,
                                 kRowBits = (kSketchRows - 1) * kSketchFolds * kLanes;
  static constexpr std::uint32_t kNone = ~0u;  // no fold's, as that has no bits of lane and row

  STATCOLLECT_WARP static float MultiplyAdd(float a, float b, float c) { return fmaf(a, b, c); }
  STATCOLLECT_WARP static double MultiplyAdd(double a, double b, double c) { return fma(a, b, c); }

  STATCOLLECT_WARP std::uint64_t IndexOf(int component) const {
    return base_ + static_cast<std::uint64_t>(component);
  }
  STATCOLLECT_WARP std::uint32_t At(int component) const {
    return static_cast<std::uint32_t>(base_) + static_cast<std::uint32_t>(component);
  }

  // --- hash

  static constexpr std::uint32_t kHashComponents = kHashWords * 4 / C::kBytes;  // of a block

  STATCOLLECT_WARP static std::uint32_t BlockAt(std::uint32_t at) { return at / kHashComponents; }
  STATCOLLECT_WARP const std::uint32_t* KeysAt(std::uint32_t at) const {
    return to_.tables->keys.words + at % kHashComponents * C::kBytes / 4;
  }
  STATCOLLECT_WARP void EnterBlock(int component) {
    LeaveBlock();
    block_ = BlockAt(At(component));
    block_number_ = IndexOf(component) / kHashComponents;
  }
  STATCOLLECT_WARP void LeaveBlock() {
    if (words_ != 0) hash_ += BlockFactor(block_number_) * words_;
    words_ = 0;
  }

  // --- sketch

  STATCOLLECT_WARP void EnterLanes(int component) {
    const std::uint32_t at = At(component);
    LeaveLanes();
    if ((at & ~kRowBits & ~kLaneBits) != fold_) EnterFold(component);
    lanes_ = at & ~kRowBits;
  }
  STATCOLLECT_WARP void EnterFold(int component) {
    LeaveLanes();
    fold_ = At(component) & ~kRowBits & ~kLaneBits;
    const std::uint64_t index = IndexOf(component);
    const auto fold = static_cast<unsigned>(index / kLanes % kSketchFolds);
    const std::uint64_t quad =
        index / kSketchBlockComponents * 4 + fold / 4;  // four folds share a mix
    if (quad != quad_) mix_ = SplitMix(kSketchSeed, quad);
    quad_ = quad;
    bits_ = SketchFold::Of(mix_, static_cast<int>(fold));
    signs_ = to_.signs + bits_.frame() * kFrameFloats;
  }
  STATCOLLECT_WARP void LeaveLanes() {
    if (lanes_ == kNone) return;
    STATCOLLECT_UNROLL
    for (int j = 0; j < n; ++j) {
      AddToSlot(lanes_ % kLanes + static_cast<unsigned>(j), sums_[j]);
      sums_[j] = 0;
    }
    lanes_ = kNone;
  }
  STATCOLLECT_WARP void AddToSlot(std::uint32_t lane, T value) {
    const std::uint32_t sum = bits_.SumOf(static_cast<int>(lane), to_.width) - to_.from;
    if (sizeof(T) > sizeof(float) && sum >= to_.slot_sums) return;
    const std::uint32_t sign_bits = 0x3f800000u | bits_.sign();
    T& slot = to_.slots[sum * kWarpLanes];
    slot = MultiplyAdd(value, static_cast<T>(BitsAs<float>(sign_bits)), slot);
  }

  RunsTarget<T> to_;  // its slots: the lane's
  std::uint64_t base_ = 0;
  std::uint64_t hash_ = 0, words_ = 0;  // words_: of the block
  std::uint64_t block_number_ = 0;
  std::uint32_t block_ = kNone;  // 32 bits of it, as BlockAt
  std::uint32_t fold_ =
      kNone;  // an index in the run without row and lane, as bits_ and signs_ are of that fold
  std::uint32_t lanes_ = kNone;  // the same, with the first lane of what sums_ hold; none: nothing
  std::uint64_t quad_ = ~std::uint64_t{0}, mix_ = 0;
  SketchFold bits_ = {0};
  const float* signs_ = nullptr;
  T sums_[n];
};

// A component as the sketch takes it.
template <typename C, typename T>
STATCOLLECT_WARP T ForSketch(const Vector& vector, int j, double scale) {
  if constexpr (sizeof(T) == sizeof(float)) return C::Value(vector, j);
  const auto value = static_cast<double>(C::Value(vector, j));
  return static_cast<T>(IsFinite(value) ? value * scale : 0.0);
}

// Component `j` of vector `v`, as the first of a vector.
template <typename C>
STATCOLLECT_WARP Vector ComponentAt(const Piece& piece, int v, int j) {
  Vector vector = {{0, 0, 0, 0}};
  memcpy(vector.words,
         __builtin_assume_aligned(
             reinterpret_cast<const unsigned char*>(piece.vectors + v) + j * C::kBytes, C::kBytes),
         C::kBytes);
  return C::Clean(vector);
}

// A map's runs, by a function that is called.
struct RunOf {
  STATCOLLECT_CALL static IndexRun At(const std::uint64_t* map, std::uint64_t component) {
    return IndexMap(map).At(component);
  }
};

// Whether the blocks of a whole piece are blocks of the logical tensor; *block: see
// PieceMixes::AtBlock.
template <typename C>
STATCOLLECT_WARP bool LiesInBlocks(const std::uint64_t* map, const Piece& piece,
                                   std::uint64_t* block) {
  const auto offset = static_cast<unsigned>(PieceMixes<C>::BlockOfLane() * kSketchBlockComponents);
  const IndexRun run = RunOf::At(map, piece.number * kPieceComponents<C> + offset);
  *block = run.first / kSketchBlockComponents;
  return __all_sync(kAllLanes,
                    run.first % kSketchBlockComponents == 0 && run.count >= kSketchBlockComponents);
}

// Adds the piece to hash and sketch, by the map of its tensor, each component times `scale`.
// Precondition, of float: everything is finite, and the scale 1. Returns the lane's part of the
// hash.
template <typename C, typename T>
STATCOLLECT_CALL std::uint64_t AddRuns(Piece piece, const std::uint64_t* map, double scale,
                                       RunsTarget<T> to) {
  constexpr int n = kVectorComponents<C>, kFolds = SketchPlace<C>::kFolds;
  piece.vectors = InBlockMemory(piece.vectors);
  RunsLane<C, T> own(to);
  const std::uint64_t before = piece.number * kPieceComponents<C>;
  const int components = static_cast<int>(piece.components);
  int begin = 0, end = 0,
      vectors_end = 0;  // of the run in the piece, and of what can be added as vectors
  const auto begin_run = [&](int component) {
    const IndexRun run = RunOf::At(map, before + static_cast<std::uint64_t>(component));
    const auto left = static_cast<std::uint64_t>(components - component);
    begin = component;
    end = component + static_cast<int>(run.count < left ? run.count : left);
    const std::uint64_t base = run.first - static_cast<std::uint64_t>(component);
    vectors_end = base % n == 0 ? end : 0;
    own.BeginRun(base);
  };
  // One fold after the other.
  STATCOLLECT_UNROLL_BY(1)
  for (int first_row = 0; first_row < kFolds; ++first_row) {
    STATCOLLECT_UNROLL_BY(1)
    for (int row = first_row; row < kRows; row += kFolds) {
      const int v = row * kWarpLanes + Lane(), component = v * n;
      if (component < components && (component < begin || component >= end)) begin_run(component);
      if (component >= begin && component + n <= vectors_end) {
        const Vector vector = C::Clean(piece.vectors[v]);
        T values[n];
        STATCOLLECT_UNROLL
        for (int j = 0; j < n; ++j) values[j] = ForSketch<C, T>(vector, j, scale);
        own.Add(component, vector, values);
        continue;
      }
      const int stop = component + n < components ? component + n : components;
      STATCOLLECT_UNROLL_BY(1)
      for (int each = component; each < stop; ++each) {
        if (each >= end) begin_run(each);
        const Vector bits = ComponentAt<C>(piece, v, each - component);
        own.AddOne(each, bits, ForSketch<C, T>(bits, 0, scale));
      }
    }
  }
  return own.Finish();
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_FINGERPRINT_RUNS_H_
