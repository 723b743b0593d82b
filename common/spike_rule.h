// When a series of numbers, such as a loss, jumps above what it was: the rule of the alarms
// `loss_spike` and `update_norm` (docs/alarms.md), for the collector and for the agent's ring.
#ifndef STATCOLLECT_COMMON_SPIKE_RULE_H_
#define STATCOLLECT_COMMON_SPIKE_RULE_H_

#include <cstdint>

#include "common/running_level.h"

namespace statcollect {

struct SpikeLimits {
  std::uint32_t warmup = 10;  // values before one is judged; 3..kLevelWindowMax
  double factor = 3;          // of the running median
  double spreads = 10;        // and this many robust standard deviations above it
};

// A value is a spike if it is above both limits, and above a tenth of the largest median so far. It
// is over half-way back to the median, or after kLevelWindowMax values at the new level. Values of
// a spike do not move the median. Not thread-safe. Cost: sorts the window.
class SpikeRule {
 public:
  enum class Change { kNone, kSpike, kOver };

  // `value` is finite.
  Change Add(double value, const SpikeLimits& limits);
  bool spike() const { return spike_; }
  double median() const { return median_; }  // as the last value was judged
  double limit() const { return limit_; }
  // Forgets everything.
  void Restart() { *this = {}; }

 private:
  LevelWindow window_;
  double reference_ = 0;  // largest median; a jump to far below it is not a spike
  double median_ = 0, limit_ = 0;
  std::uint32_t high_values_ = 0;
  bool spike_ = false;
};

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_SPIKE_RULE_H_
