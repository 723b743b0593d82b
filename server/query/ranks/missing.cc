#include "server/query/ranks/missing.h"

#include <algorithm>
#include <string>

#include "common/names.h"
#include "common/text.h"
#include "server/query/run_summary.h"

namespace statcollect::query {
namespace {

constexpr double kSameNames =
    0.8;  // of the ranks' weights: with fewer in common they are not replicas
constexpr std::size_t kAbsentMax = 1024;

std::string StepsText(std::uint64_t first, std::uint64_t last) {
  return first == last ? "step " + std::to_string(first)
                       : "steps " + std::to_string(first) + ".." + std::to_string(last);
}

}  // namespace

void MissingCheck::CheckRanks(std::uint64_t step) {
  const std::size_t newest = view_.attempts().size() - 1;
  const AttemptMeta& attempt = view_.attempts()[newest];
  const auto& there = view_.ranks(newest);
  const RankSet expected = RanksThatRecord(attempt, there);
  Ranks absent;
  for (std::uint32_t rank = 0; rank < attempt.world_size && absent.size() < kAbsentMax; ++rank) {
    if (expected.Contains(rank) && !there.contains(rank)) absent.push_back(rank);
  }
  if (expected.count() < attempt.world_size)
    findings_.Note("of a world of " + std::to_string(attempt.world_size) +
                   " only these ranks record: " + expected.Text() +
                   " (init(ranks=) or STATAGENT_RANKS)");
  if (absent.empty() || there.empty()) return;
  bool open = false;
  for (const auto& [rank, meta] : there) open = open || (is_open_ && is_open_(attempt.id, rank));
  const std::string text = RanksNamed("rank", absent) + " of a world of " +
                           std::to_string(attempt.world_size) + " never reported to the collector";
  if (open) return findings_.Note(text + " yet");
  RankFinding finding{
      .step = step, .reason = RankReason::kMissingRank, .ranks = absent, .text = text + "."};
  findings_.Add(std::move(finding), {});
}

void MissingCheck::Check(const GroupStep& at) {
  CountSteps(at);
  CheckWeights(at);
}

void MissingCheck::CountSteps(const GroupStep& at) {
  for (std::size_t i = 0; i < at.ranks->size(); ++i) {
    const std::uint32_t rank = (*at.ranks)[i];
    if (at.recorded[i]) {
      ++recorded_[rank];
    } else if (view_.ranks(at.attempt).contains(rank)) {
      MissingSteps& missing = missing_[rank];
      if (missing.count++ == 0) missing.first = at.step;
      missing.last = at.step;
    }
  }
}

void MissingCheck::CheckWeights(const GroupStep& at) {
  if (at.ranks->size() < 2 || layout_.weights_sharded) return;
  std::vector<bool> has_weights(at.ranks->size());
  for (std::uint32_t id = 0; id < keys_.size(); ++id) {
    if (keys_[id].role != TensorRole::kWeight) continue;
    for (std::size_t i = 0; i < at.ranks->size(); ++i)
      has_weights[i] = has_weights[i] || at.cells[i][id].present;
  }
  const auto recording =
      static_cast<std::size_t>(std::count(has_weights.begin(), has_weights.end(), true));
  if (recording < 2) return;
  std::uint64_t all = 0, shared = 0;
  std::vector<std::uint32_t> partly;
  for (std::uint32_t id = 0; id < keys_.size(); ++id) {
    if (keys_[id].role != TensorRole::kWeight || keys_[id].part != 0 ||
        !IsCompared(keys_[id], layout_))
      continue;
    std::size_t present = 0;
    for (const auto& cells : at.cells) present += cells[id].present ? 1 : 0;
    if (present == 0) continue;
    ++all;
    shared += present == recording ? 1 : 0;
    if (present < recording) partly.push_back(id);
  }
  if (partly.empty()) return;
  if (!layout_.stated && static_cast<double>(shared) < kSameNames * static_cast<double>(all)) {
    findings_.NoteOnce(
        "names",
        "ranks have only " + std::to_string(shared) + " of " + std::to_string(all) +
            " weights in common: different stages of a pipeline? Only these were compared; name "
            "the parallel layout in the run's configuration (docs/ranks.md)");
    return;
  }
  for (const std::uint32_t id : partly) AddWeight(id, has_weights, at);
}

// `has_weights`: by rank's index, whether it recorded any.
void MissingCheck::AddWeight(std::uint32_t id, const std::vector<bool>& has_weights,
                             const GroupStep& at) {
  RankFinding finding = findings_.About(id, RankReason::kMissingActivation, at.step);
  TensorCell cell;
  bool lost = false;
  for (std::size_t i = 0; i < at.ranks->size(); ++i) {
    const std::uint32_t rank = (*at.ranks)[i];
    if (!has_weights[i]) continue;
    if (at.cells[i][id].present) {
      finding.others.push_back(rank);
      cell = at.cells[i][id];
    } else {
      finding.ranks.push_back(rank);
      lost = lost || MayHaveLost(at.attempt, rank, at.step);
    }
  }
  if (lost) {
    findings_.NoteOnce(
        "lost", RanksNamed("rank", finding.ranks) + " lacks " + Printable(keys_[id].key.name) +
                    " in step " + std::to_string(at.step) +
                    ": among the records that it lost, or that it could not send before it ended");
    return;
  }
  findings_.Add(std::move(finding), cell);
}

bool MissingCheck::MayHaveLost(std::size_t attempt, std::uint32_t rank, std::uint64_t step) const {
  if (view_.Dropped(rank) > 0) return true;
  const auto complete = view_.IsComplete(attempt, rank, step);
  return !complete.ok() || !*complete;
}

void MissingCheck::Conclude(const std::map<std::uint64_t, std::size_t>& steps) {
  for (const auto& [rank, missing] : missing_) {
    if (recorded_.contains(rank)) {
      AddSteps(rank, missing, steps.at(missing.first));
    } else if (view_.ranks(view_.attempts().size() - 1).contains(rank)) {
      findings_.Note(RanksNamed("rank", {rank}) + " recorded no statistics in these steps");
    }
  }
}

// `attempt`: index of the one that the first of the missing steps belongs to.
void MissingCheck::AddSteps(std::uint32_t rank, const MissingSteps& missing, std::size_t attempt) {
  const std::string count = std::to_string(missing.count);
  const std::string range = StepsText(missing.first, missing.last);
  const auto meta = view_.ranks(attempt).find(rank);
  const bool known = meta != view_.ranks(attempt).end();
  const bool ended = known && meta->second.last_step && missing.first > *meta->second.last_step;
  const bool open = known && is_open_ && is_open_(view_.attempts()[attempt].id, rank);
  if (ended && open) {
    findings_.Note(RanksNamed("rank", {rank}) + " is " + count +
                   (missing.count == 1 ? " step" : " steps") +
                   " behind the others; its stream is open");
    return;
  }
  if (view_.Dropped(rank) > 0 && !ended) {
    findings_.Note(RanksNamed("rank", {rank}) + " has no statistics in " + count + " of " + range +
                   "; its agent reported lost records");
    return;
  }
  RankFinding finding{.step = missing.first,
                      .reason = ended ? RankReason::kEndedEarly : RankReason::kMissingStep,
                      .ranks = {rank},
                      .steps = missing.count,
                      .last_step = missing.last};
  finding.text = ended ? "Rank " + std::to_string(rank) + " has nothing after step " +
                             std::to_string(*meta->second.last_step) +
                             ", the others continue to step " + std::to_string(missing.last) + "."
                       : "Rank " + std::to_string(rank) + " has no statistics in " + range + " (" +
                             count + "), other ranks do.";
  findings_.Add(std::move(finding), {});
}

}  // namespace statcollect::query
