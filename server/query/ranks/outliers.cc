#include "server/query/ranks/outliers.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace statcollect::query {
namespace {

double MedianInPlace(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

void OutlierCheck::Check(const GroupStep& at) {
  if (at.ranks->size() < kOutlierRanksMin) return;
  for (const auto& [kind, all] : NormsOf(at)) {
    std::vector<double> spreads;
    for (const Norms& norms : all) spreads.push_back(norms.spread);
    const double pooled = MedianInPlace(spreads);
    for (const Norms& norms : all)
      TakeHits(norms,
               std::max(std::log(kOutlierRatio), kOutlierSpreads * std::max(norms.spread, pooled)),
               at);
  }
}

std::map<Kind, std::vector<OutlierCheck::Norms>> OutlierCheck::NormsOf(const GroupStep& at) const {
  std::map<Kind, std::vector<Norms>> by_kind;
  std::vector<double> logs, deviations;
  for (std::uint32_t id = 0; id < keys_.size(); ++id) {
    if (keys_[id].role != TensorRole::kActivation) continue;
    logs.clear();
    for (const auto& cells : at.cells) {
      if (cells[id].present && cells[id].rms > 0) logs.push_back(std::log(cells[id].rms));
    }
    if (logs.size() < kOutlierRanksMin) continue;
    Norms norms{.id = id};
    norms.median = MedianInPlace(logs);
    deviations.clear();
    for (const double x : logs) deviations.push_back(std::abs(x - norms.median));
    norms.spread = 1.4826 * MedianInPlace(deviations);
    by_kind[keys_[id].key.kind].push_back(norms);
  }
  return by_kind;
}

void OutlierCheck::TakeHits(const Norms& norms, double limit, const GroupStep& at) {
  const std::uint64_t checked = checked_steps_[norms.id]++;
  for (std::size_t i = 0; i < at.ranks->size(); ++i) {
    const TensorCell& cell = at.cells[i][norms.id];
    if (!cell.present || cell.rms <= 0 || std::abs(std::log(cell.rms) - norms.median) <= limit)
      continue;
    History& history = outliers_[{(*at.ranks)[i], norms.id}];
    if (history.hits++ > 0) continue;
    history.first_step = at.step;
    history.first_checked = checked;
    history.value = cell.rms;
    history.median = std::exp(norms.median);
    history.cell = cell;
  }
}

void OutlierCheck::Conclude(const std::vector<Ranks>& groups) {
  std::vector<std::pair<const std::pair<std::uint32_t, std::uint32_t>*, const History*>> lasting;
  for (const auto& [of, history] : outliers_) {
    const std::uint64_t checked = checked_steps_[of.second] - history.first_checked;
    if (checked > 1 ? history.hits >= 2 && history.hits * 2 >= checked
                    : checked_steps_[of.second] == 1)
      lasting.emplace_back(&of, &history);
  }
  std::sort(lasting.begin(), lasting.end(), [](const auto& a, const auto& b) {
    return std::tie(a.second->first_step, a.second->cell.order) <
           std::tie(b.second->first_step, b.second->cell.order);
  });
  for (const auto& [of, history] : lasting) {
    RankFinding finding = findings_.About(of->second, RankReason::kOutlier, history->first_step);
    finding.ranks = {of->first};
    for (const Ranks& group : groups) {
      if (!std::binary_search(group.begin(), group.end(), of->first)) continue;
      for (const std::uint32_t rank : group) {
        if (rank != of->first) finding.others.push_back(rank);
      }
    }
    finding.outvoted = true;
    finding.value = history->value;
    finding.expected = history->median;
    RankFinding& added = findings_.Add(std::move(finding), history->cell);
    added.steps = std::max(added.steps, history->hits);
  }
}

}  // namespace statcollect::query
