#include "server/query/diff/joined_heat_map.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "server/query/compare/heat_cell.h"

namespace statcollect::query {
namespace {

using TensorOfMap = std::tuple<Stage, Mode, Kind, std::string, std::string>;

TensorOfMap TensorOf(const HeatMapRow& row) {
  return {row.stage, row.mode, row.kind, row.activation, row.output_path};
}

// Where the rows of both maps lie in the joined one: a row that is new follows the one that it
// follows in its own map.
struct JoinedRows {
  std::vector<HeatMapRow> rows;
  std::map<TensorOfMap, std::size_t> places;
};

JoinedRows JoinRows(const HeatMap& old, const HeatMap& tail) {
  std::map<TensorOfMap, const HeatMapRow*> known;
  for (const HeatMapRow& row : old.rows) known.emplace(TensorOf(row), &row);
  std::map<TensorOfMap, std::vector<const HeatMapRow*>>
      after;  // a row of `old`: the new ones behind it
  std::vector<const HeatMapRow*> first;
  const HeatMapRow* previous = nullptr;
  for (const HeatMapRow& row : tail.rows) {
    const auto found = known.find(TensorOf(row));
    if (found != known.end()) {
      previous = found->second;
    } else {
      (previous == nullptr ? first : after[TensorOf(*previous)]).push_back(&row);
    }
  }
  JoinedRows joined;
  const auto add = [&](const HeatMapRow& row) {
    joined.places.emplace(TensorOf(row), joined.rows.size());
    joined.rows.push_back(row);
  };
  for (const HeatMapRow* row : first) add(*row);
  for (const HeatMapRow& row : old.rows) {
    add(row);
    const auto behind = after.find(TensorOf(row));
    if (behind == after.end()) continue;
    for (const HeatMapRow* next : behind->second) add(*next);
  }
  return joined;
}

}  // namespace

HeatMap JoinedHeatMap(const HeatMap& old, const HeatMap& tail) {
  if (tail.columns.empty()) return old;
  const std::uint64_t from = tail.columns.front().first;
  const auto end = std::find_if(old.columns.begin(), old.columns.end(),
                                [&](const StepRange& column) { return column.first >= from; });
  const auto kept = static_cast<std::size_t>(end - old.columns.begin());
  JoinedRows joined = JoinRows(old, tail);
  HeatMap map{.rows = std::move(joined.rows), .columns = {old.columns.begin(), end}, .cells = {}};
  map.columns.insert(map.columns.end(), tail.columns.begin(), tail.columns.end());
  map.cells.assign(map.rows.size() * map.columns.size(), static_cast<char>(kHeatNoData));
  const auto copy = [&](const HeatMap& from_map, std::size_t columns, std::size_t at) {
    for (std::size_t row = 0; row < from_map.rows.size(); ++row) {
      const std::size_t place = joined.places.at(TensorOf(from_map.rows[row]));
      map.cells.replace(place * map.columns.size() + at, columns, from_map.cells,
                        row * from_map.columns.size(), columns);
    }
  };
  copy(old, kept, 0);
  copy(tail, tail.columns.size(), kept);
  map.tensors = map.rows.size();
  map.steps = map.columns.size();
  const bool of_old = old.origin_column && *old.origin_column < kept;
  const HeatMap& origin = of_old ? old : tail;
  if (origin.origin_column) {
    map.origin_column = *origin.origin_column + (of_old ? 0 : static_cast<std::uint32_t>(kept));
    if (origin.origin_row)
      map.origin_row =
          static_cast<std::uint32_t>(joined.places.at(TensorOf(origin.rows[*origin.origin_row])));
  }
  return map;
}

}  // namespace statcollect::query
