// Settings of modules: keys `module.PATTERN.NAME` (docs/reference-python.md), where a pattern
// has * for the numbers of a path, and a value may list exceptions: "1e-05 x 47; 0.001
// (blocks.7.ln1)".
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/names.h"
#include "common/text.h"
#include "server/query/cause/rules.h"
#include "server/query/cause/text.h"
#include "server/query/settings/config_at.h"
#include "server/query/settings/config_diff.h"
#include "server/query/settings/module_keys.h"

namespace statcollect::query::cause {
namespace {

// Part of a module's state or made for it, not computed by its forward pass.
bool IsOfState(Kind kind) { return IsOfParameter(kind) || kind == Kind::kBuffer; }

// The path of the module that an activation is named after.
std::string PathOf(const Evidence& evidence, const std::string& activation) {
  const std::string path = ModuleOf(evidence.a.config, activation);
  return path == activation ? ModuleOf(evidence.b.config, activation) : path;
}

bool IsRecorded(const Side& side, const std::string& module) {
  return std::any_of(side.at.observations.begin(), side.at.observations.end(),
                     [&](const Observation& seen) {
                       return seen.def->key.kind == Kind::kOutput &&
                              ModuleOf(side.config, seen.def->key.name) == module;
                     });
}

// "eps is 1e-05 in base and 0.001 in ort"; a function that the module has of its own replaces its
// class's.
std::string Sentence(const Evidence& evidence, const ChangedSetting& changed) {
  for (const bool in_b : {true, false}) {
    const std::string &has = in_b ? changed.b : changed.a, &other = in_b ? changed.a : changed.b;
    if (has.starts_with("function ") && other == kNotSet)
      return changed.setting + "() is replaced in " + (in_b ? evidence.b : evidence.a).name() +
             " by " + Printable(has, 100);
  }
  const auto [a, b] = ValueTexts(changed.a, changed.b);
  return changed.setting + " is " + InBoth(evidence, a, b);
}

Cause MakeCause(const Evidence& evidence, const ChangedSetting& changed, Confidence confidence) {
  Cause cause{.rule = "module_setting",
              .confidence = confidence,
              .key = changed.key,
              .a = changed.a,
              .b = changed.b};
  cause.text = Sentence(evidence, changed) + " (" + Printable(changed.module) + ")";
  for (const Side* side : {&evidence.a, &evidence.b}) {
    for (const EventRecord& event : side->events) {
      const auto key = event.fields.find("key");
      if (event.kind != "setting_changed" || key == event.fields.end() ||
          key->second != changed.key)
        continue;
      // The agent looks at the settings after 1, 2, 4, 8, ... steps.
      const std::uint64_t earliest = ChangedNotBefore(event.step, side->first_step);
      cause.text += "; it changed while " + side->name() + " ran, " +
                    (earliest == event.step ? Evidence::AtStep(event.step)
                                            : "between steps " + std::to_string(earliest) +
                                                  " and " + std::to_string(event.step));
      return cause;
    }
  }
  return cause;
}

// Whether one of the runs changed the setting after the step before the root's.
bool ChangedSinceBefore(const Evidence& evidence, const std::string& key) {
  for (const Side* side : {&evidence.a, &evidence.b}) {
    for (const EventRecord& event : side->events) {
      const auto field = event.fields.find("key");
      const bool about =
          event.kind == "setting_changed" && field != event.fields.end() && field->second == key;
      if (about && event.step > evidence.step_before.value_or(0)) return true;
    }
  }
  return false;
}

// Whether a module with both values ran before the root, and was not the root: the setting alone
// does not explain it.
bool RanBefore(const Evidence& evidence, const ChangedSetting& changed) {
  const auto is_one = [&](const Pair& pair) {
    return pair.key().kind == Kind::kOutput &&
           HasSameSetting(evidence.a.config, evidence.b.config, changed,
                          PathOf(evidence, pair.key().name));
  };
  if (evidence.step_before && !ChangedSinceBefore(evidence, changed.key) &&
      std::any_of(evidence.before.begin(), evidence.before.end(), is_one))
    return true;
  if (evidence.root.stage != Stage::kForward || evidence.a.root == nullptr) return false;
  const std::string root = PathOf(evidence, evidence.root.activation);
  return std::any_of(evidence.at.begin(), evidence.at.end(), [&](const Pair& pair) {
    const std::string name = PathOf(evidence, pair.key().name);
    const bool other = name != changed.module && !root.starts_with(name);
    return pair.a->order < evidence.a.root->order && other && is_one(pair);
  });
}

// All settings of the module that differ; of another class only that, because a class brings its
// own.
Causes Of(const Evidence& evidence, const std::string& module, Confidence confidence) {
  Causes causes;
  for (const ChangedSetting& changed :
       ChangedSettings(evidence.a.config, evidence.b.config, module)) {
    // A parameter that is not trained changes gradients only.
    const Stage stage = evidence.root.stage;
    if (NamesFiles(changed.setting, changed.a) || NamesFiles(changed.setting, changed.b)) continue;
    if (changed.setting == kRequiresGrad && (stage == Stage::kForward || stage == Stage::kLoss))
      continue;
    causes.push_back(MakeCause(evidence, changed,
                               RanBefore(evidence, changed) ? Confidence::kPossible : confidence));
    if (changed.setting == "class") break;
  }
  return causes;
}

// Modules around the tensor's own, from the inside. What the parent computes between its modules
// acts on their outputs and gradients; a list of modules computes nothing.
Causes FromAround(const Evidence& evidence, std::string_view module) {
  bool parent = true;
  for (std::string_view outer = ParentOf(module); !outer.empty(); outer = ParentOf(outer)) {
    const std::string name(outer);
    auto found = Of(evidence, name, parent ? Confidence::kLikely : Confidence::kPossible);
    if (!found.empty()) return found;
    parent = parent && !IsRecorded(evidence.a, name) && !IsRecorded(evidence.b, name);
  }
  return {};
}

// The model itself, whose settings are listed under its class. A module inside a named model
// belongs to no other model.
Causes FromModel(const Evidence& evidence, std::string_view module) {
  std::optional<std::string> model;
  for (const Observation& seen : evidence.a.at.observations) {
    if (seen.def->key.kind != Kind::kOutput || seen.def->depth != 1) continue;
    const std::string name = PathOf(evidence, seen.def->key.name);
    if (module == name || module.starts_with(name + ".")) return {};
    if (!model) model = name;
  }
  return model ? Of(evidence, *model, Confidence::kPossible) : Causes();
}

// A module that is not recorded itself, inside the root's or beside it under one parent.
Causes FromUnrecorded(const Evidence& evidence, std::string_view module) {
  for (const std::string& name : NamedModules(evidence.a.config, evidence.b.config,
                                              PathOf(evidence, evidence.root.activation))) {
    const bool inside = name.starts_with(std::string(module) + ".");
    const std::string_view around = ParentOf(name);
    const bool beside = !around.empty() && module.starts_with(std::string(around) + ".");
    if (name == module || (!inside && !beside)) continue;
    if (IsRecorded(evidence.a, name) || IsRecorded(evidence.b, name)) continue;
    if (auto found = Of(evidence, name, Confidence::kLikely); !found.empty()) return found;
  }
  return {};
}

}  // namespace

Causes FindModuleSettings(const Evidence& evidence) {
  const Divergence& root = evidence.root;
  const bool computed = root.stage == Stage::kForward || root.stage == Stage::kBackward ||
                        root.stage == Stage::kGrad || root.kind == Kind::kBuffer;
  // An optimizer does not move a parameter that is not trained.
  if (root.stage == Stage::kOptimizer && IsOfState(root.kind))
    return Of(evidence, root.activation, Confidence::kCertain);
  const bool of_other_form = root.reason == Reason::kShape || root.reason == Reason::kDType ||
                             root.reason == Reason::kMissingInA ||
                             root.reason == Reason::kMissingInB;
  if (!computed && !(root.stage == Stage::kWeights && of_other_form)) return {};
  const bool forward = root.stage == Stage::kForward || root.kind == Kind::kBuffer || of_other_form;
  if (IsOfState(root.kind)) {
    auto found = Of(evidence, root.activation, Confidence::kCertain);  // requires_grad
    if (!found.empty()) return found;
  }
  const std::string module(IsOfState(root.kind) ? std::string(ParentOf(root.activation))
                                                : PathOf(evidence, root.activation));
  auto own = Of(evidence, module, forward ? Confidence::kCertain : Confidence::kLikely);
  if (!own.empty()) return own;
  auto around = FromAround(evidence, module);
  if (!around.empty() && around.front().confidence == Confidence::kLikely) return around;
  auto unrecorded = FromUnrecorded(evidence, module);
  if (!unrecorded.empty() || !around.empty()) return unrecorded.empty() ? around : unrecorded;
  return FromModel(evidence, module);
}

}  // namespace statcollect::query::cause
