#include "server/query/diff/stat_map_builder.h"

#include <algorithm>

#include "server/query/diff/merged_columns.h"

namespace statcollect::query {

StatMapBuilder::StatMapBuilder(std::vector<std::uint64_t> steps, std::uint32_t columns,
                               std::uint32_t rows)
    : rows_max_(rows), steps_(std::move(steps)) {
  steps_each_ = std::max<std::size_t>(1, PartsOf(steps_.size(), columns));
}

void StatMapBuilder::Take(std::size_t step, std::uint32_t rank, const RankCatalogue& catalogue,
                          std::span<const Cell> cells) {
  MutexLock lock(mutex_);
  std::vector<std::uint32_t>& rows = rows_of_[&catalogue];
  rows.resize(catalogue.activations.size(), kNoRow);
  for (const Cell& cell : cells) {
    if (cell.level == kStatNoData) continue;
    std::uint32_t& row = rows[cell.id];
    if (row == kNoRow) row = FindRow(cell.id, catalogue.activations[cell.id].key);
    Raise(row, {step, rank}, cell.order, cell.level);
  }
}

// Ranks mostly define the same tensors in the same order: then no names are looked up.
std::uint32_t StatMapBuilder::FindRow(std::uint32_t id, const TensorKey& key) {
  if (id >= usual_row_.size()) usual_row_.resize(id + 1, kNoRow);
  std::uint32_t& usual = usual_row_[id];
  if (usual != kNoRow) {
    const TensorKey& other = rows_[usual].key;
    if (other.name == key.name && other.output_path == key.output_path && other.kind == key.kind &&
        other.mode == key.mode && StageOf(key) == rows_[usual].stage)
      return usual;
  }
  return usual = FindRow(key);
}

void StatMapBuilder::Take(std::size_t step, const TensorDef& def, std::uint16_t level) {
  MutexLock lock(mutex_);
  if (level != kStatNoData) Raise(FindRow(def.key), {step, 0}, def.id, level);
}

void StatMapBuilder::Raise(std::uint32_t row, FirstSeen here, std::uint32_t order,
                           std::uint16_t level) {
  Row& of = rows_[row];
  if (std::tie(here, order) < std::tie(of.first, of.order)) {
    of.first = here;
    of.order = order;
  }
  std::uint16_t& cell = of.levels[here.first / steps_each_];
  cell = std::max(cell, level);
}

std::uint32_t StatMapBuilder::FindRow(const TensorKey& key) {
  const Stage stage = StageOf(key);
  const auto [found, added] =
      by_key_.try_emplace(RowKey(stage, key.mode, key.kind, key.name, key.output_path),
                          static_cast<std::uint32_t>(rows_.size()));
  if (!added) return found->second;
  rows_.push_back(
      {.key = key, .stage = stage, .first = {steps_.size(), 0}, .order = 0, .levels = {}});
  while (steps_each_ < steps_.size() &&
         rows_.size() * PartsOf(steps_.size(), steps_each_) > kCellsHeldMax)
    HalveColumns();
  rows_.back().levels.assign(PartsOf(steps_.size(), steps_each_), kStatNoData);
  return found->second;
}

void StatMapBuilder::HalveColumns() {
  steps_each_ *= 2;
  for (Row& row : rows_) MergeNeighbours(row.levels);
}

std::vector<const StatMapBuilder::Row*> StatMapBuilder::InOrder() const {
  std::vector<const Row*> ordered;
  for (const Row& row : rows_) ordered.push_back(&row);
  std::sort(ordered.begin(), ordered.end(), [](const Row* x, const Row* y) {
    return std::tie(x->stage, x->key.mode, x->order, x->first, x->key.kind, x->key.name,
                    x->key.output_path) < std::tie(y->stage, y->key.mode, y->order, y->first,
                                                   y->key.kind, y->key.name, y->key.output_path);
  });
  return ordered;
}

void StatMapBuilder::Fill(StatMap& map) const {
  MutexLock lock(mutex_);
  map.tensors = rows_.size();
  map.steps = steps_.size();
  for (std::size_t i = 0; i < steps_.size(); i += steps_each_)
    map.columns.push_back(
        {.first = steps_[i], .last = steps_[std::min(i + steps_each_, steps_.size()) - 1]});
  const std::vector<const Row*> ordered = InOrder();
  const std::size_t sent = std::min<std::size_t>(
      rows_max_, kCellsSentMax / std::max<std::size_t>(1, map.columns.size()));
  const std::size_t each =
      std::max<std::size_t>(1, PartsOf(ordered.size(), std::max<std::size_t>(1, sent)));
  for (std::size_t begin = 0; begin < ordered.size(); begin += each)
    AddRow(std::span(ordered).subspan(begin, std::min(each, ordered.size() - begin)), map);
}

void StatMapBuilder::AddRow(std::span<const Row* const> merged, StatMap& map) {
  const Row& first = *merged.front();
  map.rows.push_back({.stage = first.stage,
                      .kind = first.key.kind,
                      .activation = first.key.name,
                      .output_path = first.key.output_path,
                      .activation_b = {},
                      .mode = first.key.mode,
                      .tensors = merged.size()});
  for (std::size_t i = 0; i < map.columns.size(); ++i) {
    std::uint16_t level = kStatNoData;
    for (const Row* const row : merged) level = std::max(level, row->levels[i]);
    map.cells += static_cast<char>(level >> 8);
    map.cells += static_cast<char>(level & 255);
  }
}

}  // namespace statcollect::query
