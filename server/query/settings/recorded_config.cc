#include "server/query/settings/recorded_config.h"

#include <algorithm>

#include "common/text.h"
#include "server/query/settings/scheduled.h"

namespace statcollect::query {
namespace {

using Config = std::map<std::string, std::string>;

Config ConfigOf(const RunView& view, std::size_t attempt) {
  const auto& ranks = view.ranks(attempt);
  return ranks.empty() ? Config() : ranks.begin()->second.info.config;
}

void Align(const RunView& a, const RunView& b, RecordedConfigs& configs) {
  const Launch newest_a{.view = a, .attempt = a.attempts().size() - 1, .rank = {}};
  const Launch newest_b{.view = b, .attempt = b.attempts().size() - 1, .rank = {}};
  const std::string keys = Joined(AlignScheduled(newest_a, newest_b, configs.a, configs.b));
  if (keys.empty()) return;
  configs.notes.push_back(
      "not compared, because the runs were launched at different steps and a schedule "
      "changes it: " +
      keys);
}

void LeaveOutImports(const RunView& a, const RunView& b, RecordedConfigs& configs) {
  const bool none_a = HasNoConfig(configs.a), none_b = HasNoConfig(configs.b);
  if (none_a == none_b) return;
  Config& recorded = none_a ? configs.b : configs.a;
  configs.notes.push_back((none_a ? a : b).run() + " has no recorded configuration; the " +
                          std::to_string(recorded.size()) + " settings of " +
                          (none_a ? b : a).run() + " were not compared");
  configs.a.clear();
  configs.b.clear();
}

}  // namespace

bool HasNoConfig(const std::map<std::string, std::string>& config) {
  return std::all_of(config.begin(), config.end(),
                     [](const auto& setting) { return setting.first.starts_with("import."); });
}

RecordedConfigs ReadConfigs(const RunView& a, const RunView& b) {
  RecordedConfigs configs{.a = ConfigOf(a, a.attempts().size() - 1),
                          .b = ConfigOf(b, b.attempts().size() - 1)};
  LeaveOutImports(a, b, configs);
  Align(a, b, configs);
  return configs;
}

}  // namespace statcollect::query
