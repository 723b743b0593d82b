#include "server/query/ranks/batches.h"

#include <set>
#include <string>
#include <utility>

#include "common/mix_bits.h"
#include "common/text.h"

namespace statcollect::query {

void BatchCheck::Check(const GroupStep& at) {
  if (at.ranks->size() < 2) return;
  const auto fed = WhatWasFed(at);
  if (!fed.empty() && at.group == 0) ++steps_with_batches_;
  for (const auto& [micro_batch, ranks] : fed) {
    std::map<std::uint64_t, Ranks> same;
    std::set<std::pair<std::uint64_t, std::uint64_t>> known;  // sum, part of the batch
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (!ranks[i].varied) continue;
      const auto& part = at.data_parts[i];
      if (!part || known.emplace(ranks[i].sum, *part).second)
        same[ranks[i].sum].push_back((*at.ranks)[i]);
    }
    for (const auto& [sum, who] : same) {
      if (who.size() >= 2) AddSame(who, at.step, micro_batch);
    }
  }
}

// The inputs by micro-batch, then by the rank's index.
std::map<std::uint32_t, std::vector<BatchCheck::Fed>> BatchCheck::WhatWasFed(
    const GroupStep& at) const {
  std::map<std::uint32_t, std::vector<Fed>> fed;
  for (std::uint32_t id = 0; id < keys_.size(); ++id) {
    if (keys_[id].role != TensorRole::kBatch || keys_[id].key.mode == Mode::kEval) continue;
    for (std::size_t i = 0; i < at.ranks->size(); ++i) {
      const TensorCell& cell = at.cells[i][id];
      if (!cell.present) continue;
      auto& ranks = fed[keys_[id].key.micro_batch];
      ranks.resize(at.ranks->size());
      ranks[i].sum += MixBits(cell.hash + 0x9e3779b97f4a7c15u * (id + 1));
      ranks[i].varied = ranks[i].varied || (cell.varied && cell.large);
    }
  }
  return fed;
}

void BatchCheck::AddSame(const Ranks& ranks, std::uint64_t step, std::uint32_t micro_batch) {
  History& history = same_[ranks];
  if (history.steps == 0) {
    history.first_step = step;
    history.micro_batch = micro_batch;
  }
  if (history.last_counted != step) ++history.steps;
  history.last_counted = history.last_step = step;
}

void BatchCheck::Conclude() {
  for (const auto& [ranks, history] : same_) {
    if (history.steps < 2 && steps_with_batches_ > 1) {
      findings_.Note(RanksNamed("rank", ranks) + " were fed the same data once, in step " +
                     std::to_string(history.first_step));
      continue;
    }
    RankFinding finding{.step = history.first_step,
                        .micro_batch = history.micro_batch,
                        .stage = Stage::kBatch,
                        .kind = Kind::kBatch,
                        .reason = RankReason::kSameBatch,
                        .ranks = ranks,
                        .steps = history.steps,
                        .last_step = history.last_step};
    findings_.Add(std::move(finding), {});
  }
}

}  // namespace statcollect::query
