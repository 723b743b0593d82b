#include "server/query/settings/recorded_config.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "common/step_set.h"
#include "server/query/settings/config_diff.h"

namespace statcollect::query {
namespace {

using Config = std::map<std::string, std::string>;

Config ConfigOf(const RunView& view, std::size_t attempt) {
  const auto& ranks = view.ranks(attempt);
  return ranks.empty() ? Config() : ranks.begin()->second.info.config;
}

// Settings of an optimizer that a schedule changes: "optimizer.group0.lr".
bool MovesWithTheSteps(const std::string& key) {
  constexpr std::string_view kScheduled[] = {".lr", ".momentum", ".betas"};
  return key.starts_with("optimizer.") &&
         std::any_of(std::begin(kScheduled), std::end(kScheduled),
                     [&](std::string_view leaf) { return key.ends_with(leaf); });
}

// The first step of each attempt among those that are the run's; absent if it has none.
Result<std::vector<std::optional<std::uint64_t>>> FirstSteps(const RunView& view) {
  std::vector<std::optional<std::uint64_t>> first(view.attempts().size());
  if (first.size() == 1) {
    for (const auto& [rank, meta] : view.ranks(0)) {
      if (meta.first_step) first[0] = std::min(first[0].value_or(*meta.first_step), *meta.first_step);
    }
    return first;
  }
  auto steps = view.Steps(StepSet());
  if (!steps.ok()) return steps.status();
  for (const auto& [step, attempt] : *steps) first[attempt] = first[attempt].value_or(step);
  return first;
}

// The newest attempts of both runs that begin at the same step.
Result<std::optional<std::pair<std::size_t, std::size_t>>> BeginTogether(const RunView& a, const RunView& b) {
  using Pair = std::optional<std::pair<std::size_t, std::size_t>>;
  const auto first_a = FirstSteps(a), first_b = FirstSteps(b);
  if (!first_a.ok()) return first_a.status();
  if (!first_b.ok()) return first_b.status();
  for (std::size_t i = first_a->size(); i-- > 0;) {
    for (std::size_t j = first_b->size(); j-- > 0;) {
      if ((*first_a)[i] && (*first_a)[i] == (*first_b)[j]) return Pair({i, j});
    }
  }
  return Pair();
}

void Take(const Config& from, const std::string& key, Config& to) {
  const auto found = from.find(key);
  if (found == from.end()) {
    to.erase(key);
  } else {
    to[key] = found->second;
  }
}

// Of the same step of training, where a resumed run's newest attempt begins at another one.
Status AlignScheduled(const RunView& a, const RunView& b, RecordedConfigs& configs) {
  std::set<std::string> differ;
  for (const ConfigDifference& difference : CompareConfig(configs.a, configs.b)) {
    if (difference.a && difference.b && MovesWithTheSteps(difference.key)) differ.insert(difference.key);
  }
  if (differ.empty()) return Status::Ok();
  const auto together = BeginTogether(a, b);
  if (!together.ok()) return together.status();
  if (*together) {
    const Config of_a = ConfigOf(a, (*together)->first), of_b = ConfigOf(b, (*together)->second);
    for (const std::string& key : differ) {
      Take(of_a, key, configs.a);
      Take(of_b, key, configs.b);
    }
    return Status::Ok();
  }
  std::string keys;
  for (const std::string& key : differ) {
    keys += (keys.empty() ? "" : ", ") + key;
    configs.a.erase(key);
    configs.b.erase(key);
  }
  configs.notes.push_back(
      "not compared, because the runs were launched at different steps and a schedule "
      "changes it: " +
      keys);
  return Status::Ok();
}

void LeaveOutImports(const RunView& a, const RunView& b, RecordedConfigs& configs) {
  const bool none_a = HasNoConfig(configs.a), none_b = HasNoConfig(configs.b);
  if (none_a == none_b) return;
  Config& recorded = none_a ? configs.b : configs.a;
  configs.notes.push_back((none_a ? a : b).run() + " has no recorded configuration; the " +
                          std::to_string(recorded.size()) + " settings of " + (none_a ? b : a).run() +
                          " were not compared");
  configs.a.clear();
  configs.b.clear();
}

}  // namespace

bool HasNoConfig(const std::map<std::string, std::string>& config) {
  return std::all_of(config.begin(), config.end(),
                     [](const auto& setting) { return setting.first.starts_with("import."); });
}

Result<RecordedConfigs> ReadConfigs(const RunView& a, const RunView& b) {
  RecordedConfigs configs{.a = ConfigOf(a, a.attempts().size() - 1),
                          .b = ConfigOf(b, b.attempts().size() - 1)};
  LeaveOutImports(a, b, configs);
  STATCOLLECT_RETURN_IF_ERROR(AlignScheduled(a, b, configs));
  return configs;
}

}  // namespace statcollect::query
