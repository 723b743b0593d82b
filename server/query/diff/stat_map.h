// One statistic of a run over step x tensor: what the page colours.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_STAT_MAP_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_STAT_MAP_H_

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "common/status.h"
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
inline constexpr std::uint32_t kStatMapSideMax = 4096, kStatMapSideDefault = 1024;

// Of a size of 0 or more.
std::uint16_t StatLevel(double size);

struct StatMapRequest {
  std::string run;
  TopBy by = TopBy::kUnspecified;       // l2
  std::vector<std::uint32_t> ranks;     // empty: all
  std::string steps;                    // valid; empty: all
  std::vector<Kind> kinds;              // empty: all, without integer tensors
  std::uint32_t columns = 0, rows = 0;  // at most; 0: kStatMapSideDefault
};

struct StatMap {
  std::string run;
  TopBy by = TopBy::kL2;
  std::vector<HeatMapRow> rows;          // in the order of execution
  std::vector<StepRange> columns;        // ascending
  std::string cells;                     // row by row, two bytes each, the high one first
  std::uint64_t tensors = 0, steps = 0;  // before merging
  std::vector<std::uint32_t> ranks;      // that the run has, whether asked for or not; ascending
};

// Of all ranks, micro-batches and calls of a tensor the greatest. An empty map is an answer, too.
// Memory: one step of one rank, and 16 MiB of cells; a run with more has its columns merged.
// kCancelled. Not of kExponentLoss.
Result<StatMap> MakeStatMap(RunView& view, const StatMapRequest& request,
                            const std::stop_token& stop);

// What a narrower format would lose of one tensor in a step, 0 to 1.
struct StatMapLoss {
  std::uint64_t step = 0;
  const TensorDef* def = nullptr;
  double share = 0;
};
// The same of kExponentLoss, from losses in any order; steps without any have no column.
StatMap MakeLossMap(const RunView& view, const StatMapRequest& request,
                    const std::vector<StatMapLoss>& losses);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_STAT_MAP_H_
