// Parameters that one run does not train: frozen, or not given to the optimizer.
#include <algorithm>
#include <string>
#include <string_view>

#include "common/names.h"
#include "common/parse.h"
#include "server/query/cause/rules.h"
#include "server/query/cause/text.h"
#include "server/query/settings/module_keys.h"
#include "server/query/settings/optimizer_keys.h"

namespace statcollect::query::cause {
namespace {

// The side that lacks the root.
struct Lack {
  const Side& has;
  const Side& lacks;
  bool in_b = false;
};

// An output has a gradient where something before it is trained.
Found AsFrozen(const Evidence& evidence, const Lack& lack) {
  const std::string_view frozen = "false";
  std::optional<ChangedSetting> chosen;
  std::size_t count = 0;
  for (const std::string& name :
       NamedModules(evidence.a.config, evidence.b.config, evidence.root.activation)) {
    for (ChangedSetting& changed : ChangedSettings(evidence.a.config, evidence.b.config, name)) {
      if (changed.setting != kRequiresGrad || (lack.in_b ? changed.b : changed.a) != frozen)
        continue;
      ++count;
      const bool inside = name.starts_with(evidence.root.activation + ".");
      if (!chosen || inside) chosen = std::move(changed);
    }
  }
  if (!chosen) return std::nullopt;
  Cause cause{.rule = "requires_grad",
              .confidence = Confidence::kLikely,
              .key = chosen->key,
              .a = chosen->a,
              .b = chosen->b};
  cause.text = Printable(chosen->module);
  if (count > 1) cause.text += " and " + std::to_string(count - 1) + " more";
  cause.text += std::string(count > 1 ? " are" : " is") + " trained in " + lack.has.name() +
                " and frozen in " + lack.lacks.name() + " (requires_grad), so " +
                TensorText(evidence.root) + " has no gradient there";
  return cause;
}

// Tensors in all parameter groups; nothing if that is not known.
std::optional<double> TensorsOfOptimizers(const Side& side) {
  std::optional<double> sum;
  for (const auto& [key, value] : side.config) {
    const auto parsed = ParseOptimizerKey(key);
    if (!parsed || parsed->second != kTensorsOfGroup) continue;
    const auto number = ParseNumber<double>(value);
    if (!number) return std::nullopt;
    sum = sum.value_or(0) + *number;
  }
  return sum;
}

// One run recorded nothing of the parameter in a step in which others were updated, and its
// optimizers have fewer tensors.
Found AsLeftOut(const Evidence& evidence, const Lack& lack) {
  const std::string& name = evidence.root.activation;
  for (const Kind kind : {Kind::kWeight, Kind::kWeightGrad, Kind::kOptimizerState}) {
    if (Find(lack.lacks.at, kind, name) != nullptr) return std::nullopt;
  }
  if (Find(lack.lacks.at, evidence.root.kind, {}) == nullptr) return std::nullopt;
  const auto has = TensorsOfOptimizers(lack.has), lacks = TensorsOfOptimizers(lack.lacks);
  if (!has || !lacks || *lacks >= *has) return std::nullopt;
  Cause cause{.rule = "not_in_optimizer",
              .confidence = Confidence::kLikely,
              .key = name,
              .a = NumberText(lack.in_b ? *has : *lacks),
              .b = NumberText(lack.in_b ? *lacks : *has)};
  cause.text = Printable(name) + " is not updated in " + lack.lacks.name() +
               ": the number of tensors that were given to the optimizer is " +
               InBoth(evidence, cause.a, cause.b);
  return cause;
}

}  // namespace

Found FindUntrained(const Evidence& evidence) {
  const Divergence& root = evidence.root;
  const bool in_b = root.reason == Reason::kMissingInB;
  if ((!in_b && root.reason != Reason::kMissingInA) || root.mode != Name(Mode::kTrain))
    return std::nullopt;
  const Lack lack{
      .has = in_b ? evidence.a : evidence.b, .lacks = in_b ? evidence.b : evidence.a, .in_b = in_b};
  switch (root.stage) {
    case Stage::kBackward:
      return AsFrozen(evidence, lack);
    case Stage::kGrad:
    case Stage::kOptimizer:
      return AsLeftOut(evidence, lack);
    default:
      return std::nullopt;
  }
}

}  // namespace statcollect::query::cause
