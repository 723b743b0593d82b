#include "server/query/compare/distance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "common/names.h"
#include "common/placement.h"
#include "server/query/compare/noise.h"
#include "server/query/compare/zero_rows.h"

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

// Whether both sides have the statistic and may be compared in it.
bool Comparable(const Observation& a, const Observation& b, Statistic statistic) {
  return a.layout->Trusts(statistic) && b.layout->Trusts(statistic);
}

// Whether hash and sketch took the elements at the same places of a logical tensor.
bool AtSamePlace(const Layout& a, const Layout& b) {
  const auto& x = a.placement;
  const auto& y = b.placement;
  if (x && y)
    return x->boxes == y->boxes && x->ranges == y->ranges && x->global_shape == y->global_shape;
  return (!x || IsWhole(View(*x))) && (!y || IsWhole(View(*y)));
}

// A lower bound of ||A - B|| / max(||A||, ||B||) that norms and means alone prove; 0 below their
// own accuracy. A sketch of few groups can miss a difference by cancellation; this cannot.
double ProvenDistance(const Observation& a, const Observation& b) {
  constexpr double kAccuracy = 1e-5;
  const double norm = std::max(a.stats->l2, b.stats->l2);
  const double mean = std::sqrt(FiniteCount(a)) * std::abs(a.stats->mean - b.stats->mean);
  const double proven = std::max(RelativeDifference(a.stats->l2, b.stats->l2), Ratio(mean, norm));
  return std::isfinite(proven) && proven > kAccuracy ? proven : 0;
}

// The squared estimate varies by about sqrt(2/k + 2/G), G: groups of 16 elements that differ. G is
// not known; it is at most the tensor's groups, and those are taken. Quantiles at two standard
// deviations after Wilson and Hilferty. The true value cannot be above 2, nor below what norms and
// means prove.
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

// Sum of squared differences; in eight sums, so that vectors can be used.
double SquaredDifferences(std::span<const double> a, std::span<const double> b) {
  constexpr std::size_t kSums = 8;
  double sums[kSums] = {};
  std::size_t i = 0;
  for (; i + kSums <= a.size(); i += kSums) {
    for (std::size_t j = 0; j < kSums; ++j)
      sums[j] += (a[i + j] - b[i + j]) * (a[i + j] - b[i + j]);
  }
  for (; i < a.size(); ++i) sums[0] += (a[i] - b[i]) * (a[i] - b[i]);
  double all = 0;
  for (const double sum : sums) all += sum;
  return all;
}

// For values whose squares are far from overflow and underflow, which is nearly always so. Empty
// otherwise: the caller scales the values, or norms and means decide.
std::optional<Distance> MeasureSketchQuickly(const Observation& a, const Observation& b) {
  constexpr double kSmallest = 1e-200, kLargest = 1e200, kClearly = 1 - 1e-9;
  const double squares = SquaredDifferences(a.sketch, b.sketch);
  const double norm = std::max(a.stats->l2, b.stats->l2);
  if (!(squares > kSmallest && squares < kLargest && norm > 0 && norm < kLargest))
    return std::nullopt;
  const double of_norms = a.stats->l2 - b.stats->l2, of_means = a.stats->mean - b.stats->mean;
  const double proven = std::max(of_norms * of_norms, FiniteCount(a) * of_means * of_means);
  if (!(proven < squares * kClearly)) return std::nullopt;
  return Distance{.value = std::sqrt(squares) / norm, .kind = DistanceKind::kSketch};
}

Distance MeasureSketch(const Observation& a, const Observation& b, bool interval) {
  auto quickly = MeasureSketchQuickly(a, b);
  if (quickly && interval) SetInterval(*quickly, a, ProvenDistance(a, b));
  if (quickly) return *quickly;
  // Scaled by the largest sum, so that squares neither overflow nor underflow.
  double scale = 0;
  bool overflowed = false;
  for (std::size_t i = 0; i < a.sketch.size(); ++i) {
    const double apart = std::abs(a.sketch[i] - b.sketch[i]);
    overflowed = overflowed || !std::isfinite(apart);
    scale = std::max(scale, apart);
  }
  if (overflowed) return {.value = kInfinite, .kind = DistanceKind::kSketch};
  double squares = 0;
  for (std::size_t i = 0; i < a.sketch.size() && scale > 0; ++i) {
    const double part = (a.sketch[i] - b.sketch[i]) / scale;
    squares += part * part;
  }
  Distance distance{.kind = DistanceKind::kSketch};
  distance.value = Ratio(scale, std::max(a.stats->l2, b.stats->l2)) * std::sqrt(squares);
  if (!std::isfinite(distance.value)) return distance;
  const double proven = ProvenDistance(a, b);
  if (interval) {
    SetInterval(distance, a, proven);
  } else {
    distance.value = std::max(distance.value, proven);
  }
  return distance;
}

// From the extremes that the side has; 0 if it has none.
double AbsMax(const Observation& o) {
  return std::max(o.layout->Trusts(Statistic::kMin) ? std::abs(o.stats->min) : 0,
                  o.layout->Trusts(Statistic::kMax) ? std::abs(o.stats->max) : 0);
}

double Rms(const Observation& o) {
  if (o.layout->Trusts(Statistic::kMean) && o.layout->Trusts(Statistic::kStd))
    return std::hypot(o.stats->mean, o.stats->std);
  const double count = FiniteCount(o);
  return o.layout->Trusts(Statistic::kL2) && count > 0 ? o.stats->l2 / std::sqrt(count) : 0;
}

// For statistics that both sides have, all of them, and whose squares are far from overflow and
// underflow, which is nearly always so. Empty otherwise: then each is looked at by itself.
std::optional<double> MeasureStatisticsQuickly(const Observation& of_a, const Observation& of_b) {
  constexpr std::uint32_t kUsed = BitOf(Statistic::kL2) | BitOf(Statistic::kMean) |
                                  BitOf(Statistic::kStd) | BitOf(Statistic::kMin) |
                                  BitOf(Statistic::kMax);
  constexpr double kSmallest = 1e-150, kLargest = 1e150;
  const Layout &x = *of_a.layout, &y = *of_b.layout;
  if (((x.absent | x.untrusted | y.absent | y.untrusted) & kUsed) != 0) return std::nullopt;
  const TensorStats &a = *of_a.stats, &b = *of_b.stats;
  if (!a.has_finite || !b.has_finite) return std::nullopt;
  const double norm = std::max(std::abs(a.l2), std::abs(b.l2));
  const double largest = std::max(std::max(std::abs(a.min), std::abs(a.max)),
                                  std::max(std::abs(b.min), std::abs(b.max)));
  const double rms =
      std::sqrt(std::max(a.mean * a.mean + a.std * a.std, b.mean * b.mean + b.std * b.std));
  const auto is_usual = [](double value) { return value > kSmallest && value < kLargest; };
  // The sum of all is a number if each is; a maximum may not show one that is not.
  const double all = a.l2 + b.l2 + a.min + b.min + a.max + b.max + a.mean + b.mean + a.std + b.std;
  if (!is_usual(norm) || !is_usual(largest) || !is_usual(rms) || !std::isfinite(all))
    return std::nullopt;
  const double apart = std::max(std::abs(a.min - b.min), std::abs(a.max - b.max));
  const double of_values = std::max(std::abs(a.l2 - b.l2) / norm, apart / largest);
  const double of_moments =
      std::max(std::abs(a.mean - b.mean) / rms,
               std::abs(a.std - b.std) / std::max(std::max(a.std, b.std), 0.01 * rms));
  return std::max(of_values, of_moments);
}

// `distance`: as constructed.
void MeasureStatistics(const Observation& of_a, const Observation& of_b, Distance& distance) {
  const TensorStats &a = *of_a.stats, &b = *of_b.stats;
  distance.kind = DistanceKind::kStatistics;
  if (const auto quickly = MeasureStatisticsQuickly(of_a, of_b)) {
    distance.value = *quickly;
    return;
  }
  if (a.has_finite != b.has_finite) {
    distance.value = kInfinite;
    return;
  }
  if (!a.has_finite) return;
  const auto both = [&](Statistic statistic) { return Comparable(of_a, of_b, statistic); };
  const auto take = [&](double value) { distance.value = std::max(distance.value, value); };
  const double largest = std::max(AbsMax(of_a), AbsMax(of_b));
  const double rms = std::max(Rms(of_a), Rms(of_b));
  if (both(Statistic::kL2))
    take(RelativeDifference(a.l2, b.l2));
  else if (both(Statistic::kL1))  // of a tool that records no other norm
    take(RelativeDifference(a.l1, b.l1));
  if (both(Statistic::kMean)) {
    const double scale = rms > 0       ? rms
                         : largest > 0 ? largest
                                       : std::max(std::abs(a.mean), std::abs(b.mean));
    take(Apart(a.mean, b.mean, scale));
  }
  // A nearly constant tensor's std is rounding noise: not measured against itself.
  if (both(Statistic::kStd)) take(Apart(a.std, b.std, std::max({a.std, b.std, 0.01 * rms})));
  if (both(Statistic::kMin)) take(Apart(a.min, b.min, largest));
  if (both(Statistic::kMax)) take(Apart(a.max, b.max, largest));
}

// If a count is not trusted, only "some or none" is compared: an importer whose source does not
// count NaN stores 1 if there were some.
bool SameCount(const Observation& a, const Observation& b, Statistic statistic, std::uint64_t x,
               std::uint64_t y) {
  if (!a.layout->Has(statistic) || !b.layout->Has(statistic)) return true;
  return Comparable(a, b, statistic) ? x == y : (x > 0) == (y > 0);
}

bool SameNonfinite(const Observation& a, const Observation& b) {
  const TensorStats &x = *a.stats, &y = *b.stats;
  if (!SameCount(a, b, Statistic::kNan, x.nan, y.nan)) return false;
  if (!Comparable(a, b, Statistic::kInfSign))
    return SameCount(a, b, Statistic::kInf, x.pos_inf + x.neg_inf, y.pos_inf + y.neg_inf);
  return SameCount(a, b, Statistic::kInf, x.pos_inf, y.pos_inf) &&
         SameCount(a, b, Statistic::kInf, x.neg_inf, y.neg_inf);
}

}  // namespace

bool IsUsualPair(const Layout& a, const Layout& b) {
  constexpr std::uint32_t kUsed =
      BitOf(Statistic::kL2) | BitOf(Statistic::kMean) | BitOf(Statistic::kStd) |
      BitOf(Statistic::kMin) | BitOf(Statistic::kMax) | BitOf(Statistic::kNan) |
      BitOf(Statistic::kInf) | BitOf(Statistic::kInfSign) | BitOf(Statistic::kHash);
  return ((a.absent | a.untrusted | b.absent | b.untrusted) & kUsed) == 0 && a.dtype == b.dtype &&
         a.hash_kind == b.hash_kind && a.shape == b.shape && AtSamePlace(a, b);
}

double FiniteCount(const Observation& o) {
  const double components =
      static_cast<double>(o.stats->numel) * (IsComplex(o.layout->dtype) ? 2 : 1);
  return components - static_cast<double>(o.stats->nan) - static_cast<double>(o.stats->pos_inf) -
         static_cast<double>(o.stats->neg_inf);
}

double RelativeDifference(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return kInfinite;
  const double larger = std::max(std::abs(a), std::abs(b));
  return std::abs(a / larger - b / larger);  // the difference itself might overflow
}

namespace {

// Measure, in place: a result that is copied right after it was written in pieces waits for those
// writes, which took a fifteenth of a diff's time.
void MeasureInto(const Observation& a, const Observation& b, bool interval, Distance& to) {
  const bool sketches = !a.sketch.empty() && a.sketch.size() == b.sketch.size() &&
                        a.layout->hash_kind == b.layout->hash_kind &&
                        AtSamePlace(*a.layout, *b.layout) && a.stats->has_finite &&
                        b.stats->has_finite;
  if (sketches) {
    const Distance distance = MeasureSketch(a, b, interval);
    if (std::isfinite(distance.value)) {  // float32 sums may have overflowed
      to = distance;
      return;
    }
  }
  MeasureStatistics(a, b, to);
}

}  // namespace

Distance Measure(const Observation& a, const Observation& b) {
  Distance distance;
  MeasureInto(a, b, /*interval=*/false, distance);
  return distance;
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

namespace {

// Whether anything tells about the values of both sides.
bool HaveValuesInCommon(const Observation& a, const Observation& b) {
  constexpr Statistic kValues[] = {Statistic::kMin, Statistic::kMax, Statistic::kMean,
                                   Statistic::kStd, Statistic::kL1,  Statistic::kL2};
  return std::any_of(std::begin(kValues), std::end(kValues),
                     [&](Statistic statistic) { return Comparable(a, b, statistic); });
}

bool SameCounts(const Observation& a, const Observation& b) {
  const auto same = [&](Statistic statistic, std::uint64_t x, std::uint64_t y) {
    return !Comparable(a, b, statistic) || x == y;
  };
  return same(Statistic::kZero, a.stats->zero, b.stats->zero) &&
         same(Statistic::kNeg, a.stats->neg, b.stats->neg) &&
         same(Statistic::kPos, a.stats->pos, b.stats->pos);
}

}  // namespace

std::optional<double> MeasuredDistance(const Comparison& comparison) {
  if (comparison.agreement == Agreement::kIncomparable || !comparison.distance ||
      !(comparison.distance->value > 0) || std::isinf(comparison.distance->value))
    return std::nullopt;
  return comparison.distance->value;
}

void WeighByNoise(double noise, bool allows, Comparison& comparison) {
  if (!(noise > 0) || !comparison.distance) return;
  if (std::isfinite(noise)) comparison.times_noise = comparison.distance->value / noise;
  if (!allows) return;
  comparison.tolerance = std::max(comparison.tolerance, kNoiseFactor * noise);
  if (comparison.distance->value > comparison.tolerance) return;
  comparison.agreement = Agreement::kWithinTolerance;
  comparison.reason = Reason::kUnspecified;
}

Comparison Compare(const Observation& a, const Observation& b, std::optional<double> tolerance,
                   bool exact, bool interval) {
  Comparison result;
  const bool same_dtype = a.layout->dtype == b.layout->dtype;
  const bool hashes = Comparable(a, b, Statistic::kHash) &&
                      a.layout->hash_kind == b.layout->hash_kind &&
                      AtSamePlace(*a.layout, *b.layout);
  const bool shapes = Comparable(a, b, Statistic::kShape);
  if (same_dtype && hashes && a.stats->hash == b.stats->hash &&
      (!shapes || a.layout->shape == b.layout->shape))
    return result;
  result.tolerance = tolerance.value_or(DefaultTolerance(a.layout->dtype, b.layout->dtype));
  const bool other_dtype = !same_dtype && !tolerance;
  const auto diverged = [&](Reason reason) {
    result.agreement = Agreement::kDiverged;
    result.reason = reason;
    return result;
  };
  if (shapes && a.layout->shape != b.layout->shape) {
    SameRows rows;
    if (TakeZeroRows(a, b, &rows)) return Compare(rows.a, rows.b, tolerance, exact, interval);
    return diverged(Reason::kShape);
  }
  if (!SameNonfinite(a, b)) {
    result.distance = Distance{
        .value = kInfinite, .kind = DistanceKind::kStatistics, .low = kInfinite, .high = kInfinite};
    return diverged(Reason::kNonfinite);
  }
  const bool nothing_finite = !a.stats->has_finite && !b.stats->has_finite && same_dtype &&
                              Comparable(a, b, Statistic::kNan) &&
                              Comparable(a, b, Statistic::kInf);
  if (nothing_finite && !hashes) {  // the same number of NaN and infinities, and nothing else
    result.without_hash = true;
    return result;
  }
  if (!HaveValuesInCommon(a, b)) {
    result.agreement = Agreement::kIncomparable;
    // Other bits is all there is to know.
    if (other_dtype || hashes) return diverged(other_dtype ? Reason::kDType : Reason::kBitwise);
    return result;
  }
  MeasureInto(a, b, interval, result.distance.emplace());
  if (other_dtype) return diverged(Reason::kDType);
  const bool other_counts = !SameCounts(a, b);
  if (same_dtype && !hashes && result.distance->value == 0 && !other_counts) {
    result.distance.reset();
    result.without_hash = true;
    return result;
  }
  const bool never_rounded = !tolerance && result.tolerance == 0;
  if (never_rounded || result.distance->value > result.tolerance) return diverged(Reason::kNumeric);
  if (exact) return diverged(Reason::kBitwise);
  result.without_hash = !hashes;
  result.agreement = Agreement::kWithinTolerance;
  return result;
}

}  // namespace statcollect::query
