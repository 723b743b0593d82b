// The statistics of one activation over the steps, for charts: columns of as many points as a screen shows.
#ifndef STATCOLLECT_SERVER_QUERY_CURVES_H_
#define STATCOLLECT_SERVER_QUERY_CURVES_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/query/reports.h"

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

struct Curve {
  std::string_view stat;
  std::vector<std::uint64_t> steps;  // ascending
  std::vector<double> values;        // one for each step
};

struct Curves {
  std::vector<Curve> curves;         // of the statistics that were recorded
  std::uint64_t steps = 0;           // before they were merged
  std::optional<SeriesPoint> first;  // of the first step
  struct Place {
    CurvePlace at;
    std::vector<std::uint32_t> ranks;  // as in SeriesPoint
  };
  std::vector<Place> places;         // the first kCurvePlacesMax
  std::vector<std::uint32_t> ranks;  // ascending
};

// `points`: a series, in its order. Of at most 2 * request.points steps, every value is kept. Otherwise the steps are cut
// into at most request.points spans of the same length, and each curve keeps of each span its smallest and largest value and the
// first that is not finite; also its first and its last value.
Curves CurvesOf(const std::vector<SeriesPoint>& points, const CurvesRequest& request);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_CURVES_H_
