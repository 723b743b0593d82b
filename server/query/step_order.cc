#include "server/query/step_order.h"

#include <algorithm>
#include <cctype>

#include "common/names.h"

namespace statcollect::query {
namespace {

constexpr int kEvaluatingFirst = 2, kComputing = 3;  // Place::phase

}  // namespace

Stage StageOf(const ActivationKey& key) {
  switch (key.kind) {
    case Kind::kWeight:
    case Kind::kOptimizerState:
      return key.mode == Mode::kInit ? Stage::kWeights : Stage::kOptimizer;
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

bool IsLoss(std::string_view name) {
  constexpr std::string_view kLoss = "loss";
  if (name.size() < kLoss.size()) return false;
  const std::string_view end = name.substr(name.size() - kLoss.size());
  return std::equal(end.begin(), end.end(), kLoss.begin(),
                    [](unsigned char c, char l) { return std::tolower(c) == l; });
}

Place MakePlace(Stage stage, std::uint32_t micro_batch, bool eval, std::uint64_t position,
                std::uint32_t rank) {
  Place place{.stage = stage, .eval = eval, .position = position, .rank = rank};
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

Place MakePlace(const ActivationKey& key, std::uint64_t position, std::uint32_t rank, bool before_training) {
  Place place = MakePlace(StageOf(key), key.micro_batch, key.mode == Mode::kEval, position, rank);
  if (place.phase == kComputing && place.eval && before_training) place.phase = kEvaluatingFirst;
  return place;
}

std::string Label(const ActivationKey& key) {
  std::string label = std::string(Name(key.kind)) + " " + key.name;
  if (!key.output_path.empty()) label += "[" + key.output_path + "]";
  if (key.micro_batch > 0) label += " micro-batch " + std::to_string(key.micro_batch);
  label += " call " + std::to_string(key.call);
  if (key.mode != Mode::kTrain) label += " (" + std::string(Name(key.mode)) + ")";
  return label;
}

Divergence MakeRow(const ActivationDef& def, std::uint64_t step, std::uint32_t rank) {
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
