#include "server/query/settings/optimizer_keys.h"

#include <algorithm>
#include <vector>

#include "server/query/settings/dotted.h"

namespace statcollect::query {
namespace {

bool IsGroup(std::string_view part) {
  constexpr std::string_view kGroup = "group";
  return part.starts_with(kGroup) &&
         (part.substr(kGroup.size()) == "*" || IsNumber(part.substr(kGroup.size())));
}

// Parts before the group: a model's name, a number of an optimizer.
Group MakeGroup(const std::vector<std::string_view>& before, std::string_view group) {
  Group made{.model = {}, .optimizer = {}, .group = std::string(group.substr(5))};
  for (const std::string_view part : before)
    (IsNumber(part) ? made.optimizer : made.model) = std::string(part);
  return made;
}

}  // namespace

std::optional<Group> ParseOptimizerScalar(std::string_view name, std::string_view setting) {
  std::string dotted(name);
  std::replace(dotted.begin(), dotted.end(), '/', '.');
  auto parts = Components(dotted);
  const auto found = std::find(parts.begin(), parts.end(), setting);
  if (found == parts.end() || parts.size() < 2 || !IsGroup(parts.back())) return std::nullopt;
  const std::string group(parts.back());
  parts.pop_back();
  parts.erase(std::find(parts.begin(), parts.end(), setting));
  return MakeGroup(parts, group);
}

std::optional<std::pair<Group, std::string>> ParseOptimizerKey(std::string_view key) {
  auto parts = Components(key);
  if (parts.size() < 2 || parts.front() != "optimizer") return std::nullopt;
  const std::string setting(parts.back());
  parts.pop_back();
  parts.erase(parts.begin());
  const bool has_group = !parts.empty() && IsGroup(parts.back());
  if (!has_group && setting != "class" && setting != "groups") return std::nullopt;
  const std::string_view group = has_group ? parts.back() : std::string_view("group");
  if (has_group) parts.pop_back();
  return std::pair(MakeGroup(parts, group), setting);
}

}  // namespace statcollect::query
