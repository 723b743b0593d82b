#include "server/query/ranks/finding_list.h"

#include <algorithm>
#include <utility>

#include "common/names.h"
#include "server/query/ranks/sentence.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kRankNotesMax = 50;

Mode ModeOf(const RankFinding& finding) {
  return finding.mode == "init" ? Mode::kInit : finding.mode == "eval" ? Mode::kEval : Mode::kTrain;
}

// Whether it is about numbers of the rank, so that an earlier one may explain it.
bool IsAboutValues(RankReason reason) {
  return reason <= RankReason::kGradientsDiffer || reason == RankReason::kLossDiffers ||
         reason == RankReason::kNonfinite || reason == RankReason::kOutlier;
}

}  // namespace

RankFinding FindingList::About(std::uint32_t id, RankReason reason, std::uint64_t step) const {
  const KeyInfo& info = keys_[id];
  return {.step = step,
          .micro_batch = info.key.micro_batch,
          .stage = StageOf(info.key),
          .kind = info.key.kind,
          .activation = info.key.name,
          .output_path = info.key.output_path,
          .call = info.key.call,
          .class_name = info.class_name,
          .mode = std::string(Name(info.key.mode)),
          .reason = reason,
          .last_step = step};
}

ReportOrder FindingList::PlaceOf(const RankFinding& finding, const TensorCell& cell) const {
  ReportOrder place =
      MakeReportOrder(finding.stage, finding.micro_batch, finding.mode == "eval", cell.order,
                      finding.ranks.empty() ? 0 : finding.ranks.front());
  if (place.stage != Stage::kWeights) place.segment = cell.segment;
  return place;
}

RankFinding& FindingList::Add(RankFinding finding, const TensorCell& cell, const std::string& of) {
  const auto [entry, fresh] = findings_.try_emplace({finding.reason, finding.ranks, of});
  Listed& listed = entry->second;
  const KeyInfo* const key = keys_.Find({.name = finding.activation,
                                         .kind = finding.kind,
                                         .output_path = finding.output_path,
                                         .micro_batch = finding.micro_batch,
                                         .call = finding.call,
                                         .mode = ModeOf(finding)});
  if (key != nullptr) listed.keys.insert(key->slot);
  const ReportOrder place = PlaceOf(finding, cell);
  if (fresh) {
    listed.finding = std::move(finding);
    listed.place_in_order = place;
    return listed.finding;
  }
  RankFinding& kept = listed.finding;
  kept.steps += finding.step > kept.last_step ? 1 : 0;
  kept.last_step = std::max(kept.last_step, finding.step);
  if (finding.step == kept.step && place < listed.place_in_order) {
    finding.steps = kept.steps;
    finding.last_step = kept.last_step;
    kept = std::move(finding);
    listed.place_in_order = place;
  }
  return kept;
}

void FindingList::RemoveReplicaDifferences() {
  std::erase_if(findings_, [](const auto& entry) {
    const RankReason reason = std::get<0>(entry.first);
    return reason == RankReason::kWeightsDiffer || reason == RankReason::kStateDiffers ||
           reason == RankReason::kGradientsDiffer;
  });
}

void FindingList::Note(const std::string& note) {
  if (notes_.size() < kRankNotesMax) notes_.push_back(note);
}

void FindingList::NoteOnce(const std::string& topic, const std::string& note) {
  if (noted_.insert(topic).second) Note(note);
}

std::vector<RankFinding> FindingList::TakeFindings(std::size_t top) {
  std::vector<Listed> all;
  for (auto& [of, listed] : findings_) all.push_back(std::move(listed));
  std::sort(all.begin(), all.end(), [](const Listed& a, const Listed& b) {
    return std::tie(a.finding.step, a.place_in_order, a.finding.reason, a.finding.ranks) <
           std::tie(b.finding.step, b.place_in_order, b.finding.reason, b.finding.ranks);
  });
  std::vector<RankFinding> findings;
  std::set<std::uint32_t> explained;
  for (Listed& listed : all) {
    RankFinding& f = listed.finding;
    f.activations = std::max<std::uint64_t>(listed.keys.size(), f.activation.empty() ? 0 : 1);
    const bool values = IsAboutValues(f.reason);
    f.propagated = values && std::any_of(f.ranks.begin(), f.ranks.end(), [&](std::uint32_t rank) {
                     return explained.contains(rank);
                   });
    if (values) explained.insert(f.ranks.begin(), f.ranks.end());
    f.text = Sentence(f);
    if (findings.size() < top) findings.push_back(std::move(f));
  }
  if (all.size() > top) {
    Note("only the first " + std::to_string(top) + " of " + std::to_string(all.size()) +
         " findings are listed");
  }
  return findings;
}

}  // namespace statcollect::query
