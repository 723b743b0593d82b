// What an optimizer makes of gradients that differ: its states, and the weights after an update.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "server/query/compare/step_order.h"
#include "server/query/settings/dotted.h"
#include "server/query/verdict/constants.h"
#include "server/query/verdict/explain.h"
#include "server/query/verdict/optimizers.h"
#include "server/query/verdict/pair_size.h"

namespace statcollect::query {
namespace {

// Of an update that is divided by the gradient's own size: signs of elements near zero flip.
double FlippedSigns(double gradient) {
  return std::min(guessed::kNormalisedUpdate * std::sqrt(gradient), guessed::kMostFlipped);
}

}  // namespace

// A running mean of gradients may cancel, too: then its terms' absolute differences count.
double Explainer::ExplainState(const TensorPair& pair) {
  const TensorKey& key = pair.a.def->key;
  State& state = states_[{key.name, key.output_path}];
  const State before = state;
  const double norm = Norm(pair);
  state = {.distance = Capped(pair.distance), .l2 = norm};
  const auto gradient = gradients_.find(key.name);
  double level = before.distance;
  if (gradient == gradients_.end()) return level;
  const ParameterGradient& of = gradient->second;
  level = std::max(level, of.distance);
  if (IsSquares(key.output_path)) return guessed::kSquareGrowth * level;
  // RMSprop's holds updates, not gradients.
  if (key.output_path == "momentum_buffer" && normalised_.contains(key.name))
    return std::max(level, FlippedSigns(of.distance));
  if (!(norm > 0) || !(of.l2 > 0)) return level;
  const double share = std::min(1.0, (norm + before.l2) / of.l2);
  return std::max(level, (before.distance * before.l2 + share * of.distance * of.l2) / norm);
}

void Explainer::NoteParameter(const TensorPair& pair) {
  const std::string_view name = pair.a.def->key.name;
  auto [at, added] = parameters_.try_emplace(name);
  if (added) parameters_of_[ParentOf(name)].push_back(name);
  Parameter& parameter = at->second;
  parameter.distance = parameter.reach = Capped(pair.distance);
  parameter.l2 = Norm(pair);
  parameter.updated = parameter.updated || StageOf(pair.a.def->key) == Stage::kOptimizer;
  if (parameter.updated) NoteTrained(name, parameter);
  parameter.numel = pair.a.stats->numel;
  parameter.sketch_a.assign(pair.a.sketch.begin(), pair.a.sketch.end());
  parameter.sketch_b.assign(pair.b.sketch.begin(), pair.b.sketch.end());
}

// Muon raises small singular values of the gradient, which in one of low rank are rounding, to the
// size of the others. On the benchmark 5 of its 9 clean pairs were called a bug without this.
bool Explainer::IsOrthogonal(const TensorPair& pair) const {
  return methods_.orthogonal_updates && pair.a.layout->shape.size() == 2 &&
         !normalised_.contains(pair.a.def->key.name);
}

// A weight is judged by what the update added to it, from the sketches before and after.
double Explainer::ExplainUpdate(const TensorPair& pair, Explained& to) {
  updated_ = std::max(updated_, Capped(pair.distance));
  const std::string_view name = pair.a.def->key.name;
  const auto found = gradients_.find(name);
  const double gradient = found == gradients_.end() ? 0 : found->second.distance;
  const bool normalised = normalised_.contains(name);
  if (normalised && found != gradients_.end() && found->second.noise_driven)
    fragile_.insert(ParentOf(name));
  const auto known = parameters_.find(name);
  const std::size_t sums = pair.a.sketch.size();
  const bool sketched = known != parameters_.end() && sums > 0 && pair.b.sketch.size() == sums &&
                        known->second.sketch_a.size() == sums &&
                        known->second.sketch_b.size() == sums && std::isfinite(pair.distance);
  if (!sketched) {
    const double before = known == parameters_.end() ? 0 : known->second.distance;
    NoteParameter(pair);
    return std::max(gradient, before);
  }
  const Parameter& before = known->second;
  double of_a = 0, of_b = 0, between = 0;
  for (std::size_t i = 0; i < sums; ++i) {
    const double a = pair.a.sketch[i] - before.sketch_a[i],
                 b = pair.b.sketch[i] - before.sketch_b[i];
    of_a += a * a;
    of_b += b * b;
    between += (a - b) * (a - b);
  }
  const double norm = std::max(Norm(pair), before.l2), update = std::sqrt(std::max(of_a, of_b));
  double level = 0;
  if (pair.distance == 0 || update == 0) {
    to.observed = 0;
  } else {
    to.observed = std::min(std::sqrt(between) / update, guessed::kMostApart);
    const double resolution = (2 * guessed::kSketchResolution + Unit(pair)) * norm / update;
    double flipped = normalised ? FlippedSigns(gradient) : 0;
    if (IsOrthogonal(pair)) flipped = guessed::kMostFlipped;
    level = std::hypot(std::max(guessed::kLinearUpdate * gradient, flipped), resolution);
    if (gradient > guessed::kLargeGradient) level = std::max(level, 1.0);
    to.fresh = gradient == 0 && before.distance == 0;
  }
  NoteParameter(pair);
  return level;
}

}  // namespace statcollect::query
