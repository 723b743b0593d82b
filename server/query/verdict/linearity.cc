#include "server/query/verdict/linearity.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "server/query/cause/linear.h"
#include "server/query/compare/roundoff.h"
#include "server/query/compare/step_order.h"
#include "server/query/verdict/explain.h"
#include "server/query/verdict/optimizers.h"

namespace statcollect::query {
namespace {

constexpr double kUnexplained = 0.1;       // share of a change that no combination explains
constexpr double kSketchPrecision = 4e-8;  // sums are kept in f32: relative to the tensor's norm
constexpr double kAbovePrecision = 10;     // smaller changes are not looked at
constexpr std::size_t kSumsToSpare = 4;    // fewer sums fit any tensor by chance
constexpr double kCopy = 0.5;  // a state that is less than this apart from a multiple of the weight

using cause::Norm;
using cause::Sketch;
using cause::SketchOf;

void Subtract(Sketch& from, const Sketch& what, double times = 1) {
  for (std::size_t i = 0; i < from.size(); ++i) from[i] -= times * what[i];
}

}  // namespace

// Grows by Gram and Schmidt, so that what it leaves of a tensor is what no combination explains.
class SketchSpan {
 public:
  void Add(Sketch sums) {
    const double before = Norm(sums);
    Reduce(sums);
    const double left = Norm(sums);
    if (!(left > 1e-6 * before) || !std::isfinite(left)) return;
    for (double& sum : sums) sum /= left;
    basis_.push_back(std::move(sums));
  }
  void Reduce(Sketch& sums) const {
    for (const Sketch& one : basis_) Subtract(sums, one, cause::Dot(sums, one));
  }
  std::size_t size() const { return basis_.size(); }

 private:
  std::vector<Sketch> basis_;
};

namespace {

// A change: `precision` is how accurate its sums are.
struct Change {
  Sketch sums;
  double precision = 0;
  double numel = 0;
};

Linear IsCombination(const Change& change, const SketchSpan& span) {
  const double sums = std::min(static_cast<double>(change.sums.size()), change.numel);
  const double norm = Norm(change.sums);
  if (sums < static_cast<double>(span.size() + kSumsToSpare) || !std::isfinite(norm) ||
      !(norm > kAbovePrecision * change.precision))
    return Linear::kUnknown;
  Sketch left = change.sums;
  span.Reduce(left);
  return Norm(left) > kUnexplained * norm ? Linear::kNo : Linear::kYes;
}

double Precision(const Observation& seen) {
  return (kSketchPrecision + UnitRoundoff(seen.layout->dtype)) * seen.stats->l2;
}

// Of both runs: another optimizer in one of them is a difference.
Linear Both(Linear a, Linear b) {
  if (a == Linear::kYes || b == Linear::kYes) return Linear::kYes;
  return a == Linear::kNo && b == Linear::kNo ? Linear::kNo : Linear::kUnknown;
}

bool Fits(const TensorPair& pair, const TensorPair& weight) {
  const std::size_t sums = weight.a.sketch.size();
  return pair.a.stats->numel == weight.a.stats->numel && pair.a.sketch.size() == sums &&
         pair.b.sketch.size() == sums && pair.b.stats->numel == weight.b.stats->numel;
}

struct StateChange {
  Linear linear = Linear::kUnknown;
  double share = 0;  // of the state's norm
};

// A state may begin as zeros or as a copy of the weight, so what changed in it is what the weight leaves.
StateChange ChangeOf(const Observation& state, const Sketch* before, const Sketch& weight,
                     const Observation& gradient) {
  Change change{.sums = SketchOf(state),
                .precision = Precision(state),
                .numel = static_cast<double>(state.stats->numel)};
  const double norm = Norm(change.sums);
  SketchSpan span;
  span.Add(weight);
  if (before != nullptr) span.Add(*before);
  span.Reduce(change.sums);
  span.Add(SketchOf(gradient));
  return {.linear = IsCombination(change, span), .share = norm > 0 ? Norm(change.sums) / norm : 0};
}

// Squares have no sign, and are not a copy of the weight, which may have none either (scales of norms).
bool LooksLikeSquares(const Observation& state, const Sketch& weight) {
  Sketch left = SketchOf(state);
  const double norm = Norm(left);
  SketchSpan span;
  span.Add(weight);
  span.Reduce(left);
  return state.stats->min >= 0 && Norm(left) > kCopy * norm;
}

}  // namespace

void Linearity::Step(std::span<const TensorPair> pairs, const std::unordered_set<std::string_view>& known) {
  updates_.clear();
  states_.clear();
  squares_.clear();
  std::vector<std::string_view> undecided;
  for (const auto& [name, parameter] : Group(pairs, known)) {
    const bool of_known = known.contains(name);
    if (of_known && parameter.states.empty()) continue;
    if (parameter.loaded != nullptr)
      weights_before_[name] = {SketchOf(parameter.loaded->a), SketchOf(parameter.loaded->b)};
    if (CanJudge(name, parameter)) {
      SketchSpan spans[2];
      JudgeStates(name, parameter, spans);
      const Linear answer = of_known ? Linear::kYes : JudgeUpdate(name, parameter, spans);
      if (answer == Linear::kNo) updates_.insert(name);
      if (answer == Linear::kUnknown) undecided.push_back(name);
    }
    Remember(name, parameter);
  }
  // One optimizer as a rule updates them all.
  any_ = any_ || !updates_.empty();
  if (any_) updates_.insert(undecided.begin(), undecided.end());
}

std::unordered_map<std::string_view, Linearity::Parameter> Linearity::Group(
    std::span<const TensorPair> pairs, const std::unordered_set<std::string_view>& known) {
  std::unordered_map<std::string_view, Parameter> parameters;
  for (const TensorPair& pair : pairs) {
    if (pair.loss != nullptr) continue;
    const TensorKey& key = pair.a.def->key;
    const bool weight = key.kind == Kind::kWeight;
    if (!weight && key.kind != Kind::kWeightGrad && key.kind != Kind::kOptimizerState) continue;
    Parameter& parameter = parameters[key.name];
    if (key.kind == Kind::kWeightGrad) {
      parameter.gradient = &pair;
    } else if (key.kind == Kind::kOptimizerState) {
      const bool named = known.contains(key.name) && RoleOf(key.output_path) != StateRole::kOther;
      if (!named) parameter.states.push_back(&pair);
    } else if (StageOf(key) == Stage::kWeights) {
      parameter.loaded = &pair;
    } else {
      parameter.updated_twice = parameter.updated_twice || parameter.weight != nullptr;
      parameter.weight = &pair;
    }
  }
  for (auto& [name, parameter] : parameters) {
    std::erase_if(parameter.states, [&weight = parameter.weight](const TensorPair* state) {
      return weight == nullptr || !Fits(*state, *weight);
    });
  }
  return parameters;
}

bool Linearity::CanJudge(std::string_view name, const Parameter& parameter) const {
  const auto before = weights_before_.find(name);
  if (parameter.weight == nullptr || parameter.updated_twice || before == weights_before_.end()) return false;
  const TensorPair& weight = *parameter.weight;
  return weight.distance > 0 && !weight.a.sketch.empty() &&
         before->second.first.size() == weight.a.sketch.size() &&
         before->second.second.size() == weight.b.sketch.size() && parameter.gradient != nullptr &&
         Fits(*parameter.gradient, weight);
}

// `spans` of A and B become what a linear update is a combination of.
void Linearity::JudgeStates(std::string_view name, const Parameter& parameter, SketchSpan (&spans)[2]) {
  const Sketches& before = weights_before_.at(name);
  spans[0].Add(SketchOf(parameter.gradient->a));
  spans[0].Add(before.first);
  spans[1].Add(SketchOf(parameter.gradient->b));
  spans[1].Add(before.second);
  for (const TensorPair* state : parameter.states) {
    const std::string_view path = state->a.def->key.output_path;
    const auto old = states_before_.find({name, path});
    const bool known = old != states_before_.end();
    const StateChange of_a =
        ChangeOf(state->a, known ? &old->second.first : nullptr, before.first, parameter.gradient->a);
    const StateChange of_b =
        ChangeOf(state->b, known ? &old->second.second : nullptr, before.second, parameter.gradient->b);
    if (Both(of_a.linear, of_b.linear) != Linear::kNo) {
      spans[0].Add(SketchOf(state->a));
      spans[1].Add(SketchOf(state->b));
      continue;
    }
    states_[{name, path}] = std::max(of_a.share, of_b.share);
    if (LooksLikeSquares(state->a, before.first) && LooksLikeSquares(state->b, before.second))
      squares_.push_back(state);
  }
}

Linear Linearity::JudgeUpdate(std::string_view name, const Parameter& parameter,
                              const SketchSpan (&spans)[2]) const {
  const Sketches& before = weights_before_.at(name);
  const auto update = [](const Observation& seen, const Sketch& old, const SketchSpan& span) {
    Change change{.sums = SketchOf(seen),
                  .precision = 2 * Precision(seen),
                  .numel = static_cast<double>(seen.stats->numel)};
    Subtract(change.sums, old);
    return IsCombination(change, span);
  };
  return Both(update(parameter.weight->a, before.first, spans[0]),
              update(parameter.weight->b, before.second, spans[1]));
}

void Linearity::Remember(std::string_view name, const Parameter& parameter) {
  if (parameter.weight != nullptr)
    weights_before_[name] = {SketchOf(parameter.weight->a), SketchOf(parameter.weight->b)};
  for (const TensorPair* state : parameter.states) {
    states_before_[{name, state->a.def->key.output_path}] = {SketchOf(state->a), SketchOf(state->b)};
  }
}

}  // namespace statcollect::query
