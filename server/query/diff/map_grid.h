// What the map of a run and that of a diff share: levels of step x tensor.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_MAP_GRID_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_MAP_GRID_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/records.h"
#include "server/query/reports.h"

namespace statcollect::query {

// Rows by tensor; of several levels of a cell the greatest. Memory: 16 MiB of cells; with more
// steps x tensors than that, columns are merged. Not thread-safe.
template <typename Level>
class MapGrid {
 public:
  struct Row {
    TensorKey key;
    Stage stage = Stage::kUnspecified;
    std::string name_b = {};                           // if it differs
    std::uint32_t order = 0;                           // of execution, where it was first seen
    std::pair<std::size_t, std::uint32_t> first = {};  // where: of rows of one order, less is above
    std::vector<Level> levels = {};                    // by column
  };
  // As it is sent: neighbouring rows may have become one.
  struct Shown {
    std::vector<const Row*> ordered;  // all of the grid's, in the order of execution
    std::size_t rows_each = 1;        // of these are one row
    std::vector<HeatMapRow> rows;
    std::vector<StepRange> columns;
  };

  // `steps`: ascending. At most so many columns.
  MapGrid(std::vector<std::uint64_t> steps, std::uint32_t columns)
      : steps_(std::move(steps)),
        steps_each_(AtLeastOne(PartsOf(steps_.size(), AtLeastOne(columns)))) {}

  const std::vector<std::uint64_t>& steps() const { return steps_; }
  std::size_t size() const { return rows_.size(); }
  Row& row(std::uint32_t index) { return rows_[index]; }
  const Row& row(std::uint32_t index) const { return rows_[index]; }
  // `step`: its index among the steps.
  std::size_t ColumnOf(std::size_t step) const { return step / steps_each_; }

  // The tensor's row, and whether it is new, after all others.
  std::pair<std::uint32_t, bool> FindRow(const TensorKey& key, Stage stage) {
    const auto [found, added] =
        by_key_.try_emplace(RowKey(stage, key.mode, key.kind, key.name, key.output_path),
                            static_cast<std::uint32_t>(rows_.size()));
    if (!added) return {found->second, false};
    rows_.push_back({.key = key, .stage = stage, .first = {rows_.size(), 0}});
    while (steps_each_ < steps_.size() &&
           rows_.size() * PartsOf(steps_.size(), steps_each_) > kBytesMax / sizeof(Level))
      HalveColumns();
    rows_.back().levels.assign(PartsOf(steps_.size(), steps_each_), Level{});
    return {found->second, true};
  }

  void Raise(std::uint32_t row, std::size_t step, Level level) {
    Level& cell = rows_[row].levels[ColumnOf(step)];
    cell = std::max(cell, level);
  }

  // Calls `add` for each level, row by row, of at most so many rows and cells.
  template <typename Add>
  Shown Show(std::size_t rows_max, std::size_t cells_max, const Add& add) const {
    Shown shown{.ordered = InOrder(), .rows = {}, .columns = {}};
    for (std::size_t i = 0; i < steps_.size(); i += steps_each_)
      shown.columns.push_back(
          {.first = steps_[i], .last = steps_[std::min(i + steps_each_, steps_.size()) - 1]});
    const std::size_t columns = shown.columns.size();
    const std::size_t sent = std::min(rows_max, cells_max / AtLeastOne(columns));
    shown.rows_each = AtLeastOne(PartsOf(rows_.size(), AtLeastOne(sent)));
    for (std::size_t begin = 0; begin < rows_.size(); begin += shown.rows_each) {
      const auto merged =
          std::span(shown.ordered)
              .subspan(begin, std::min(shown.rows_each, shown.ordered.size() - begin));
      shown.rows.push_back(HeadOf(merged));
      for (std::size_t column = 0; column < columns; ++column) {
        Level level{};
        for (const Row* const row : merged) level = std::max(level, row->levels[column]);
        add(level);
      }
    }
    return shown;
  }

 private:
  static constexpr std::size_t kBytesMax = std::size_t{16} << 20;
  using RowKey = std::tuple<Stage, Mode, Kind, std::string, std::string>;

  static std::size_t AtLeastOne(std::size_t count) { return std::max<std::size_t>(1, count); }
  // How many parts of `each` hold all.
  static std::size_t PartsOf(std::size_t all, std::size_t each) { return (all + each - 1) / each; }

  // Two neighbours become one, the greater of both.
  void HalveColumns() {
    steps_each_ *= 2;
    for (Row& row : rows_) {
      std::vector<Level>& levels = row.levels;
      for (std::size_t i = 0; i < levels.size(); ++i)
        levels[i / 2] = i % 2 == 0 ? levels[i] : std::max(levels[i / 2], levels[i]);
      levels.resize(PartsOf(levels.size(), 2));
    }
  }

  std::vector<const Row*> InOrder() const {
    std::vector<const Row*> ordered;
    for (const Row& row : rows_) ordered.push_back(&row);
    std::sort(ordered.begin(), ordered.end(), [](const Row* x, const Row* y) {
      return std::tie(x->stage, x->key.mode, x->order, x->first, x->key.kind, x->key.name,
                      x->key.output_path) < std::tie(y->stage, y->key.mode, y->order, y->first,
                                                     y->key.kind, y->key.name, y->key.output_path);
    });
    return ordered;
  }

  static HeatMapRow HeadOf(std::span<const Row* const> merged) {
    const Row& first = *merged.front();
    return {.stage = first.stage,
            .kind = first.key.kind,
            .activation = first.key.name,
            .output_path = first.key.output_path,
            .activation_b = first.name_b,
            .mode = first.key.mode,
            .tensors = merged.size()};
  }

  const std::vector<std::uint64_t> steps_;
  std::size_t steps_each_;  // steps of a column
  std::map<RowKey, std::uint32_t> by_key_;
  std::vector<Row> rows_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_MAP_GRID_H_
