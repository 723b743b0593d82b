// Sizes as levels of a map of statistics, one at a time or a block's at once.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_STAT_LEVELS_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_STAT_LEVELS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "server/query/reports.h"
#include "server/query/run_view.h"
#include "server/query/top.h"

namespace statcollect::query {

// A greater level is a greater size, so that the maximum of several cells stands for all of them.
// From kStatLevelMin on, 512 levels are a factor of ten: 10^((level - kStatLevelOne) / 512), 0.5 %
// at most from the exact size.
inline constexpr std::uint16_t kStatNoData = 0;
inline constexpr std::uint16_t kStatZero = 1;
inline constexpr std::uint16_t kStatLevelMin = 2, kStatLevelOne = 32'768, kStatLevelMax = 65'534;
inline constexpr std::uint16_t kStatNotFinite = 65'535;  // it has NaN or infinities

// Of a size of 0 or more.
std::uint16_t StatLevel(double size);

// Of one rank and step.
struct StatCell {
  std::uint32_t id = 0;     // of the activation
  std::uint32_t order = 0;  // of execution
  std::uint16_t level = kStatNoData;
};

// Whether the statistic counts what the others cannot be computed from.
bool CountsElements(TopBy by);

// kStatNoData: the observation does not have it. `side`: to be used again, without its texts.
std::uint16_t LevelOf(TopBy by, const Observation& o, ObservationSide& side);

// StatLevel of each, several times as fast. Sizes are bits of real numbers, as in NumberColumns.
void StatLevels(std::span<const std::uint64_t> sizes, std::vector<std::uint16_t>& levels);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_STAT_LEVELS_H_
