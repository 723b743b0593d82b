// Units, nodes and the way from a tensor's memory to its result, as one warp does them (piece.h: a
// piece; task.h: units and the tree).
#ifndef STATCOLLECT_AGENT_STATS_CUDA_REDUCE_H_
#define STATCOLLECT_AGENT_STATS_CUDA_REDUCE_H_

#include <cstdint>

#include "agent/stats/cuda/piece.h"
#include "agent/stats/cuda/task.h"

namespace statcollect::stats::cuda {

template <typename C>
STATCOLLECT_HD std::uint64_t PiecesOf(std::uint64_t components) {
  return DivideUp(components, kPieceBytes / C::kBytes);
}

// The piece's bytes where the components lie one after the other.
template <typename C>
STATCOLLECT_WARP const unsigned char* PieceBytes(const Task& task, std::uint64_t piece) {
  return task.data + piece * kPieceBytes;
}

// Valid bytes of vector `v` of the piece.
template <typename C>
STATCOLLECT_WARP int BytesIn(const Task& task, std::uint64_t piece, int v) {
  const std::uint64_t end = task.components * C::kBytes;
  const std::uint64_t begin = piece * kPieceBytes + static_cast<std::uint64_t>(v) * kVectorBytes;
  if (begin >= end) return 0;
  return end - begin < kVectorBytes ? static_cast<int>(end - begin) : kVectorBytes;
}

// Where component `index` of the tensor lies, and the way from each to the next.
class ComponentWalk {
 public:
  STATCOLLECT_WARP ComponentWalk(const Task& task, std::uint64_t index)
      : task_(task), at_(task.data) {
    for (int d = task.dims - 1; d >= 0; --d) {
      const auto size = static_cast<std::uint64_t>(task.sizes[d]);
      // Most indices and sizes fit 32 bits, whose division is several times faster.
      std::uint64_t quotient;
      if (((index | size) >> 32) == 0) {
        quotient = static_cast<std::uint32_t>(index) / static_cast<std::uint32_t>(size);
      } else {
        quotient = index / size;
      }
      const auto place = static_cast<std::int64_t>(index - quotient * size);
      if (d == task.dims - 1) inner_ = place;
      at_ += place * task.stride_bytes[d];
      index = quotient;
      if (d == task.dims - 1) outer_ = index;
    }
  }
  STATCOLLECT_WARP const unsigned char* at() const { return at_; }
  STATCOLLECT_WARP void Next() {
    const int last = task_.dims - 1;
    at_ += task_.stride_bytes[last];
    if (++inner_ < task_.sizes[last]) return;
    // The row's end: the next one from its number.
    inner_ = 0;
    at_ = task_.data;
    std::uint64_t index = ++outer_;
    for (int d = last - 1; d >= 0; --d) {
      const auto size = static_cast<std::uint64_t>(task_.sizes[d]);
      const std::uint64_t quotient = index / size;
      at_ += static_cast<std::int64_t>(index - quotient * size) * task_.stride_bytes[d];
      index = quotient;
    }
  }

 private:
  const Task& task_;
  const unsigned char* at_;
  std::int64_t inner_ = 0;   // index in the innermost dimension
  std::uint64_t outer_ = 0;  // number of the row
};

template <int kBytes>
struct UnsignedOf;
template <>
struct UnsignedOf<1> {
  using Type = std::uint8_t;
};
template <>
struct UnsignedOf<2> {
  using Type = std::uint16_t;
};
template <>
struct UnsignedOf<4> {
  using Type = std::uint32_t;
};
template <>
struct UnsignedOf<8> {
  using Type = std::uint64_t;
};

// Writes vector `v` of the piece component by component; missing ones are 0.
template <typename C>
STATCOLLECT_WARP void GatherVector(const Task& task, std::uint64_t piece, int v, Vector* to) {
  using Unsigned = typename UnsignedOf<C::kBytes>::Type;
  *to = {{0, 0, 0, 0}};
  auto* const out = reinterpret_cast<unsigned char*>(to);  // read as words later
  const auto put = [&](int j, Unsigned bits) { memcpy(out + j * C::kBytes, &bits, C::kBytes); };
  const int valid = BytesIn<C>(task, piece, v) / C::kBytes;
  const std::uint64_t first =
      piece * kPieceComponents<C> + static_cast<std::uint64_t>(v) * kVectorComponents<C>;
  if (task.dims == 0) {
    const auto* from = reinterpret_cast<const Unsigned*>(task.data) + first;
    STATCOLLECT_UNROLL_BY(4)
    for (int j = 0; j < valid; ++j) put(j, from[j]);
    return;
  }
  if (valid == 0) return;
  ComponentWalk walk(task, first);
  STATCOLLECT_UNROLL_BY(1)
  for (int j = 0; j < valid; ++j) {
    put(j, *reinterpret_cast<const Unsigned*>(walk.at()));
    if (j + 1 < valid) walk.Next();
  }
}

// Whether vectors can be copied as they lie.
STATCOLLECT_WARP bool LiesInVectors(const Task& task) {
  return task.dims == 0 && reinterpret_cast<std::uintptr_t>(task.data) % kVectorBytes == 0;
}

template <typename C>
STATCOLLECT_WARP Piece PieceOf(const Task& task, std::uint64_t number, const Vector* staged) {
  const std::uint64_t left = task.components - number * kPieceComponents<C>;
  return {staged,
          left < kPieceComponents<C> ? static_cast<std::uint32_t>(left) : kPieceComponents<C>,
          number};
}

// --- nodes

// What another warp wrote.
STATCOLLECT_WARP Totals LoadTotals(const Totals* from) {
  static_assert(sizeof(Totals) % sizeof(unsigned long long) == 0);
  constexpr int kWords = sizeof(Totals) / sizeof(unsigned long long);
  unsigned long long words[kWords];
  STATCOLLECT_UNROLL
  for (int i = 0; i < kWords; ++i)
    words[i] = LoadFresh(reinterpret_cast<const unsigned long long*>(from) + i);
  Totals totals;
  memcpy(&totals, words, sizeof(totals));
  return totals;
}

// Combines up to 32 neighbours in index order, after Chan, Golub, LeVeque (1983): means relative to
// the first one's origin, deviations relative to the common mean; sums as butterflies. Overwrites
// `unit`.
STATCOLLECT_WARP void CombineMoments(Moments own, std::int32_t level, int first_lane,
                                     Moments& out) {
  out.count = SumOverLanes(own.count);
  if (out.count == 0) return;
  const bool some = own.count != 0;
  if (some) RaiseLevel(own, level);
  out.level = level;
  out.magnitudes = SumOverLanes(own.magnitudes);
  out.origin = FromLane(own.origin, first_lane);
  const double distance = (own.origin - out.origin) + own.offset;
  const auto count = static_cast<double>(own.count);
  out.offset = SumOverLanes(some ? count * distance : 0.0) / static_cast<double>(out.count);
  const double deviation = distance - out.offset;
  out.squared_deviations =
      SumOverLanes(some ? own.squared_deviations + count * (deviation * deviation) : 0.0);
}

STATCOLLECT_WARP void CombineNodes(const Totals* totals, const double* sums, std::uint32_t count,
                                   std::uint32_t width, const UnitSums& unit) {
  const auto lane = static_cast<std::uint32_t>(Lane());
  Totals own;
  if (lane < count) own = LoadTotals(totals + lane);
  const bool some = own.moments.count != 0;
  const std::int32_t level = __reduce_max_sync(kAllLanes, some ? own.moments.level : -1);
  const int first_lane = __reduce_min_sync(kAllLanes, some ? Lane() : kWarpLanes - 1);
  Totals out;
  out.components = SumOverLanes(own.components);
  out.nan = SumOverLanes(own.nan);
  out.pos_inf = SumOverLanes(own.pos_inf);
  out.neg_inf = SumOverLanes(own.neg_inf);
  out.zero = SumOverLanes(own.zero);
  out.neg = SumOverLanes(own.neg);
  out.hash = SumOverLanes(own.hash);
  CombineMoments(own.moments, level, first_lane, out.moments);
  const double min = MinOverLanes(some ? own.min : __builtin_huge_val());
  const double minus_max = MinOverLanes(some ? -own.max : __builtin_huge_val());
  if (out.moments.count != 0) {
    out.min = min;
    out.max = -minus_max;
  }

  // A lane adds one sum of a part of the children; parts are added in the end.
  const std::uint32_t at_once = width < kWarpLanes ? width : kWarpLanes;
  const std::uint32_t part = at_once;  // children: 32 / (32 / at_once)
  for (std::uint32_t from = 0; from < width; from += at_once) {
    const std::uint32_t begin = lane / at_once * part;
    const std::uint32_t end = begin + part < count ? begin + part : count;
    double sum = 0;
    for (std::uint32_t child = begin; child < end; ++child) {
      const double value = LoadFresh(sums + child * width + from + lane % at_once);
      const int child_level = LoadFresh(&totals[child].moments.level);
      sum += child_level == level ? value : value * RaisingFactor(child_level, level);
    }
    for (std::uint32_t mask = kWarpLanes / 2; mask >= at_once; mask /= 2)
      sum += Exchanged(sum, static_cast<int>(mask));
    if (lane < at_once) unit.sums[from + lane] = sum;
  }
  if (lane == 0) *unit.totals = out;
  __syncwarp();
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_REDUCE_H_
