// The running median of a positive number over its last steps, and the limit above which it counts
// as an explosion.
#ifndef STATCOLLECT_SERVER_ALARMS_BASELINE_H_
#define STATCOLLECT_SERVER_ALARMS_BASELINE_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "common/running_level.h"
#include "server/control/alarm_settings.h"

namespace statcollect::alarms {

// Not thread-safe. Cost per value: a comparison, and the medians every kRefreshEvery values.
class Baseline {
 public:
  // Whether the value is above the limit of the steps before it. Values of 0 have no logarithm and
  // are not counted among the steps.
  bool Exceeds(const AlarmSettings& settings, double value) {
    if (window_.count() < settings.warmup_steps || value <= limit_) return false;
    Refresh(settings);
    return value > limit_;
  }
  void Push(const AlarmSettings& settings, double value) {
    if (!(value > 0)) return;
    window_.Push(static_cast<float>(value));
    if (window_.count() >= settings.warmup_steps && --until_refresh_ <= 0) Refresh(settings);
  }
  void Restart() {
    window_.Clear();
    limit_ = 0;
    median_ = 0;
    until_refresh_ = 0;
  }
  bool known(const AlarmSettings& settings) const {
    return window_.count() >= settings.warmup_steps && median_ > 0;
  }
  double median() const { return median_; }  // as of the last refresh
  double limit() const { return limit_; }

 private:
  static constexpr int kRefreshEvery = 8;
  static constexpr double kNegligible = 1e-10;  // norms up to this size are never reported

  void Refresh(const AlarmSettings& settings) {
    std::array<double, kAlarmWindowMax> logs;
    const auto values = window_.values();
    std::transform(values.begin(), values.end(), logs.begin(),
                   [](float value) { return std::log(value); });
    const auto used = std::span(logs).first(values.size());
    const Level level = LevelOf(used);
    median_ = static_cast<float>(std::exp(level.median));
    const double limit =
        std::max(median_ * settings.explosion_factor,
                 std::exp(level.median + settings.explosion_spreads * level.spread));
    limit_ = static_cast<float>(std::max(limit, kNegligible));
    until_refresh_ = kRefreshEvery;
  }

  LevelWindow window_;
  std::int8_t until_refresh_ = 0;
  float median_ = 0, limit_ = 0;
};

}  // namespace statcollect::alarms

#endif  // STATCOLLECT_SERVER_ALARMS_BASELINE_H_
