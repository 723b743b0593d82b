#include "server/query/cause/linear.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "server/query/cause/constants.h"
#include "server/query/compare/distance.h"

namespace statcollect::query::cause {
namespace {

bool Trust(const Observation& x, const Observation& y, Statistic statistic) {
  return x.layout->Trusts(statistic) && y.layout->Trusts(statistic);
}

// How far the statistics of y are from those of factor * x, relative to y's.
double StatisticsResidual(const Observation& of_x, const Observation& of_y, double factor) {
  const TensorStats &x = *of_x.stats, &y = *of_y.stats;
  double residual = 0;
  const auto take = [&](double apart, double scale) {
    if (apart != 0)
      residual = std::max(residual, scale > 0 ? std::abs(apart) / scale : kResidualMax * 1000);
  };
  if (Trust(of_x, of_y, Statistic::kL2)) take(y.l2 - std::abs(factor) * x.l2, y.l2);
  if (Trust(of_x, of_y, Statistic::kL1)) take(y.l1 - std::abs(factor) * x.l1, y.l1);
  if (Trust(of_x, of_y, Statistic::kMin) && Trust(of_x, of_y, Statistic::kMax)) {
    const double largest = std::max(std::abs(y.min), std::abs(y.max));
    take(y.min - factor * (factor < 0 ? x.max : x.min), largest);
    take(y.max - factor * (factor < 0 ? x.min : x.max), largest);
  }
  const double count = FiniteCount(of_y);
  if (Trust(of_x, of_y, Statistic::kMean) && count > 0)
    take(y.mean - factor * x.mean, y.l2 / std::sqrt(count));
  return residual;
}

bool Comparable(const Observation& x, const Observation& y) {
  const TensorStats &s = *x.stats, &t = *y.stats;
  return s.numel == t.numel && s.has_finite && t.has_finite && FiniteCount(x) == FiniteCount(y) &&
         s.l2 > 0 && t.l2 > 0 && Trust(x, y, Statistic::kL2) && std::isfinite(s.l2) &&
         std::isfinite(t.l2);
}

// The sign that fits better: only the mean and the extremes tell without a sketch.
double FactorOfStatistics(const Observation& x, const Observation& y) {
  const double size = y.stats->l2 / x.stats->l2;
  return StatisticsResidual(x, y, size) <= StatisticsResidual(x, y, -size) ? size : -size;
}

}  // namespace

bool Fit::Explains(double rounding) const {
  const double change = std::abs(factor - 1);
  return change > kChangeMin && residual <= std::min(kResidualMax, rounding) &&
         residual * kExplainedTimes <= change;
}

bool HaveSketches(const Observation& x, const Observation& y) {
  return !x.sketch.empty() && x.sketch.size() == y.sketch.size() &&
         x.layout->hash_kind == y.layout->hash_kind && x.stats->has_finite && y.stats->has_finite &&
         x.stats->numel == y.stats->numel;
}

Sketch SketchOf(const Observation& x) { return {x.sketch.begin(), x.sketch.end()}; }

Sketch Minus(const Sketch& x, const Sketch& y) {
  Sketch difference(x.size());
  std::transform(x.begin(), x.end(), y.begin(), difference.begin(),
                 [](double p, double q) { return p - q; });
  return difference;
}

Sketch Times(Sketch x, double factor) {
  for (double& sum : x) sum *= factor;
  return x;
}

double Dot(const Sketch& x, const Sketch& y) {
  return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
}

double Norm(const Sketch& x) { return std::sqrt(Dot(x, x)); }

std::optional<double> FactorBetween(const Sketch& x, const Sketch& y) {
  const double product = Dot(x, y), squares = Dot(x, x);
  if (!(squares > 0) || !std::isfinite(product) || !std::isfinite(squares)) return std::nullopt;
  return product / squares;
}

std::optional<Fit> FitFactor(const Observation& x, const Observation& y) {
  if (!Comparable(x, y)) return std::nullopt;
  Fit fit;
  std::optional<double> factor;
  const Sketch sketch_x = SketchOf(x), sketch_y = SketchOf(y);
  if (HaveSketches(x, y)) factor = FactorBetween(sketch_x, sketch_y);
  fit.from_sketch = factor.has_value();
  fit.factor = factor ? *factor : FactorOfStatistics(x, y);
  if (fit.from_sketch) {
    const double norm = Norm(sketch_y);
    fit.residual = norm > 0 ? Norm(Minus(sketch_y, Times(sketch_x, fit.factor))) / norm : 1;
  }
  fit.residual = std::max(fit.residual, StatisticsResidual(x, y, fit.factor));
  if (!std::isfinite(fit.factor) || !std::isfinite(fit.residual)) return std::nullopt;
  return fit;
}

bool Near(double x, double y, double relative) {
  return std::abs(x - y) <= relative * std::max(std::abs(x), std::abs(y));
}

bool IsRound(double value) {
  if (!(value > 0)) return false;
  const double unit = std::pow(10.0, std::floor(std::log10(value)) - 1);
  return Near(value, std::round(value / unit) * unit, kRoundNorm);
}

}  // namespace statcollect::query::cause
