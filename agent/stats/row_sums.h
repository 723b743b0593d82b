// The sums of a row (rows.h), for host and device.
#ifndef STATCOLLECT_AGENT_STATS_ROW_SUMS_H_
#define STATCOLLECT_AGENT_STATS_ROW_SUMS_H_

#include <cstdint>

#include "agent/stats/fingerprint.h"

namespace statcollect::stats {

inline constexpr int kRowSums = 8;
inline constexpr std::uint64_t kRowSketchSeed = 0x53544154524f5753u;

// Bit c % 64 is set if component c, of block c / 64, has the sign minus. Component 0 has plus.
// `mix`: SplitMix(kRowSketchSeed, block).
STATCOLLECT_FINGERPRINT_HD constexpr std::uint64_t RowSignsOf(std::uint64_t mix) {
  return mix ^ (0 - (SplitMix(kRowSketchSeed, std::uint64_t{0}) & 1));
}
STATCOLLECT_FINGERPRINT_HD constexpr std::uint64_t RowSigns(std::uint64_t block) {
  return RowSignsOf(SplitMix(kRowSketchSeed, block));
}
STATCOLLECT_FINGERPRINT_HD constexpr bool RowMinus(std::uint64_t component) {
  return (RowSigns(component / 64) >> (component % 64) & 1) != 0;
}

// As results are kept; infinite beyond float32.
STATCOLLECT_FINGERPRINT_HD constexpr float RowFloat(double value) {
  constexpr double kMax = 0x1.fffffep127;
  if (value > kMax) return __builtin_huge_valf();
  if (value < -kMax) return -__builtin_huge_valf();
  return static_cast<float>(value);
}

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_ROW_SUMS_H_
