#include "server/query/diff/stat_map_builder.h"

#include <algorithm>

#include "server/query/compare/step_order.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kCellsSentMax = std::size_t{1} << 20;

}  // namespace

StatMapBuilder::StatMapBuilder(std::vector<std::uint64_t> steps, std::uint32_t columns,
                               std::uint32_t rows)
    : rows_max_(rows), grid_(std::move(steps), columns) {}

void StatMapBuilder::Take(std::size_t step, std::uint32_t rank, const RankCatalogue& catalogue,
                          std::span<const Cell> cells) {
  MutexLock lock(mutex_);
  std::vector<std::uint32_t>& rows = rows_of_[&catalogue];
  rows.resize(catalogue.activations.size(), kNoRow);
  for (const Cell& cell : cells) {
    if (cell.level == kStatNoData) continue;
    std::uint32_t& row = rows[cell.id];
    if (row == kNoRow) row = FindRow(cell.id, catalogue.activations[cell.id].key);
    Raise(row, step, rank, cell.order, cell.level);
  }
}

// Ranks mostly define the same tensors in the same order: then no names are looked up.
std::uint32_t StatMapBuilder::FindRow(std::uint32_t id, const TensorKey& key) {
  if (id >= usual_row_.size()) usual_row_.resize(id + 1, kNoRow);
  std::uint32_t& usual = usual_row_[id];
  if (usual != kNoRow) {
    const TensorKey& other = grid_.row(usual).key;
    if (other.name == key.name && other.output_path == key.output_path && other.kind == key.kind &&
        other.mode == key.mode && StageOf(key) == grid_.row(usual).stage)
      return usual;
  }
  return usual = FindRow(key);
}

void StatMapBuilder::Take(std::size_t step, const TensorDef& def, std::uint16_t level) {
  MutexLock lock(mutex_);
  if (level != kStatNoData) Raise(FindRow(def.key), step, 0, def.id, level);
}

void StatMapBuilder::Raise(std::uint32_t row, std::size_t step, std::uint32_t rank,
                           std::uint32_t order, std::uint16_t level) {
  auto& of = grid_.row(row);
  const std::pair here(step, rank);
  if (std::tie(here, order) < std::tie(of.first, of.order)) {
    of.first = here;
    of.order = order;
  }
  grid_.Raise(row, step, level);
}

std::uint32_t StatMapBuilder::FindRow(const TensorKey& key) {
  const auto [row, added] = grid_.FindRow(key, StageOf(key));
  if (added) grid_.row(row).first = {grid_.steps().size(), 0};  // after wherever it is seen
  return row;
}

void StatMapBuilder::Fill(StatMap& map) const {
  MutexLock lock(mutex_);
  map.tensors = grid_.size();
  map.steps = grid_.steps().size();
  auto shown = grid_.Show(rows_max_, kCellsSentMax, [&](std::uint16_t level) {
    map.cells += static_cast<char>(level >> 8);
    map.cells += static_cast<char>(level & 255);
  });
  map.rows = std::move(shown.rows);
  map.columns = std::move(shown.columns);
}

}  // namespace statcollect::query
