#include "server/query/ranks/group_step.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "server/query/cause/linear.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kDistancesMax = 8;  // kept of a step before its finding is known

std::optional<double> FactorOf(const Observation& reference, const Observation& other) {
  constexpr double kResidual = 1e-3;
  const auto fit = cause::FitFactor(reference, other);
  const bool is_all = fit && fit->residual <= kResidual && fit->Explains();
  return is_all ? std::optional(fit->factor) : std::nullopt;
}

}  // namespace

const GroupStep* GroupCollector::Add(RankStep& read) {
  const Ranks& ranks = groups_[read.group];
  const std::size_t index = read.index;
  if (index == 0) {
    at_ = {.step = read.step, .attempt = read.attempt, .group = read.group, .ranks = &ranks};
    at_.recorded.resize(ranks.size());
    at_.data_parts.resize(ranks.size());
    at_.cells.resize(ranks.size());
  }
  if (!read.data.observations.empty()) {
    at_.recorded[index] = true;
    at_.data_parts[index] = read.data_part;
    Take(read);
    if (at_.reference) {
      Measure(read);
    } else {
      at_.reference = std::move(read);
    }
  }
  if (index + 1 < ranks.size()) return nullptr;
  if (at_.reference) {
    for (auto& cells : at_.cells) cells.resize(keys_.size());
  }
  return &at_;
}

bool GroupCollector::Wanted(Kind kind) const {
  if (request_.kinds.empty()) return kind != Kind::kOperator;
  return std::find(request_.kinds.begin(), request_.kinds.end(), kind) != request_.kinds.end();
}

void GroupCollector::Take(const RankStep& read) {
  auto& cells = at_.cells[read.index];
  for (std::size_t i = 0; i < read.cells.size(); ++i) {
    const Observation& o = read.data.observations[i];
    if (!Wanted(o.def->key.kind)) continue;
    const std::uint32_t id = keys_.IdOf(at_.attempt, read.rank, *o.def, *o.layout);
    if (cells.size() <= id) cells.resize(std::max<std::size_t>(keys_.size(), id + 1));
    cells[id] = read.cells[i];
  }
}

// Distances of what differs from the reference, and numbers for shapes.
void GroupCollector::Measure(const RankStep& read) {
  const RankStep& reference = *at_.reference;
  std::unordered_map<std::uint32_t, std::size_t> of_key;
  const auto is_wanted = [&](const Observation& o) {
    return Wanted(o.def->key.kind) && IsReplicated(RoleOf(o.def->key));
  };
  for (std::size_t i = 0; i < reference.cells.size(); ++i) {
    const Observation& o = reference.data.observations[i];
    if (is_wanted(o)) of_key.emplace(keys_.IdOf(at_.attempt, reference.rank, *o.def, *o.layout), i);
  }
  for (std::size_t i = 0; i < read.cells.size(); ++i) {
    const Observation& o = read.data.observations[i];
    if (!is_wanted(o)) continue;
    const std::uint32_t id = keys_.IdOf(at_.attempt, read.rank, *o.def, *o.layout);
    const auto found = of_key.find(id);
    if (found == of_key.end()) continue;
    const Observation& r = reference.data.observations[found->second];
    TensorCell& cell = at_.cells[read.index][id];
    const bool same_layout =
        r.layout->shape == o.layout->shape && r.layout->dtype == o.layout->dtype;
    cell.layout = same_layout ? 0 : 1;
    if (same_layout && reference.cells[found->second].hash == read.cells[i].hash) continue;
    // Far behind a divergence only the count is needed, unless the distance decides.
    if (!request_.tolerance && keys_[id].agreed && at_.measured.size() >= kDistancesMax) {
      cell.diverged = true;
      continue;
    }
    const Comparison comparison = Compare(r, o, request_.tolerance, false);
    cell.diverged = comparison.agreement == Agreement::kDiverged;
    const auto [measured, first] =
        at_.measured.try_emplace(id, MeasuredReplica{.comparison = comparison, .rank = read.rank});
    if (first && cell.diverged && same_layout) measured->second.factor = FactorOf(r, o);
  }
}

}  // namespace statcollect::query
