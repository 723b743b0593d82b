#include "server/query/verdict/noise_threshold.h"

#include <algorithm>
#include <array>
#include <boost/math/distributions/fisher_f.hpp>
#include <cmath>
#include <cstddef>
#include <memory>

#include "server/query/verdict/constants.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kSums = 16, kFreedomMax = 64;

using Table = std::array<std::array<double, kFreedomMax + 1>, kSums + 1>;

Table MakeTable() {
  Table table{};
  for (std::size_t above = 1; above <= kSums; ++above) {
    for (std::size_t below = 1; below <= kFreedomMax; ++below) {
      const boost::math::fisher_f ratio(static_cast<double>(above), static_cast<double>(below));
      table[above][below] = std::sqrt(quantile(complement(ratio, measured::kChance)));
    }
  }
  return table;
}

}  // namespace

double NoiseThreshold(std::size_t sums, std::size_t twins, bool trimmed) {
  static const Table table = MakeTable();
  sums = std::clamp<std::size_t>(sums, 1, kSums);
  const std::size_t above = trimmed ? measured::kTrimmedFreedom : sums;
  return table[above][std::min(sums * std::max<std::size_t>(twins, 1), kFreedomMax)];
}

}  // namespace statcollect::query
