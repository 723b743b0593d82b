#include "server/query/distance.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/names.h"

namespace statcollect::query {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// |a - b| / scale, where a - b might overflow.
double Apart(double a, double b, double scale) {
  if (a == b) return 0;
  return scale > 0 && std::isfinite(scale) && std::isfinite(a) && std::isfinite(b)
             ? std::abs(a / scale - b / scale)
             : kInfinite;
}

double Ratio(double numerator, double denominator) {
  if (numerator == 0) return 0;
  return denominator > 0 ? numerator / denominator : kInfinite;
}

// Components that the moments are over.
double FiniteCount(const Observation& o) {
  const double components = static_cast<double>(o.stats->numel) * (IsComplex(o.layout->dtype) ? 2 : 1);
  return components - static_cast<double>(o.stats->nan) - static_cast<double>(o.stats->pos_inf) -
         static_cast<double>(o.stats->neg_inf);
}

// What norms and means alone prove about ||A - B|| / max(||A||, ||B||); 0 below their own accuracy. A sketch
// of few groups can miss a difference by cancellation; this cannot.
double ProvenDistance(const Observation& a, const Observation& b) {
  constexpr double kAccuracy = 1e-5;
  const double norm = std::max(a.stats->l2, b.stats->l2);
  const double mean = std::sqrt(FiniteCount(a)) * std::abs(a.stats->mean - b.stats->mean);
  const double proven = std::max(RelativeDifference(a.stats->l2, b.stats->l2), Ratio(mean, norm));
  return std::isfinite(proven) && proven > kAccuracy ? proven : 0;
}

// The squared estimate varies by about sqrt(2/k + 2/G), G: groups of 16 elements that differ. G is not known;
// it is at most the tensor's groups, and those are taken. Quantiles at two standard deviations after Wilson
// and Hilferty. The true value cannot be above 2, nor below what norms and means prove.
void SetInterval(Distance& distance, const Observation& a, double proven) {
  const double groups = std::max(1.0, std::ceil(FiniteCount(a) / 16));
  const double spread = 2.0 / 9.0 * (1.0 / static_cast<double>(a.sketch.size()) + 1.0 / groups);
  const auto quantile = [&](double deviations) {
    const double root = 1.0 - spread + deviations * std::sqrt(spread);
    return root > 0.05 ? std::sqrt(root * root * root) : 0.0;
  };
  const double lower = quantile(-2.0);
  distance.low = std::max(distance.value / quantile(2.0), proven);
  distance.high = lower > 0 ? std::min(distance.value / lower, 2.0) : 2.0;
  distance.value = std::max(distance.value, proven);
  distance.low = std::min(distance.low, distance.value);
  distance.high = std::max(distance.high, distance.value);
}

Distance MeasureSketch(const Observation& a, const Observation& b) {
  // Scaled by the largest sum, so that squares neither overflow nor underflow.
  double scale = 0;
  for (std::size_t i = 0; i < a.sketch.size(); ++i)
    scale = std::max(scale, std::abs(a.sketch[i] - b.sketch[i]));
  double squares = 0;
  for (std::size_t i = 0; i < a.sketch.size() && scale > 0; ++i) {
    const double part = (a.sketch[i] - b.sketch[i]) / scale;
    squares += part * part;
  }
  Distance distance{.kind = DistanceKind::kSketch};
  distance.value = Ratio(scale, std::max(a.stats->l2, b.stats->l2)) * std::sqrt(squares);
  if (std::isfinite(distance.value)) SetInterval(distance, a, ProvenDistance(a, b));
  return distance;
}

Distance MeasureStatistics(const TensorStats& a, const TensorStats& b) {
  Distance distance{.kind = DistanceKind::kStatistics};
  if (a.has_finite != b.has_finite) {
    distance.value = kInfinite;
    return distance;
  }
  if (!a.has_finite) return distance;
  const auto absmax = [](const TensorStats& s) { return std::max(std::abs(s.min), std::abs(s.max)); };
  const double largest = std::max(absmax(a), absmax(b));
  const double rms = std::max(std::hypot(a.mean, a.std), std::hypot(b.mean, b.std));
  // A nearly constant tensor's std is rounding noise: not measured against itself.
  const double spread = std::max({a.std, b.std, 0.01 * rms});
  distance.value =
      std::max({RelativeDifference(a.l2, b.l2), Apart(a.mean, b.mean, rms), Apart(a.std, b.std, spread),
                Apart(a.min, b.min, largest), Apart(a.max, b.max, largest)});
  return distance;
}

bool SameNonfinite(const TensorStats& a, const TensorStats& b) {
  return a.nan == b.nan && a.pos_inf == b.pos_inf && a.neg_inf == b.neg_inf;
}

}  // namespace

double RelativeDifference(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return kInfinite;
  const double larger = std::max(std::abs(a), std::abs(b));
  return std::abs(a / larger - b / larger);  // the difference itself might overflow
}

Distance Measure(const Observation& a, const Observation& b) {
  const bool sketches =
      !a.sketch.empty() && a.sketch.size() == b.sketch.size() && a.stats->has_finite && b.stats->has_finite;
  if (sketches) {
    const Distance distance = MeasureSketch(a, b);
    if (std::isfinite(distance.value)) return distance;  // float32 sums may have overflowed
  }
  return MeasureStatistics(*a.stats, *b.stats);
}

double DefaultTolerance(DType a, DType b) {
  const auto of = [](DType dtype) {
    switch (dtype) {
      case DType::kF64:
      case DType::kC128:
        return 1e-9;
      case DType::kF32:
      case DType::kC64:
        return 1e-4;
      case DType::kF16:
        return 5e-3;
      case DType::kBf16:
        return 2e-2;
      case DType::kF8E4M3:
      case DType::kF8E5M2:
        return 1e-1;
      default:
        return 0.0;
    }
  };
  return std::max(of(a), of(b));
}

Comparison Compare(const Observation& a, const Observation& b, std::optional<double> tolerance, bool exact) {
  Comparison result;
  result.tolerance = tolerance.value_or(DefaultTolerance(a.layout->dtype, b.layout->dtype));
  const auto diverged = [&](Reason reason) {
    result.agreement = Agreement::kDiverged;
    result.reason = reason;
    return result;
  };
  if (a.layout->shape != b.layout->shape) return diverged(Reason::kShape);
  const bool same_dtype = a.layout->dtype == b.layout->dtype;
  if (same_dtype && a.stats->hash == b.stats->hash) return result;
  if (!SameNonfinite(*a.stats, *b.stats)) {
    result.distance =
        Distance{.value = kInfinite, .kind = DistanceKind::kStatistics, .low = kInfinite, .high = kInfinite};
    return diverged(Reason::kNonfinite);
  }
  result.distance = Measure(a, b);
  if (!same_dtype && !tolerance) return diverged(Reason::kDType);
  const bool never_rounded = !tolerance && result.tolerance == 0;
  if (never_rounded || result.distance->value > result.tolerance) return diverged(Reason::kNumeric);
  if (exact) return diverged(Reason::kBitwise);
  result.agreement = Agreement::kWithinTolerance;
  return result;
}

}  // namespace statcollect::query
