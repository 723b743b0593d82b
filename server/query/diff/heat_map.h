// The heat map of a diff: step x tensor in the order of execution.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_HEAT_MAP_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_HEAT_MAP_H_

#include <cstdint>
#include <map>
#include <vector>

#include "server/query/compare/diff_plan.h"
#include "server/query/compare/rank_step_diff.h"
#include "server/query/diff/map_grid.h"
#include "server/query/reports.h"

namespace statcollect::query {

// Collects the cells of a diff as its steps are judged. Several steps or tensors in a column or
// row, and several ranks, micro-batches and calls, become the greatest of their levels.
class HeatMapBuilder {
 public:
  // At most so many columns and rows; see kHeatMapSideMax.
  HeatMapBuilder(const DiffPlan& plan, std::uint32_t columns, std::uint32_t rows);
  // Steps in ascending order.
  void Take(const RankStepFindings& at);
  // `report`: concluded; its root, or else its first divergence, is marked. Once.
  HeatMap Make(const DiffReport& report);

 private:
  struct RowsOf {  // by id; kNoRow: not seen yet
    std::vector<std::uint32_t> a, b;
  };

  std::uint32_t RowAt(const Alignment& alignment, RowsOf& known, const HeatCell& cell);
  std::uint32_t FindRow(const Alignment& alignment, const HeatCell& cell);
  void Mark(const Divergence& at, const MapGrid<std::uint8_t>::Shown& shown, HeatMap& map) const;

  const std::uint32_t rows_max_;
  MapGrid<std::uint8_t> grid_;
  std::map<const Alignment*, RowsOf> known_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_HEAT_MAP_H_
