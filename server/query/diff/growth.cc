#include "server/query/diff/report_parts.h"

#include <algorithm>
#include <cmath>

namespace statcollect::query {
namespace {

// Beyond it the runs have little in common and cannot part much further.
constexpr double kSaturated = 0.1;
constexpr std::size_t kPointsForFactorMin = 3;

std::optional<double> FactorPerStep(const std::vector<GrowthPoint>& points) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const GrowthPoint& point : points) {
    if (!point.distance) continue;
    if (*point.distance >= kSaturated) break;
    const double step = static_cast<double>(point.step - points.front().step),
                 log = std::log(*point.distance);
    n += 1;
    x += step;
    y += log;
    xx += step * step;
    xy += step * log;
  }
  const double spread = n * xx - x * x;
  if (n < kPointsForFactorMin || spread <= 0) return std::nullopt;
  return std::exp((n * xy - x * y) / spread);
}

}  // namespace

Growth SummariseGrowth(const std::vector<GrowthPoint>& points) {
  Growth growth;
  growth.factor_per_step = FactorPerStep(points);
  if (points.size() <= kGrowthPointsMax) {
    growth.points = points;
    return growth;
  }
  const double last = static_cast<double>(points.size() - 1);
  std::size_t next = 0;
  for (std::size_t i = 0; i < kGrowthPointsMax; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(kGrowthPointsMax - 1);
    const auto at = static_cast<std::size_t>(std::llround(std::pow(last + 1, share) - 1));
    next = std::max(next, std::min(at, points.size() - 1));
    if (next >= points.size()) break;
    growth.points.push_back(points[next++]);
  }
  if (growth.points.back().step != points.back().step) growth.points.back() = points.back();
  return growth;
}

}  // namespace statcollect::query
