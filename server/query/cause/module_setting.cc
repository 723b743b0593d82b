// Settings of modules: keys `module.PATTERN.NAME` of the configuration (docs/python.md), where a pattern has
// * for the numbers of a path, and a value may list exceptions: "1e-05 x 47; 0.001 (blocks.7.ln1)".
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "common/names.h"
#include "common/text.h"
#include "server/query/cause/rules.h"
#include "server/query/cause/text.h"
#include "server/query/config_diff.h"

namespace statcollect::query::cause {
namespace {

constexpr std::string_view kSection = "module.";
constexpr std::string_view kNotSet = "not set";
using Config = std::map<std::string, std::string>;

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

bool MatchesParts(const std::vector<std::string_view>& pattern, std::size_t from,
                  const std::vector<std::string_view>& name) {
  if (pattern.size() - from != name.size()) return false;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (pattern[from + i] == "*" ? !IsNumber(name[i]) : pattern[from + i] != name[i]) return false;
  }
  return true;
}

// A second model's entries begin with its class, unless it was given a name.
bool Matches(std::string_view pattern, std::string_view module) {
  const auto parts = Components(pattern), name = Components(module);
  if (MatchesParts(parts, 0, name)) return true;
  const bool has_class = parts.size() > 1 && !parts[0].empty() && parts[0][0] >= 'A' && parts[0][0] <= 'Z';
  return has_class && MatchesParts(parts, 1, name);
}

// One value of a summary and the modules that have it; empty: as many as `rest` says, not named.
struct Listed {
  std::string_view value;
  std::vector<std::string_view> modules;
};

std::vector<std::string_view> SplitList(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + separator.size());
  }
}

// Nothing: some values are not shown.
std::optional<std::vector<Listed>> ParseSummary(std::string_view summary, std::string_view pattern) {
  std::vector<Listed> listed;
  for (const std::string_view part : SplitList(summary, "; ")) {
    if (part.find(" more values, hash ") != std::string_view::npos) return std::nullopt;
    const std::size_t times = part.rfind(" x "), open = part.rfind(" (");
    if (times != std::string_view::npos && IsNumber(part.substr(times + 3))) {
      listed.push_back({.value = part.substr(0, times), .modules = {}});
    } else if (open != std::string_view::npos && part.ends_with(')')) {
      Listed entry{.value = part.substr(0, open),
                   .modules = SplitList(part.substr(open + 2, part.size() - open - 3), ", ")};
      const bool places = std::all_of(entry.modules.begin(), entry.modules.end(),
                                      [&](std::string_view name) { return Matches(pattern, name); });
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
    } else if (std::find(entry.modules.begin(), entry.modules.end(), module) != entry.modules.end()) {
      return entry.value;
    }
  }
  return other != nullptr ? std::optional(other->value) : std::nullopt;
}

struct Setting {
  std::string key, value;
  bool known = true;
};

// Of one module, by name of the setting.
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

struct Changed {
  std::string module, setting, key, a, b;
};

// Those of which both values are known and differ. A module that only one run has says nothing.
std::vector<Changed> ChangedSettings(const Evidence& evidence, const std::string& module) {
  const auto of_a = SettingsOf(evidence.a.config, module), of_b = SettingsOf(evidence.b.config, module);
  std::vector<Changed> changed;
  // A parameter has one setting, and only where it is not trained.
  constexpr const char* kTrained = "requires_grad";
  const bool of_parameter = of_a.contains(kTrained) || of_b.contains(kTrained);
  if ((of_a.empty() || of_b.empty()) && !of_parameter) return changed;
  const std::string absent(of_parameter ? "true" : kNotSet);
  std::set<std::string> names;
  for (const auto& [name, setting] : of_a) names.insert(name);
  for (const auto& [name, setting] : of_b) names.insert(name);
  for (const std::string& name : names) {
    const auto a = of_a.find(name), b = of_b.find(name);
    if ((a != of_a.end() && !a->second.known) || (b != of_b.end() && !b->second.known)) continue;
    const std::string value_a = a == of_a.end() ? absent : a->second.value;
    const std::string value_b = b == of_b.end() ? absent : b->second.value;
    if (SameSetting(value_a, value_b)) continue;
    changed.push_back({.module = module,
                       .setting = name,
                       .key = b == of_b.end() ? a->second.key : b->second.key,
                       .a = value_a,
                       .b = value_b});
  }
  // A class brings other attributes with it; a dtype follows from it.
  const auto is_class = [](const Changed& one) { return one.setting == "class"; };
  std::stable_partition(changed.begin(), changed.end(), is_class);
  return changed;
}

bool IsOfParameter(Kind kind) {
  return kind == Kind::kWeight || kind == Kind::kWeightGrad || kind == Kind::kOptimizerState ||
         kind == Kind::kBuffer;
}

// Modules that the patterns of the differing keys name beside the root: those listed as exceptions, those
// without *, and those of the root's own numbers.
std::set<std::string> NamedModules(const Evidence& evidence) {
  std::set<std::string> modules;
  const auto root = Components(evidence.root.activation);
  for (const ConfigDifference& difference : CompareConfig(evidence.a.config, evidence.b.config)) {
    const auto key = ParseKey(difference.key);
    if (!key) continue;
    std::string name;
    std::size_t place = 0;
    for (const std::string_view part : Components(key->pattern)) {
      const bool from_root = part == "*" && place < root.size() && IsNumber(root[place]);
      name += (name.empty() ? "" : ".") + std::string(from_root ? root[place] : part);
      ++place;
    }
    if (name.find('*') == std::string::npos) modules.insert(name);
    for (const auto& value : {difference.a, difference.b}) {
      if (!value) continue;
      const auto listed = ParseSummary(*value, key->pattern);
      if (!listed) continue;
      for (const Listed& entry : *listed) modules.insert(entry.modules.begin(), entry.modules.end());
    }
  }
  return modules;
}

bool IsRecorded(const Side& side, const std::string& module) {
  return std::any_of(side.at.observations.begin(), side.at.observations.end(), [&](const Observation& seen) {
    return seen.def->key.kind == Kind::kOutput && seen.def->key.name == module;
  });
}

// "eps is 1e-05 in base and 0.001 in ort"; a function that the module has of its own replaces its class's.
std::string Sentence(const Evidence& evidence, const Changed& changed) {
  for (const bool in_b : {true, false}) {
    const std::string &has = in_b ? changed.b : changed.a, &other = in_b ? changed.a : changed.b;
    if (has.starts_with("function ") && other == kNotSet)
      return changed.setting + "() is replaced in " + (in_b ? evidence.b : evidence.a).name() + " by " +
             Printable(has, 100);
  }
  const auto [a, b] = ValueTexts(changed.a, changed.b);
  return changed.setting + " is " + InBoth(evidence, a, b);
}

Cause MakeCause(const Evidence& evidence, const Changed& changed, Confidence confidence) {
  Cause cause{
      .rule = "module_setting", .confidence = confidence, .key = changed.key, .a = changed.a, .b = changed.b};
  cause.text = Sentence(evidence, changed) + " (" + Printable(changed.module) + ")";
  for (const Side* side : {&evidence.a, &evidence.b}) {
    for (const EventRecord& event : side->events) {
      const auto key = event.fields.find("key");
      if (event.kind != "setting_changed" || key == event.fields.end() || key->second != changed.key)
        continue;
      cause.text += "; it changed while " + side->name() + " ran, as seen " + Evidence::AtStep(event.step);
      return cause;
    }
  }
  return cause;
}

Found FirstOf(const Evidence& evidence, const std::string& module, Confidence confidence) {
  for (const Changed& changed : ChangedSettings(evidence, module)) {
    // A parameter that is not trained changes gradients only.
    const Stage stage = evidence.root.stage;
    if (changed.setting == "requires_grad" && (stage == Stage::kForward || stage == Stage::kLoss)) continue;
    return MakeCause(evidence, changed, confidence);
  }
  return std::nullopt;
}

// Modules around the tensor's own, from the inside.
Found FromAround(const Evidence& evidence, std::string_view module, bool forward) {
  bool parent = true;
  for (std::string_view outer = ParentOf(module); !outer.empty(); outer = ParentOf(outer), parent = false) {
    const Confidence confidence = forward && parent ? Confidence::kLikely : Confidence::kPossible;
    if (auto found = FirstOf(evidence, std::string(outer), confidence)) return found;
  }
  return std::nullopt;
}

// A module that is not recorded itself, inside the root's or beside it under one parent.
Found FromUnrecorded(const Evidence& evidence, std::string_view module) {
  for (const std::string& name : NamedModules(evidence)) {
    const bool inside = name.starts_with(std::string(module) + ".");
    const std::string_view around = ParentOf(name);
    const bool beside = !around.empty() && module.starts_with(std::string(around) + ".");
    if (name == module || (!inside && !beside)) continue;
    if (IsRecorded(evidence.a, name) || IsRecorded(evidence.b, name)) continue;
    if (auto found = FirstOf(evidence, name, Confidence::kLikely)) return found;
  }
  return std::nullopt;
}

}  // namespace

Found FindModuleSetting(const Evidence& evidence) {
  const Divergence& root = evidence.root;
  const bool computed = root.stage == Stage::kForward || root.stage == Stage::kBackward ||
                        root.stage == Stage::kGrad || root.kind == Kind::kBuffer;
  const bool of_other_form = root.reason == Reason::kShape || root.reason == Reason::kDType ||
                             root.reason == Reason::kMissingInA || root.reason == Reason::kMissingInB;
  if (!computed && !(root.stage == Stage::kWeights && of_other_form)) return std::nullopt;
  const bool forward = root.stage == Stage::kForward || root.kind == Kind::kBuffer || of_other_form;
  if (IsOfParameter(root.kind)) {
    if (auto found = FirstOf(evidence, root.activation, Confidence::kCertain)) return found;  // requires_grad
  }
  const std::string module(IsOfParameter(root.kind) ? ParentOf(root.activation) : root.activation);
  if (auto found = FirstOf(evidence, module, forward ? Confidence::kCertain : Confidence::kLikely))
    return found;
  auto around = FromAround(evidence, module, forward);
  if (around && around->confidence == Confidence::kLikely) return around;
  auto unrecorded = FromUnrecorded(evidence, module);
  return unrecorded ? unrecorded : around;
}

}  // namespace statcollect::query::cause
