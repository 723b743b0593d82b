// The distance of two observations of an activation, and the tolerances.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_DISTANCE_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_DISTANCE_H_

#include <cstdint>
#include <optional>

#include "common/types.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

struct Distance {
  double value = 0;  // infinite: there is no finite measure
  DistanceKind kind = DistanceKind::kUnspecified;
  // with sketches: the likely range of the true value (docs/divergence.md), without guarantee
  double low = 0, high = 0;
  // of a confidence
};

// The relative L2 norm of the difference. With sketches of the same width and definition (hash
// kind) on both sides: ||sA - sB|| / max(||A||, ||B||); the square of the numerator is an unbiased
// estimate of ||A - B||^2. Otherwise the largest of |l2A-l2B|/l2, |meanA-meanB|/rms,
// |stdA-stdB|/std, |minA-minB|/absmax, |maxA-maxB|/absmax, each divided by the larger side's value,
// over the statistics that both sides have and trust, l1 in the place of l2 where only that is
// there; 0/0 is 0, x/0 infinite. Precondition: equal element counts. Without the likely range.
Distance Measure(const Observation& a, const Observation& b);

// Whether records of these layouts are Compare's usual case: both have all statistics that it uses
// and one hash kind, and the same dtype, shape and place.
bool IsUsualPair(const Layout& a, const Layout& b);

// Number of components over which the moments are taken.
double FiniteCount(const Observation& observation);

// |a - b| / max(|a|, |b|). 0 for equal values, including two NaN and equal infinities; infinite if
// only one is finite.
double RelativeDifference(double a, double b);

// The relative L2 distance that rounding alone may cause: of the coarser dtype (f64 1e-9, f32 1e-4,
// bf16 2e-2, f16 5e-3, f8 1e-1). 0 for integers and bool, which are never rounded.
double DefaultTolerance(DType a, DType b);

// kIncomparable: the two have no statistic in common (records of other tools).
enum class Agreement : std::uint8_t { kIdentical, kWithinTolerance, kDiverged, kIncomparable };

struct Comparison {
  Agreement agreement = Agreement::kIdentical;
  Reason reason = Reason::kUnspecified;  // if diverged
  std::optional<Distance> distance;      // absent if identical or of different shapes
  double tolerance = 0;
  std::optional<double> times_noise;  // distance divided by noise, if the noise is known and not 0
  // identical or within tolerance, but without hashes on both sides, so equality of the bits is
  // unknown
  bool without_hash = false;
};

// `tolerance`: the user's; then only values count, so that a move to a lower precision can be
// judged. Absent: the tolerance follows from the dtypes, and different dtypes diverge. `exact`: any
// difference in bits diverges.
Comparison Compare(const Observation& a, const Observation& b, std::optional<double> tolerance,
                   bool exact, bool interval = true);

// The distance of records that are not identical, if it is finite.
std::optional<double> MeasuredDistance(const Comparison& comparison);

// Notes the difference as a multiple of the noise, which is the distance between equivalent runs
// (0: unknown). `allows`: takes back a divergence in size that is at most kNoiseFactor times the
// noise.
void WeighByNoise(double noise, bool allows, Comparison& comparison);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_DISTANCE_H_
