#include "server/query/verdict/linearity.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "server/query/compare/roundoff.h"
#include "server/query/compare/step_order.h"
#include "server/query/verdict/explain.h"

namespace statcollect::query {
namespace {

constexpr double kUnexplained = 0.1;       // share of a change that no combination explains
constexpr double kSketchPrecision = 4e-8;  // sums are kept in f32: relative to the tensor's norm
constexpr double kAbovePrecision = 10;     // smaller changes are not looked at
constexpr std::size_t kSumsToSpare = 4;    // fewer sums fit any tensor by chance

using Sums = std::vector<double>;
enum class Linear : std::uint8_t { kUnknown, kYes, kNo };

Sums SumsOf(const Observation& seen) { return {seen.sketch.begin(), seen.sketch.end()}; }

double Dot(const Sums& x, const Sums& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

double NormOf(const Sums& x) { return std::sqrt(Dot(x, x)); }

void Subtract(Sums& from, const Sums& what, double times = 1) {
  for (std::size_t i = 0; i < from.size(); ++i) from[i] -= times * what[i];
}

// Grows by Gram and Schmidt, so that what it leaves of a tensor is what no combination explains.
class Span {
 public:
  void Add(Sums sums) {
    const double before = NormOf(sums);
    Reduce(sums);
    const double left = NormOf(sums);
    if (!(left > 1e-6 * before) || !std::isfinite(left)) return;
    for (double& sum : sums) sum /= left;
    basis_.push_back(std::move(sums));
  }
  void Reduce(Sums& sums) const {
    for (const Sums& one : basis_) Subtract(sums, one, Dot(sums, one));
  }
  std::size_t size() const { return basis_.size(); }

 private:
  std::vector<Sums> basis_;
};

// A change: `precision` is how accurate its sums are.
struct Change {
  Sums sums;
  double precision = 0;
  double numel = 0;
};

Linear IsCombination(const Change& change, const Span& span) {
  const double sums = std::min(static_cast<double>(change.sums.size()), change.numel);
  const double norm = NormOf(change.sums);
  if (sums < static_cast<double>(span.size() + kSumsToSpare) || !std::isfinite(norm) ||
      !(norm > kAbovePrecision * change.precision))
    return Linear::kUnknown;
  Sums left = change.sums;
  span.Reduce(left);
  return NormOf(left) > kUnexplained * norm ? Linear::kNo : Linear::kYes;
}

double Precision(const Observation& seen) {
  return (kSketchPrecision + UnitRoundoff(seen.layout->dtype)) * seen.stats->l2;
}

const Observation& SideOf(const TensorPair& pair, bool of_a) { return of_a ? pair.a : pair.b; }

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

// A state may begin as zeros or as a copy of the weight, so what changed in it is what the weight leaves.
Linear OfState(const Observation& state, const Sums* before, const Sums& weight,
               const Observation& gradient) {
  Change change{
      .sums = SumsOf(state), .precision = Precision(state), .numel = static_cast<double>(state.stats->numel)};
  Span span;
  span.Add(weight);
  if (before != nullptr) span.Add(*before);
  span.Reduce(change.sums);
  span.Add(SumsOf(gradient));
  return IsCombination(change, span);
}

}  // namespace

void Linearity::Step(std::span<const TensorPair> pairs, const std::unordered_set<std::string_view>& known) {
  updates_.clear();
  states_.clear();
  std::unordered_map<std::string_view, Parameter> parameters;
  for (const TensorPair& pair : pairs) {
    if (pair.loss != nullptr) continue;
    const TensorKey& key = pair.a.def->key;
    const bool weight = key.kind == Kind::kWeight;
    if (!weight && key.kind != Kind::kWeightGrad && key.kind != Kind::kOptimizerState) continue;
    if (known.contains(key.name)) continue;
    Parameter& parameter = parameters[key.name];
    if (key.kind == Kind::kWeightGrad) {
      parameter.gradient = &pair;
    } else if (key.kind == Kind::kOptimizerState) {
      parameter.states.push_back(&pair);
    } else if (StageOf(key) == Stage::kWeights) {
      parameter.loaded = &pair;
    } else {
      parameter.updated_twice = parameter.updated_twice || parameter.weight != nullptr;
      parameter.weight = &pair;
    }
  }
  std::vector<std::string_view> undecided;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.loaded != nullptr)
      weights_before_[name] = {SumsOf(parameter.loaded->a), SumsOf(parameter.loaded->b)};
    Judge(name, parameter, undecided);
    Remember(name, parameter);
  }
  // One optimizer as a rule updates them all.
  any_ = any_ || !updates_.empty();
  if (any_) updates_.insert(undecided.begin(), undecided.end());
}

void Linearity::Judge(std::string_view name, const Parameter& parameter,
                      std::vector<std::string_view>& undecided) {
  const auto before = weights_before_.find(name);
  if (parameter.weight == nullptr || parameter.updated_twice || before == weights_before_.end()) return;
  const TensorPair& weight = *parameter.weight;
  if (!(weight.distance > 0) || weight.a.sketch.empty()) return;
  if (before->second.first.size() != weight.a.sketch.size() ||
      before->second.second.size() != weight.b.sketch.size())
    return;
  if (parameter.gradient == nullptr || !Fits(*parameter.gradient, weight)) return;
  Span spans[2];
  for (const bool of_a : {true, false}) {
    Span& span = spans[of_a ? 0 : 1];
    span.Add(SumsOf(SideOf(*parameter.gradient, of_a)));
    span.Add(of_a ? before->second.first : before->second.second);
  }
  for (const TensorPair* state : parameter.states) {
    if (!Fits(*state, weight)) continue;
    const auto old = states_before_.find({name, state->a.def->key.output_path});
    const auto side = [&](bool of_a) {
      const Sums* sums = old == states_before_.end() ? nullptr
                         : of_a                      ? &old->second.first
                                                     : &old->second.second;
      return OfState(SideOf(*state, of_a), sums, of_a ? before->second.first : before->second.second,
                     SideOf(*parameter.gradient, of_a));
    };
    const Linear answer = Both(side(true), side(false));
    if (answer == Linear::kNo) {
      states_.insert({name, state->a.def->key.output_path});
    } else {
      spans[0].Add(SumsOf(state->a));
      spans[1].Add(SumsOf(state->b));
    }
  }
  const auto update = [&](bool of_a) {
    const Observation& seen = SideOf(weight, of_a);
    Change change{.sums = SumsOf(seen),
                  .precision = 2 * Precision(seen),
                  .numel = static_cast<double>(seen.stats->numel)};
    Subtract(change.sums, of_a ? before->second.first : before->second.second);
    return IsCombination(change, spans[of_a ? 0 : 1]);
  };
  const Linear answer = Both(update(true), update(false));
  if (answer == Linear::kNo) updates_.insert(name);
  if (answer == Linear::kUnknown) undecided.push_back(name);
}

void Linearity::Remember(std::string_view name, const Parameter& parameter) {
  if (parameter.weight != nullptr)
    weights_before_[name] = {SumsOf(parameter.weight->a), SumsOf(parameter.weight->b)};
  for (const TensorPair* state : parameter.states) {
    states_before_[{name, state->a.def->key.output_path}] = {SumsOf(state->a), SumsOf(state->b)};
  }
}

}  // namespace statcollect::query
