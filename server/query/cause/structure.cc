// Rules about the models' structure and mode.
#include <algorithm>
#include <string>

#include "common/names.h"
#include "server/query/cause/rules.h"
#include "server/query/cause/text.h"
#include "server/query/settings/config_diff.h"
#include "server/query/settings/dotted.h"

namespace statcollect::query::cause {
namespace {

std::string FieldOf(const EventRecord& event, const char* name) {
  const auto field = event.fields.find(name);
  return field == event.fields.end() ? std::string() : field->second;
}

// A transition of this kind not after the root, newest first, that the other run has not made as well.
const EventRecord* FindTransition(const Evidence& evidence, const Side& side, const Side& other,
                                  std::string_view reason) {
  const auto is_wanted = [&](const EventRecord& event) {
    return event.kind == "graph_transition" && FieldOf(event, "reason") == reason &&
           event.step <= evidence.root.step;
  };
  for (auto event = side.events.rbegin(); event != side.events.rend(); ++event) {
    if (!is_wanted(*event)) continue;
    const bool in_both =
        std::any_of(other.events.begin(), other.events.end(), [&](const EventRecord& theirs) {
          return is_wanted(theirs) && FieldOf(theirs, "element") == FieldOf(*event, "element") &&
                 FieldOf(theirs, "to") == FieldOf(*event, "to");
        });
    if (!in_both) return &*event;
  }
  return nullptr;
}

Found FromTransition(const Evidence& evidence, const Side& side, const Side& other, std::string_view reason) {
  const EventRecord* event = FindTransition(evidence, side, other, reason);
  if (event == nullptr) return std::nullopt;
  const std::string element = FieldOf(*event, "element");
  const bool near = !element.empty() && (Encloses(element, evidence.root.activation) ||
                                         Encloses(evidence.root.activation, element));
  const bool replaced = reason == "modules";
  if (!replaced && !near) return std::nullopt;
  Cause cause{.rule = replaced ? "module_replaced" : "requires_grad", .key = element};
  cause.text = Printable(element) + (replaced ? " was replaced in " : " was frozen or unfrozen in ") +
               side.name() + " " + Evidence::AtStep(event->step) + ": it was " +
               Printable(FieldOf(*event, "from")) + " and is " + Printable(FieldOf(*event, "to"));
  cause.confidence = near ? Confidence::kLikely : Confidence::kPossible;
  (&side == &evidence.a ? cause.a : cause.b) = FieldOf(*event, "to");
  return cause;
}

// Calls of the root's module in evaluation.
std::ptrdiff_t EvaluatedCalls(const Side& side, const Divergence& root) {
  return std::count_if(
      side.at.observations.begin(), side.at.observations.end(), [&](const Observation& seen) {
        const TensorKey& key = seen.def->key;
        return key.mode == Mode::kEval && key.kind == root.kind && key.name == root.activation;
      });
}

bool RanInTraining(const Side& side) {
  return std::any_of(side.at.observations.begin(), side.at.observations.end(), [](const Observation& seen) {
    return seen.def->key.mode == Mode::kTrain && seen.def->key.kind == Kind::kOutput;
  });
}

}  // namespace

// The pass is there in the other mode, beside the evaluations of both.
Found FindEvaluationMode(const Evidence& evidence) {
  const Divergence& root = evidence.root;
  const bool in_a = root.reason == Reason::kMissingInB;
  if ((!in_a && root.reason != Reason::kMissingInA) || root.mode != Name(Mode::kTrain)) return std::nullopt;
  if (root.kind != Kind::kOutput && root.kind != Kind::kInput) return std::nullopt;
  const Side &has = in_a ? evidence.a : evidence.b, &lacks = in_a ? evidence.b : evidence.a;
  if (RanInTraining(lacks) || EvaluatedCalls(lacks, root) <= EvaluatedCalls(has, root)) return std::nullopt;
  const std::string a = in_a ? "training" : "evaluation", b = in_a ? "evaluation" : "training";
  return Cause{.rule = "evaluation_mode",
               .text = "the model is in " + a + " mode in " + evidence.a.name() + " and in " + b +
                       " mode in " + evidence.b.name() + " " + evidence.AtStep(),
               .confidence = Confidence::kCertain,
               .key = {},
               .a = a,
               .b = b};
}

Found FindModuleReplaced(const Evidence& evidence) {
  if (evidence.root.stage == Stage::kBatch) return std::nullopt;
  const Stage stage = evidence.root.stage;
  for (const auto& [side, other] : {std::pair{&evidence.a, &evidence.b}, {&evidence.b, &evidence.a}}) {
    if (auto found = FromTransition(evidence, *side, *other, "modules")) return found;
    const bool trained = stage == Stage::kBackward || stage == Stage::kGrad || stage == Stage::kOptimizer;
    if (!trained) continue;
    if (auto found = FromTransition(evidence, *side, *other, "requires_grad")) return found;
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
    const std::string_view key = setting.key;
    const bool layers = key.starts_with("model.layers."), tied = key == "model.tied";
    const bool described = key.starts_with("model.config.");
    if (!layers && !tied && !described) continue;
    // The number of layers of the list that the tensor belongs to, or of any other.
    const bool near =
        layers && Encloses(key.substr(std::string_view("model.layers.").size()), evidence.root.activation);
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
      cause.text = std::string(key.substr(13)) + " has " + a + " layers in " + evidence.a.name() + " and " +
                   b + " in " + evidence.b.name();
    if (tied) cause.text = "the number of tied parameters is " + InBoth(evidence, a, b);
    if (!best || cause.confidence < best->confidence) best = std::move(cause);
  }
  return best;
}

Found FindEvaluationOnly(const Evidence& evidence) {
  if (evidence.root.mode != Name(Mode::kEval)) return std::nullopt;
  bool trained = false;
  for (const std::vector<Pair>* pairs : {&evidence.before, &evidence.at}) {
    for (const Pair& pair : *pairs) {
      if (pair.key().mode != Mode::kTrain || pair.key().kind == Kind::kBatch) continue;
      if (!pair.SameBits()) return std::nullopt;
      trained = true;
    }
  }
  if (!trained) return std::nullopt;
  return Cause{.rule = "evaluation_only",
               .text = "only evaluation differs " + evidence.AtStep() +
                       ": training agrees bit for bit in this step and the one before",
               .confidence = Confidence::kLikely,
               .key = {},
               .a = {},
               .b = {}};
}

}  // namespace statcollect::query::cause
