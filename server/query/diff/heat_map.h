// The heat map of a diff: step x tensor in the order of execution.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_HEAT_MAP_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_HEAT_MAP_H_

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "server/query/compare/diff_plan.h"
#include "server/query/compare/rank_step_diff.h"
#include "server/query/reports.h"

namespace statcollect::query {

// Collects the cells of a diff as its steps are judged. Several steps or tensors in a column or
// row, and several ranks, micro-batches and calls, become the greatest of their levels. Memory: 16
// MiB of cells at most; where a run has more tensors than that allows for, columns are merged.
class HeatMapBuilder {
 public:
  // At most so many columns and rows; see kHeatMapSideMax.
  HeatMapBuilder(const DiffPlan& plan, std::uint32_t columns, std::uint32_t rows);
  // Steps in ascending order.
  void Take(const RankStepFindings& at);
  // `report`: concluded; its root, or else its first divergence, is marked. Once.
  HeatMap Make(const DiffReport& report);

 private:
  using RowKey = std::tuple<Stage, Mode, Kind, std::string, std::string>;
  struct Row {
    const TensorDef* def = nullptr;
    std::string name_b;  // if it differs
    Stage stage = Stage::kUnspecified;
    std::uint32_t order = 0;  // of execution, where it was first seen
    std::vector<std::uint8_t> levels;
  };
  struct RowsOf {  // by id; kNoRow: not seen yet
    std::vector<std::uint32_t> a, b;
  };

  std::uint32_t RowAt(const Alignment& alignment, RowsOf& known, const HeatCell& cell);
  std::uint32_t FindRow(const Alignment& alignment, const HeatCell& cell);
  void HalveColumns();
  std::vector<const Row*> InOrder() const;
  void Mark(const DiffReport& report, const std::vector<const Row*>& rows, std::size_t rows_each,
            HeatMap& map) const;

  const std::uint32_t rows_max_;
  std::vector<std::uint64_t> steps_;
  std::size_t steps_each_ = 1;  // steps of a column
  std::map<const Alignment*, RowsOf> known_;
  std::map<RowKey, std::uint32_t> by_key_;
  std::vector<Row> rows_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_HEAT_MAP_H_
