#include "server/query/verdict/explain.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "server/query/compare/roundoff.h"
#include "server/query/compare/step_order.h"
#include "server/query/settings/dotted.h"
#include "server/query/verdict/constants.h"
#include "server/query/verdict/optimizers.h"
#include "server/query/verdict/pair_size.h"
#include "server/query/verdict/shape.h"

namespace statcollect::query {
namespace {

// Standard deviation of log(estimate), with k sums over groups of 16 elements. `sketches`: how many
// sketches enter. Without a sketch in both, extremes and moments tell less than one sum does.
double SpreadOf(const TensorPair& pair, double sketches = 1) {
  const double groups = std::ceil(Numel(pair) / 16);
  const std::size_t sums = std::min(pair.a.sketch.size(), pair.b.sketch.size());
  return std::sqrt(0.5 * (1 / std::max<double>(1, static_cast<double>(sums)) + sketches / groups));
}

// A value is rounded to another neighbour in a share of its elements that grows with the difference
// before rounding: sqrt(unit * difference), at most the unit itself.
double Quantised(double difference, double unit) {
  if (!(difference > 0) || difference >= unit) return difference;
  return std::max(difference, std::min(std::sqrt(unit * difference), unit));
}

template <typename Map, typename Key>
double ValueOr0(const Map& map, const Key& key) {
  const auto found = map.find(key);
  return found == map.end() ? 0 : found->second;
}

// Two outputs of one call of a module.
bool IsOfSameCall(const TensorKey& x, const TensorKey& y) {
  return x.name == y.name && x.call == y.call && x.micro_batch == y.micro_batch && x.mode == y.mode;
}

// The sketch of a set of rows is that of their sum, in which rows that err alike add up. 1: no set.
double RowsThatAddUp(const Layout& layout) {
  if (layout.hash_kind != HashKind::kRows3 || layout.shape.empty()) return 1;
  const std::uint32_t unordered = layout.placement ? layout.placement->unordered : 0;
  const auto rows = layout.shape[unordered == 0 ? 0 : unordered - 1];
  return std::max(1.0, static_cast<double>(rows));
}

}  // namespace

std::vector<Explained> Explainer::Step(std::span<const TensorPair> pairs,
                                       std::span<const SharedLevels* const> others) {
  BeginStep(pairs, others);
  std::vector<Explained> all;
  all.reserve(pairs.size());
  for (const TensorPair& pair : pairs) {
    Explained& one = all.emplace_back();
    one.pair = &pair;
    one.observed = pair.distance;
    Explain(pair, one);
  }
  others_ = {};
  return all;
}

SharedLevels Explainer::Levels() const {
  SharedLevels levels;
  for (const auto& [name, parameter] : parameters_) {
    if (parameter.began > 0) levels.weights.emplace(name, parameter.began);
  }
  for (const auto& [name, gradient] : gradients_) {
    if (gradient.level > 0) levels.gradients.emplace(name, gradient.level);
  }
  return levels;
}

double Explainer::OfOthers(SharedLevels::OfParameters SharedLevels::*levels,
                           std::string_view name) const {
  double level = 0;
  for (const SharedLevels* const other : others_) {
    const auto found = (other->*levels).find(name);
    if (found != (other->*levels).end()) level = std::max(level, found->second);
  }
  return level;
}

void Explainer::Begin(std::string_view name, Parameter& parameter) const {
  parameter.began = parameter.distance;
  parameter.reach = std::max(parameter.distance, OfOthers(&SharedLevels::weights, name));
}

void Explainer::BeginStep(std::span<const TensorPair> pairs,
                          std::span<const SharedLevels* const> others) {
  others_ = others;
  batch_ = updated_ = trained_ = trained_biases_ = 0;
  buffers_before_ = std::exchange(buffers_, 0);
  for (auto& [name, parameter] : parameters_) {
    Begin(name, parameter);
    if (parameter.updated) NoteTrained(name, parameter);
  }
  last_output_ = {};
  last_key_ = nullptr;
  largest_forward_ = coarsest_forward_ = largest_backward_ = coarsest_backward_ = 0;
  passes_.clear();
  inputs_level_.clear();
  outputs_.clear();
  of_terms_.clear();
  grad_outputs_.clear();
  backward_.clear();
  gradients_.clear();
  root_ = {};
  for (const TensorPair& pair : pairs) {
    if (pair.loss != nullptr) continue;
    const TensorDef& def = *pair.a.def;
    if (def.depth == 1 && root_.empty()) root_ = def.key.name;
    if (def.key.kind == Kind::kOptimizerState) NoteState(pair);
  }
  lengths_.Step(pairs);
  means_.Step(pairs);
  // Modules of a watch with a name stand below that name.
  const std::string below = std::string(root_) + ".";
  if (std::any_of(pairs.begin(), pairs.end(), [&](const TensorPair& pair) {
        return pair.loss == nullptr && pair.a.def->key.name.starts_with(below);
      }))
    root_ = {};
}

void Explainer::NoteState(const TensorPair& pair) {
  const TensorKey& key = pair.a.def->key;
  if (DividesOrTakesSigns(key.output_path)) normalised_.insert(key.name);
}

void Explainer::Explain(const TensorPair& pair, Explained& to) {
  if (pair.loss != nullptr) {
    to.stage = Stage::kLoss;
    to.unit = UnitRoundoff(DType::kF32);
    const double level = std::max({batch_, last_output_.distance, OfParameters(updated_)});
    to.fresh = level == 0;
    to.expected = std::hypot(level, guessed::kLossRoundoffs * to.unit);
    return;
  }
  to.stage = StageOf(pair.a.def->key);
  evaluates_ = pair.a.def->key.mode == Mode::kEval;
  to.spread = SpreadOf(pair);
  to.unit = to.rounding = Unit(pair);
  double level = 0;
  switch (to.stage) {
    case Stage::kWeights:
      NoteParameter(pair);
      Begin(pair.a.def->key.name, parameters_.at(pair.a.def->key.name));
      break;
    case Stage::kBatch:
      level = std::max(OfTrained(), OfOutputs());
      to.rounding = std::max(to.rounding, coarsest_forward_);
      batch_ = std::max(batch_, Capped(pair.distance));
      break;
    case Stage::kForward:
      level = ExplainForward(pair, to);
      break;
    case Stage::kBackward:
      level = ExplainBackward(pair, to);
      break;
    case Stage::kGrad:
      level = ExplainGradient(pair, to);
      break;
    default:
      const bool state = pair.a.def->key.kind == Kind::kOptimizerState;
      level = state ? ExplainState(pair) : ExplainUpdate(pair, to);
      to.spread = SpreadOf(pair, state ? guessed::kSketchesOfState : guessed::kSketchesOfUpdate);
  }
  to.fresh = to.fresh || level < guessed::kFreshRoundings * to.rounding;
  to.expected = std::hypot(level, to.rounding) * std::sqrt(RowsThatAddUp(*pair.a.layout));
}

// --- forward

double Explainer::ExplainForward(const TensorPair& pair, Explained& to) {
  const TensorKey& key = pair.a.def->key;
  Pass& pass = passes_[{key.micro_batch, key.mode}];
  const bool is_buffer = key.kind == Kind::kBuffer;
  const std::string_view module =
      key.name == root_ ? std::string_view() : std::string_view(key.name);
  const std::string_view owner = is_buffer ? ParentOf(module) : module;
  Level inputs = OfInputs(pass, owner);
  inputs.Add(batch_);
  inputs.unit = std::max(inputs.unit, to.unit);
  const double of_parameters = OfOwnParameters(owner, pair);
  double level = std::hypot(inputs.distance, of_parameters);
  const double distance = Capped(pair.distance);
  if (is_buffer) return Quantised(ExplainBuffer(pair, pass, level, to), inputs.unit);
  to.rounding = OfKernel(pair, to.unit);
  double& of_inputs = inputs_level_[key.name];
  of_inputs = std::max(of_inputs, level);
  double& output = outputs_[key.name];
  output = std::max(output, distance);
  const bool fragile = fragile_.contains(key.name);
  double& of_terms = of_terms_[key.name];
  const double of_matrices = fragile ? OfParameters(OfMatrices(module)) : of_parameters;
  of_terms = std::max(of_terms, std::hypot(inputs.inherited, std::min(of_matrices, of_parameters)));
  if (fragile) to.spread += guessed::kFragileSpread;
  // A matrix may have changed beside the bias, and its effect is hidden behind the bias's.
  const double inherited =
      fragile ? std::min(distance, OfParameters(OfMatrices(module))) : distance;
  if (key.mode == Mode::kTrain) {
    largest_forward_ = std::max(largest_forward_, inherited);
    coarsest_forward_ = std::max(coarsest_forward_, to.unit);
  }
  Child of_call{.module = module, .distance = distance, .unit = to.unit, .inherited = inherited};
  if (last_key_ != nullptr && IsOfSameCall(*last_key_, key)) of_call.Join(last_output_);
  last_key_ = &key;
  last_output_ = of_call;
  NoteOutput(pass, module, of_call);
  return Quantised(level, inputs.unit);
}

// Running statistics follow the module's input and what they were; they are not judged by the
// module's output. Those of a module that has not run are copies or averages of others.
double Explainer::ExplainBuffer(const TensorPair& pair, const Pass& pass, double level,
                                Explained& to) {
  const TensorKey& key = pair.a.def->key;
  const std::string_view owner = ParentOf(key.name);
  const auto scope = pass.scopes.find(ParentOf(owner));
  const bool ran = scope != pass.scopes.end() && scope->second.Find(owner) != nullptr;
  if (!ran) level = std::max({level, buffers_before_, buffers_});
  State& before = states_[{key.name, {}}];
  const double size = means_.SizeOf(pair);
  if (size > Norm(pair)) to.observed *= Norm(pair) / size;
  const double known = std::max(level, before.distance);
  before.distance = Capped(to.observed);
  buffers_ = std::max(buffers_, before.distance);
  return known;
}

// The largest difference of what the module may have been given: what ran last before it in each
// module around it, and what ran inside of it. A noise-driven bias counts for its successor only.
Explainer::Level Explainer::OfInputs(const Pass& pass, std::string_view module) const {
  Level level;
  const auto add = [&](std::string_view scope, std::string_view but, std::size_t most) {
    const auto found = pass.scopes.find(scope);
    if (found == pass.scopes.end()) return;
    bool newest = true;
    const std::list<Child>& children = found->second.children();
    for (auto child = children.rbegin(); child != children.rend() && most > 0; ++child) {
      if (child->module == but) continue;
      level.Add(*child, /*successor=*/newest);
      if (scope == module) level.Add(child->most);
      newest = false;
      --most;
    }
  };
  add(module, {}, ~std::size_t{0});
  for (std::string_view at = module; !at.empty(); at = ParentOf(at)) {
    add(ParentOf(at), at, guessed::kSiblings);
    // Embeddings of positions and the like, which the module around adds before its first parts
    // run.
    const auto siblings = pass.scopes.find(ParentOf(at));
    if (siblings == pass.scopes.end() || siblings->second.children().size() <= guessed::kSiblings)
      level.Add(OfAll(ParentOf(at)));
  }
  return level;
}

// --- parameters as inputs

double Explainer::OfParameters(double distance) const {
  // What an SGD makes of a gradient whose element has moved lies along the inputs of one sample,
  // and so does more to outputs than rounding, which has no direction.
  const double factor = !normalised_.empty() ? guessed::kSparseParameters
                                             : std::clamp(distance / guessed::kRounded, 1.0,
                                                          guessed::kSparseParameters);
  return Capped(factor * distance);
}

// A difference in a matrix or a scale reaches the output in proportion; one in a bias by as much as
// the bias is of the output.
double Explainer::OfOwnParameters(std::string_view module, const TensorPair& pair) const {
  const auto names = parameters_of_.find(module);
  if (names == parameters_of_.end()) return 0;
  const double norm = Norm(pair);
  double level = 0;
  for (const std::string_view name : names->second) {
    const Parameter& parameter = parameters_.at(name);
    const double reach = ReachOf(name);
    if (reach == 0) continue;
    const double rows =
        std::max(1.0, Numel(pair) / std::max<double>(1, static_cast<double>(parameter.numel)));
    const bool added = name.ends_with("bias") && norm > 0;
    const double of_bias = reach * parameter.l2 * std::sqrt(rows);
    level = std::max(level, added ? of_bias / norm : reach);
  }
  return OfParameters(level);
}

// The largest distance of a module's own parameters, not of those inside it.
double Explainer::OfAll(std::string_view module) const {
  const auto names = parameters_of_.find(module);
  if (names == parameters_of_.end()) return 0;
  double level = 0;
  for (const std::string_view name : names->second) level = std::max(level, ReachOf(name));
  return level;
}

// Parameters that nothing recorded updates may follow the others without a record of it, as those
// of a moving average or a target network do. Such models run in evaluation, or without gradients.
double Explainer::ReachOf(std::string_view name) const {
  const Parameter& parameter = parameters_.at(name);
  if (!evaluates_ || parameter.updated) return parameter.reach;
  return std::max(parameter.reach, name.ends_with("bias") ? trained_biases_ : trained_);
}

void Explainer::NoteTrained(std::string_view name, const Parameter& parameter) {
  double& trained = name.ends_with("bias") ? trained_biases_ : trained_;
  trained = std::max(trained, parameter.reach);
}

// The largest distance of any weights: what a batch may differ by that was computed with them, as
// in a rollout.
double Explainer::OfTrained() const {
  double level = 0;
  for (const auto& [name, parameter] : parameters_) level = std::max(level, parameter.reach);
  return OfParameters(level);
}

// The largest distance of the outputs before it in the step, of which a batch behind them may be
// one.
double Explainer::OfOutputs() const {
  double level = 0;
  for (const auto& [name, distance] : outputs_) level = std::max(level, distance);
  return Quantised(level, coarsest_forward_);
}

// The largest distance of a module's parameters except biases, which do not enter gradients of
// activations.
double Explainer::OfMatrices(std::string_view module) const {
  const auto names = parameters_of_.find(module);
  if (names == parameters_of_.end()) return 0;
  double level = 0;
  for (const std::string_view name : names->second) {
    if (!name.ends_with("bias")) level = std::max(level, ReachOf(name));
  }
  return level;
}

// --- backward

double Explainer::ExplainBackward(const TensorPair& pair, Explained& to) {
  const TensorKey& key = pair.a.def->key;
  std::vector<Child>& before = backward_[key.micro_batch];
  Level level;
  level.unit = to.unit;
  level.Add(std::max({batch_, ValueOr0(outputs_, key.name), ValueOr0(inputs_level_, key.name)}));
  level.Add(OfSiblings(passes_[{key.micro_batch, key.mode}], key.name));
  double matrices = OfMatrices(key.name);
  bool behind_kink = false;
  for (std::size_t i = 0; i < std::min(before.size(), guessed::kGradientsBefore); ++i) {
    const Child& gradient = before[before.size() - 1 - i];
    level.Add(gradient);
    matrices = std::max(matrices, OfMatrices(gradient.module));
    behind_kink = behind_kink || (i == 0 && gradient.kink && gradient.numel == pair.a.stats->numel);
  }
  if (before.empty()) level.Add(last_output_.distance);
  to.rounding = OfKernel(pair, to.unit);
  // The loss's other operations are not recorded: norms, products, softmax.
  to.of_loss = before.empty() && !IsFactor(pair);
  if (Flipped(pair) > guessed::kFlippedElements) to.observed = WithoutMoved(pair);
  const double distance = Capped(pair.distance);
  before.push_back({.module = key.name,
                    .distance = distance,
                    .unit = to.unit,
                    .kink = HasKink(pair.a.def->class_name),
                    .numel = pair.a.stats->numel});
  largest_backward_ = std::max(largest_backward_, distance);
  coarsest_backward_ = std::max(coarsest_backward_, to.unit);
  Gradient& known = grad_outputs_[key.name];
  known.distance = std::max(known.distance, distance);
  known.l2 = std::hypot(known.l2, Norm(pair));
  known.l1 += std::max(pair.a.stats->l1, pair.b.stats->l1);
  known.numel += Numel(pair);
  return std::hypot(Quantised(std::hypot(level.distance, OfParameters(matrices)), level.unit),
                    OfMask(pair, behind_kink));
}

// About how many elements of a module's output the difference in them may move across a bend.
double Explainer::Flipped(const TensorPair& pair) const {
  const std::string_view name = pair.a.def->key.name;
  return Numel(pair) * Capped(std::max(ValueOr0(outputs_, name), ValueOr0(inputs_level_, name)));
}

// Behind a ReLU, a maximum or a mask, an element whose input rounds to the other side of zero is
// there or not. Behind a LeakyReLU it is there with another slope, and no zeros tell of it.
double Explainer::OfMask(const TensorPair& pair, bool behind_kink) const {
  const TensorStats& stats = *pair.a.stats;
  const double flipped = Flipped(pair), norm = Norm(pair);
  const bool masked =
      behind_kink || static_cast<double>(stats.zero) > guessed::kMasked * Numel(pair);
  if (!masked || !(flipped > guessed::kFlippedElements) || !(norm > 0)) return 0;
  // As many zeros in both, and what differs is everywhere: the zeros are padding.
  const bool padding = !behind_kink && flipped < guessed::kFlipsInFewSums &&
                       stats.zero == pair.b.stats->zero && IsEverywhere(pair);
  if (padding) return 0;
  const double largest = std::max(std::abs(stats.min), std::abs(stats.max));
  return guessed::kFlips * largest / norm * std::sqrt(std::max(1.0, flipped));
}

// What a kernel rounds by: long sums of its own, in f32 where values are coarser, and other
// algorithms of a convolution.
double Explainer::OfKernel(const TensorPair& pair, double unit) const {
  const double accumulator = std::min(unit, UnitRoundoff(DType::kF32));
  const double sum = guessed::kLongSum * std::sqrt(lengths_.Of(pair)) * accumulator;
  const bool other = lengths_.IsOtherConvolution(pair, methods_.other_convolutions);
  return std::max({unit, sum, other ? guessed::kWinograd * accumulator : 0});
}

// --- gradients of parameters, the optimizer

// What any gradient of a parameter may inherit. Where no gradients of outputs were compared, they
// are as different as the outputs and matrices are that they are computed from.
Explainer::Level Explainer::OfBackward() const {
  Level level{.distance = std::max(largest_backward_, batch_), .unit = coarsest_backward_};
  if (!backward_.empty()) return level;
  level.Add(largest_forward_);
  level.unit = coarsest_forward_;
  double matrices = 0;
  for (const auto& [module, names] : parameters_of_)
    matrices = std::max(matrices, OfMatrices(module));
  level.Add(OfParameters(matrices));
  return level;
}

// A bias's or a scale's gradient is a sum of the gradients of the output. Where those cancel, the
// result's own norm says nothing: it is judged against the sum of the terms.
double Explainer::ExplainGradient(const TensorPair& pair, Explained& to) {
  const TensorKey& key = pair.a.def->key;
  const std::string_view module = ParentOf(key.name);
  const auto gradient = grad_outputs_.find(module);
  Level before = OfBackward();
  double& level = before.distance;
  to.unit = std::max(to.unit, before.unit);
  const double norm = Norm(pair);
  const bool is_sum = pair.a.layout->shape.size() < 2 && norm > 0 && std::isfinite(pair.distance);
  if (gradient != grad_outputs_.end()) {
    const Gradient& terms = gradient->second;
    level = std::max(terms.distance, ValueOr0(of_terms_, module));
    if (is_sum) {
      double scale = std::max(norm, terms.l2);
      to.cancelled = norm < guessed::kCancelled * terms.l2;
      if (to.cancelled) scale = std::max(scale, terms.l1 / std::sqrt(Numel(pair)));
      to.observed = pair.distance * norm / scale;
    }
  }
  to.rounding = std::max(guessed::kLossRoundoffs * to.unit,
                         OfKernel(pair, UnitRoundoff(pair.a.layout->dtype)));
  ParameterGradient& known = gradients_[key.name];
  known.distance = std::max(known.distance, Capped(pair.distance));
  known.l2 = norm;
  known.level = std::max(known.level, level);
  known.noise_driven = to.cancelled && pair.distance > guessed::kNoiseDrivenDistance &&
                       to.observed < guessed::kNoiseDriven * pair.distance;
  if (known.noise_driven) noise_driven_.insert(key.name);
  return Quantised(std::max(level, OfOthers(&SharedLevels::gradients, key.name)), to.unit);
}

}  // namespace statcollect::query
