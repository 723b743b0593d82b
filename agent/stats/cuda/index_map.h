// Where the components of a shard lie in its logical tensor, as words that host and device share.
//
// The shard's components, in row-major order, have places along `dims` dimensions, outermost first.
// A component's index in the logical tensor is `first` plus, for each dimension, its place there
// times the dimension's stride. Along one dimension, `cut`, places come in segments: what is added
// there is not the place but the segment's first + (place - begin). The innermost dimension has
// stride 1, so that what follows in it, up to its end or its segment's, also follows in the logical
// tensor: a run.
//
//   word 0                 first
//   word 1                 dims, from bit 0; cut, from bit 8 (0xff: none); number of segments, from
//   bit 32 2 words a dimension    size, stride 2 words a segment      begin, first; by begin, from
//   0
//
// A map of up to kMapWordsInLaunch words travels in a launch's parameters; others lie in device
// memory.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_INDEX_MAP_H_
#define STATCOLLECT_AGENT_STATS_CUDA_INDEX_MAP_H_

#include <cstddef>
#include <cstdint>

#include "agent/stats/accumulate.h"

namespace statcollect::stats::cuda {

inline constexpr int kMapDims = 12;  // after neighbours that lie behind each other are joined
inline constexpr std::size_t kMapWordsInLaunch = 64;  // any dimensions, and at least 19 segments
inline constexpr std::size_t kMapNumbersMax = 65536;  // in the boxes or ranges of a placement
inline constexpr std::uint32_t kNotCut = 0xff;

// Components that follow each other both in the shard and in the logical tensor.
struct IndexRun {
  std::uint64_t first;  // index in the logical tensor
  std::uint64_t count;
};

// Reads a map.
class IndexMap {
 public:
  STATCOLLECT_HD explicit IndexMap(const std::uint64_t* words) : words_(words) {}

  // What follows from the shard's component on, to the run's end. Cost: a division for each
  // dimension but the first, and log2 of the segments.
  STATCOLLECT_HD IndexRun At(std::uint64_t component) const {
    const auto head = words_[1];
    const int dims = static_cast<int>(head & 0xff), cut = static_cast<int>(head >> 8 & 0xff);
    IndexRun run = {words_[0], 0};
    std::uint64_t rest = component;
    for (int d = dims - 1; d >= 0; --d) {
      const std::uint64_t size = words_[2 + 2 * d];
      std::uint64_t place = rest;
      if (d != 0) {
        const std::uint64_t quotient = Quotient(rest, size);
        place -= quotient * size;
        rest = quotient;
      }
      std::uint64_t left = size - place;
      if (d == cut) place = AlongCut(dims, static_cast<std::uint32_t>(head >> 32), place, &left);
      if (d == dims - 1) run.count = left;
      run.first += place * words_[3 + 2 * d];
    }
    return run;
  }

 private:
  // Most numbers fit 32 bits, whose division is several times faster on a device.
  STATCOLLECT_HD static std::uint64_t Quotient(std::uint64_t a, std::uint64_t b) {
    if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
    return a / b;
  }
  // *left: to the dimension's end; becomes to the segment's.
  STATCOLLECT_HD std::uint64_t AlongCut(int dims, std::uint32_t segments, std::uint64_t place,
                                        std::uint64_t* left) const {
    const std::uint64_t* const of = words_ + 2 + 2 * dims;
    std::uint32_t low = 0, high = segments - 1;
    while (low < high) {
      const std::uint32_t middle = (low + high + 1) / 2;
      if (of[2 * middle] <= place) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    if (low + 1 < segments) *left = of[2 * (low + 1)] - place;
    return of[2 * low + 1] + (place - of[2 * low]);
  }

  const std::uint64_t* words_;
};

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_INDEX_MAP_H_
