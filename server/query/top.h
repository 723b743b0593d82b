// The numbers by which the activations of a step are ordered, and a map is coloured: norms,
// extremes, counts.
#ifndef STATCOLLECT_SERVER_QUERY_TOP_H_
#define STATCOLLECT_SERVER_QUERY_TOP_H_

#include <cstdint>
#include <optional>

#include "server/query/reports.h"

namespace statcollect::query {

// As TopBy in proto/statcollect/v1/query.proto, which describes each one.
enum class TopBy : std::uint8_t {
  kUnspecified = 0,  // l2
  kL2 = 1,
  kL1 = 2,
  kAbsMax = 3,
  kRms = 4,
  kStd = 5,
  kMean = 6,
  kMax = 7,
  kMin = 8,
  kNan = 9,
  kInf = 10,
  kZeroFraction = 11,
  kNumel = 12,
  kUpdateRatio = 13,   // of a map only
  kExponentLoss = 14,  // of a map only
};

// Whether `a` comes before `b`.
bool IsMoreExtreme(TopBy by, double a, double b);

// The value to order by; absent if the observation has none (no finite element, not recorded) or it
// means nothing (no NaN, no zero).
std::optional<double> ValueOf(TopBy by, const ObservationSide& side, bool complex);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_TOP_H_
