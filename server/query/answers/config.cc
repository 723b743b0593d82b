#include "server/query/answers/config.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "server/query/answers/message_parts.h"
#include "server/query/run_view.h"
#include "server/query/settings/config_diff.h"
#include "server/query/settings/rank_differences.h"
#include "server/query/settings/recorded_config.h"
#include "server/query/settings/setting_area.h"
#include "server/query/settings/source.h"

namespace statcollect::query {
namespace {

// The command line without the run's name, which always differs.
std::string WithoutName(std::string line, const std::string& run) {
  const auto part_of_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  for (std::size_t at = line.find(run); at != std::string::npos; at = line.find(run, at + 5)) {
    const std::size_t end = at + run.size();
    if ((at > 0 && part_of_word(line[at - 1])) || (end < line.size() && part_of_word(line[end])))
      continue;
    line.replace(at, run.size(), "(run)");
  }
  return line;
}

std::optional<std::string> Find(const std::map<std::string, std::string>& settings,
                                const std::string& key) {
  const auto found = settings.find(key);
  return found == settings.end() ? Implied(key, settings) : std::optional(found->second);
}

void AddNotes(const RunView& view, v1::ConfigReport& out) {
  for (const std::string& difference : DifferencesBetweenRanks(view))
    out.add_notes("inside " + view.run() + ": " + difference);
}

// Facts of where and by what a dump was imported, not of its training.
bool IsOfTheImporter(const std::pair<const std::string, std::string>& fact) {
  return fact.first == "host" || fact.first == "agent.version";
}

void AddFacts(const RunView& view, std::map<std::string, std::string>& settings) {
  const std::size_t newest = view.attempts().size() - 1;
  const auto& ranks = view.ranks(newest);
  if (!ranks.empty()) {
    const SessionInfo& info = ranks.begin()->second.info;
    if (!info.host.empty()) settings.emplace("host", info.host);
    if (!info.agent_version.empty()) settings.emplace("agent.version", info.agent_version);
  }
  if (const auto size = view.attempts()[newest].world_size; size > 0)
    settings.emplace("world_size", std::to_string(size));
}

static_assert(static_cast<int>(SettingArea::kOther) == v1::ConfigCategory_MAX);

using SettingsMap = std::map<std::string, std::string>;

// The newest settings of a run's lowest rank.
SettingsMap NewestSettings(const RunView& view) {
  const auto& ranks = view.ranks(view.attempts().size() - 1);
  return ranks.empty() ? SettingsMap() : SettingsMap(ranks.begin()->second.info.config);
}

// `b`: null if only `a` is asked for.
void AddItems(const RunView& a, const SettingsMap& of_a, const RunView* b, const SettingsMap& of_b,
              bool all, v1::ConfigReport& out) {
  std::set<std::string> keys;
  for (const auto* settings : {&of_a, &of_b}) {
    for (const auto& [key, value] : *settings) keys.insert(key);
  }
  for (const std::string& key : keys) {
    if (b != nullptr && !IsCompared(key, of_a, of_b)) continue;
    const auto value_a = Find(of_a, key), value_b = Find(of_b, key);
    bool same = b == nullptr || (value_a && value_b && SameSetting(*value_a, *value_b));
    if (!same && key == "command_line" && value_a && value_b)
      same = WithoutName(*value_a, a.run()) == WithoutName(*value_b, b->run());
    out.set_compared(out.compared() + 1);
    if (!same) out.set_differ(out.differ() + 1);
    if (same && b != nullptr && !all) continue;
    v1::ConfigItem& item = *out.add_items();
    item.set_category(CategoryOf(key));
    item.set_key(key);
    if (value_a) item.set_a(*value_a);
    if (value_b) item.set_b(*value_b);
    item.set_same(same);
  }
  out.set_same(out.differ() == 0);
  SortBy(*out.mutable_items(), [](const v1::ConfigItem& item) {
    return std::tuple(item.category(), FollowsFromOthers(item.key()), std::tie(item.key()));
  });
}

}  // namespace

v1::ConfigCategory CategoryOf(std::string_view key) {
  return static_cast<v1::ConfigCategory>(AreaOf(key));
}

Result<ConfigRequest> FromWire(const v1::CompareConfigRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run_a()));
  if (!request.run_b().empty()) STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run_b()));
  return ConfigRequest{.run_a = request.run_a(), .run_b = request.run_b(), .all = request.all()};
}

Status CompareConfig(const Context& context, const ConfigRequest& request, v1::ConfigReport& out) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto a, RunView::Open(context.store, request.run_a));
  out.set_run_a(a.run());
  if (request.run_b.empty()) {
    SettingsMap settings = NewestSettings(a);
    AddFacts(a, settings);
    AddItems(a, settings, nullptr, {}, request.all, out);
    AddNotes(a, out);
    return Status::Ok();
  }
  STATCOLLECT_ASSIGN_OR_RETURN(const auto b, RunView::Open(context.store, request.run_b));
  out.set_run_b(b.run());
  RecordedConfigs configs = ReadConfigs(a, b);
  out.mutable_notes()->Assign(configs.notes.begin(), configs.notes.end());
  AddFacts(a, configs.a);
  AddFacts(b, configs.b);
  if (!ToolOf(a).empty() || !ToolOf(b).empty()) {
    for (auto* facts : {&configs.a, &configs.b}) std::erase_if(*facts, IsOfTheImporter);
  }
  AddItems(a, configs.a, &b, configs.b, request.all, out);
  AddNotes(a, out);
  if (b.run() != a.run()) AddNotes(b, out);
  return Status::Ok();
}

}  // namespace statcollect::query
