// Reads one run's steps of a rank block by block, and holds the decoded records of one step.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_LOADED_STEP_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_LOADED_STEP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "server/query/run_view.h"

namespace statcollect::query {

// Blocks of one side, step by step.
class BlockCursor {
 public:
  BlockCursor(const RunView& view, std::size_t attempt, std::uint32_t rank, StepBounds steps)
      : scan_(view.Scan(attempt, rank, steps)) {
    Advance();
  }
  // The head of the next block of the step; nullptr if there is none. Skips blocks of earlier
  // steps.
  const BlockHead* Peek(std::uint64_t step) {
    while (there_ && scan_->head().step < step) Advance();
    return there_ && scan_->head().step == step ? &scan_->head() : nullptr;
  }
  void Skip() { Advance(); }
  bool Load(bool sketches, StatColumns* columns) {
    return AdvanceIf(scan_->Load(sketches, columns));
  }
  bool LoadHashes(HashColumns* columns) { return AdvanceIf(scan_->LoadHashes(columns)); }
  // Of the next block, which stays the next one: see StatScan::Columns.
  const NumberColumns* Columns() { return there_ ? scan_->Columns() : nullptr; }
  const NumberColumns* Numbers(NumberSet wanted) {
    return there_ ? scan_->Numbers(wanted) : nullptr;
  }
  const Status& status() const { return scan_->status(); }

 private:
  void Advance() { there_ = scan_->NextHead(); }
  bool AdvanceIf(bool loaded) {
    there_ = loaded && there_;
    if (loaded) Advance();
    return loaded;
  }

  std::unique_ptr<StatScan> scan_;
  bool there_ = false;
};

// The blocks of a step of one run, indexed by activation. Reuses its memory from step to step.
class LoadedStep {
 public:
  void Clear() { count_ = 0; }
  StatColumns& Add() {
    if (count_ == blocks_.size()) blocks_.emplace_back();
    return blocks_[count_++];
  }
  std::span<const StatColumns> blocks() const { return std::span(blocks_).first(count_); }
  // Call after all blocks were added and before any function below. `catalogue` defines all ids in
  // the blocks.
  void Index(const RankCatalogue& catalogue);
  bool Has(std::uint32_t id) const {
    return id < places_.size() && places_[id].generation == generation_;
  }
  // Absent: the step does not have it, or the id is Alignment::kNone.
  std::optional<Observation> Find(std::uint32_t id) const {
    if (!Has(id)) return std::nullopt;
    return At(blocks_[places_[id].block], places_[id].index);
  }
  Observation At(const StatColumns& block, std::size_t i) const {
    return {.def = &catalogue_->activations[block.activation[i]],
            .layout = &catalogue_->layouts[block.layout[i]],
            .stats = &block.stats[i],
            .sketch = block.SketchOf(i),
            .order = block.order[i]};
  }
  // In the order of execution.
  std::vector<Observation> InOrder() const;

 private:
  struct Place {
    std::uint32_t generation = 0, block = 0, index = 0;
  };
  const RankCatalogue* catalogue_ = nullptr;
  std::vector<StatColumns> blocks_;
  std::size_t count_ = 0;
  std::vector<Place> places_;
  std::uint32_t generation_ = 0;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_LOADED_STEP_H_
