// The heat map of a live comparison, continued with its newest steps.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_JOINED_HEAT_MAP_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_JOINED_HEAT_MAP_H_

#include "server/query/reports.h"

namespace statcollect::query {

// The columns of `old` before the first step of `tail`, then those of `tail`; rows that only one
// has are kept. Both must be at their finest resolution: one step a column, one tensor a row. The
// origin is that of `old`, if it has one that is kept.
HeatMap JoinedHeatMap(const HeatMap& old, const HeatMap& tail);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_JOINED_HEAT_MAP_H_
