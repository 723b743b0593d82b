// Units, nodes and the way from a tensor's memory to its result, as one warp does them (piece.h: a piece;
// task.h: units and the tree).
#ifndef STATCOLLECT_AGENT_STATS_CUDA_REDUCE_H_
#define STATCOLLECT_AGENT_STATS_CUDA_REDUCE_H_

#include <cstdint>

#include "agent/stats/cuda/piece.h"
#include "agent/stats/cuda/replay.h"
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
  STATCOLLECT_WARP ComponentWalk(const Task& task, std::uint64_t index) : task_(task), at_(task.data) {
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
  return {staged, left < kPieceComponents<C> ? static_cast<std::uint32_t>(left) : kPieceComponents<C>,
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

// Combines up to 32 neighbours in index order, after Chan, Golub, LeVeque (1983): means relative to the first
// one's origin, deviations relative to the common mean; sums as butterflies. Overwrites `unit`.
template <typename Warp>
STATCOLLECT_WARP void CombineNodes(const Totals* totals, const double* sums, std::uint32_t count,
                                   std::uint32_t width, const UnitSums& unit) {
  typename Warp::template Lanes<Totals> own;
  typename Warp::template Lanes<std::int32_t> level, first;
  Warp::ForEach([&](int lane) {
    own[lane] = Totals();
    if (static_cast<std::uint32_t>(lane) < count) own[lane] = LoadTotals(totals + lane);
    const bool some = own[lane].moments.count != 0;
    level[lane] = some ? own[lane].moments.level : -1;
    first[lane] = some ? lane : kWarpLanes - 1;
  });
  const std::int32_t common_level = Warp::Max(level), first_lane = Warp::Min(first);

  const auto total = [&](std::uint64_t Totals::*member) {
    typename Warp::template Lanes<std::uint64_t> values;
    Warp::ForEach([&](int lane) { values[lane] = own[lane].*member; });
    SumOverLanes<Warp, std::uint64_t>(values);
    return Warp::Any(values);
  };
  Totals out;
  out.components = total(&Totals::components);
  out.nan = total(&Totals::nan);
  out.pos_inf = total(&Totals::pos_inf);
  out.neg_inf = total(&Totals::neg_inf);
  out.zero = total(&Totals::zero);
  out.neg = total(&Totals::neg);
  out.hash = total(&Totals::hash);

  typename Warp::template Lanes<std::uint64_t> finite;
  typename Warp::template Lanes<double> min, minus_max, origin, magnitudes;
  typename Warp::template Lanes<int> source;
  Warp::ForEach([&](int lane) {
    Totals& mine = own[lane];
    const bool some = mine.moments.count != 0;
    if (some) RaiseLevel(mine.moments, common_level);
    finite[lane] = mine.moments.count;
    min[lane] = some ? mine.min : __builtin_huge_val();
    minus_max[lane] = some ? -mine.max : __builtin_huge_val();
    origin[lane] = mine.moments.origin;
    magnitudes[lane] = mine.moments.magnitudes;
    source[lane] = first_lane;
  });
  SumOverLanes<Warp, std::uint64_t>(finite);
  out.moments.count = Warp::Any(finite);
  if (out.moments.count != 0) {
    out.moments.level = common_level;
    out.min = MinOverLanes<Warp>(min);
    out.max = -MinOverLanes<Warp>(minus_max);
    SumOverLanes<Warp, double>(magnitudes);
    out.moments.magnitudes = Warp::Any(magnitudes);
    const auto base = Warp::template Gather<double>(origin, source);
    typename Warp::template Lanes<double> distance, weighted, squares;
    Warp::ForEach([&](int lane) {
      const Moments& m = own[lane].moments;
      distance[lane] = (m.origin - base[lane]) + m.offset;
      weighted[lane] = m.count == 0 ? 0.0 : static_cast<double>(m.count) * distance[lane];
    });
    SumOverLanes<Warp, double>(weighted);
    const double mean = Warp::Any(weighted) / static_cast<double>(out.moments.count);
    Warp::ForEach([&](int lane) {
      const Moments& m = own[lane].moments;
      const double deviation = distance[lane] - mean;
      squares[lane] =
          m.count == 0 ? 0.0 : m.squared_deviations + static_cast<double>(m.count) * (deviation * deviation);
    });
    SumOverLanes<Warp, double>(squares);
    out.moments.origin = Warp::Any(base);
    out.moments.offset = mean;
    out.moments.squared_deviations = Warp::Any(squares);
  }

  // A lane adds one sum of a part of the children; parts are added in the end.
  const std::uint32_t at_once = width < kWarpLanes ? width : kWarpLanes;
  const std::uint32_t part = at_once;  // children: 32 / (32 / at_once)
  for (std::uint32_t from = 0; from < width; from += at_once) {
    typename Warp::template Lanes<double> sum;
    Warp::ForEach([&](int lane) {
      const auto l = static_cast<std::uint32_t>(lane);
      const std::uint32_t begin = l / at_once * part;
      const std::uint32_t end = begin + part < count ? begin + part : count;
      double result = 0;
      for (std::uint32_t child = begin; child < end; ++child) {
        const double value = LoadFresh(sums + child * width + from + l % at_once);
        const int child_level = LoadFresh(&totals[child].moments.level);
        result += child_level == common_level ? value : value * RaisingFactor(child_level, common_level);
      }
      sum[lane] = result;
    });
    for (std::uint32_t mask = kWarpLanes / 2; mask >= at_once; mask /= 2) {
      const auto other = Warp::template Exchange<double>(sum, static_cast<int>(mask));
      Warp::ForEach([&](int lane) { sum[lane] += other[lane]; });
    }
    Warp::ForEach([&](int lane) {
      const auto l = static_cast<std::uint32_t>(lane);
      if (l < at_once) unit.sums[from + l] = sum[lane];
    });
  }
  Warp::ForEach([&](int lane) {
    if (lane == 0) *unit.totals = out;
  });
  Warp::Sync();
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_REDUCE_H_
