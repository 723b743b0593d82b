// Baseline computes its limits only when they may matter. Here they are compared with limits computed for every value.
#include "server/alarms/baseline.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>
#include <vector>

namespace statcollect::alarms {
namespace {

struct Limits {
  double median = 0, explosion = 0;
};

Limits LimitsOf(const std::deque<double>& last, const AlarmSettings& settings) {
  std::vector<double> logs;
  for (const double value : last) logs.push_back(std::log(value));
  const auto [median, spread] = LevelOf(logs);
  return {std::exp(median), std::max(std::exp(median) * settings.explosion_factor,
                                     std::exp(median + settings.explosion_spreads * spread))};
}

TEST(Baseline, AnswersAsIfItsLimitsWereAlwaysNew) {
  std::mt19937 random(7);
  std::normal_distribution<double> noise(0, 0.5);
  std::uniform_int_distribution<int> one_of(0, 9);
  std::uniform_real_distribution<double> decades(0.5, 8);
  AlarmSettings settings;
  settings.explosion_spreads = 1;  // the factor decides: spreads change much from value to value
  int exploded = 0, vanished = 0, usual = 0;
  for (int series = 0; series < 200; ++series) {
    Baseline baseline;
    std::deque<double> last;
    double level = std::exp(10 * noise(random));
    for (int n = 0; n < 200; ++n) {
      level *= std::exp(0.05 * noise(random));
      const int kind = one_of(random);
      double value = level * std::exp(noise(random));
      if (n > 40 && kind == 0) value *= std::pow(10, decades(random));
      if (n > 40 && kind == 1) value *= std::pow(10, -decades(random));
      const bool known = last.size() >= settings.warmup_steps;
      const Limits limits = known ? LimitsOf(last, settings) : Limits{};
      const bool above = known && value > limits.explosion,
                 below = known && value < settings.vanishing_ratio * limits.median;
      // Limits may be a few values old: what lies close to one may fall on either side.
      const auto is_close = [value](double limit) { return value > limit / 1.7 && value < limit * 1.7; };
      const bool exceeds = baseline.Exceeds(settings, value),
                 vanishing = baseline.IsVanishing(settings, value);
      if (!is_close(limits.explosion)) {
        ASSERT_EQ(exceeds, above) << "series " << series << ", value " << n;
      }
      if (!is_close(settings.vanishing_ratio * limits.median)) {
        ASSERT_EQ(vanishing, below) << "series " << series << ", value " << n;
      }
      exploded += above ? 1 : 0;
      vanished += below ? 1 : 0;
      usual += above || below ? 0 : 1;
      if (above || below) continue;
      baseline.Push(value);
      last.push_back(value);
      if (last.size() > kAlarmWindowMax) last.pop_front();
    }
  }
  EXPECT_GT(exploded, 1000);
  EXPECT_GT(vanished, 1000);
  EXPECT_GT(usual, 20000);
}

TEST(Baseline, FollowsALevelThatFalls) {
  const AlarmSettings settings;
  Baseline baseline;
  for (int n = 0; n < 32; ++n) baseline.Push(1e6);
  EXPECT_TRUE(baseline.Exceeds(settings, 1.01e8));
  for (int n = 0; n < 32; ++n) baseline.Push(1);
  EXPECT_FALSE(baseline.Exceeds(settings, 99));
  EXPECT_TRUE(baseline.Exceeds(settings, 101)) << "the limit is that of the last values";
  EXPECT_NEAR(baseline.Median(settings), 1, 1e-6);
}

TEST(Baseline, KnowsNothingInTheWarmUpAndAfterARestart) {
  const AlarmSettings settings;
  Baseline baseline;
  for (std::uint32_t n = 0; n + 1 < settings.warmup_steps; ++n) baseline.Push(1);
  EXPECT_FALSE(baseline.Exceeds(settings, 1e30));
  EXPECT_FALSE(baseline.IsVanishing(settings, 1e-30));
  EXPECT_EQ(baseline.Median(settings), 0);
  baseline.Push(0);  // no value
  EXPECT_FALSE(baseline.Exceeds(settings, 1e30));
  baseline.Push(1);
  EXPECT_TRUE(baseline.Exceeds(settings, 1e30));
  EXPECT_TRUE(baseline.IsVanishing(settings, 1e-30));
  baseline.Restart();
  EXPECT_FALSE(baseline.Exceeds(settings, 1e30));
  EXPECT_EQ(baseline.limit(), 0);
}

}  // namespace
}  // namespace statcollect::alarms
