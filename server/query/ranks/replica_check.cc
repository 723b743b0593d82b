#include "server/query/ranks/replica_check.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/names.h"
#include "server/query/compare/step_order.h"

namespace statcollect::query {
namespace {

RankReason ReasonOf(TensorRole role) {
  return role == TensorRole::kWeight  ? RankReason::kWeightsDiffer
         : role == TensorRole::kState ? RankReason::kStateDiffers
                                      : RankReason::kGradientsDiffer;
}

// Compared with the reference rank by tolerance, with any other by hash.
bool IsEqual(const TensorCell& a, const TensorCell& b, bool bits) {
  if (a.layout != b.layout) return false;
  if (a.hash == b.hash) return true;
  return !bits && !a.diverged && !b.diverged;
}

ReportOrder PlaceInStep(const KeyInfo& info, std::uint32_t id, const GroupStep& at) {
  const auto first = std::find_if(at.cells.begin(), at.cells.end(),
                                  [id](const auto& cells) { return cells[id].present; });
  const TensorCell& cell = (*first)[id];
  ReportOrder place = MakeReportOrder(info.key, cell.order, 0);
  if (place.stage != Stage::kWeights) place.segment = cell.segment;
  return place;
}

}  // namespace

void ReplicaCheck::Check(const GroupStep& at) {
  if (at.ranks->size() < 2) return;
  bool mostly = false;
  // In the order of the step, so that the first finding is where it began.
  std::vector<std::pair<ReportOrder, std::uint32_t>> sorted;
  for (const std::uint32_t id : ComparedKeys(at, &mostly))
    sorted.emplace_back(PlaceInStep(keys_[id], id, at), id);
  std::sort(sorted.begin(), sorted.end());
  for (const auto& [unused, id] : sorted)
    CompareKey(id, !request_.tolerance && (keys_[id].agreed || mostly), at);
}

// The tensors that at least two ranks have. `mostly_equal`: whether at least half of them are equal
// bit for bit.
std::vector<std::uint32_t> ReplicaCheck::ComparedKeys(const GroupStep& at,
                                                      bool* mostly_equal) const {
  std::uint64_t equal = 0;
  std::vector<std::uint32_t> compared;
  for (std::uint32_t id = 0; id < keys_.size(); ++id) {
    if (!IsCompared(keys_[id], layout_)) continue;
    const Consensus found = ConsensusOf(id, /*bits=*/true, at);
    if (found.present < 2) continue;
    compared.push_back(id);
    equal += found.same_bits ? 1 : 0;
  }
  *mostly_equal = equal * 2 >= compared.size();
  return compared;
}

ReplicaCheck::Consensus ReplicaCheck::ConsensusOf(std::uint32_t id, bool bits,
                                                  const GroupStep& at) const {
  Consensus found;
  for (const auto& cells : at.cells) {
    const TensorCell& cell = cells[id];
    if (!cell.present) continue;
    ++found.present;
    if (found.first == nullptr) {
      found.first = &cell;
      continue;
    }
    found.same_layout = found.same_layout && cell.layout == found.first->layout;
    found.same_bits = found.same_bits && found.same_layout && cell.hash == found.first->hash;
    found.equal = found.equal && IsEqual(*found.first, cell, bits);
  }
  return found;
}

void ReplicaCheck::CompareKey(std::uint32_t id, bool bits, const GroupStep& at) {
  KeyInfo& info = keys_[id];
  const Consensus found = ConsensusOf(id, bits, at);
  if (found.present < 2) return;
  const std::uint64_t pairs = found.present - 1;
  if (!found.same_layout && !layout_.stated) {
    findings_.NoteOnce("shapes", "ranks hold " + std::string(Name(info.key.kind)) +
                                     " tensors of one name and different shapes (" +
                                     Printable(info.key.name) +
                                     "): shards? Not compared; name the parallel layout in the "
                                     "run's configuration (docs/ranks.md)");
    return;
  }
  compared_.records += pairs;
  if (found.equal) return TakeEqual(found, info, at.step);
  ++differences_;
  const OddRanks odd = FindOdd(id, bits, at);
  if (IsExcused(id, at)) {
    compared_.within_tolerance += pairs;
    findings_.NoteOnce(
        "gradients",
        "gradients differ between ranks where the weights after the update agree (first: " +
            Printable(info.key.name) + ", step " + std::to_string(at.step) +
            "): reduced inside the optimizer, or a learning rate of 0");
    return;
  }
  const std::uint64_t differ =
      odd.others.empty() ? pairs : std::min<std::uint64_t>(pairs, odd.ranks.size());
  compared_.diverged += differ;
  compared_.identical += pairs - differ;
  if (!odd.others.empty()) known_odd_.try_emplace(at.group, odd);
  AddDifference(id, bits, found, odd, at);
}

void ReplicaCheck::TakeEqual(const Consensus& found, KeyInfo& info, std::uint64_t step) {
  (found.same_bits ? compared_.identical : compared_.within_tolerance) += found.present - 1;
  equal_varied_ += found.same_bits && found.first->varied ? 1 : 0;
  info.agreed = info.agreed || found.same_bits;
  if (found.same_bits && found.first->varied) keys_[info.slot].held_alike = true;
  if (found.same_bits) return;
  const std::string kind(Name(info.key.kind));
  findings_.NoteOnce("bits " + kind,
                     kind +
                         " tensors differ between ranks in their bits, within the tolerance of "
                         "their dtype (first: " +
                         Printable(info.key.name) + ", step " + std::to_string(step) +
                         "); replicas of one device type usually agree bit for bit");
}

void ReplicaCheck::AddDifference(std::uint32_t id, bool bits, const Consensus& found,
                                 const OddRanks& odd, const GroupStep& at) {
  const RankReason reason =
      found.same_layout ? ReasonOf(keys_[id].role) : RankReason::kShapeDiffers;
  RankFinding finding = findings_.About(id, reason, at.step);
  finding.ranks = odd.ranks;
  finding.others = odd.others;
  finding.outvoted = odd.outvoted;
  finding.apart = !found.same_layout;
  finding.segment = found.first->segment;
  finding.replicas = AreReplicas(id);
  if (const auto measured = at.measured.find(id); measured != at.measured.end()) {
    const Comparison& comparison = measured->second.comparison;
    finding.apart = comparison.agreement == Agreement::kDiverged;
    finding.factor = measured->second.factor;
    finding.factor_of = measured->second.rank;
    finding.factor_to = at.reference->rank;
    if (comparison.distance) {
      finding.distance = comparison.distance->value;
      finding.distance_kind = comparison.distance->kind;
    }
    finding.tolerance = bits ? 0 : comparison.tolerance;
  }
  findings_.Add(std::move(finding), *found.first);
}

// What was the same once, or is made of something that was, is meant to stay so.
bool ReplicaCheck::AreReplicas(std::uint32_t id) const {
  const KeyInfo& info = keys_[id];
  if (layout_.stated || info.placed || keys_[info.slot].held_alike) return true;
  return info.weight >= 0 && keys_[keys_[static_cast<std::uint32_t>(info.weight)].slot].held_alike;
}

ReplicaCheck::OddRanks ReplicaCheck::FindOdd(std::uint32_t id, bool bits,
                                             const GroupStep& at) const {
  const Ranks& ranks = *at.ranks;
  std::vector<std::vector<std::size_t>> camps;  // indices of ranks that are equal
  Ranks present;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const TensorCell& cell = at.cells[i][id];
    if (!cell.present) continue;
    present.push_back(ranks[i]);
    const auto camp = std::find_if(camps.begin(), camps.end(), [&](const auto& members) {
      return IsEqual(at.cells[members.front()][id], cell, bits);
    });
    camp == camps.end() ? camps.push_back({i}) : camp->push_back(i);
  }
  const auto largest = std::max_element(
      camps.begin(), camps.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  if (largest->size() * 2 > present.size()) {
    OddRanks odd{.outvoted = true};
    for (const std::size_t i : *largest) odd.others.push_back(ranks[i]);
    std::set_difference(present.begin(), present.end(), odd.others.begin(), odd.others.end(),
                        std::back_inserter(odd.ranks));
    return odd;
  }
  OddRanks odd = WhoKeptOld(id, at);
  if (!odd.ranks.empty() && !odd.others.empty()) return odd;
  const auto known = known_odd_.find(at.group);
  return known != known_odd_.end() ? known->second : OddRanks{.ranks = std::move(present)};
}

// Nobody is outvoted. Whoever kept the old weight while others updated theirs has missed an update.
ReplicaCheck::OddRanks ReplicaCheck::WhoKeptOld(std::uint32_t id, const GroupStep& at) const {
  const Ranks& ranks = *at.ranks;
  OddRanks odd;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const TensorCell& cell = at.cells[i][id];
    if (!cell.present) continue;
    const bool still =
        keys_[id].role == TensorRole::kWeight && weights_.Had(ranks[i], keys_[id].slot, cell.hash);
    (still ? odd.ranks : odd.others).push_back(ranks[i]);
  }
  return odd;
}

// Gradients that are reduced later, inside the optimizer; the weights still agree.
bool ReplicaCheck::IsExcused(std::uint32_t id, const GroupStep& at) const {
  if (keys_[id].role != TensorRole::kGradient || keys_[id].weight < 0) return false;
  const auto weight = static_cast<std::uint32_t>(keys_[id].weight);
  const Consensus found = ConsensusOf(weight, /*bits=*/true, at);
  return found.present == at.ranks->size() && found.same_bits;
}

std::string ReplicaCheck::Conclude(std::uint32_t world_size) {
  if (layout_.stated || differences_ == 0 || equal_varied_ > 0) return "";
  findings_.RemoveReplicaDifferences();
  compared_ = {};
  const std::string message =
      "no weight, gradient or optimizer state is the same on two ranks in any step: they hold "
      "shards (FSDP, tensor or pipeline parallel) or separate models; if they are meant to be "
      "replicas, declare it in the run's configuration: config={\"dp\": " +
      std::to_string(world_size) + "} (docs/ranks.md)";
  findings_.Note(message);
  return message;
}

}  // namespace statcollect::query
