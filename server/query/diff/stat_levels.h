// Sizes as levels of a map of statistics (stat_map.h), one at a time or a block's at once.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_STAT_LEVELS_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_STAT_LEVELS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "server/query/diff/stat_map.h"

namespace statcollect::query {

// Whether the statistic counts what the others cannot be computed from.
bool CountsElements(TopBy by);

// kStatNoData: the observation does not have it. `side`: to be used again, without its texts.
std::uint16_t LevelOf(TopBy by, const Observation& o, ObservationSide& side);

// StatLevel of each, several times as fast. Sizes are bits of real numbers, as in NumberColumns.
void StatLevels(std::span<const std::uint64_t> sizes, std::vector<std::uint16_t>& levels);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_STAT_LEVELS_H_
