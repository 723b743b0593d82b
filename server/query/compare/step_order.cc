#include "server/query/compare/step_order.h"

#include <algorithm>
#include <iterator>

#include "common/names.h"
#include "server/query/compare/roundoff.h"

namespace statcollect::query {
namespace {

constexpr int kEvaluatingFirst = 2, kComputing = 3;  // ReportOrder::phase

}  // namespace

Stage StageOf(const TensorKey& key) {
  switch (key.kind) {
    case Kind::kWeight:
    case Kind::kOptimizerState:
      return key.mode == Mode::kInit ? Stage::kWeights : Stage::kOptimizer;
    case Kind::kBuffer:
      return key.mode == Mode::kInit ? Stage::kWeights : Stage::kForward;
    case Kind::kBatch:
      return Stage::kBatch;
    case Kind::kWeightGrad:
      return Stage::kGrad;
    case Kind::kGradOutput:
    case Kind::kGradInput:
    case Kind::kInspectGrad:
      return Stage::kBackward;
    default:
      return Stage::kForward;
  }
}

bool IsHanded(const Observation& seen) {
  const TensorKey& key = seen.def->key;
  return key.kind == Kind::kBatch && key.call > 0 && IsFloat(seen.layout->dtype);
}

ReportOrder MakeReportOrder(Stage stage, std::uint32_t micro_batch, bool eval,
                            std::uint64_t position, std::uint32_t rank) {
  ReportOrder place{.stage = stage, .eval = eval, .position = position, .rank = rank};
  switch (stage) {
    case Stage::kWeights:
      place.phase = 0;
      break;
    case Stage::kBatch:
      place.phase = 1;
      break;
    case Stage::kGrad:
      place.phase = 4;
      break;
    case Stage::kOptimizer:
      place.phase = 5;
      break;
    default:
      place.phase = kComputing;
      place.micro_batch = micro_batch;
  }
  return place;
}

ReportOrder MakeReportOrder(const TensorKey& key, std::uint64_t position, std::uint32_t rank,
                            bool before_training) {
  ReportOrder place =
      MakeReportOrder(StageOf(key), key.micro_batch, key.mode == Mode::kEval, position, rank);
  if (place.phase == kComputing && place.eval && before_training) place.phase = kEvaluatingFirst;
  return place;
}

bool ReportOrder::IsBeforeTraining() const { return segment == 0 && phase == kEvaluatingFirst; }

bool IsOfTraining(const TensorKey& key) {
  return key.mode == Mode::kTrain && key.kind != Kind::kBuffer && key.kind != Kind::kOperator &&
         StageOf(key) != Stage::kOptimizer;
}

StepOrder::StepOrder(std::span<const Observation> observations) : parts_(1), first_training_(1) {
  Spot now;
  std::optional<std::uint32_t> update;  // order of the last one, if nothing was trained since
  bool backward = false;                // in this pass
  for (const Observation& seen : observations) {
    const Stage stage = StageOf(seen.def->key);
    if (stage == Stage::kOptimizer) update = seen.order;
    if (!IsOfTraining(seen.def->key)) continue;
    const bool forward = stage == Stage::kForward;
    if (update) {
      now = {.segment = now.segment + 1, .pass = 0};
      parts_.push_back({*update + 1, now});
      first_training_.emplace_back();
      update.reset();
      backward = false;
    } else if ((forward || stage == Stage::kBatch) && backward) {
      ++now.pass;
      parts_.push_back({seen.order, now});
      backward = false;
    }
    backward = backward || stage == Stage::kBackward;
    if (forward && !first_training_.back()) first_training_.back() = seen.order;
  }
}

bool StepOrder::HasTraining() const {
  return std::any_of(first_training_.begin(), first_training_.end(),
                     [](const auto& order) { return order.has_value(); });
}

Spot StepOrder::At(std::uint32_t order) const {
  const auto next =
      std::upper_bound(parts_.begin(), parts_.end(), order,
                       [](std::uint32_t wanted, const Part& part) { return wanted < part.begin; });
  return std::prev(next)->spot;
}

bool StepOrder::RanBeforeTraining(std::uint32_t order) const {
  const auto& first = first_training_[At(order).segment];
  return first && order < *first;
}

bool StepOrder::RanAfterTraining(std::uint32_t order) const {
  const auto& first = first_training_[At(order).segment];
  return first && order > *first;
}

// With several segments, each model counts its own micro-batches, so they do not give the order;
// the pass does. The output of one model may be the batch of another.
ReportOrder StepOrder::PlaceAt(const Spot& spot, std::uint64_t position, const Observation& seen,
                               const StepOrder& own, std::uint32_t rank) const {
  const TensorKey& key = seen.def->key;
  ReportOrder place = MakeReportOrder(key, position, rank, own.RanBeforeTraining(seen.order));
  if (place.stage == Stage::kWeights) return place;  // as loaded: before the step
  place.segment = spot.segment;
  if (place.stage == Stage::kBatch && own.RanAfterTraining(seen.order) &&
      (HasSegments() || IsHanded(seen))) {
    place.phase = kComputing;
    place.stage = Stage::kForward;  // in the order of execution among these
    place.micro_batch = key.micro_batch;
  }
  if (!HasSegments()) return place;
  if (place.phase == kComputing || place.phase == kEvaluatingFirst) place.micro_batch = spot.pass;
  return place;
}

std::string Label(const TensorKey& key) {
  std::string label = std::string(Name(key.kind)) + " " + key.name;
  if (!key.output_path.empty()) label += "[" + key.output_path + "]";
  if (key.micro_batch > 0) label += " micro-batch " + std::to_string(key.micro_batch);
  label += " call " + std::to_string(key.call);
  if (key.mode != Mode::kTrain) label += " (" + std::string(Name(key.mode)) + ")";
  return label;
}

std::string SpreadName(Kind kind, const std::string& name, const std::string& output_path) {
  return std::string(Name(kind)) + " " + name + " " + output_path;
}

Divergence MakeRow(const TensorDef& def, std::uint64_t step, std::uint32_t rank) {
  Divergence row;
  row.step = step;
  row.micro_batch = def.key.micro_batch;
  row.rank = rank;
  row.stage = StageOf(def.key);
  row.kind = def.key.kind;
  row.activation = def.key.name;
  row.output_path = def.key.output_path;
  row.call = def.key.call;
  row.class_name = def.class_name;
  row.mode = Name(def.key.mode);
  return row;
}

}  // namespace statcollect::query
