#include "server/query/verdict/explain.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "server/query/compare/roundoff.h"
#include "server/query/compare/step_order.h"
#include "server/query/settings/dotted.h"
#include "server/query/verdict/optimizers.h"
#include "server/query/verdict/pair_size.h"
#include "server/query/verdict/shape.h"

namespace statcollect::query {
namespace {

// Constants of the model; docs/verdict-model.md says what they mean and how they were determined.
constexpr std::size_t kSiblings = 3;  // most recent ones that a module's input may come from
constexpr std::size_t kGradientsBefore = 4;
constexpr double kLossRoundoffs = 4;  // unit roundoffs of a sum over a batch
// What an update makes of a gradient whose element has moved lies along the inputs of one sample, and so does more to
// outputs than its norm tells.
constexpr double kSparseParameters = 3;
constexpr double kCancelled = 0.3;  // a sum this small against its terms is judged against them
constexpr double kNoiseDriven = 0.1, kNoiseDrivenDistance = 0.01;
constexpr double kMasked = 0.02;  // share of zeros that tells of a mask
constexpr double kFlippedElements = 0.002, kFlips = 2;
constexpr double kFlipsInFewSums = 4;  // expected ones; there may be several times as many
// A sum of n terms in a row differs from one in any other order by 0.29 to 0.41 sqrt(n) unit roundoffs (measured; oneDNN's
// convolutions, a BatchNorm over channels-last tensors). A difference counts from eight times the expected one on, which
// leaves a margin of a half.
constexpr double kLongSum = 0.08;
// Winograd's F(6x6,3x3) rounds by 27 to 74 roundoffs, F(4x4,3x3) by 9 to 28 (Barabasz et al., arXiv:1803.10986, and measured
// alike). Of eight times this, half is margin.
constexpr double kWinograd = 18;
// Numbers of sketches that enter: the expected distance comes from a sketch of the same size, and so does the
// norm of an update.
constexpr double kSketchesOfState = 2, kSketchesOfUpdate = 3;

constexpr double kSketchResolution = 4e-8;  // sums are kept in f32: relative to the tensor's norm
constexpr double kSquareGrowth = 2;         // a square's relative difference
constexpr double kLinearUpdate = 3;         // update against gradient, relative
constexpr double kNormalisedUpdate = 12;  // against the gradient's square root: signs of small elements flip
constexpr double kLargeGradient = 0.05;   // from here on updates have little in common
constexpr double kMostFlipped = 0.7;      // what flipped signs explain at most

// Standard deviation of log(estimate), with k sums over groups of 16 elements. `sketches`: how many sketches
// enter. Without a sketch in both, extremes and moments tell less than one sum does.
double SpreadOf(const TensorPair& pair, double sketches = 1) {
  const double groups = std::ceil(Numel(pair) / 16);
  const std::size_t sums = std::min(pair.a.sketch.size(), pair.b.sketch.size());
  return std::sqrt(0.5 * (1 / std::max<double>(1, static_cast<double>(sums)) + sketches / groups));
}

// A value is rounded to another neighbour in a share of its elements that grows with the difference before
// rounding: sqrt(unit * difference), at most the unit itself.
double Quantised(double difference, double unit) {
  if (!(difference > 0) || difference >= unit) return difference;
  return std::max(difference, std::min(std::sqrt(unit * difference), unit));
}

// Of an update that is divided by the gradient's own size: signs of elements near zero flip.
double FlippedSigns(double gradient) {
  return std::min(kNormalisedUpdate * std::sqrt(gradient), kMostFlipped);
}

template <typename Map, typename Key>
double ValueOr0(const Map& map, const Key& key) {
  const auto found = map.find(key);
  return found == map.end() ? 0 : found->second;
}

}  // namespace

std::vector<Explained> Explainer::Step(std::span<const TensorPair> pairs) {
  BeginStep(pairs);
  std::vector<Explained> all;
  all.reserve(pairs.size());
  for (const TensorPair& pair : pairs) {
    Explained& one = all.emplace_back();
    one.pair = &pair;
    one.observed = pair.distance;
    Explain(pair, one);
  }
  return all;
}

void Explainer::BeginStep(std::span<const TensorPair> pairs) {
  batch_ = last_forward_ = updated_ = 0;
  largest_forward_ = coarsest_forward_ = largest_backward_ = coarsest_backward_ = 0;
  passes_.clear();
  inputs_level_.clear();
  outputs_.clear();
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
    const double level = std::max({batch_, last_forward_, OfParameters(updated_)});
    to.fresh = level == 0;
    to.expected = std::hypot(level, kLossRoundoffs * to.unit);
    return;
  }
  to.stage = StageOf(pair.a.def->key);
  to.spread = SpreadOf(pair);
  to.unit = to.rounding = Unit(pair);
  double level = 0;
  switch (to.stage) {
    case Stage::kWeights:
      NoteParameter(pair);
      break;
    case Stage::kBatch:
      level = OfTrained();
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
      to.spread = SpreadOf(pair, state ? kSketchesOfState : kSketchesOfUpdate);
  }
  to.fresh = to.fresh || level < 2 * to.rounding;
  to.expected = std::hypot(level, to.rounding);
}

// --- forward

double Explainer::ExplainForward(const TensorPair& pair, Explained& to) {
  const TensorKey& key = pair.a.def->key;
  Pass& pass = passes_[{key.micro_batch, key.mode}];
  const bool is_buffer = key.kind == Kind::kBuffer;
  const std::string_view module = key.name == root_ ? std::string_view() : std::string_view(key.name);
  const std::string_view owner = is_buffer ? ParentOf(module) : module;
  Level inputs = OfInputs(pass, owner);
  inputs.Add({.distance = batch_});
  inputs.unit = std::max(inputs.unit, to.unit);
  const double of_parameters = OfOwnParameters(owner, pair);
  double level = std::hypot(inputs.distance, of_parameters);
  const double distance = Capped(pair.distance);
  if (is_buffer) {
    // Running statistics follow the module's input and what they were; not judged by the module's output.
    State& before = states_[{key.name, {}}];
    const double size = means_.SizeOf(pair);
    if (size > Norm(pair)) to.observed *= Norm(pair) / size;
    const double known = std::max(level, before.distance);
    before.distance = Capped(to.observed);
    return Quantised(known, inputs.unit);
  }
  to.rounding = OfKernel(pair, to.unit);
  double& of_inputs = inputs_level_[key.name];
  of_inputs = std::max(of_inputs, level);
  double& output = outputs_[key.name];
  output = std::max(output, distance);
  last_forward_ = distance;
  if (key.mode == Mode::kTrain) {
    largest_forward_ = std::max(largest_forward_, distance);
    coarsest_forward_ = std::max(coarsest_forward_, to.unit);
  }
  NoteOutput(pass, module, {.module = module, .distance = distance, .unit = to.unit});
  return Quantised(level, inputs.unit);
}

// The largest difference of what the module may have been given: what ran last before it in each module
// around it, and what ran inside of it.
Explainer::Level Explainer::OfInputs(const Pass& pass, std::string_view module) {
  Level level;
  if (const auto inside = pass.find(module); inside != pass.end()) level = inside->second.all;
  for (std::string_view at = module; !at.empty(); at = ParentOf(at)) {
    const auto around = pass.find(ParentOf(at));
    if (around == pass.end()) continue;
    std::size_t most = kSiblings;
    const std::list<Output>& outputs = around->second.newest_last;
    for (auto output = outputs.rbegin(); output != outputs.rend() && most > 0; ++output) {
      if (output->module == at) continue;
      level.Add(*output);
      --most;
    }
  }
  return level;
}

// As that of the module itself, and of each module around it.
void Explainer::NoteOutput(Pass& pass, std::string_view module, const Output& output) {
  for (std::string_view at = module; !at.empty(); at = ParentOf(at)) {
    Scope& scope = pass[ParentOf(at)];
    scope.all.Add(output);
    const auto [known, added] = scope.by_module.try_emplace(at);
    if (!added) scope.newest_last.erase(known->second);
    known->second = scope.newest_last.insert(scope.newest_last.end(), output);
    known->second->module = at;
  }
}

// The largest difference of what ran beside the module: where one's output is multiplied by the other's, as
// in a gate, the gradient of one is computed from the other.
double Explainer::OfSiblings(const Pass& pass, std::string_view module) {
  const auto found = pass.find(ParentOf(module));
  return ParentOf(module).empty() || found == pass.end() ? 0 : found->second.all.distance;
}

// --- parameters as inputs

double Explainer::OfParameters(double distance) { return Capped(kSparseParameters * distance); }

// A difference in a matrix or a scale reaches the output in proportion; one in a bias by as much as the bias
// is of the output.
double Explainer::OfOwnParameters(std::string_view module, const TensorPair& pair) const {
  const auto names = parameters_of_.find(module);
  if (names == parameters_of_.end()) return 0;
  const double norm = Norm(pair);
  double level = 0;
  for (const std::string_view name : names->second) {
    const Parameter& parameter = parameters_.at(name);
    if (parameter.distance == 0) continue;
    const double rows =
        std::max(1.0, Numel(pair) / std::max<double>(1, static_cast<double>(parameter.numel)));
    const bool added = name.ends_with("bias") && norm > 0;
    level = std::max(level, added ? parameter.difference * std::sqrt(rows) / norm : parameter.distance);
  }
  return OfParameters(level);
}

// The largest distance of any weights: what a batch may differ by that was computed with them, as in a rollout.
double Explainer::OfTrained() const {
  double level = 0;
  for (const auto& [name, parameter] : parameters_) level = std::max(level, parameter.distance);
  return OfParameters(level);
}

// The largest distance of a module's parameters except biases, which do not enter gradients of activations.
double Explainer::OfMatrices(std::string_view module) const {
  const auto names = parameters_of_.find(module);
  if (names == parameters_of_.end()) return 0;
  double level = 0;
  for (const std::string_view name : names->second) {
    if (!name.ends_with("bias")) level = std::max(level, parameters_.at(name).distance);
  }
  return level;
}

// --- backward

double Explainer::ExplainBackward(const TensorPair& pair, Explained& to) {
  const TensorKey& key = pair.a.def->key;
  std::vector<Gradient>& before = backward_[key.micro_batch];
  Level level;
  level.unit = to.unit;
  level.Add({.distance = std::max({batch_, ValueOr0(outputs_, key.name), ValueOr0(inputs_level_, key.name),
                                   OfSiblings(passes_[{key.micro_batch, key.mode}], key.name)})});
  double matrices = OfMatrices(key.name);
  bool behind_kink = false;
  for (std::size_t i = 0; i < std::min(before.size(), kGradientsBefore); ++i) {
    const Gradient& gradient = before[before.size() - 1 - i];
    level.Add({.distance = gradient.distance, .unit = gradient.unit});
    matrices = std::max(matrices, OfMatrices(gradient.module));
    behind_kink = behind_kink || (i == 0 && gradient.kink && gradient.numel == pair.a.stats->numel);
  }
  if (before.empty()) level.Add({.distance = last_forward_});
  to.rounding = OfKernel(pair, to.unit);
  // The loss's other operations are not recorded: norms, products, softmax.
  to.of_loss = before.empty() && !IsFactor(pair);
  const double distance = Capped(pair.distance);
  before.push_back({.module = key.name,
                    .distance = distance,
                    .unit = to.unit,
                    .kink = HasKink(pair.a.def->class_name),
                    .numel = pair.a.stats->numel});
  largest_backward_ = std::max(largest_backward_, distance);
  coarsest_backward_ = std::max(coarsest_backward_, to.unit);
  Terms& known = grad_outputs_[key.name];
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

// Behind a ReLU, a maximum or a mask, an element whose input rounds to the other side of zero is there or
// not. Behind a LeakyReLU it is there with another slope, and no zeros tell of it.
double Explainer::OfMask(const TensorPair& pair, bool behind_kink) const {
  const TensorStats& stats = *pair.a.stats;
  const double flipped = Flipped(pair), norm = Norm(pair);
  const bool masked = behind_kink || static_cast<double>(stats.zero) > kMasked * Numel(pair);
  if (!masked || !(flipped > kFlippedElements) || !(norm > 0)) return 0;
  // As many zeros in both, and what differs is everywhere: the zeros are padding.
  const bool padding =
      !behind_kink && flipped < kFlipsInFewSums && stats.zero == pair.b.stats->zero && IsEverywhere(pair);
  if (padding) return 0;
  const double largest = std::max(std::abs(stats.min), std::abs(stats.max));
  return kFlips * largest / norm * std::sqrt(std::max(1.0, flipped));
}

// What a kernel rounds by: long sums of its own, in f32 where values are coarser, and other algorithms of a convolution.
double Explainer::OfKernel(const TensorPair& pair, double unit) const {
  const double accumulator = std::min(unit, UnitRoundoff(DType::kF32));
  const double sum = kLongSum * std::sqrt(lengths_.Of(pair)) * accumulator;
  const bool other = lengths_.IsOtherConvolution(pair, methods_.other_convolutions);
  return std::max({unit, sum, other ? kWinograd * accumulator : 0});
}

// --- gradients of parameters, the optimizer

// What any gradient of a parameter may inherit. Where no gradients of outputs were compared, they are as different
// as the outputs and matrices are that they are computed from.
Explainer::Level Explainer::OfBackward() const {
  Level level{.distance = std::max(largest_backward_, batch_), .unit = coarsest_backward_};
  if (!backward_.empty()) return level;
  level.Add({.distance = largest_forward_});
  level.unit = coarsest_forward_;
  double matrices = 0;
  for (const auto& [module, names] : parameters_of_) matrices = std::max(matrices, OfMatrices(module));
  level.Add({.distance = OfParameters(matrices)});
  return level;
}

// A bias's or a scale's gradient is a sum of the gradients of the output. Where those cancel, the result's
// own norm says nothing: it is judged against the sum of the terms.
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
    const Terms& terms = gradient->second;
    level = std::max(terms.distance, ValueOr0(inputs_level_, module));
    if (is_sum) {
      double scale = std::max(norm, terms.l2);
      to.cancelled = norm < kCancelled * terms.l2;
      if (to.cancelled) scale = std::max(scale, terms.l1 / std::sqrt(Numel(pair)));
      to.observed = pair.distance * norm / scale;
    }
  }
  to.rounding = std::max(kLossRoundoffs * to.unit, OfKernel(pair, UnitRoundoff(pair.a.layout->dtype)));
  ParameterGradient& known = gradients_[key.name];
  known.distance = std::max(known.distance, Capped(pair.distance));
  known.l2 = norm;
  if (to.cancelled && pair.distance > kNoiseDrivenDistance && to.observed < kNoiseDriven * pair.distance)
    noise_driven_.insert(key.name);
  return Quantised(level, to.unit);
}

// --- what the optimizer makes of gradients

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
  if (IsSquares(key.output_path)) return kSquareGrowth * level;
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
  parameter.distance = Capped(pair.distance);
  parameter.l2 = Norm(pair);
  parameter.difference = parameter.distance * parameter.l2;
  parameter.numel = pair.a.stats->numel;
  parameter.sketch_a.assign(pair.a.sketch.begin(), pair.a.sketch.end());
  parameter.sketch_b.assign(pair.b.sketch.begin(), pair.b.sketch.end());
}

// Muon raises small singular values of the gradient, which in one of low rank are rounding, to the size of the
// others. On the benchmark 5 of its 9 clean pairs were called a bug without this.
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
  const auto known = parameters_.find(name);
  const std::size_t sums = pair.a.sketch.size();
  const bool sketched = known != parameters_.end() && sums > 0 && pair.b.sketch.size() == sums &&
                        known->second.sketch_a.size() == sums && known->second.sketch_b.size() == sums &&
                        std::isfinite(pair.distance);
  if (!sketched) {
    const double before = known == parameters_.end() ? 0 : known->second.distance;
    NoteParameter(pair);
    return std::max(gradient, before);
  }
  const Parameter& before = known->second;
  double of_a = 0, of_b = 0, between = 0;
  for (std::size_t i = 0; i < sums; ++i) {
    const double a = pair.a.sketch[i] - before.sketch_a[i], b = pair.b.sketch[i] - before.sketch_b[i];
    of_a += a * a;
    of_b += b * b;
    between += (a - b) * (a - b);
  }
  const double norm = std::max(Norm(pair), before.l2), update = std::sqrt(std::max(of_a, of_b));
  double level = 0;
  if (pair.distance == 0 || update == 0) {
    to.observed = 0;
  } else {
    to.observed = std::min(std::sqrt(between) / update, 2.0);
    const double resolution = (2 * kSketchResolution + Unit(pair)) * norm / update;
    double flipped = normalised ? FlippedSigns(gradient) : 0;
    if (IsOrthogonal(pair)) flipped = kMostFlipped;
    level = std::hypot(std::max(kLinearUpdate * gradient, flipped), resolution);
    if (gradient > kLargeGradient) level = std::max(level, 1.0);
    to.fresh = gradient == 0 && before.distance == 0;
  }
  NoteParameter(pair);
  return level;
}

}  // namespace statcollect::query
