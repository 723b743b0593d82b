// One statistic of a run over step x tensor: what the page colours.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_STAT_MAP_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_STAT_MAP_H_

#include "server/query/answers/leaf.h"
#include "server/query/top.h"

namespace statcollect::query {

inline constexpr std::uint32_t kStatMapSideDefault = 1024;

struct StatMapRequest {
  std::string run;
  TopBy by = TopBy::kUnspecified;       // l2
  std::vector<std::uint32_t> ranks;     // empty: all
  std::string steps;                    // valid; empty: all
  std::vector<Kind> kinds;              // empty: all, without integer tensors
  std::uint32_t columns = 0, rows = 0;  // at most; 0: kStatMapSideDefault
};

// Adds: a statistic that this build does not know, more columns or rows than kHeatMapSideMax.
Result<StatMapRequest> FromWire(const v1::GetStatMapRequest& request);

// Of all ranks, micro-batches and calls of a tensor the greatest (levels: diff/stat_levels.h). An
// empty map is an answer, too. Of kExponentLoss, steps without histograms have no column. Memory:
// one step of one rank, and 16 MiB of cells; a run with more has its columns merged.
Status GetStatMap(const Context& context, const StatMapRequest& request,
                  v1::GetStatMapResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_STAT_MAP_H_
