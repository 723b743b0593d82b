// Settings of parameter groups, in the root's step or, where updates were not recorded, before it.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "common/names.h"
#include "common/parse.h"
#include "server/query/cause/constants.h"
#include "server/query/cause/linear.h"
#include "server/query/cause/rules.h"
#include "server/query/cause/text.h"
#include "server/query/settings/config_diff.h"
#include "server/query/settings/optimizer_keys.h"

namespace statcollect::query::cause {
namespace {

struct Different {
  Group group;
  std::string setting, key, a, b;
  std::optional<double> number_a, number_b;
  std::uint64_t step = 0;
  bool scalar = false;
};

std::string Word(const std::string& setting) {
  if (setting == "lr") return "learning rate";
  if (setting == "weight_decay") return "weight decay";
  if (setting == "groups") return "number of parameter groups";
  return setting;
}

std::string RuleOf(const std::string& setting) {
  if (setting == "lr") return "learning_rate";
  if (setting == "class") return "optimizer_class";
  if (setting == "groups") return "optimizer_groups";
  if (setting == "eps") return "adam_eps";
  return setting;
}

// "learning rate of group 0 of optimizer 1"
std::string SubjectOf(const Different& one) {
  std::string subject = Word(one.setting);
  if (one.group.group == "*") {
    subject += " of the parameter groups";
  } else if (!one.group.group.empty()) {
    subject += " of group " + one.group.group;
  }
  if (!one.group.optimizer.empty()) subject += " of optimizer " + one.group.optimizer;
  if (one.group.optimizer.empty() && one.group.group.empty()) subject += " of the optimizer";
  if (!one.group.model.empty()) subject += " of " + Printable(one.group.model);
  return subject;
}

std::set<std::string> ScalarsOf(const Evidence& evidence, std::string_view setting) {
  std::set<std::string> names;
  for (const Side* side : {&evidence.a, &evidence.b}) {
    for (const ScalarRecord& scalar : side->scalars) {
      if (ParseOptimizerScalar(scalar.name, setting)) names.insert(scalar.name);
    }
  }
  return names;
}

// Both runs have the scalar and it differs in the step. A weight decay holds until the next one; a
// learning rate that is not there belongs to an update that was not made.
std::optional<Different> CompareScalar(const Evidence& evidence, const std::string& name,
                                       const std::string& setting, std::uint64_t step) {
  const auto in_force = [&](const Side& side) {
    return setting == "lr" ? side.ScalarAt(name, step) : side.LatestScalar(name, step);
  };
  const auto a = in_force(evidence.a), b = in_force(evidence.b);
  if (!a || !b || *a == *b || (std::isnan(*a) && std::isnan(*b))) return std::nullopt;
  const auto [text_a, text_b] = NumberTexts(*a, *b);
  return Different{.group = *ParseOptimizerScalar(name, setting),
                   .setting = setting,
                   .key = name,
                   .a = text_a,
                   .b = text_b,
                   .number_a = a,
                   .number_b = b,
                   .step = step,
                   .scalar = true};
}

// Scalars first: they are the values in the step. What they tell of, the configuration does not.
std::vector<Different> DifferencesIn(const Evidence& evidence, std::uint64_t step) {
  std::vector<Different> found;
  std::set<std::pair<Group, std::string>> told;
  for (const std::string_view name_of_setting : kScalarSettings) {
    const std::string setting(name_of_setting);
    for (const std::string& name : ScalarsOf(evidence, setting)) {
      if (evidence.a.LatestScalar(name, step) && evidence.b.LatestScalar(name, step))
        told.insert({*ParseOptimizerScalar(name, setting), setting});
      if (auto one = CompareScalar(evidence, name, setting, step)) found.push_back(*std::move(one));
    }
  }
  const auto config = CompareConfig(evidence.a.config, evidence.b.config);
  const bool groups_differ =
      std::any_of(config.begin(), config.end(), [](const ConfigDifference& difference) {
        const auto key = ParseOptimizerKey(difference.key);
        return key && key->second == "groups";
      });
  for (const ConfigDifference& difference : config) {
    const auto key = ParseOptimizerKey(difference.key);
    if (!key || IsWithoutEffect(key->second) || told.contains(*key)) continue;
    if (evidence.first_update &&
        !ActsInFirstUpdate(difference.key, evidence.a.config, evidence.b.config))
      continue;
    // If one run has more groups, that difference matters more than the settings of its additional
    // groups.
    if (!key->first.group.empty() && (!difference.a || !difference.b) && groups_differ) continue;
    found.push_back({.group = key->first,
                     .setting = key->second,
                     .key = difference.key,
                     .a = difference.a.value_or("not set"),
                     .b = difference.b.value_or("not set"),
                     .step = step});
  }
  return found;
}

// Tensors of a model that was given a name begin with it; those of one that goes by its class do
// not.
bool IsNamed(const Evidence& evidence, const std::string& model) {
  if (model.empty() || model[0] < 'A' || model[0] > 'Z') return !model.empty();
  return std::any_of(evidence.at.begin(), evidence.at.end(),
                     [&](const Pair& pair) { return pair.key().name.starts_with(model + "."); });
}

bool Concerns(const Evidence& evidence, const Different& one) {
  const Divergence& root = evidence.root;
  if (IsNamed(evidence, one.group.model) && !root.activation.starts_with(one.group.model + "."))
    return false;
  return root.kind != Kind::kOptimizerState || EntersState(one.setting, root.output_path);
}

// The groups of the optimizer that are known to have the setting at all.
std::size_t GroupsKnown(const Evidence& evidence, const Different& one) {
  std::set<Group> groups;
  for (const Side* side : {&evidence.a, &evidence.b}) {
    for (const auto& [key, value] : side->config) {
      const auto parsed = ParseOptimizerKey(key);
      if (parsed && !parsed->first.group.empty()) groups.insert(parsed->first);
    }
  }
  for (const std::string& name : ScalarsOf(evidence, "lr"))
    groups.insert(*ParseOptimizerScalar(name, "lr"));
  std::erase_if(groups, [&](const Group& group) {
    return group.model != one.group.model && !group.model.empty() && !one.group.model.empty();
  });
  return groups.size();
}

// The root's weight before the step's update; null: not recorded.
const Pair* WeightBefore(const Evidence& evidence) {
  const std::string& name = evidence.root.activation;
  if (const Pair* const loaded = WeightIn(evidence.at, name, Mode::kInit)) return loaded;
  const Pair* const updated = WeightIn(evidence.before, name, Mode::kTrain);
  return updated != nullptr ? updated : WeightIn(evidence.before, name, Mode::kInit);
}

// The ratio of B's update of the root's weight to A's; empty if it is unknown.
std::optional<double> UpdateFactor(const Evidence& evidence) {
  if (!evidence.HasRootPair() || evidence.root.kind != Kind::kWeight) return std::nullopt;
  const Pair* const before = WeightBefore(evidence);
  if (before == nullptr || !HaveSketches(*before->a, *evidence.a.root) ||
      !HaveSketches(*before->b, *evidence.b.root))
    return std::nullopt;
  const Sketch update_a = Minus(SketchOf(*evidence.a.root), SketchOf(*before->a));
  const Sketch update_b = Minus(SketchOf(*evidence.b.root), SketchOf(*before->b));
  if (update_a.size() != update_b.size() ||
      Norm(update_a) < kUpdateMin * evidence.a.root->stats->l2)
    return std::nullopt;
  const auto factor = FactorBetween(update_a, update_b);
  if (!factor) return std::nullopt;
  Sketch scaled = update_a;
  for (double& sum : scaled) sum *= *factor;
  const bool fits = Norm(Minus(update_b, scaled)) <= kRemainder * Norm(update_b);
  return fits ? factor : std::nullopt;
}

// Nothing: another group's.
std::optional<Confidence> ConfidenceOf(const Evidence& evidence, const Different& one,
                                       std::size_t different) {
  // A program may have changed it since.
  if (!one.scalar && (one.setting == "lr" || !evidence.launched_together))
    return Confidence::kLikely;
  if (one.group.group.empty() || one.group.group == "*") return Confidence::kLikely;
  if (different >= GroupsKnown(evidence, one)) return Confidence::kCertain;
  const auto factor = UpdateFactor(evidence);
  if (one.setting != "lr" || !factor || *one.number_a == 0) return Confidence::kLikely;
  const bool matches = Near(*factor, *one.number_b / *one.number_a, kLearningRateMatches);
  return matches ? std::optional(Confidence::kCertain) : std::nullopt;
}

// A group of the optimizer that has another number of tensors (or elements) in B.
struct Counted {
  std::int64_t a = 0, b = 0;
  std::map<std::string, std::string> settings;  // of A
};

// Nothing if the numbers do not add up to the same in both runs: then some parameters are in no
// group of one of them.
std::map<Group, Counted> CountGroups(const Evidence& evidence, std::string_view unit) {
  std::map<Group, Counted> groups;
  std::int64_t surplus = 0;
  for (const Side* side : {&evidence.a, &evidence.b}) {
    const bool of_a = side == &evidence.a;
    for (const auto& [key, value] : side->config) {
      const auto parsed = ParseOptimizerKey(key);
      if (!parsed || parsed->first.group.empty()) continue;
      Counted& counted = groups[parsed->first];
      if (parsed->second == unit) {
        const std::int64_t count = ParseNumber<std::int64_t>(value).value_or(0);
        (of_a ? counted.a : counted.b) = count;
        surplus += of_a ? count : -count;
      }
      if (of_a && !IsWithoutEffect(parsed->second)) counted.settings.emplace(parsed->second, value);
    }
  }
  std::erase_if(groups,
                [&](const auto& one) { return surplus != 0 || one.second.a == one.second.b; });
  return groups;
}

// Parameters that one run has in another group, with other settings: norms, for example, that are
// not exempt from weight decay.
Found FromGroups(const Evidence& evidence) {
  constexpr std::size_t kShown = 3;
  std::string unit(kTensorsOfGroup);
  auto groups = CountGroups(evidence, unit);
  if (groups.empty()) groups = CountGroups(evidence, unit = "elements");
  if (groups.size() < 2) return std::nullopt;
  const auto &first = groups.begin()->second.settings,
             &second = std::next(groups.begin())->second.settings;
  std::string setting;
  for (const auto& [name, value] : first) {
    const auto other = second.find(name);
    const bool differs = other != second.end() && !SameSetting(other->second, value);
    if (differs && (setting.empty() || name == "weight_decay")) setting = name;
  }
  if (setting.empty()) return std::nullopt;
  std::string text;
  std::size_t shown = 0;
  for (const auto& [group, counted] : groups) {
    if (shown == kShown) break;
    const auto value = counted.settings.find(setting);
    const std::string a = std::to_string(counted.a), b = std::to_string(counted.b);
    text += (shown == 0 ? "group " : ", group ") + group.group +
            (shown == 0 ? " of the optimizer" : "") + " (" + setting + " " +
            Printable(value == counted.settings.end() ? "not set" : value->second) + ") has " +
            (shown == 0 ? InBoth(evidence, a + " " + unit, b) : a + " and " + b);
    ++shown;
  }
  const auto& [group, counted] = *groups.begin();
  return Make("group_tensors", text + ": parameters are in another group", Confidence::kLikely,
              "optimizer.group" + group.group + "." + unit, std::to_string(counted.a),
              std::to_string(counted.b));
}

Cause MakeCause(const Evidence& evidence, const Different& one, Confidence confidence) {
  Cause cause{.rule = RuleOf(one.setting),
              .confidence = confidence,
              .key = one.key,
              .a = one.a,
              .b = one.b};
  const auto [text_a, text_b] = ValueTexts(one.a, one.b);
  cause.text = SubjectOf(one) + (one.setting == "betas" ? " are " : " is ") +
               InBoth(evidence, text_a, text_b) + " " + Evidence::AtStep(one.step);
  if (!one.scalar) cause.text += " (" + Printable(one.key) + ")";
  for (const Side* side : {&evidence.a, &evidence.b}) {
    if (side->launched_here && one.step == evidence.root.step)
      cause.text += ", where " + side->name() + " was launched again";
  }
  return cause;
}

// The best cause of each setting.
Causes AtRoot(const Evidence& evidence) {
  auto differences = DifferencesIn(evidence, evidence.root.step);
  std::erase_if(differences, [&](const Different& one) { return !Concerns(evidence, one); });
  Causes causes;
  for (const Different& one : differences) {
    const auto of_setting = static_cast<std::size_t>(
        std::count_if(differences.begin(), differences.end(),
                      [&](const Different& other) { return other.setting == one.setting; }));
    const auto confidence = ConfidenceOf(evidence, one, of_setting);
    if (!confidence) continue;
    Cause cause = MakeCause(evidence, one, *confidence);
    const auto same = std::find_if(causes.begin(), causes.end(),
                                   [&](const Cause& other) { return other.rule == cause.rule; });
    if (same == causes.end()) {
      causes.push_back(std::move(cause));
    } else if (cause.confidence < same->confidence) {
      *same = std::move(cause);
    }
  }
  if (auto moved = FromGroups(evidence)) causes.push_back(*std::move(moved));
  return causes;
}

bool HasWeights(const std::vector<Pair>& pairs) {
  return std::any_of(pairs.begin(), pairs.end(), [](const Pair& pair) {
    return pair.key().kind == Kind::kWeight && pair.key().mode == Mode::kTrain;
  });
}

// The update that carried it here was not recorded.
Found Before(const Evidence& evidence) {
  const std::uint64_t step = evidence.root.step;
  // Weights that were recorded and agree rule out every update up to theirs.
  const std::uint64_t first = HasWeights(evidence.before) ? *evidence.step_before + 1 : 0;
  std::optional<Different> earliest;
  for (const Side* side : {&evidence.a, &evidence.b}) {
    for (const ScalarRecord& scalar : side->scalars) {
      if (scalar.step < first || scalar.step >= step || (earliest && scalar.step >= earliest->step))
        continue;
      const auto setting = ScalarSettingOf(scalar.name);
      if (!setting) continue;
      auto one = CompareScalar(evidence, scalar.name, std::string(*setting), scalar.step);
      if (one && Concerns(evidence, *one)) earliest = std::move(one);
    }
  }
  if (!earliest) return std::nullopt;
  Cause cause = MakeCause(evidence, *earliest, Confidence::kLikely);
  cause.text += ", whose update was not recorded";
  return cause;
}

}  // namespace

Causes FindOptimizerSettings(const Evidence& evidence) {
  switch (evidence.root.stage) {
    case Stage::kOptimizer:
      return evidence.root.kind == Kind::kBuffer ? Causes() : AtRoot(evidence);
    case Stage::kForward:
    case Stage::kLoss:
    case Stage::kBackward:
    case Stage::kGrad: {
      auto before = Before(evidence);
      return before ? Causes{*std::move(before)} : Causes();
    }
    default:
      return {};
  }
}

}  // namespace statcollect::query::cause
