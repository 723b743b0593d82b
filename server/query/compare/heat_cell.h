// One cell of a heat map: how far apart the two runs are in a tensor of a step, as a byte.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_HEAT_CELL_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_HEAT_CELL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "server/query/compare/distance.h"

namespace statcollect::query {

// A greater level is a greater difference, so that the maximum of several cells stands for all of
// them. Between the bounds, 16 levels are a factor of ten in distance / tolerance.
inline constexpr std::uint8_t kHeatNoData = 0;
inline constexpr std::uint8_t kHeatIdentical = 1;
inline constexpr std::uint8_t kHeatWithinMin = 2,
                              kHeatWithinMax = 126;  // 126: just below the tolerance
inline constexpr std::uint8_t kHeatMissing = 127;    // only one run has it
inline constexpr std::uint8_t kHeatDivergedMin = 128,
                              kHeatDivergedMax = 255;  // 128: just above the tolerance

// Of two records that are not identical.
inline std::uint8_t HeatLevel(double distance, double tolerance, bool diverged) {
  constexpr double kLevelsADecade = 16;
  const double decades = std::log10(distance) - std::log10(tolerance);  // NaN: 0 of 0
  const double levels =
      std::isnan(decades) ? 0 : std::clamp(kLevelsADecade * decades, -1000.0, 1000.0);
  const int level =
      static_cast<int>(std::lround(levels)) + (diverged ? kHeatDivergedMin : kHeatWithinMax);
  return static_cast<std::uint8_t>(diverged
                                       ? std::clamp<int>(level, kHeatDivergedMin, kHeatDivergedMax)
                                       : std::clamp<int>(level, kHeatWithinMin, kHeatWithinMax));
}

inline std::uint8_t HeatLevel(const Comparison& judged) {
  if (judged.agreement == Agreement::kIncomparable) return kHeatNoData;
  if (judged.agreement == Agreement::kIdentical) return kHeatIdentical;
  return HeatLevel(judged.distance ? judged.distance->value : INFINITY, judged.tolerance,
                   judged.agreement == Agreement::kDiverged);
}

// Of one rank and step.
struct HeatCell {
  std::uint32_t id = 0;     // of A's activation; of B's, if A lacks it
  std::uint32_t order = 0;  // of execution, in the run that has the id
  bool of_b = false;
  std::uint8_t level = kHeatNoData;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_HEAT_CELL_H_
