// The numbers of a block of statistics, one array per field, where a scan decoded them: to compare
// many blocks without making records of them.
#ifndef STATCOLLECT_SERVER_STORE_NUMBER_COLUMNS_H_
#define STATCOLLECT_SERVER_STORE_NUMBER_COLUMNS_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/records.h"

namespace statcollect {

// Bits of a record's flags. Those that change most from record to record are lowest.
enum Flag : std::uint64_t {
  kNegativeMean = 1,
  kNegativeMin = 2,
  kNegativeMax = 4,
  kHasFinite = 8,
  kWideSketch = 16,   // a sum of the sketch is not exact in float32
  kNegativeStd = 32,  // the value is -0, also for the next two
  kNegativeL1 = 64,
  kNegativeL2 = 128,
};

// Bits of a real number without its sign, which is in the flags.
inline constexpr std::uint64_t kMagnitude = ~std::uint64_t{0} >> 1;

inline double SignedReal(std::uint64_t magnitude, std::uint64_t flags, Flag negative) {
  return std::bit_cast<double>(magnitude | ((flags & negative) != 0 ? kMagnitude + 1 : 0));
}

// Points into the scan, which says which of them it decoded. Each array has `size` entries,
// `sketch` size * sketch_width.
struct NumberColumns {
  std::size_t size = 0;
  std::uint32_t sketch_width = 0;
  const std::uint64_t *activation = nullptr, *layout = nullptr, *order = nullptr, *flags = nullptr;
  const std::uint64_t *numel = nullptr, *nan = nullptr, *pos_inf = nullptr, *neg_inf = nullptr;
  const std::uint64_t *zero = nullptr, *neg = nullptr, *pos = nullptr;
  const std::uint64_t *mean = nullptr, *std = nullptr, *l2 = nullptr;
  const std::uint64_t *l1 = nullptr;  // NumberSet::kAll only
  const std::uint64_t *min = nullptr, *max = nullptr;
  const std::uint64_t *hash = nullptr;
  const double *sketch = nullptr;

  // Its l1 is 0.
  TensorStats StatsAt(std::size_t i) const {
    return {.numel = numel[i],
            .nan = nan[i],
            .pos_inf = pos_inf[i],
            .neg_inf = neg_inf[i],
            .zero = zero[i],
            .neg = neg[i],
            .pos = pos[i],
            .has_finite = (flags[i] & kHasFinite) != 0,
            .min = SignedReal(min[i], flags[i], kNegativeMin),
            .max = SignedReal(max[i], flags[i], kNegativeMax),
            .mean = SignedReal(mean[i], flags[i], kNegativeMean),
            .std = SignedReal(std[i], flags[i], kNegativeStd),
            .l2 = SignedReal(l2[i], flags[i], kNegativeL2),
            .hash = hash[i]};
  }
  std::span<const double> SketchOf(std::size_t i) const {
    return {sketch + i * sketch_width, sketch_width};
  }
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_NUMBER_COLUMNS_H_
