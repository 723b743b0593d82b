#include "server/query/settings/module_keys.h"

#include <algorithm>

#include "common/text.h"
#include "server/query/reports.h"
#include "server/query/settings/config_diff.h"
#include "server/query/settings/dotted.h"

namespace statcollect::query {
namespace {

constexpr std::string_view kSection = "module.";

struct ModuleKey {
  std::string_view pattern, setting;
};

std::optional<ModuleKey> ParseKey(std::string_view key) {
  if (!key.starts_with(kSection)) return std::nullopt;
  key.remove_prefix(kSection.size());
  const std::size_t dot = key.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  return ModuleKey{.pattern = key.substr(0, dot), .setting = key.substr(dot + 1)};
}

// A name may be a pattern itself, as places of a value are.
bool MatchesParts(const std::vector<std::string_view>& pattern, std::size_t from,
                  const std::vector<std::string_view>& name) {
  if (pattern.size() - from != name.size()) return false;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool is_any = pattern[from + i] == "*" && IsNumber(name[i]);
    if (!is_any && pattern[from + i] != name[i]) return false;
  }
  return true;
}

// A second model's entries begin with its class, unless it was given a name.
bool HasClass(const std::vector<std::string_view>& pattern) {
  return pattern.size() > 1 && !pattern[0].empty() && pattern[0][0] >= 'A' && pattern[0][0] <= 'Z';
}

bool Matches(std::string_view pattern, std::string_view module) {
  const auto parts = AllPartsOf(pattern, "."), name = AllPartsOf(module, ".");
  if (MatchesParts(parts, 0, name)) return true;
  return HasClass(parts) && MatchesParts(parts, 1, name);
}

// A model that was given a name has it in its patterns, and not in the places that a value lists.
std::string PlaceOf(std::string_view pattern, std::string_view listed) {
  const auto parts = AllPartsOf(pattern, "."), name = AllPartsOf(listed, ".");
  const bool named = !MatchesParts(parts, 0, name) && !HasClass(parts) && parts.size() > 1 &&
                     MatchesParts(parts, 1, name);
  return (named ? std::string(parts[0]) + "." : std::string()) + std::string(listed);
}

// Whether a place that a value lists is this module. A model's name may begin as a class's does (G,
// D).
bool IsListed(std::string_view pattern, std::string_view listed, std::string_view module) {
  auto place = AllPartsOf(listed, ".");
  const auto name = AllPartsOf(module, ".");
  if (MatchesParts(place, 0, name)) return true;
  place.insert(place.begin(), pattern.substr(0, pattern.find('.')));
  return MatchesParts(place, 0, name);
}

// One value of a summary and the modules that have it; empty for the `rest` modules, which are not
// named.
struct Listed {
  std::string_view value;
  std::vector<std::string_view> modules;
};

// Nothing: some values are not shown.
std::optional<std::vector<Listed>> ParseSummary(std::string_view summary,
                                                std::string_view pattern) {
  std::vector<Listed> listed;
  for (const std::string_view part : AllPartsOf(summary, "; ")) {
    if (part.find(" more values, hash ") != std::string_view::npos) return std::nullopt;
    const std::size_t times = part.rfind(" x "), open = part.rfind(" (");
    if (times != std::string_view::npos && IsNumber(part.substr(times + 3))) {
      listed.push_back({.value = part.substr(0, times), .modules = {}});
    } else if (open != std::string_view::npos && part.ends_with(')')) {
      Listed entry{.value = part.substr(0, open),
                   .modules = AllPartsOf(part.substr(open + 2, part.size() - open - 3), ", ")};
      const bool places = std::all_of(
          entry.modules.begin(), entry.modules.end(),
          [&](std::string_view name) { return Matches(pattern, PlaceOf(pattern, name)); });
      listed.push_back(places ? entry : Listed{.value = part, .modules = {}});
    } else {
      listed.push_back({.value = part, .modules = {}});
    }
  }
  return listed;
}

// Nothing: the summary does not tell.
std::optional<std::string_view> ValueFor(std::string_view summary, std::string_view pattern,
                                         std::string_view module) {
  const auto listed = ParseSummary(summary, pattern);
  if (!listed) return std::nullopt;
  const Listed* other = nullptr;
  for (const Listed& entry : *listed) {
    if (entry.modules.empty()) {
      if (other != nullptr) return std::nullopt;  // either of two
      other = &entry;
    } else if (std::any_of(entry.modules.begin(), entry.modules.end(),
                           [&](std::string_view listed_name) {
                             return IsListed(pattern, listed_name, module);
                           })) {
      return entry.value;
    }
  }
  return other != nullptr ? std::optional(other->value) : std::nullopt;
}

struct Setting {
  std::string key, value;
  bool known = true;
};

// The settings of one module, by name.
std::map<std::string, Setting> SettingsOf(const Config& config, std::string_view module) {
  std::map<std::string, Setting> settings;
  for (auto entry = config.lower_bound(std::string(kSection)); entry != config.end(); ++entry) {
    if (!entry->first.starts_with(kSection)) break;
    const auto key = ParseKey(entry->first);
    if (!key || !Matches(key->pattern, module)) continue;
    const auto value = ValueFor(entry->second, key->pattern, module);
    settings[std::string(key->setting)] = {
        .key = entry->first, .value = std::string(value.value_or("")), .known = value.has_value()};
  }
  return settings;
}

}  // namespace

std::vector<ChangedSetting> ChangedSettings(const Config& a, const Config& b,
                                            const std::string& module) {
  const auto of_a = SettingsOf(a, module), of_b = SettingsOf(b, module);
  std::vector<ChangedSetting> changed;
  // A parameter has one setting, and only where it is not trained.
  const std::string trained(kRequiresGrad);
  const bool of_parameter = of_a.contains(trained) || of_b.contains(trained);
  if ((of_a.empty() || of_b.empty()) && !of_parameter) return changed;
  const std::string absent(of_parameter ? "true" : kNotSet);
  std::set<std::string> names;
  for (const auto& [name, setting] : of_a) names.insert(name);
  for (const auto& [name, setting] : of_b) names.insert(name);
  for (const std::string& name : names) {
    const auto in_a = of_a.find(name), in_b = of_b.find(name);
    if ((in_a != of_a.end() && !in_a->second.known) || (in_b != of_b.end() && !in_b->second.known))
      continue;
    const std::string& key = in_b == of_b.end() ? in_a->second.key : in_b->second.key;
    const std::string value_a =
        in_a == of_a.end() ? Implied(key, a).value_or(absent) : in_a->second.value;
    const std::string value_b =
        in_b == of_b.end() ? Implied(key, b).value_or(absent) : in_b->second.value;
    if (SameSetting(value_a, value_b)) continue;
    changed.push_back({.module = module, .setting = name, .key = key, .a = value_a, .b = value_b});
  }
  // A class brings other attributes with it; a dtype follows from it.
  const auto is_class = [](const ChangedSetting& one) { return one.setting == "class"; };
  std::stable_partition(changed.begin(), changed.end(), is_class);
  return changed;
}

bool HasSameSetting(const Config& a, const Config& b, const ChangedSetting& changed,
                    std::string_view module) {
  const auto key = ParseKey(changed.key);
  if (!key || !Matches(key->pattern, module)) return false;
  const auto has = [&](const Config& config, const std::string& value) {
    const auto found = config.find(changed.key);
    return found == config.end()
               ? value == Implied(changed.key, config).value_or(std::string(kNotSet))
               : ValueFor(found->second, key->pattern, module) == value;
  };
  return has(a, changed.a) && has(b, changed.b);
}

std::string ModuleOf(const Config& config, std::string_view activation) {
  constexpr std::string_view kEnd = "th_output";
  std::string_view name = activation;
  if (name.ends_with(kEnd)) {
    name.remove_suffix(kEnd.size());
    const std::size_t mark = name.rfind('_');
    if (mark != std::string_view::npos && IsNumber(name.substr(mark + 1))) {
      const auto found = config.find(std::string(kModuleOf) + std::string(name.substr(0, mark)));
      if (found != config.end()) return found->second;
    }
  }
  return std::string(activation);
}

std::string WithStars(std::string_view module) {
  std::string stars;
  for (const std::string_view part : AllPartsOf(module, ".")) {
    if (!stars.empty()) stars += '.';
    stars += IsNumber(part) ? std::string_view("*") : part;
  }
  return stars;
}

std::vector<std::string> LookupNames(std::string_view key) {
  const auto parsed = ParseKey(key);
  if (!parsed) return {};
  const std::string_view pattern = parsed->pattern;
  const bool has_stars = pattern.find('*') != std::string_view::npos;
  const auto name_of = [&](std::string_view text) {
    return has_stars ? WithStars(text) : std::string(text);
  };
  std::vector<std::string> names = {name_of(pattern)};
  if (HasClass(AllPartsOf(pattern, ".")))
    names.push_back(name_of(pattern.substr(pattern.find('.') + 1)));
  return names;
}

std::set<std::string> NamedModules(const Config& a, const Config& b, std::string_view near) {
  std::set<std::string> modules;
  const auto root = AllPartsOf(near, ".");
  const auto add = [&](std::string_view pattern) {
    std::string name;
    std::size_t place = 0;
    for (const std::string_view part : AllPartsOf(pattern, ".")) {
      const bool from_root = part == "*" && place < root.size() && IsNumber(root[place]);
      name += (name.empty() ? "" : ".") + std::string(from_root ? root[place] : part);
      ++place;
    }
    if (name.find('*') == std::string::npos) modules.insert(name);
  };
  for (const ConfigDifference& difference : CompareConfig(a, b)) {
    const auto key = ParseKey(difference.key);
    if (!key) continue;
    add(key->pattern);
    for (const auto& value : {difference.a, difference.b}) {
      if (!value) continue;
      for (const Listed& entry : ParseSummary(*value, key->pattern).value_or(std::vector<Listed>()))
        for (const std::string_view place : entry.modules) add(PlaceOf(key->pattern, place));
    }
  }
  return modules;
}

}  // namespace statcollect::query
