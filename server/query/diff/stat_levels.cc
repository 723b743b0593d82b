#include "server/query/diff/stat_levels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "common/names.h"
#include "common/wide_loops.h"
#include "server/store/number_columns.h"

namespace statcollect::query {
namespace {

constexpr double kLevelsADecade = 512;
constexpr double kLevelsAnOctave = kLevelsADecade * std::numbers::ln2 / std::numbers::ln10;
constexpr std::uint64_t kOneBits = std::bit_cast<std::uint64_t>(1.0);
constexpr std::uint64_t kRootHalfBits = std::bit_cast<std::uint64_t>(std::numbers::sqrt2 / 2);
constexpr std::uint64_t kMantissa = (std::uint64_t{1} << 52) - 1;
constexpr double kAsInteger = 0x1.8p52;  // added: the sum's lowest bits are the nearest integer
constexpr std::uint64_t kExponentAt =
    0x4330000000000000;  // 2^52, with an integer in its lowest bits
// Between these, levels are within their limits.
constexpr std::uint64_t kSmallestUsual = std::bit_cast<std::uint64_t>(1e-63);
constexpr std::uint64_t kLargestUsual = std::bit_cast<std::uint64_t>(1e63);
// How near to the middle between two levels the logarithm must be precise; it is by 1e-5.
constexpr std::uint64_t kDoubtful = std::bit_cast<std::uint64_t>(0.499);

inline double Real(std::uint64_t bits) { return std::bit_cast<double>(bits); }
// Not 0 if x > y. Both are below 2^63.
constexpr std::uint64_t IsAbove(std::uint64_t x, std::uint64_t y) { return (y - x) >> 63; }

// Levels by a logarithm that is precise to 1e-5 of a level, and the magic sum they are in; whether
// StatLevel has to decide: near the middle between two levels, and where there is no usual
// logarithm.
STATCOLLECT_WIDE_LOOPS void EstimateLevels(const std::uint64_t* sizes, std::size_t count,
                                           std::uint64_t* __restrict levels,
                                           std::uint64_t* __restrict doubtful) {
  for (std::size_t i = 0; i < count; ++i) {
    // size = 2^exponent * m, with m from the root of a half to that of two.
    const std::uint64_t shifted = sizes[i] + (kOneBits - kRootHalfBits);
    const double exponent = Real((shifted >> 52) | kExponentAt) - (0x1p52 + 1023);
    const double m = Real((shifted & kMantissa) + kRootHalfBits);
    const double s = (m - 1) / (m + 1), q = s * s;
    const double ln = 2 * s * (1 + q * (1.0 / 3 + q * (1.0 / 5 + q * (1.0 / 7 + q * (1.0 / 9)))));
    const double level = kStatLevelOne + kLevelsAnOctave * (exponent + ln * std::numbers::log2e);
    const double sum = level + kAsInteger;
    const double apart = level - (sum - kAsInteger);
    const std::uint64_t off = std::bit_cast<std::uint64_t>(apart) & kMagnitude;
    levels[i] = std::bit_cast<std::uint64_t>(sum);
    doubtful[i] = IsAbove(kSmallestUsual, sizes[i]) | IsAbove(sizes[i], kLargestUsual) |
                  IsAbove(off, kDoubtful);
  }
}

}  // namespace

std::uint16_t StatLevel(double size) {
  if (!std::isfinite(size)) return kStatNotFinite;
  if (size <= 0) return kStatZero;
  const double level = kStatLevelOne + std::round(kLevelsAnOctave * std::log2(size));
  return static_cast<std::uint16_t>(std::clamp<double>(level, kStatLevelMin, kStatLevelMax));
}

void StatLevels(std::span<const std::uint64_t> sizes, std::vector<std::uint16_t>& levels) {
  constexpr std::size_t kAtOnce = 256;
  std::uint64_t estimated[kAtOnce], doubtful[kAtOnce];
  levels.resize(sizes.size());
  for (std::size_t first = 0; first < sizes.size(); first += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, sizes.size() - first);
    EstimateLevels(sizes.data() + first, count, estimated, doubtful);
    for (std::size_t i = 0; i < count; ++i) {
      levels[first + i] = doubtful[i] != 0 ? StatLevel(Real(sizes[first + i]))
                                           : static_cast<std::uint16_t>(estimated[i]);
    }
  }
}

bool CountsElements(TopBy by) {
  return by == TopBy::kNan || by == TopBy::kInf || by == TopBy::kZeroFraction ||
         by == TopBy::kNumel;
}

std::uint16_t LevelOf(TopBy by, const Observation& o, ObservationSide& side) {
  SetValues(*o.stats, *o.layout, side);
  const bool broken = side.nan.value_or(0) + side.inf.value_or(0) + side.pos_inf.value_or(0) +
                          side.neg_inf.value_or(0) >
                      0;
  if (broken && !CountsElements(by)) return kStatNotFinite;
  if (const auto value = ValueOf(by, side, IsComplex(o.layout->dtype)))
    return StatLevel(std::abs(*value));
  const bool counted = (by == TopBy::kNan && side.nan) ||
                       (by == TopBy::kInf && (side.inf || (side.pos_inf && side.neg_inf))) ||
                       (by == TopBy::kZeroFraction && side.zero);
  return counted ? kStatZero : kStatNoData;
}

}  // namespace statcollect::query
