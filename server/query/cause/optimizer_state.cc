// Updates that were not made, weights that changed beside them, and state that a launch did not
// find again.
#include <algorithm>
#include <string>

#include "common/names.h"
#include "server/query/cause/constants.h"
#include "server/query/cause/linear.h"
#include "server/query/cause/rules.h"
#include "server/query/cause/text.h"
#include "server/query/compare/roundoff.h"
#include "server/query/number_text.h"
#include "server/query/settings/dotted.h"

namespace statcollect::query::cause {
namespace {

// As it was before the step's update.
const Observation* OldWeight(const Side& side, const std::string& name) {
  const Observation* loaded = Find(side.at, Kind::kWeight, name, Mode::kInit);
  return loaded != nullptr ? loaded : Find(side.before, Kind::kWeight, name);
}

struct Updates {
  std::size_t weights = 0, unchanged = 0;
};

// Weights that have a gradient other than 0.
Updates CountUpdates(const Side& side) {
  Updates updates;
  for (const Observation& seen : side.at.observations) {
    const TensorKey& key = seen.def->key;
    if (key.kind != Kind::kWeight || key.mode != Mode::kTrain) continue;
    const Observation* old = OldWeight(side, key.name);
    const Observation* gradient = Find(side.at, Kind::kWeightGrad, key.name);
    if (old == nullptr || gradient == nullptr || !(gradient->stats->l2 > 0)) continue;
    ++updates.weights;
    if (HaveSameBits(*old, seen)) ++updates.unchanged;
  }
  return updates;
}

bool KeptItsValue(const Side& side, const std::string& name) {
  const Observation* old = OldWeight(side, name);
  return old != nullptr && side.root != nullptr && HaveSameBits(*old, *side.root);
}

// "of 3 of the 14 parameters with gradients" begins at 0: it is a multiple of this step's gradient.
struct Fresh {
  std::size_t states = 0, fresh = 0;
  bool Mostly() const {
    return states > 0 && static_cast<double>(fresh) >= kFreshShare * static_cast<double>(states);
  }
};

Fresh CountFreshState(const StepData& step) {
  Fresh count;
  for (const Observation& seen : step.observations) {
    const TensorKey& key = seen.def->key;
    const bool linear = key.output_path == "exp_avg" || key.output_path == "momentum_buffer";
    if (key.kind != Kind::kOptimizerState || !linear || seen.stats->numel < kElementsOfMultiple)
      continue;
    const Observation* gradient = Find(step, Kind::kWeightGrad, key.name);
    if (gradient == nullptr) continue;
    const auto fit = FitFactor(*gradient, seen);
    if (!fit) continue;
    ++count.states;
    const double rounding =
        std::max(kMultiple, kMultipleRoundoffs * UnitRoundoff(seen.layout->dtype));
    if (fit->residual < rounding && fit->factor > 0) ++count.fresh;
  }
  return count;
}

std::string Launched(const Side& side, const Evidence& evidence) {
  return side.name() + " was launched again " + evidence.AtStep();
}

// Not where it is a multiple in every step, as without momentum.
bool BeginsAtZero(const Side& side) {
  return CountFreshState(side.at).Mostly() &&
         (side.launched_here || !CountFreshState(side.before).Mostly());
}

Found FindFreshState(const Evidence& evidence) {
  const bool first =
      !evidence.step_before && !evidence.a.launched_here && !evidence.b.launched_here;
  if (first) return std::nullopt;
  const bool fresh_a = BeginsAtZero(evidence.a), fresh_b = BeginsAtZero(evidence.b);
  if (fresh_a == fresh_b) return std::nullopt;
  const Side &lost = fresh_a ? evidence.a : evidence.b, &kept = fresh_a ? evidence.b : evidence.a;
  Cause cause{.rule = lost.launched_here ? "resume" : "optimizer_state",
              .confidence = Confidence::kCertain};
  cause.text = lost.launched_here
                   ? Launched(lost, evidence) + " without the optimizer's state: there it"
                   : "the optimizer's state of " + lost.name();
  cause.text += " begins at zero" + (lost.launched_here ? std::string() : " " + evidence.AtStep()) +
                ", that of " + kept.name() + " continues";
  return cause;
}

// The stage of the first difference after a launch shows what was not restored.
std::string NotRestored(const Divergence& root) {
  switch (root.stage) {
    case Stage::kWeights:
      return "the weights that it loaded differ";
    case Stage::kBatch:
      return "its data did not continue where they had stopped";
    case Stage::kOptimizer:
      return "gradients agree and updates do not, so the optimizer's state or its settings were "
             "not restored";
    default:
      return {};
  }
}

// How far the weight moved from the update before to that of the root's step.
double MovedBy(const Observation& before, const Observation& now) {
  return Norm(Minus(SketchOf(now), SketchOf(before)));
}

// The larger of both runs' gradients of a weight, as a multiple of the smaller; 1: not known.
double GradientsApart(const Evidence& evidence, const std::string& weight) {
  for (const Pair& pair : evidence.PairsOf(Kind::kWeightGrad)) {
    const auto [smaller, larger] = std::minmax(pair.a->stats->l2, pair.b->stats->l2);
    if (pair.key().name == weight && smaller > 0) return larger / smaller;
  }
  return 1;
}

// A buffer of the root's module, of one inside it or around it. Buffers are recorded when they have
// changed: both runs changed it in the step before, and one of them in this step.
Found FindBufferNotUpdated(const Evidence& evidence) {
  const std::string& module = evidence.root.activation;
  for (const Side* side : {&evidence.a, &evidence.b}) {
    const Side& other = side == &evidence.a ? evidence.b : evidence.a;
    const auto has = [](const StepData& step, const std::string& name) {
      return Find(step, Kind::kBuffer, name) != nullptr;
    };
    for (const Observation& seen : other.at.observations) {
      const std::string& name = seen.def->key.name;
      if (seen.def->key.kind != Kind::kBuffer || seen.def->key.mode != Mode::kTrain) continue;
      const std::string_view owner = ParentOf(name);
      const bool near = owner.empty() || Encloses(module, name) || Encloses(owner, module);
      if (!near || has(side->at, name) || !has(side->before, name) || !has(other.before, name))
        continue;
      return Make("not_updated",
                  "buffer " + Printable(name) + " was not updated in " + side->name() + " " +
                      evidence.AtStep() + ", as it was in the step before and in " + other.name(),
                  Confidence::kLikely, name);
    }
  }
  return std::nullopt;
}

}  // namespace

Found FindChangedBeside(const Evidence& evidence) {
  const Divergence& root = evidence.root;
  if (root.kind != Kind::kOutput || !evidence.step_before) return std::nullopt;
  for (const Pair& now : evidence.PairsOf(Kind::kWeight)) {
    const std::string& name = now.key().name;
    const Pair* const before = WeightIn(evidence.before, name, Mode::kTrain);
    if (ParentOf(name) != root.activation || before == nullptr ||
        !HaveSketches(*before->a, *now.a) || !HaveSketches(*before->b, *now.b))
      continue;
    const double of_a = MovedBy(*before->a, *now.a), of_b = MovedBy(*before->b, *now.b);
    const auto [smaller, larger] = std::minmax(of_a, of_b);
    const double size = now.a->stats->l2;
    if (larger <= kMovedApart * GradientsApart(evidence, name) * smaller ||
        larger <= kMovedShare * root.distance.value_or(0) * size || !(size > 0))
      continue;
    const Side &moved = of_b > of_a ? evidence.b : evidence.a,
               &other = of_b > of_a ? evidence.a : evidence.b;
    return Make("changed_beside",
                Printable(name) + " changed in " + moved.name() + " between the update of step " +
                    std::to_string(*evidence.step_before) +
                    " and this pass, not by its optimizer: it moved by " +
                    ShortNumber(larger / size) + " of its norm over the step, in " + other.name() +
                    " by " + ShortNumber(smaller / size),
                Confidence::kLikely, name);
  }
  return std::nullopt;
}

Found FindNotUpdated(const Evidence& evidence) {
  const Divergence& root = evidence.root;
  if (root.stage == Stage::kForward) return FindBufferNotUpdated(evidence);
  if (root.kind != Kind::kWeight || root.stage != Stage::kOptimizer || !evidence.HasRootPair())
    return std::nullopt;
  const bool a = KeptItsValue(evidence.a, root.activation),
             b = KeptItsValue(evidence.b, root.activation);
  if (a == b) return std::nullopt;
  const Side& side = a ? evidence.a : evidence.b;
  const Updates updates = CountUpdates(side);
  const bool all = updates.weights > 1 && updates.unchanged == updates.weights;
  Cause cause{.rule = "not_updated", .confidence = Confidence::kCertain, .key = root.activation};
  cause.text = (all ? "no weight" : Printable(root.activation)) +
               std::string(all ? " was" : " was not") + " updated in " + side.name() + " " +
               evidence.AtStep();
  const auto skipped = side.ScalarAt("found_inf", root.step);
  if (all && skipped.value_or(0) > 0)
    cause.text += ": its gradients were not finite, so the update was skipped";
  if (!all && updates.weights > 0) {
    cause.text += "; " +
                  std::to_string(updates.weights - std::min(updates.unchanged, updates.weights)) +
                  " of " + std::to_string(updates.weights) + " weights with a gradient were";
  }
  return cause;
}

Found FindResume(const Evidence& evidence) {
  const Divergence& root = evidence.root;
  if (root.stage == Stage::kOptimizer) {
    if (auto found = FindFreshState(evidence)) return found;
  }
  if (evidence.a.launched_here == evidence.b.launched_here) return std::nullopt;
  const std::string what = NotRestored(root);
  if (what.empty()) return std::nullopt;
  const Side& side = evidence.a.launched_here ? evidence.a : evidence.b;
  return Make("resume", Launched(side, evidence) + ": " + what, Confidence::kLikely);
}

}  // namespace statcollect::query::cause
