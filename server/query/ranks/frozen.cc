#include "server/query/ranks/frozen.h"

#include <algorithm>
#include <string>
#include <utility>

namespace statcollect::query {

void FrozenCheck::Follow(const GroupStep& at) {
  for (std::size_t i = 0; i < at.ranks->size(); ++i)
    FollowRank(at.step, at.cells[i], weights_[(*at.ranks)[i]]);
}

void FrozenCheck::FollowRank(std::uint64_t step, const std::vector<TensorCell>& cells,
                             std::unordered_map<std::uint32_t, WeightHistory>& histories) const {
  for (std::uint32_t id = 0; id < cells.size(); ++id) {
    const KeyInfo& info = keys_[id];
    if (info.role != TensorRole::kWeight || !cells[id].present || info.key.mode == Mode::kEval)
      continue;
    WeightHistory& history = histories[info.slot];
    if (info.key.mode == Mode::kTrain && history.seen) {
      const TensorCell* gradient =
          info.gradient >= 0 ? &cells[static_cast<std::size_t>(info.gradient)] : nullptr;
      const bool moves = gradient != nullptr && gradient->present && gradient->finite &&
                         gradient->rms > 0 && !gradient->nan && !gradient->pos_inf;
      if (history.hash != cells[id].hash) {
        history.changed = true;
      } else if (moves && history.still++ == 0) {
        history.first_still = step;
        history.gradient = gradient->rms;
      }
    }
    history.hash = cells[id].hash;
    history.seen = true;
  }
}

bool FrozenCheck::Had(std::uint32_t rank, std::uint32_t slot, std::uint64_t hash) const {
  const auto histories = weights_.find(rank);
  if (histories == weights_.end()) return false;
  const auto before = histories->second.find(slot);
  return before != histories->second.end() && before->second.seen && before->second.hash == hash;
}

void FrozenCheck::Conclude(const std::optional<StepRange>& steps) {
  std::map<std::uint32_t, Ranks> frozen;  // by slot
  std::map<std::uint32_t, std::uint64_t> moving;
  for (const auto& [rank, histories] : weights_) {
    for (const auto& [slot, history] : histories) {
      moving[rank] += history.changed ? 1 : 0;
      if (!history.changed && history.still >= 2) frozen[slot].push_back(rank);
    }
  }
  for (const auto& [slot, ranks] : frozen) {
    const WeightHistory& history = weights_[ranks.front()][slot];
    RankFinding finding = findings_.About(slot, RankReason::kFrozenWeight, history.first_still);
    finding.ranks = ranks;
    finding.value = history.gradient;
    const bool all = std::none_of(ranks.begin(), ranks.end(),
                                  [&](std::uint32_t rank) { return moving[rank] > 0; });
    // Independent mistakes, one each; unless nothing learns at all.
    RankFinding& added = findings_.Add(std::move(finding), TensorCell{.order = slot},
                                       all ? "" : std::to_string(slot));
    added.steps = std::max<std::uint64_t>(added.steps, history.still);
    if (steps) added.last_step = steps->last;
  }
}

}  // namespace statcollect::query
