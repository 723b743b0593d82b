// The alarms and their thresholds (docs/alarms.md has the rules). Every threshold has a key in the
// configuration file.
#ifndef STATCOLLECT_SERVER_CONTROL_ALARM_SETTINGS_H_
#define STATCOLLECT_SERVER_CONTROL_ALARM_SETTINGS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/running_level.h"
#include "common/spike_rule.h"

namespace statcollect {

enum class AlarmRule : std::uint8_t {
  kNanFirstSeen = 0,
  kNormExplosion = 1,
  kVanishingGradient = 2,
  kLossScaleMin = 3,
  kLossNotFinite = 4,
  kLossSpike = 5,
  kDeadRelu = 6,
  kRankDisagreement = 7,
  kUpdateNorm = 8,
};
inline constexpr std::size_t kAlarmRuleCount = 9;
inline constexpr std::array<std::string_view, kAlarmRuleCount> kAlarmRuleNames = {
    "nan_first_seen", "norm_explosion", "vanishing_gradient", "loss_scale_min", "loss_not_finite",
    "loss_spike",     "dead_relu",      "rank_disagreement",  "update_norm"};
constexpr std::string_view Name(AlarmRule rule) {
  return kAlarmRuleNames[static_cast<std::size_t>(rule)];
}

inline constexpr std::uint32_t kAlarmWindowMax = kLevelWindowMax;  // steps in a running median

struct AlarmSettings {
  std::array<bool, kAlarmRuleCount> on = {true, true, true, true, true, true, true, true, true};
  std::uint32_t warmup_steps = 10;  // values before a norm or a loss is judged; 3..kAlarmWindowMax
  double explosion_factor = 100;    // of the running median of the root mean square
  double explosion_spreads = 10;    // and this many robust standard deviations of its logarithm
  double vanishing_ratio = 1e-4;    // of the running median of the root mean square
  std::uint32_t vanishing_steps = 5;                     // in a row
  double loss_scale_min = 1;                             // at or below it
  std::uint32_t loss_scale_falls = 6;                    // in a row
  double loss_spike_factor = 3;                          // of the running median
  double loss_spike_spreads = 10;                        // and this many robust standard deviations
  double update_norm_factor = 2;                         // of the running median
  double update_norm_spreads = 10;                       // and this many robust standard deviations
  double dead_relu_zeros = 0.99;                         // fraction of the elements
  std::uint32_t dead_relu_steps = 10;                    // in a row
  std::size_t memory_bytes_max = std::size_t{64} << 20;  // for the state of all runs

  SpikeLimits LossSpike() const { return {warmup_steps, loss_spike_factor, loss_spike_spreads}; }
  SpikeLimits UpdateNorm() const { return {warmup_steps, update_norm_factor, update_norm_spreads}; }
  bool On(AlarmRule rule) const { return on[static_cast<std::size_t>(rule)]; }
  bool AnyOn() const {
    for (const bool rule : on) {
      if (rule) return true;
    }
    return false;
  }
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_CONTROL_ALARM_SETTINGS_H_
