#include "common/spike_rule.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace statcollect {
namespace {

constexpr double kSpikeShareOfReference = 0.1;  // of the largest median that there ever was

}  // namespace

SpikeRule::Change SpikeRule::Add(double value, const SpikeLimits& limits) {
  Change change = Change::kNone;
  const auto values = window_.values();
  if (values.size() >= limits.warmup) {
    std::vector<double> sorted(values.begin(), values.end());
    const Level level = LevelOf(sorted);
    median_ = level.median;
    reference_ = std::max(reference_, std::abs(median_));
    limit_ =
        median_ + std::max((limits.factor - 1) * std::abs(median_), limits.spreads * level.spread);
    const bool high = value > limit_ && value > kSpikeShareOfReference * reference_;
    const bool settled = value < median_ + (limit_ - median_) / 2;
    high_values_ = spike_ && !settled ? high_values_ + 1 : 0;
    const bool new_level = high_values_ >= kLevelWindowMax;
    if (high && !spike_) change = Change::kSpike;
    if (spike_ && (settled || new_level)) change = Change::kOver;
    if (new_level) window_.Clear();
    spike_ = (spike_ || high) && !settled && !new_level;
    if (spike_) return change;  // spikes must not raise the level
  }
  window_.Push(static_cast<float>(value));
  return change;
}

}  // namespace statcollect
