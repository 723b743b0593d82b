#include "server/query/ranks/losses.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "common/loss_names.h"
#include "server/query/compare/loss_diff.h"

namespace statcollect::query {
namespace {

constexpr std::uint64_t kLossStepsAgreeing = 3;  // before a loss counts as reduced
constexpr std::uint64_t kScalarSpan = 256;       // steps whose scalars are read at a time

RankFinding AboutLoss(RankReason reason, const std::string& name, std::uint32_t micro_batch,
                      std::uint64_t step) {
  return {.step = step,
          .micro_batch = micro_batch,
          .stage = Stage::kLoss,
          .activation = name,
          .reason = reason,
          .last_step = step};
}

// The place of a loss in the step of the reference.
TensorCell CellOfLoss(const std::string& name, std::uint32_t micro_batch, const GroupStep& at) {
  if (!at.reference) return {};
  ScalarRecord loss{.name = name};
  loss.micro_batch = micro_batch;
  const auto spots = SpotsOfLosses(at.reference->data.observations, {loss});
  return {.segment = spots.empty() ? 0 : spots.front().segment};
}

}  // namespace

Status LossCheck::Check(const GroupStep& at) {
  if (at.ranks->size() < 2) return Status::Ok();
  STATCOLLECT_RETURN_IF_ERROR(ReadScalars(at));
  std::map<std::string, bool> agreeing;
  for (const auto& [of, losses] : ValuesOf(at)) {
    if (losses.size() < 2 || AddNonfinite(of, losses, at)) continue;
    const double first = losses.front().second;
    bool same = true;
    for (const auto& [rank, value] : losses) same = same && RelativeDifference(first, value) == 0;
    History& history = losses_[{at.group, of.first}];
    const auto [entry, fresh] = agreeing.try_emplace(of.first, same);
    if (!fresh) entry->second = entry->second && same;
    if (same || history.done) continue;
    history.done = true;
    // Each rank's own loss differs by nature; the same data twice made it look reduced.
    if (history.agreeing >= kLossStepsAgreeing && !batches_.HasFound())
      AddDifference(of, losses, at);
  }
  for (const auto& [name, same] : agreeing) losses_[{at.group, name}].agreeing += same ? 1 : 0;
  return Status::Ok();
}

// Scalars of some steps at a time: a read for each step would be a seek each.
Status LossCheck::ReadScalars(const GroupStep& at) {
  if (at.step / kScalarSpan == span_ && at.attempt == span_attempt_) return Status::Ok();
  span_ = at.step / kScalarSpan;
  span_attempt_ = at.attempt;
  scalars_.clear();
  for (const std::uint32_t rank : ranks_) {
    if (!view_.ranks(at.attempt).contains(rank)) continue;
    STATCOLLECT_ASSIGN_OR_RETURN(auto scalars,
                                 view_.Scalars(at.attempt, rank,
                                               {.first = span_ * kScalarSpan,
                                                .last = span_ * kScalarSpan + kScalarSpan - 1}));
    std::erase_if(scalars, [](const ScalarRecord& scalar) { return !IsLoss(scalar.name); });
    scalars_[rank] = std::move(scalars);
  }
  return Status::Ok();
}

// For each rank, the first value of each name and micro-batch.
std::map<LossCheck::NameAndBatch, LossCheck::RankValues> LossCheck::ValuesOf(
    const GroupStep& at) const {
  std::map<NameAndBatch, RankValues> values;
  for (const std::uint32_t rank : *at.ranks) {
    const auto scalars = scalars_.find(rank);
    if (scalars == scalars_.end()) continue;
    std::set<NameAndBatch> seen;
    for (const ScalarRecord& scalar : scalars->second) {
      if (scalar.step == at.step && seen.emplace(scalar.name, scalar.micro_batch).second)
        values[{scalar.name, scalar.micro_batch}].emplace_back(rank, scalar.value);
    }
  }
  return values;
}

// True: it is not finite on some ranks, but on as many others.
bool LossCheck::AddNonfinite(const NameAndBatch& of, const RankValues& losses,
                             const GroupStep& at) {
  Ranks broken, sound;
  for (const auto& [rank, value] : losses) (std::isfinite(value) ? sound : broken).push_back(rank);
  if (broken.empty() || sound.size() < broken.size()) return false;
  RankFinding finding = AboutLoss(RankReason::kNonfinite, of.first, of.second, at.step);
  finding.ranks = std::move(broken);
  finding.others = std::move(sound);
  finding.outvoted = finding.others.size() > finding.ranks.size();
  findings_.Add(std::move(finding), CellOfLoss(of.first, of.second, at), of.first);
  return true;
}

void LossCheck::AddDifference(const NameAndBatch& of, const RankValues& losses,
                              const GroupStep& at) {
  std::map<double, Ranks> camps;
  for (const auto& [rank, value] : losses) camps[value].push_back(rank);
  const auto largest = std::max_element(
      camps.begin(), camps.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  RankFinding finding = AboutLoss(RankReason::kLossDiffers, of.first, of.second, at.step);
  finding.outvoted = largest->second.size() * 2 > losses.size();
  for (const auto& [value, who] : camps) {
    Ranks& into = finding.outvoted && who == largest->second ? finding.others : finding.ranks;
    into.insert(into.end(), who.begin(), who.end());
    if (&into == &finding.ranks) finding.value = value;
  }
  std::sort(finding.ranks.begin(), finding.ranks.end());
  finding.expected = finding.outvoted ? largest->first : losses.front().second;
  finding.distance = RelativeDifference(*finding.value, *finding.expected);
  findings_.Add(std::move(finding), CellOfLoss(of.first, of.second, at), of.first);
}

}  // namespace statcollect::query
