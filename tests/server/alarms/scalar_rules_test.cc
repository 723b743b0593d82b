#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/alarms/scalar_rules.h"
#include "tests/server/alarms/steps.h"

namespace statcollect::alarms {
namespace {

using statcollect::testing::Healthy;
using statcollect::testing::Only;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class ScalarRulesTest : public ::testing::Test {
 protected:
  void Add(const std::string& name, double value) {
    rules_.Add({.name = name, .step = step_++, .value = value}, &all_);
  }
  std::vector<Finding> Of(const std::string& kind) const { return Only(all_, kind); }

  AlarmSettings settings_;
  ScalarRules rules_{settings_};
  std::vector<Finding> all_;
  std::uint64_t step_ = 0;
};

TEST(ScalarNames, AreToldApart) {
  EXPECT_TRUE(IsFoundInf("found_inf"));
  EXPECT_TRUE(IsFoundInf("amp/Found_Inf"));
  EXPECT_FALSE(IsFoundInf("found_info"));
}

TEST_F(ScalarRulesTest, ALossThatIsNoNumberIsToldOnceUntilItIsOneAgain) {
  Add("loss", 2);
  for (int n = 0; n < 5; ++n) Add("loss", kNan);
  EXPECT_EQ(Of("loss_not_finite").size(), 1u);
  Add("loss", 2);
  ASSERT_EQ(Of("alarm_cleared").size(), 1u);
  EXPECT_EQ(Of("alarm_cleared")[0].text, "'loss' is finite again at step 6: 2");
  Add("loss", std::numeric_limits<double>::infinity());
  EXPECT_EQ(Of("loss_not_finite").size(), 2u);
}

TEST_F(ScalarRulesTest, ANanIsSaidWithoutTheSignThatItsBitsHave) {
  Add("loss", -kNan);
  ASSERT_EQ(Of("loss_not_finite").size(), 1u);
  EXPECT_EQ(Of("loss_not_finite")[0].text, "'loss' is nan at step 0");
  EXPECT_EQ(Of("loss_not_finite")[0].fields.at("value"), "nan");
}

TEST_F(ScalarRulesTest, AJumpOfTheLossIsASpikeUntilItSettles) {
  for (int n = 0; n < 30; ++n) Add("loss", Healthy(2, step_));
  Add("loss", 20);
  Add("loss", 18);
  ASSERT_EQ(Of("loss_spike").size(), 1u);
  EXPECT_EQ(Of("loss_spike")[0].fields.at("value"), "20");
  Add("loss", 2);
  ASSERT_EQ(Of("alarm_cleared").size(), 1u);
  EXPECT_EQ(Of("alarm_cleared")[0].text, "'loss' is back to normal at step 32: 2");
}

TEST_F(ScalarRulesTest, ALossThatFallsByOrdersAndWobblesIsHealthy) {
  for (int n = 0; n < 2000; ++n)
    Add("loss", Healthy(3 * std::exp(-n / 200.0) + 1e-6, step_) * (n % 7 == 0 ? 1.8 : 1));
  EXPECT_TRUE(all_.empty());
}

TEST_F(ScalarRulesTest, ANoisyLossNeedsMoreThanItsNoise) {
  for (int n = 0; n < 200; ++n) Add("loss", n % 2 == 0 ? 0.2 : 2.0);
  Add("loss", 6);
  EXPECT_TRUE(all_.empty()) << "three times the median, and within its spread";
}

TEST_F(ScalarRulesTest, AJumpWithinTheWarmUpIsNotJudged) {
  for (int n = 0; n < 5; ++n) Add("loss", 2);
  Add("loss", 100);
  EXPECT_TRUE(all_.empty());
}

TEST_F(ScalarRulesTest, ASpikeFarBelowWhereTheLossBeganIsNone) {
  for (int n = 0; n < 40; ++n) Add("loss", 10);
  for (int n = 0; n < 40; ++n) Add("loss", 0.001);
  Add("loss", 0.05);
  EXPECT_TRUE(all_.empty());
}

TEST_F(ScalarRulesTest, TheLossScaleAtItsMinimumOrFallingIsAnAlarm) {
  for (const double scale : {8.0, 4.0, 2.0, 1.0, 1.0}) Add("loss_scale", scale);
  EXPECT_EQ(Of("loss_scale_min").size(), 1u);
  Add("loss_scale", 2);
  ASSERT_EQ(Of("alarm_cleared").size(), 1u);
  EXPECT_EQ(Of("alarm_cleared")[0].text, "'loss_scale' is rising again at step 5: 2");
  double scale = 65536;
  Add("other/loss_scale", scale);
  for (int n = 0; n < 5; ++n) Add("other/loss_scale", scale /= 2);
  EXPECT_EQ(Of("loss_scale_min").size(), 1u) << "five falls are calibration";
  Add("other/loss_scale", scale /= 2);
  EXPECT_EQ(Of("loss_scale_min").size(), 2u);
}

TEST_F(ScalarRulesTest, AScalerThatIsSwitchedOffIsNoAlarm) {
  for (int n = 0; n < 50; ++n) Add("loss_scale", 1);
  EXPECT_TRUE(all_.empty());
}

TEST_F(ScalarRulesTest, ValuesThatWereSeenAreIgnored) {
  for (int n = 0; n < 20; ++n) Add("loss", 2);
  rules_.Add({.name = "loss", .step = 3, .value = kNan}, &all_);
  EXPECT_TRUE(all_.empty());
}

}  // namespace
}  // namespace statcollect::alarms
