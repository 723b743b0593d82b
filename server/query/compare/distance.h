// How far two observations of one activation are apart, and how far they may be.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_DISTANCE_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_DISTANCE_H_

#include <cstdint>
#include <optional>

#include "common/types.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

struct Distance {
  double value = 0;  // infinite: no finite measure
  DistanceKind kind = DistanceKind::kUnspecified;
  double low = 0, high = 0;  // sketch: where the true value is likely to be (docs/divergence.md); no promise
                             // of a confidence
};

// Relative L2 of the difference. With sketches of one width and definition (hash kind) on both sides: ||sA -
// sB|| / max(||A||, ||B||); the square of the numerator is an unbiased estimate of ||A - B||^2. Otherwise the
// largest of |l2A-l2B|/l2, |meanA-meanB|/rms, |stdA-stdB|/std, |minA-minB|/absmax, |maxA-maxB|/absmax, each
// divided by the larger side's value, over the statistics that both sides have and trust; 0/0 is 0, x/0
// infinite. Precondition: equal element counts. `interval`: also where the true value is likely to be.
Distance Measure(const Observation& a, const Observation& b, bool interval = true);

// Components that the moments are over.
double FiniteCount(const Observation& observation);

// |a - b| / max(|a|, |b|); 0 for equal values (also both NaN, or equal infinities); infinite if only one is
// finite.
double RelativeDifference(double a, double b);

// Relative L2 that rounding alone may cause: the coarser of the two dtypes' values (f64 1e-9, f32 1e-4, bf16
// 2e-2, f16 5e-3, f8 1e-1; integers and bool 0, since they are never rounded).
double DefaultTolerance(DType a, DType b);

// kIncomparable: the two have no statistic in common (records of other tools).
enum class Agreement : std::uint8_t { kIdentical, kWithinTolerance, kDiverged, kIncomparable };

struct Comparison {
  Agreement agreement = Agreement::kIdentical;
  Reason reason = Reason::kUnspecified;  // if diverged
  std::optional<Distance> distance;      // absent if identical or of different shape
  double tolerance = 0;
  std::optional<double> times_noise;  // the distance, where the noise is known and not 0
  bool without_hash = false;          // identical or within tolerance; no hash of both tells about the bits
};

// `tolerance`: the user's; absent: by dtype, and another dtype diverges by itself (with a tolerance only the
// values count: a move to a lower precision on purpose). `exact`: any difference in bits diverges.
Comparison Compare(const Observation& a, const Observation& b, std::optional<double> tolerance, bool exact,
                   bool interval = true);

// Takes back a divergence in size that is not above kNoiseFactor times the noise: the distance between runs
// that mean the same (0: not known).
void WeighByNoise(double noise, Comparison& comparison);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_DISTANCE_H_
