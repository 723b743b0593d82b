// The rules about tensors, each on a planted series and on healthy ones.
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/alarms/rank_rules.h"
#include "tests/server/alarms/steps.h"

namespace statcollect::alarms {
namespace {

using ::testing::HasSubstr;
using namespace statcollect::testing;

class TensorRulesTest : public ::testing::Test {
 protected:
  void Define(std::vector<TensorDef> defs) {
    defs_ = std::move(defs);
    rules_.Define(defs_, std::vector<Layout>{{.id = 0, .dtype = DType::kF32, .shape = {100}}});
  }
  // One whole step.
  void Step(std::uint64_t step, const std::vector<TensorStats>& stats) {
    rules_.AddStats(StepOf(step, stats));
    rules_.AddStepEnd(step);
    Take();
  }
  void Take() {
    for (Finding& finding : rules_.TakeFindings()) all_.push_back(std::move(finding));
  }
  void Close() {
    rules_.Close(/*all=*/true);
    Take();
  }
  std::vector<Finding> Of(const std::string& kind) const { return Only(all_, kind); }

  AlarmSettings settings_ = [] {
    AlarmSettings settings;
    settings.explosion_factor = 20;
    return settings;
  }();
  std::vector<TensorDef> defs_;
  RankRules rules_{settings_, [this](std::uint32_t id) { return defs_[id]; }};
  std::vector<Finding> all_;
};

TEST_F(TensorRulesTest, TheFirstNanIsToldOnceWithItsPlaceInTheOrderOfExecution) {
  Define({Def(0, "embed", Kind::kOutput), Def(1, "block", Kind::kOutput),
          Def(2, "head", Kind::kOutput)});
  Step(0, {Rms(1), Rms(1), Rms(1)});
  Step(1, {Rms(1), WithNan(3), WithNan(100)});
  Step(2, {WithNan(100), WithNan(100), WithNan(100)});
  ASSERT_EQ(Of("nan_first_seen").size(), 1u);
  const Finding first = Of("nan_first_seen").front();
  EXPECT_EQ(first.step, 1u);
  EXPECT_EQ(first.fields.at("activation"), "block");
  EXPECT_EQ(first.fields.at("order"), "1");
  EXPECT_EQ(first.fields.at("nan"), "3");
  EXPECT_EQ(first.fields.at("activations"), "2");
  EXPECT_THAT(first.text, HasSubstr("step 1, output block: 3 NaN of 100 elements"));
}

TEST_F(TensorRulesTest, TheFirstByOrderIsNamedHoweverTheRecordsCome) {
  Define({Def(0, "late", Kind::kOutput), Def(1, "early", Kind::kOutput)});
  StatColumns columns = StepOf(0, {WithNan(1), WithNan(1)});
  columns.order = {9, 4};
  rules_.AddStats(columns);
  rules_.AddStepEnd(0);
  Take();
  ASSERT_EQ(Of("nan_first_seen").size(), 1u);
  EXPECT_EQ(Of("nan_first_seen")[0].fields.at("activation"), "early");
}

TEST_F(TensorRulesTest, AStepThatNeverEndsIsJudgedWhereItStopped) {
  Define({Def(0, "block", Kind::kOutput)});
  rules_.AddStats(StepOf(7, {WithNan(1)}));
  Take();
  EXPECT_TRUE(all_.empty());
  rules_.Close(/*all=*/false);
  Take();
  EXPECT_EQ(Of("nan_first_seen").size(), 1u);
}

TEST_F(TensorRulesTest, AMaskOfMinusInfinityIsNoAlarmUntilItHoldsSomethingElse) {
  Define({Def(0, "mask", Kind::kOutput)});
  for (std::uint64_t step = 0; step < 5; ++step) Step(step, {WithInfinities(0, 40)});
  EXPECT_TRUE(all_.empty());
  Step(5, {WithNan(1)});
  EXPECT_EQ(Of("nan_first_seen").size(), 1u);
}

TEST_F(TensorRulesTest, MinusInfinityThatComesLaterIsAnAlarm) {
  Define({Def(0, "scores", Kind::kOutput)});
  Step(0, {Rms(1)});
  Step(1, {WithInfinities(0, 1)});
  EXPECT_EQ(Of("nan_first_seen").size(), 1u);
}

TEST_F(TensorRulesTest, GradientsOfASkippedUpdateAreAnOverflow) {
  Define({Def(0, "block", Kind::kGradOutput)});
  Step(0, {Rms(1)});
  rules_.AddScalar({.name = "found_inf", .step = 1, .value = 1});
  Step(1, {WithInfinities(100, 0)});
  for (std::uint64_t step = 2; step < 6; ++step) Step(step, {Rms(1)});
  EXPECT_EQ(Of("overflow").size(), 1u);
  EXPECT_EQ(Of("overflow")[0].sort, Finding::Sort::kNote);
  EXPECT_TRUE(Of("nan_first_seen").empty());
}

TEST_F(TensorRulesTest, TheScalersWordMayComeAStepLater) {
  Define({Def(0, "block", Kind::kGradOutput)});
  Step(0, {WithInfinities(100, 0)});
  rules_.AddScalar({.name = "amp/found_inf", .step = 0, .value = 1});
  Step(1, {Rms(1)});
  EXPECT_EQ(Of("overflow").size(), 1u);
  EXPECT_TRUE(Of("nan_first_seen").empty());
}

TEST_F(TensorRulesTest, GradientsThatTheOptimizerNeverSawAreAnOverflow) {
  Define({Def(0, "block", Kind::kGradOutput), Def(1, "weight", Kind::kWeightGrad)});
  Step(0, {WithInfinities(100, 0), Rms(1)});
  EXPECT_EQ(Of("overflow").size(), 1u);
}

TEST_F(TensorRulesTest, GradientsWithNanThatNoScalerSkippedAreAnAlarm) {
  Define({Def(0, "block", Kind::kGradOutput), Def(1, "weight", Kind::kWeightGrad)});
  Step(0, {Rms(1), Rms(1)});
  Step(1, {WithNan(5), WithNan(5)});
  for (std::uint64_t step = 2; step < 5; ++step) Step(step, {Rms(1), Rms(1)});
  ASSERT_EQ(Of("nan_first_seen").size(), 1u);
  EXPECT_EQ(Of("nan_first_seen")[0].step, 1u);
  EXPECT_TRUE(Of("overflow").empty());
}

TEST_F(TensorRulesTest, ForwardNanInTheNextStepIsExplainedByTheGradientsBefore) {
  Define({Def(0, "block", Kind::kOutput), Def(1, "block", Kind::kGradOutput)});
  Step(0, {Rms(1), Rms(1)});
  Step(1, {Rms(1), WithNan(2)});
  Step(2, {WithNan(100), WithNan(100)});
  ASSERT_EQ(Of("nan_first_seen").size(), 1u);
  EXPECT_EQ(Of("nan_first_seen")[0].step, 1u);
  EXPECT_EQ(Of("nan_first_seen")[0].fields.at("kind"), "grad_output");
}

TEST_F(TensorRulesTest, AnExplosionIsOneAlarmForAllActivationsUntilTheyRecover) {
  Define({Def(0, "a", Kind::kOutput), Def(1, "b", Kind::kOutput), Def(2, "c", Kind::kGradOutput)});
  std::uint64_t step = 0;
  for (; step < 40; ++step)
    Step(step, {Rms(Healthy(1, step)), Rms(Healthy(2, step)), Rms(Healthy(1e-3, step))});
  EXPECT_TRUE(all_.empty());
  Step(step++, {Rms(1), Rms(100), Rms(1)});
  ASSERT_EQ(Of("norm_explosion").size(), 1u);
  EXPECT_EQ(Of("norm_explosion")[0].fields.at("activation"), "b");
  EXPECT_EQ(Of("norm_explosion")[0].fields.at("activations"), "2");
  EXPECT_THAT(Of("norm_explosion")[0].fields.at("others"), HasSubstr("grad_output c"));
  for (; step < 50; ++step) Step(step, {Rms(1), Rms(100), Rms(1)});
  EXPECT_EQ(all_.size(), 1u) << "once until they recover";
  Step(step++, {Rms(1), Rms(2), Rms(1)});
  EXPECT_TRUE(Of("alarm_cleared").empty()) << "one of them has not";
  Step(step++, {Rms(1), Rms(2), Rms(1e-3)});
  EXPECT_EQ(Of("alarm_cleared").size(), 1u);
  Step(step++, {Rms(1), Rms(100), Rms(1e-3)});
  EXPECT_EQ(Of("norm_explosion").size(), 2u) << "and again";
}

TEST_F(TensorRulesTest, ABitBelowTheFactorIsNoExplosionNorIsOneInTheWarmUp) {
  Define({Def(0, "a", Kind::kOutput)});
  std::uint64_t step = 0;
  Step(step++, {Rms(1)});
  Step(step++, {Rms(1000)});  // of the warm-up
  for (; step < 60; ++step) Step(step, {Rms(Healthy(1, step))});
  Step(step++, {Rms(19)});
  EXPECT_TRUE(all_.empty());
  Step(step++, {Rms(22)});
  EXPECT_EQ(Of("norm_explosion").size(), 1u);
}

TEST_F(TensorRulesTest, ALevelThatStaysIsTakenAsTheNewOne) {
  Define({Def(0, "a", Kind::kOutput)});
  std::uint64_t step = 0;
  for (; step < 20; ++step) Step(step, {Rms(1)});
  for (; step < 20 + 2 * kAlarmWindowMax; ++step) Step(step, {Rms(1000)});
  EXPECT_EQ(Of("norm_explosion").size(), 1u);
  EXPECT_EQ(Of("alarm_cleared").size(), 1u);
  Step(step++, {Rms(1e5)});
  EXPECT_EQ(Of("norm_explosion").size(), 2u);
}

TEST_F(TensorRulesTest, ATensorThatBeginsAtZeroAndGrowsIsHealthy) {
  Define({Def(0, "lora", Kind::kOutput)});
  for (std::uint64_t step = 0; step < 200; ++step)
    Step(step, {Rms(1e-4 * static_cast<double>(step))});
  EXPECT_TRUE(all_.empty());
}

TEST_F(TensorRulesTest, AVanishedGradientIsToldAfterSomeStepsInARow) {
  Define({Def(0, "w", Kind::kWeightGrad), Def(1, "v", Kind::kWeightGrad)});
  std::uint64_t step = 0;
  for (; step < 20; ++step) Step(step, {Rms(1), Rms(1)});
  for (int n = 0; n < 4; ++n) Step(step++, {Rms(1e-6), Rms(0)});
  Step(step++, {Rms(1), Rms(1)});
  EXPECT_TRUE(all_.empty()) << "four steps are not five";
  for (int n = 0; n < 9; ++n) Step(step++, {Rms(1e-6), Rms(0)});
  ASSERT_EQ(Of("vanishing_gradient").size(), 1u);
  EXPECT_EQ(Of("vanishing_gradient")[0].fields.at("activations"), "2");
  Step(step++, {Rms(1), Rms(1)});
  EXPECT_EQ(Of("alarm_cleared").size(), 1u);
}

TEST_F(TensorRulesTest, ZerosBesideNanAreNoVanishedGradient) {
  Define({Def(0, "embed", Kind::kWeightGrad)});
  std::uint64_t step = 0;
  for (; step < 20; ++step) Step(step, {Rms(1)});
  TensorStats unused = Rms(0);  // of the rows that no token needed; the others are NaN
  unused.nan = unused.numel / 2;
  for (int n = 0; n < 20; ++n) Step(step++, {unused});
  EXPECT_EQ(Of("nan_first_seen").size(), 1u);
  EXPECT_TRUE(Of("vanishing_gradient").empty());
}

TEST_F(TensorRulesTest, AGradientThatDecaysGraduallyIsHealthy) {
  Define({Def(0, "w", Kind::kWeightGrad)});
  double rms = 1;
  for (std::uint64_t step = 0; step < 400; ++step, rms *= 0.93) Step(step, {Rms(rms)});
  EXPECT_TRUE(all_.empty());
}

TEST_F(TensorRulesTest, AParameterThatWasNeverUsedIsANoteOnce) {
  Define({Def(0, "frozen", Kind::kWeightGrad)});
  for (std::uint64_t step = 0; step < 50; ++step) Step(step, {Rms(0)});
  ASSERT_EQ(all_.size(), 1u);
  EXPECT_EQ(all_[0].kind, kUnusedParameter);
  EXPECT_EQ(all_[0].sort, Finding::Sort::kNote);
}

TEST_F(TensorRulesTest, ADeadReluIsToldAfterSomeStepsAndOthersNever) {
  Define({Def(0, "act", Kind::kOutput, "ReLU"), Def(1, "gelu", Kind::kOutput, "GELU"),
          Def(2, "drop", Kind::kOutput, "Dropout")});
  std::uint64_t step = 0;
  for (; step < 20; ++step) Step(step, {WithZeros(60), WithZeros(100), WithZeros(100)});
  for (int n = 0; n < 9; ++n) Step(step++, {WithZeros(99), WithZeros(100), WithZeros(100)});
  EXPECT_TRUE(all_.empty());
  Step(step++, {WithZeros(99), WithZeros(100), WithZeros(100)});
  ASSERT_EQ(all_.size(), 1u);
  EXPECT_EQ(all_[0].kind, "dead_relu");
  EXPECT_EQ(all_[0].fields.at("activation"), "act");
  for (int n = 0; n < 20; ++n) Step(step++, {WithZeros(98), WithZeros(100), WithZeros(100)});
  EXPECT_EQ(all_.size(), 1u) << "98 is within the hysteresis";
  Step(step++, {WithZeros(60), WithZeros(100), WithZeros(100)});
  EXPECT_EQ(Of("alarm_cleared").size(), 1u);
}

TEST_F(TensorRulesTest, RecordsThatWereSeenAreIgnored) {
  Define({Def(0, "a", Kind::kOutput)});
  for (std::uint64_t step = 0; step < 20; ++step) Step(step, {Rms(1)});
  Step(10, {WithNan(1)});
  Close();
  EXPECT_TRUE(all_.empty());
}

TEST_F(TensorRulesTest, WhatAnotherToolDidNotRecordIsNotJudged) {
  defs_ = {Def(0, "act", Kind::kOutput, "ReLU")};
  rules_.Define(defs_, std::vector<Layout>{
                           {.id = 0, .absent = BitOf(Statistic::kL2) | BitOf(Statistic::kZero)}});
  for (std::uint64_t step = 0; step < 40; ++step) Step(step, {step < 20 ? Rms(1) : WithZeros(100)});
  EXPECT_TRUE(all_.empty());
}

TEST_F(TensorRulesTest, ARuleThatIsOffSaysNothing) {
  settings_.on.fill(false);
  Define({Def(0, "act", Kind::kOutput, "ReLU"), Def(1, "w", Kind::kWeightGrad)});
  for (std::uint64_t step = 0; step < 20; ++step) Step(step, {Rms(1), Rms(1)});
  for (std::uint64_t step = 20; step < 40; ++step) Step(step, {WithZeros(100), Rms(0)});
  Step(40, {Rms(1e6), WithNan(1)});
  Close();
  EXPECT_TRUE(all_.empty());
}

TEST_F(TensorRulesTest, AWaitingGradientHoldsBackWhatCountsAsJudged) {
  Define({Def(0, "block", Kind::kGradOutput)});
  Step(0, {Rms(1)});
  EXPECT_EQ(rules_.judged(), 0u);
  Step(1, {WithNan(1)});
  EXPECT_EQ(rules_.judged(), 0u) << "a restart looks at step 1 again";
  Step(2, {Rms(1)});
  Step(3, {Rms(1)});
  EXPECT_EQ(rules_.judged(), 3u);
}

// A rank with two weights whose updates move them by `length` together.
class UpdateNormTest : public TensorRulesTest {
 protected:
  UpdateNormTest() {
    Define({Def(0, "fc1.weight", Kind::kWeight), Def(1, "fc2.weight", Kind::kWeight)});
  }
  void Update(double length, std::size_t weights = 2) {
    std::vector<TensorStats> stats;
    for (std::size_t i = 0; i < weights; ++i) stats.push_back(Rms(1, /*hash=*/step_ + 1));
    StatColumns columns = StepOf(step_, stats);
    columns.sketch_width = 16;
    position_ += length / std::sqrt(2.0) / 4;  // in each of 16 directions
    columns.sketch.assign(weights * 16, position_);
    rules_.AddStats(columns);
    rules_.AddStepEnd(step_++);
    Take();
  }
  std::uint64_t step_ = 0;
  double position_ = 0;
};

TEST_F(UpdateNormTest, AnUpdateOfThreeTimesItsMedianIsToldUntilItSettles) {
  for (int n = 0; n < 30; ++n) Update(Healthy(0.01, step_));
  Update(0.03);
  Update(0.03);
  ASSERT_EQ(Of("update_norm").size(), 1u);
  const Finding told = Of("update_norm")[0];
  EXPECT_EQ(told.step, 30u);
  EXPECT_EQ(told.fields.at("weights"), "2");
  EXPECT_NEAR(std::stod(told.fields.at("value")), 0.03, 1e-5);
  EXPECT_NEAR(std::stod(told.fields.at("median")), 0.01, 1e-3);
  EXPECT_THAT(told.text, HasSubstr("the update of step 30 moved the weights by about 0.03: "));
  EXPECT_TRUE(Of("alarm_cleared").empty());
  Update(0.01);
  EXPECT_EQ(Of("alarm_cleared").size(), 1u);
}

TEST_F(UpdateNormTest, WhatIsNotTwiceAsMuchOrComesDuringTheWarmUpIsNone) {
  for (int n = 0; n < 10; ++n) Update(0.01);
  Update(0.05);
  EXPECT_TRUE(Of("update_norm").empty()) << "9 norms are known, of 10 weights";
  for (int n = 0; n < 40; ++n) Update(Healthy(0.01, step_) * (n % 2 == 0 ? 1 : 1.6));
  EXPECT_TRUE(Of("update_norm").empty()) << "a series that jumps by itself";
  for (int n = 0; n < 40; ++n) Update(0.01 + 0.0005 * n);
  EXPECT_TRUE(Of("update_norm").empty()) << "slow growth, such as a learning rate that warms up";
}

TEST_F(UpdateNormTest, ALayerThatIsUnfrozenBeginsAnew) {
  for (int n = 0; n < 30; ++n) Update(0.01, 1);
  for (int n = 0; n < 5; ++n) Update(0.1, 2);
  EXPECT_TRUE(Of("update_norm").empty());
}

TEST_F(UpdateNormTest, IsTurnedOffAsOthers) {
  settings_.on[static_cast<std::size_t>(AlarmRule::kUpdateNorm)] = false;
  for (int n = 0; n < 30; ++n) Update(0.01);
  Update(0.1);
  EXPECT_TRUE(all_.empty());
}

}  // namespace
}  // namespace statcollect::alarms
