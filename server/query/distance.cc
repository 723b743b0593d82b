#include "server/query/distance.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace statcollect::query {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double Ratio(double numerator, double denominator) {
  if (numerator == 0) return 0;
  return denominator > 0 ? numerator / denominator : kInfinite;
}

// If D is the true norm, k d^2 / D^2 is nearly chi-squared with k degrees of freedom (Wilson and Hilferty's
// cube root for its quantiles at two standard deviations).
void SetInterval(Distance& distance, std::size_t k) {
  const double spread = 2.0 / (9.0 * static_cast<double>(k));
  const double upper = std::pow(1.0 - spread + 2.0 * std::sqrt(spread), 3),
               lower = std::pow(1.0 - spread - 2.0 * std::sqrt(spread), 3);
  distance.low = distance.value / std::sqrt(upper);
  distance.high = distance.value / std::sqrt(lower);
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
  distance.value = Ratio(scale * std::sqrt(squares), std::max(a.stats->l2, b.stats->l2));
  SetInterval(distance, a.sketch.size());
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
  distance.value = std::max({RelativeDifference(a.l2, b.l2), Ratio(std::abs(a.mean - b.mean), rms),
                             RelativeDifference(a.std, b.std), Ratio(std::abs(a.min - b.min), largest),
                             Ratio(std::abs(a.max - b.max), largest)});
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
  return sketches ? MeasureSketch(a, b) : MeasureStatistics(*a.stats, *b.stats);
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
