#include "server/query/diff/heat_map.h"

#include <algorithm>
#include <limits>

#include "common/names.h"
#include "server/query/compare/alignment.h"

namespace statcollect::query {
namespace {

constexpr std::uint32_t kNoRow = ~std::uint32_t{0};
constexpr std::size_t kCellsSentMax = std::size_t{4} << 20;

std::vector<std::uint64_t> StepsOf(const DiffPlan& plan) {
  std::vector<std::uint64_t> steps;
  for (const auto& [step, attempts] : plan.steps) steps.push_back(step);
  return steps;
}

std::size_t IndexOf(std::uint64_t step, const std::vector<std::uint64_t>& steps) {
  return static_cast<std::size_t>(std::lower_bound(steps.begin(), steps.end(), step) -
                                  steps.begin());
}

}  // namespace

HeatMapBuilder::HeatMapBuilder(const DiffPlan& plan, std::uint32_t columns, std::uint32_t rows)
    : rows_max_(rows == 0 ? kHeatMapRowsDefault : rows), grid_(StepsOf(plan), columns) {}

std::uint32_t HeatMapBuilder::FindRow(const Alignment& alignment, const HeatCell& cell) {
  const TensorDef& def = (cell.of_b ? alignment.b() : alignment.a()).activations[cell.id];
  const Stage stage = (cell.of_b ? alignment.traits_b(cell.id) : alignment.traits_a(cell.id)).stage;
  const auto [index, added] = grid_.FindRow(def.key, stage);
  if (!added) return index;
  auto& row = grid_.row(index);
  row.order = cell.order;
  const std::uint32_t other = cell.of_b ? Alignment::kNone : alignment.b_of(cell.id);
  if (other != Alignment::kNone) row.name_b = alignment.b().activations[other].key.name;
  if (row.name_b == def.key.name) row.name_b.clear();
  return index;
}

std::uint32_t HeatMapBuilder::RowAt(const Alignment& alignment, RowsOf& known,
                                    const HeatCell& cell) {
  std::vector<std::uint32_t>& rows = cell.of_b ? known.b : known.a;
  if (cell.id >= rows.size()) rows.resize(cell.id + 1, kNoRow);
  if (rows[cell.id] == kNoRow) rows[cell.id] = FindRow(alignment, cell);
  return rows[cell.id];
}

void HeatMapBuilder::Take(const RankStepFindings& at) {
  if (at.alignment == nullptr || at.cells.empty()) return;
  RowsOf& known = known_[at.alignment];
  const std::size_t step = IndexOf(at.step, grid_.steps());
  for (const HeatCell& cell : at.cells) {
    if (cell.level != kHeatNoData) grid_.Raise(RowAt(*at.alignment, known, cell), step, cell.level);
  }
}

HeatMap HeatMapBuilder::Make(const DiffReport& report) {
  HeatMap map;
  map.tensors = grid_.size();
  map.steps = grid_.steps().size();
  const auto add = [&](std::uint8_t level) {
    const bool explained = report.explained_by_rounding && level >= kHeatDivergedMin;
    map.cells += static_cast<char>(explained ? kHeatWithinMax : level);
  };
  const bool whole = rows_max_ == kHeatMapWhole;
  auto shown =
      grid_.Show(rows_max_, whole ? std::numeric_limits<std::size_t>::max() : kCellsSentMax, add);
  if (report.root || report.first) Mark(report.root ? report.root->at : *report.first, shown, map);
  map.rows = std::move(shown.rows);
  map.columns = std::move(shown.columns);
  return map;
}

void HeatMapBuilder::Mark(const Divergence& at, const MapGrid<std::uint8_t>::Shown& shown,
                          HeatMap& map) const {
  const std::size_t step = IndexOf(at.step, grid_.steps());
  if (step == grid_.steps().size() || grid_.steps()[step] != at.step) return;
  map.origin_column = static_cast<std::uint32_t>(grid_.ColumnOf(step));
  const auto found = std::ranges::find_if(shown.ordered, [&](const auto* row) {
    const TensorKey& key = row->key;
    return row->stage == at.stage && key.kind == at.kind && key.name == at.activation &&
           key.output_path == at.output_path && Name(key.mode) == at.mode;
  });
  const auto index = static_cast<std::size_t>(found - shown.ordered.begin());
  if (found != shown.ordered.end())
    map.origin_row = static_cast<std::uint32_t>(index / shown.rows_each);
}

}  // namespace statcollect::query
