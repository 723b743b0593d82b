#include "server/query/diff/heat_map.h"

#include <algorithm>

#include "common/names.h"
#include "server/query/compare/alignment.h"
#include "server/query/diff/merged_columns.h"

namespace statcollect::query {
namespace {

constexpr std::uint32_t kNoRow = ~std::uint32_t{0};
constexpr std::size_t kCellsHeldMax = std::size_t{16} << 20;
constexpr std::size_t kCellsSentMax = std::size_t{4} << 20;

}  // namespace

HeatMapBuilder::HeatMapBuilder(const DiffPlan& plan, std::uint32_t columns, std::uint32_t rows)
    : rows_max_(rows == 0 ? kHeatMapRowsDefault : rows) {
  for (const auto& [step, attempts] : plan.steps) steps_.push_back(step);
  steps_each_ =
      std::max<std::size_t>(1, PartsOf(steps_.size(), std::max<std::uint32_t>(1, columns)));
}

std::uint32_t HeatMapBuilder::FindRow(const Alignment& alignment, const HeatCell& cell) {
  const TensorDef& def = (cell.of_b ? alignment.b() : alignment.a()).activations[cell.id];
  const Stage stage = (cell.of_b ? alignment.traits_b(cell.id) : alignment.traits_a(cell.id)).stage;
  const TensorKey& key = def.key;
  const auto [found, added] = by_key_.try_emplace(
      RowKey(stage, key.mode, key.kind, key.name, key.output_path), rows_.size());
  if (!added) return found->second;
  Row& row = rows_.emplace_back();
  row.def = &def;
  row.stage = stage;
  row.order = cell.order;
  const std::uint32_t other = cell.of_b ? Alignment::kNone : alignment.b_of(cell.id);
  if (other != Alignment::kNone && alignment.b().activations[other].key.name != key.name)
    row.name_b = alignment.b().activations[other].key.name;
  while (steps_each_ < steps_.size() &&
         rows_.size() * PartsOf(steps_.size(), steps_each_) > kCellsHeldMax)
    HalveColumns();
  row.levels.assign(PartsOf(steps_.size(), steps_each_), kHeatNoData);
  return found->second;
}

void HeatMapBuilder::HalveColumns() {
  steps_each_ *= 2;
  for (Row& row : rows_) MergeNeighbours(row.levels);
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
  const auto step = std::lower_bound(steps_.begin(), steps_.end(), at.step) - steps_.begin();
  for (const HeatCell& cell : at.cells) {
    if (cell.level == kHeatNoData) continue;
    Row& row = rows_[RowAt(*at.alignment, known, cell)];
    std::uint8_t& level = row.levels[static_cast<std::size_t>(step) / steps_each_];
    level = std::max(level, cell.level);
  }
}

std::vector<const HeatMapBuilder::Row*> HeatMapBuilder::InOrder() const {
  std::vector<const Row*> ordered;
  for (const Row& row : rows_) ordered.push_back(&row);
  std::stable_sort(ordered.begin(), ordered.end(), [](const Row* x, const Row* y) {
    const Mode x_mode = x->def->key.mode, y_mode = y->def->key.mode;
    return std::tie(x->stage, x_mode, x->order) < std::tie(y->stage, y_mode, y->order);
  });
  return ordered;
}

HeatMap HeatMapBuilder::Make(const DiffReport& report) {
  HeatMap map;
  map.tensors = rows_.size();
  map.steps = steps_.size();
  for (std::size_t i = 0; i < steps_.size(); i += steps_each_) {
    map.columns.push_back(
        {.first = steps_[i], .last = steps_[std::min(i + steps_each_, steps_.size()) - 1]});
  }
  const std::vector<const Row*> ordered = InOrder();
  const std::size_t rows_sent =
      rows_max_ == kHeatMapWhole
          ? ordered.size()
          : std::min<std::size_t>(rows_max_,
                                  kCellsSentMax / std::max<std::size_t>(1, map.columns.size()));
  const std::size_t rows_each =
      std::max<std::size_t>(1, PartsOf(ordered.size(), std::max<std::size_t>(1, rows_sent)));
  for (std::size_t begin = 0; begin < ordered.size(); begin += rows_each) {
    const Row& first = *ordered[begin];
    const std::size_t end = std::min(begin + rows_each, ordered.size());
    const TensorKey& key = first.def->key;
    map.rows.push_back({.stage = first.stage,
                        .kind = key.kind,
                        .activation = key.name,
                        .output_path = key.output_path,
                        .activation_b = first.name_b,
                        .mode = key.mode,
                        .tensors = end - begin});
    std::string levels(map.columns.size(), static_cast<char>(kHeatNoData));
    for (std::size_t row = begin; row < end; ++row) {
      for (std::size_t i = 0; i < levels.size(); ++i) {
        const std::uint8_t level =
            std::max(static_cast<std::uint8_t>(levels[i]), ordered[row]->levels[i]);
        const bool explained = report.explained_by_rounding && level >= kHeatDivergedMin;
        levels[i] = static_cast<char>(explained ? kHeatWithinMax : level);
      }
    }
    map.cells += levels;
  }
  Mark(report, ordered, rows_each, map);
  return map;
}

void HeatMapBuilder::Mark(const DiffReport& report, const std::vector<const Row*>& rows,
                          std::size_t rows_each, HeatMap& map) const {
  if (!report.root && !report.first) return;
  const Divergence& at = report.root ? report.root->at : *report.first;
  const auto step = std::lower_bound(steps_.begin(), steps_.end(), at.step);
  if (step == steps_.end() || *step != at.step) return;
  map.origin_column =
      static_cast<std::uint32_t>(static_cast<std::size_t>(step - steps_.begin()) / steps_each_);
  const auto is_it = [&](const Row* row) {
    const TensorKey& key = row->def->key;
    return row->stage == at.stage && key.kind == at.kind && key.name == at.activation &&
           key.output_path == at.output_path && Name(key.mode) == at.mode;
  };
  const auto found = std::find_if(rows.begin(), rows.end(), is_it);
  if (found != rows.end())
    map.origin_row =
        static_cast<std::uint32_t>(static_cast<std::size_t>(found - rows.begin()) / rows_each);
}

}  // namespace statcollect::query
