// The statistics of one activation over the steps, for charts: columns of as many points as a
// screen shows.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_CURVES_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_CURVES_H_

#include <compare>
#include <cstddef>

#include "server/query/answers/leaf.h"
#include "server/query/answers/series.h"

namespace statcollect::query {

inline constexpr std::uint32_t kCurvePoints = 1'000, kCurvePointsMax = 10'000;
inline constexpr std::size_t kCurvePlacesMax = 256;

struct CurvePlace {
  std::uint32_t rank = 0, micro_batch = 0, call = 0;
  auto operator<=>(const CurvePlace&) const = default;
};

struct CurvesRequest {
  SeriesRequest series;
  std::string mode;                 // empty: all
  std::optional<CurvePlace> place;  // absent: of each step the first value
  std::uint32_t points = kCurvePoints;
};

// Adds: points, mode and place.
Result<CurvesRequest> FromWire(const v1::GetCurvesRequest& request);

// `series`: in its order. Of at most 2 * request.points steps, every value is kept. Otherwise the
// steps are cut into at most request.points spans of the same length, and each curve keeps of each
// span its smallest and largest value and the first that is not finite; also its first and its last
// value. The first kCurvePlacesMax places are listed.
void CurvesOf(const v1::GetSeriesResponse& series, const CurvesRequest& request,
              v1::GetCurvesResponse& out);

// Errors as for GetSeries.
Status GetCurves(const Context& context, const CurvesRequest& request, v1::GetCurvesResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_CURVES_H_
