// Rules about the models' structure and mode.
#include <algorithm>
#include <string>

#include "common/names.h"
#include "server/query/cause/rules.h"
#include "server/query/cause/text.h"
#include "server/query/compare/step_order.h"
#include "server/query/settings/config_diff.h"
#include "server/query/settings/dotted.h"

namespace statcollect::query::cause {
namespace {

std::string FieldOf(const EventRecord& event, const char* name) {
  const auto field = event.fields.find(name);
  return field == event.fields.end() ? std::string() : field->second;
}

bool IsTransition(const EventRecord& event, std::string_view reason, std::uint64_t until) {
  return event.kind == "graph_transition" && FieldOf(event, "reason") == reason &&
         event.step <= until;
}

// Calls of the root's module in evaluation.
std::ptrdiff_t EvaluatedCalls(const Side& side, const Divergence& root) {
  return std::count_if(
      side.at.observations.begin(), side.at.observations.end(), [&](const Observation& seen) {
        const TensorKey& key = seen.def->key;
        return key.mode == Mode::kEval && key.kind == root.kind && key.name == root.activation;
      });
}

// The step in which the model changed to evaluation, if it has not changed back.
std::optional<std::uint64_t> EvaluatesSince(const Side& side, std::uint64_t until) {
  std::optional<std::uint64_t> since;
  for (const EventRecord& event : side.events) {
    if (!IsTransition(event, "train_eval", until)) continue;
    since = FieldOf(event, "to") == "eval" ? std::optional(event.step) : std::nullopt;
  }
  return since;
}

// Of a pass that only one run has: the output of the module around all others.
std::optional<Divergence> PlaceOfPass(const Side& has, bool of_a, const Divergence& root) {
  const Observation* outermost = nullptr;
  for (const Observation& seen : has.at.observations) {
    const TensorKey& key = seen.def->key;
    const bool of_pass = key.kind == Kind::kOutput && key.mode == Mode::kTrain &&
                         key.micro_batch == root.micro_batch;
    if (of_pass && (outermost == nullptr || seen.def->depth < outermost->def->depth))
      outermost = &seen;
  }
  if (outermost == nullptr) return std::nullopt;
  Divergence row = MakeRow(*outermost->def, root.step, root.rank);
  row.rank_b = root.rank_b;
  row.segment = root.segment;
  row.reason = root.reason;
  row.origin = true;
  (of_a ? row.a : row.b) = MakeSide(*outermost);
  return row;
}

}  // namespace

// The pass is not there in training, and the model evaluates, beside the evaluations of both.
Found FindEvaluationMode(const Evidence& evidence) {
  const Divergence& root = evidence.root;
  const bool in_a = root.reason == Reason::kMissingInB;
  if ((!in_a && root.reason != Reason::kMissingInA) || root.mode != Name(Mode::kTrain))
    return std::nullopt;
  if (root.kind != Kind::kOutput && root.kind != Kind::kInput && root.kind != Kind::kBatch)
    return std::nullopt;
  const Side &has = in_a ? evidence.a : evidence.b, &lacks = in_a ? evidence.b : evidence.a;
  if (Find(lacks.at, Kind::kOutput, {}) != nullptr) return std::nullopt;
  const auto since = EvaluatesSince(lacks, root.step);
  if (!since && EvaluatedCalls(lacks, root) <= EvaluatedCalls(has, root)) return std::nullopt;
  const std::string a = in_a ? "training" : "evaluation", b = in_a ? "evaluation" : "training";
  Cause cause{.rule = "evaluation_mode", .confidence = Confidence::kCertain, .a = a, .b = b};
  if (root.stage == Stage::kBatch) {
    cause.at = PlaceOfPass(has, in_a, root);
    cause.why_there = "its whole pass is missing, with what it was given";
  }
  if (since && root.step > 0) {
    cause.text = lacks.name() + " was left in evaluation mode after step " +
                 std::to_string(std::min(*since, root.step - 1)) + " (eval() without train())";
  } else {
    cause.text = "the model is in " + a + " mode in " + evidence.a.name() + " and in " + b +
                 " mode in " + evidence.b.name() + " " + evidence.AtStep();
  }
  return cause;
}

// In one run only, around the root or inside it.
Found FindModuleReplaced(const Evidence& evidence) {
  const Divergence& root = evidence.root;
  for (const auto& [side, other] :
       {std::pair{&evidence.a, &evidence.b}, {&evidence.b, &evidence.a}}) {
    for (auto event = side->events.rbegin(); event != side->events.rend(); ++event) {
      const std::string element = FieldOf(*event, "element");
      const bool near = Encloses(element, root.activation) || Encloses(root.activation, element);
      if (!near || !IsTransition(*event, "modules", root.step)) continue;
      const bool in_both =
          std::any_of(other->events.begin(), other->events.end(), [&](const EventRecord& theirs) {
            return IsTransition(theirs, "modules", root.step) &&
                   FieldOf(theirs, "element") == element;
          });
      if (in_both) continue;
      return Make("module_replaced",
                  Printable(element) + " was replaced in " + side->name() + " " +
                      Evidence::AtStep(event->step) + ": it was " +
                      Printable(FieldOf(*event, "from")) + " and is " +
                      Printable(FieldOf(*event, "to")),
                  Confidence::kLikely, element);
    }
  }
  return std::nullopt;
}

Found FindModelStructure(const Evidence& evidence) {
  const Reason reason = evidence.root.reason;
  const bool structural = reason == Reason::kMissingInA || reason == Reason::kMissingInB ||
                          reason == Reason::kShape || reason == Reason::kOrder;
  if (!structural || evidence.root.stage == Stage::kBatch) return std::nullopt;
  Found best;
  for (const ConfigDifference& setting : CompareConfig(evidence.a.config, evidence.b.config)) {
    constexpr std::string_view kLayers = "model.layers.";
    const std::string_view key = setting.key;
    const bool layers = key.starts_with(kLayers), tied = key == "model.tied";
    const bool described = key.starts_with("model.config.");
    if (!layers && !tied && !described) continue;
    if (NamesFiles(key, setting.a.value_or("")) || NamesFiles(key, setting.b.value_or("")))
      continue;
    // The number of layers of the list that the tensor belongs to, or of any other.
    const bool near = layers && Encloses(key.substr(kLayers.size()), evidence.root.activation);
    // Only lists of several layers have a length, and only tied parameters a number.
    const char* absent = tied ? "0" : layers ? "at most 1" : "not set";
    const std::string a = setting.a.value_or(absent), b = setting.b.value_or(absent);
    Cause cause{.rule = "model_structure",
                .confidence = near || tied ? Confidence::kLikely : Confidence::kPossible,
                .key = setting.key,
                .a = a,
                .b = b};
    cause.text = setting.key + " is " + InBoth(evidence, a, b);
    if (layers)
      cause.text = std::string(key.substr(kLayers.size())) + " has " + a + " layers in " +
                   evidence.a.name() + " and " + b + " in " + evidence.b.name();
    if (tied) cause.text = "the number of tied parameters is " + InBoth(evidence, a, b);
    if (!best || cause.confidence < best->confidence) best = std::move(cause);
  }
  return best;
}

}  // namespace statcollect::query::cause
