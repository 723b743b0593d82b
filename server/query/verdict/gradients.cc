// Jumps that show only in all gradients of a step together.
#include <algorithm>
#include <cmath>

#include "server/query/compare/roundoff.h"
#include "server/query/settings/dotted.h"
#include "server/query/verdict/constants.h"
#include "server/query/verdict/jumps.h"

namespace statcollect::query {
namespace {

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return 0.5 * (*middle + *std::max_element(values.begin(), middle));
}

double Deviation(const std::vector<double>& values, double from) {
  std::vector<double> apart;
  for (const double value : values) apart.push_back(std::abs(value - from));
  return MedianOf(std::move(apart));
}

// Logarithms of B's norms over A's.
struct Factors {
  std::vector<double> logs;
  std::vector<std::size_t> indexes;
  double median = 0, deviation = 0;
  double noise = 0;  // of a norm, where the difference has no direction
  double whole = 0;  // of the norm of all of them, also of those that do not differ
};

// How many elements carry the norm, at least: of a loss's gradient often few.
double CarriersOf(const Explained& one) {
  const TensorStats& stats = *one.pair->a.stats;
  const double largest = std::max(std::abs(stats.min), std::abs(stats.max));
  const double numel = static_cast<double>(stats.numel);
  return largest > 0 ? std::clamp(stats.l2 * stats.l2 / (largest * largest), 1.0, numel) : numel;
}

// The noise of a norm to which so many elements contribute, each with an independent difference.
double NormNoise(const Explained& one, double elements) {
  return std::min(one.expected, 3 * one.pair->distance) / std::sqrt(elements);
}

// How far B's tensor, divided by this factor, is from A's. 0 if the sketches do not show it.
double ApartFrom(double log_factor, const TensorPair& pair) {
  if (pair.a.sketch.empty() || pair.a.sketch.size() != pair.b.sketch.size()) return 0;
  double apart = 0, squares = 0;
  for (std::size_t i = 0; i < pair.a.sketch.size(); ++i) {
    const double a = pair.a.sketch[i], difference = pair.b.sketch[i] / std::exp(log_factor) - a;
    apart += difference * difference;
    squares += a * a;
  }
  return squares > 0 ? std::sqrt(apart / squares) : 0;
}

std::optional<Factors> FactorsOf(std::span<const Explained> step, Stage stage) {
  Factors factors;
  std::vector<double> noise, across;
  std::size_t all = 0;
  double whole_a = 0, whole_b = 0;
  for (std::size_t i = 0; i < step.size(); ++i) {
    const Explained& one = step[i];
    if (one.stage != stage) continue;
    whole_a = std::hypot(whole_a, one.pair->a.stats->l2);
    whole_b = std::hypot(whole_b, one.pair->b.stats->l2);
    if (one.cancelled || one.pair->a.stats->numel < guessed::kElements) continue;
    ++all;
    const double a = one.pair->a.stats->l2, b = one.pair->b.stats->l2;
    if (!(one.pair->distance > 0) || !(one.pair->distance < guessed::kLargeDistance) || !(a > 0) || !(b > 0))
      continue;
    factors.logs.push_back(std::log(b / a));
    factors.indexes.push_back(i);
    noise.push_back(NormNoise(one, static_cast<double>(one.pair->a.stats->numel)));
    // What is added across a tensor, without any direction, adds to its norm.
    across.push_back(0.5 * std::pow(ApartFrom(factors.logs.back(), *one.pair), 2));
  }
  const std::size_t count = factors.logs.size();
  if (count < guessed::kGradientsNeeded ||
      static_cast<double>(count) < guessed::kShareThatDiffers * static_cast<double>(all))
    return std::nullopt;
  factors.median = MedianOf(factors.logs);
  factors.deviation = Deviation(factors.logs, factors.median);
  factors.whole = whole_a > 0 && whole_b > 0 ? std::log(whole_b / whole_a) : factors.median;
  factors.noise = guessed::kScaleNoise * MedianOf(std::move(noise)) +
                  guessed::kAcross * MedianOf(std::move(across)) + guessed::kNormAccuracy;
  if (stage == Stage::kBackward) {
    // All inherit the factor of the first, which is that of the loss.
    const Explained& first = step[factors.indexes[0]];
    factors.noise = std::max(factors.noise, guessed::kScaleNoise * NormNoise(first, CarriersOf(first)));
  }
  return factors;
}

// `before`: a factor that the gradients inherited.
std::optional<Jump> AsJump(const Factors& factors, double before) {
  const double factor = factors.median - before;
  if (!(std::abs(factor) > factors.noise) || !(factors.deviation < guessed::kSameFactor * std::abs(factor)))
    return std::nullopt;
  const double allowed = std::max(factors.deviation, 0.5 * std::abs(factor));
  for (std::size_t i = 0; i < factors.logs.size(); ++i) {
    if (std::abs(factors.logs[i] - factors.median) > allowed) continue;
    return Jump{.index = factors.indexes[i],
                .kind = JumpKind::kScale,
                .ratio = std::log(std::abs(factor) / factors.noise),
                .excess = std::log(std::abs(factor) / factors.noise),
                .sisters = factors.logs.size(),
                .factor = std::exp(factor)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Jump> FindScale(std::span<const Explained> step) {
  const auto backward = FactorsOf(step, Stage::kBackward);
  if (backward) {
    if (const auto jump = AsJump(*backward, 0)) return jump;
  }
  auto gradients = FactorsOf(step, Stage::kGrad);
  if (!gradients) return std::nullopt;
  if (backward) gradients->noise = std::max(gradients->noise, backward->noise);
  // Clipping to a norm spreads what one of them differs over all others.
  if (std::abs(gradients->whole) < guessed::kClipped * std::abs(gradients->median)) return std::nullopt;
  return AsJump(*gradients, backward ? backward->median : 0);
}

std::size_t ChooseRoot(std::span<const Explained> step, std::span<const Jump> jumps) {
  const auto observed = [&](const Jump& jump) { return step[jump.index].observed; };
  const auto is_gradient = [&](const Jump& jump) { return step[jump.index].stage == Stage::kGrad; };
  if (!is_gradient(jumps[0]) || jumps[0].kind == JumpKind::kScale) return 0;
  std::size_t chosen = 0;
  for (std::size_t i = 1; i < jumps.size(); ++i) {
    const bool larger = is_gradient(jumps[i]) && observed(jumps[i]) > observed(jumps[chosen]);
    if (larger && observed(jumps[i]) >= guessed::kLarger * observed(jumps[0])) chosen = i;
  }
  return chosen;
}

}  // namespace statcollect::query
