// The model by hand: what is expected of one tensor, and which of several stand out.
#include <limits>

#include "server/query/compare/roundoff.h"
#include "server/query/verdict/explain.h"
#include "server/query/verdict/jumps.h"
#include "tests/server/query/verdict/step_of_pairs.h"
#include "tests/server/query/verdict/verdict_fixture.h"

namespace statcollect::query {
namespace {

using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::IsEmpty;
using ::testing::Lt;
using ::testing::SizeIs;

constexpr double kUnitF32 = 0x1p-24, kUnitBf16 = 0x1p-8;

// --- Explainer

TEST(Explainer, KnowsTheRoundoffOfADtype) {
  EXPECT_EQ(UnitRoundoff(DType::kF32), kUnitF32);
  EXPECT_EQ(UnitRoundoff(DType::kBf16), kUnitBf16);
  EXPECT_EQ(UnitRoundoff(DType::kF16), 0x1p-11);
  EXPECT_EQ(UnitRoundoff(DType::kF64), 0x1p-53);
  EXPECT_EQ(UnitRoundoff(DType::kI64), kUnitF32);
}

TEST(Explainer, ExpectsRoundingOfWhatNothingBeforeDiffers) {
  Step step;
  step.Add(Key("ids", Kind::kBatch), 0);
  step.Add(Key("fc"), 1e-7);
  Explainer explainer;
  const auto explained = explainer.Step(step.pairs);
  EXPECT_TRUE(explained[1].fresh);
  EXPECT_EQ(explained[1].stage, Stage::kForward);
  EXPECT_DOUBLE_EQ(explained[1].expected, kUnitF32);
}

TEST(Explainer, ExpectsWhatItsInputsDiffer) {
  Step step;
  step.Add(Key("a"), 1e-5);
  step.Add(Key("b"), 3e-5);
  Explainer explainer;
  const auto explained = explainer.Step(step.pairs);
  EXPECT_FALSE(explained[1].fresh);
  EXPECT_NEAR(explained[1].expected, 1e-5, 1e-7);
}

// An attention returns its values and its weights; what follows is given the values.
TEST(Explainer, WhatFollowsMayReadAnyOutputOfTheLastCall) {
  const std::string name = "loss";
  const TensorPair loss{.distance = 0, .loss = &name, .loss_a = 2, .loss_b = 2};
  Step step;
  step.Add(Key("attn", Kind::kOutput, "0"), 3e-5);
  step.Add(Key("attn", Kind::kOutput, "1"), 1e-8);
  step.pairs.push_back(loss);
  step.Add(Key("ln"), 3e-5);
  step.Add(Key("attn", Kind::kOutput, "0", 0, 1), 0);
  step.Add(Key("attn", Kind::kOutput, "1", 0, 1), 1e-8);
  step.pairs.push_back(loss);
  Explainer explainer;
  const auto explained = explainer.Step(step.pairs);
  EXPECT_NEAR(explained[2].expected, 3e-5, 1e-6);
  EXPECT_NEAR(explained[3].expected, 3e-5, 1e-6);
  EXPECT_LT(explained[6].expected, 1e-6) << "the second call agrees";
}

TEST(Explainer, ExpectsWhatABatchDiffers) {
  Step step;
  step.Add(Key("ids", Kind::kBatch), 0.3);
  step.Add(Key("a"), 0);
  step.Add(Key("b"), 0.1);
  Explainer explainer;
  EXPECT_NEAR(explainer.Step(step.pairs)[2].expected, 0.3, 1e-3);
}

TEST(Explainer, ExpectsWhatItsWeightsDiffer) {
  Step step;
  step.Add(Key("fc.weight", Kind::kWeight, "", 0, 0, Mode::kInit), 5e-7);
  step.Add(Key("fc"), 0);
  step.Add(Key("other"), 0);
  Explainer explainer;
  const auto explained = explainer.Step(step.pairs);
  EXPECT_NEAR(explained[1].expected, 5e-7, 1e-8);
  EXPECT_LT(explained[2].expected, 1e-6) << "what it got agrees";
}

// Gathered weights have parts of all ranks, and reduced gradients are sums over them.
TEST(Explainer, WeightsAndGradientsInheritWhatOtherRanksDifferBy) {
  Step theirs_before, theirs, own;
  theirs_before.Add(Key("fc.weight", Kind::kWeight), 2e-6);
  theirs.Add(Key("fc"), 2e-6);
  theirs.Add(GradOutput("fc"), 4e-3);
  theirs.Add(Gradient("fc.weight"), 4e-3);
  theirs.Add(Key("fc.weight", Kind::kWeight), 0.1);
  own.Add(Key("fc.weight", Kind::kWeight, "", 0, 0, Mode::kInit), 0);
  own.Add(Key("fc"), 2e-6);
  own.Add(GradOutput("fc"), 0);
  own.Add(Gradient("fc.weight"), 4e-3);
  Explainer other;
  other.Step(theirs_before.pairs);
  other.Step(theirs.pairs);
  const SharedLevels levels = other.Levels();
  const SharedLevels* const others[] = {&levels};
  Explainer explainer;
  const auto explained = explainer.Step(own.pairs, others);
  EXPECT_GE(explained[1].expected, 2e-6);
  EXPECT_LT(explained[1].expected, 1e-5) << "not the update of the step itself";
  EXPECT_NEAR(explained[3].expected, 4e-3, 1e-4);
  EXPECT_LT(explainer.Levels().gradients["fc.weight"], 1e-5) << "its own";
}

// The bias of an attention's keys is noise, and has no effect behind the softmax; the keys' weight
// has one.
TEST(Explainer, WhatRunsBehindANoiseDrivenBiasInheritsWhatTheMatrixBesideItDiffers) {
  for (const double of_weight : {0.0, 1e-4, 1e-2}) {
    Step first, second;
    first.Add(GradOutput("attn.k"), 0, {.l2 = 1e-2, .l2_b = 1e-2, .mean_abs = 1e-4});
    first.Add(Gradient("attn.k.bias"), 1, {.l2 = 1e-9, .l2_b = 1e-9, .numel = 64, .shape = {64}});
    first.Add(Key("attn.k.bias", Kind::kOptimizerState, "exp_avg_sq"), 0);
    first.Add(Key("attn.k.bias", Kind::kWeight), 0.1);
    first.Add(Key("attn.k.weight", Kind::kWeight), of_weight);
    for (const char* const name : {"attn.q", "attn.k", "attn.v", "attn.o"})
      second.Add(Key(name), name == std::string("attn.k") ? 1e-3 : 0);
    second.Add(GradOutput("attn.q"), 0);
    Explainer explainer;
    explainer.Step(first.pairs);
    const auto explained = explainer.Step(second.pairs);
    ASSERT_GT(explained[1].expected, 1e-3) << "by the bias";
    EXPECT_GT(explained[2].expected, 9e-4) << "its direct successor may be given all of it";
    const double inherited =
        std::min(3 * of_weight, 1e-3);  // 3: flipped signs; no more than was seen
    for (const std::size_t behind : {3, 4})
      EXPECT_NEAR(explained[behind].expected, inherited, 1e-2 * inherited + 1e-6)
          << behind << " " << of_weight;
  }
}

// A gradient that has moved makes an update along the inputs of one sample.
// A bias before a normalisation is noise, and neither its own weight's gradient nor the
// normalisation's depends on it.
TEST(Explainer, GradientsDoNotInheritANoiseDrivenBias) {
  Step first, second;
  first.Add(GradOutput("conv"), 0, {.l2 = 1e-2, .l2_b = 1e-2, .mean_abs = 1e-4});
  first.Add(Gradient("conv.bias"), 1, {.l2 = 1e-9, .l2_b = 1e-9, .numel = 64, .shape = {64}});
  first.Add(Key("conv.bias", Kind::kOptimizerState, "exp_avg_sq"), 0);
  first.Add(Key("conv.bias", Kind::kWeight), 0.1, {.numel = 64, .shape = {64}});
  Explainer explainer;
  explainer.Step(first.pairs);
  second.Add(Key("conv"), 1e-2);
  second.Add(Key("norm"), 1e-7);
  second.Add(GradOutput("norm"), 1e-7);
  second.Add(GradOutput("conv"), 1e-7);
  second.Add(Gradient("conv.weight"), 1e-3);
  second.Add(Gradient("norm.bias"), 1e-3, {.numel = 64, .shape = {64}});
  const auto explained = explainer.Step(second.pairs);
  EXPECT_LT(explained[4].expected, 1e-6);
  EXPECT_LT(explained[5].expected, 1e-6);
  EXPECT_GT(explained[1].expected, 1e-3) << "what the normalisation is given does differ";
}

TEST(Explainer, WeightsThatDifferByMoreThanRoundingMayReachAnOutputMore) {
  for (const auto& [of_weight, expected] : {std::pair(2e-7, 2e-7), {2e-6, 4e-6}, {1e-4, 3e-4}}) {
    Step step;
    step.Add(Key("fc.weight", Kind::kWeight, "", 0, 0, Mode::kInit), of_weight);
    step.Add(Key("fc"), 0);
    EXPECT_NEAR(Explainer().Step(step.pairs)[1].expected, expected, 0.1 * expected) << of_weight;
  }
}

TEST(Explainer, PassesAreApart) {
  Step step;
  step.Add(Key("a", Kind::kOutput, "", 0), 1e-3);
  step.Add(Key("b", Kind::kOutput, "", 1), 0);
  Explainer explainer;
  EXPECT_TRUE(explainer.Step(step.pairs)[1].fresh) << "of another micro-batch";
}

TEST(Explainer, GradientsOfACoarseBackwardAreCoarse) {
  Step step;
  step.Add(GradOutput("fc"), 0, {.dtype = DType::kBf16});
  step.Add(Gradient("fc.weight"), 1e-3);
  Explainer explainer;
  const auto explained = explainer.Step(step.pairs);
  EXPECT_EQ(explained[1].unit, kUnitBf16);
  EXPECT_GE(explained[1].expected, kUnitBf16);
}

TEST(Explainer, ASumIsJudgedAgainstItsTermsWhereTheyCancel) {
  Step step;
  step.Add(GradOutput("fc"), 0, {.l2 = 1e-2, .l2_b = 1e-2, .mean_abs = 1e-4});
  step.Add(Gradient("fc.bias"), 1, {.l2 = 1e-9, .l2_b = 1e-9, .numel = 64, .shape = {64}});
  step.Add(GradOutput("other"), 0, {.l2 = 1e-2, .l2_b = 1e-2});
  step.Add(Gradient("other.bias"), 1, {.l2 = 2e-2, .l2_b = 2e-2, .numel = 64, .shape = {64}});
  Explainer explainer;
  const auto explained = explainer.Step(step.pairs);
  EXPECT_TRUE(explained[1].cancelled);
  EXPECT_LT(explained[1].observed, 1e-6);
  EXPECT_FALSE(explained[3].cancelled);
  EXPECT_EQ(explained[3].observed, 1);
}

TEST(Explainer, AMatrixIsNoSumThatCancels) {
  Step step;
  step.Add(GradOutput("fc"), 0, {.l2 = 1e-2});
  step.Add(Gradient("fc.weight"), 1, {.l2 = 1e-9, .l2_b = 1e-9});
  Explainer explainer;
  const auto explained = explainer.Step(step.pairs);
  EXPECT_FALSE(explained[1].cancelled);
  EXPECT_EQ(explained[1].observed, 1);
}

TEST(Explainer, ALossFollowsTheForwardPass) {
  const std::string name = "loss";
  Step step;
  step.Add(Key("fc"), 1e-3);
  step.pairs.push_back({.distance = 1e-3, .loss = &name, .loss_a = 2, .loss_b = 2.002});
  Explainer explainer;
  const auto explained = explainer.Step(step.pairs);
  EXPECT_EQ(explained[1].stage, Stage::kLoss);
  EXPECT_NEAR(explained[1].expected, 1e-3, 1e-6);
}

TEST(Explainer, AListOfModulesHasNoOutputOfItsOwn) {
  Step step;
  step.Add(Key("moe.experts.0"), 1e-7);
  step.Add(Key("moe.experts.1"), 4e-6);
  step.Add(Key("moe.experts.2"), 1e-7);
  step.Add(Key("moe"), 2e-6);
  Explainer explainer;
  EXPECT_NEAR(explainer.Step(step.pairs)[3].expected, 4e-6, 1e-7);
}

TEST(Explainer, ALossBehindTheUpdatesFollowsThem) {
  const std::string name = "val_loss";
  Step step;
  step.Add(Key("fc"), 0);
  step.Add(Key("fc.weight", Kind::kWeight), 1e-5);
  step.pairs.push_back({.distance = 1e-5, .loss = &name, .loss_a = 2, .loss_b = 2.00002});
  Explainer explainer;
  EXPECT_NEAR(explainer.Step(step.pairs)[2].expected, 3e-5, 1e-6);
}

TEST(Explainer, ASecondMomentMayDifferTwiceAsMuch) {
  Step step;
  step.Add(Gradient("fc.weight"), 1e-4);
  step.Add(Key("fc.weight", Kind::kOptimizerState, "exp_avg"), 1e-4);
  step.Add(Key("fc.weight", Kind::kOptimizerState, "exp_avg_sq"), 2e-4);
  Explainer explainer;
  const auto explained = explainer.Step(step.pairs);
  EXPECT_NEAR(explained[1].expected, 1e-4, 1e-6);
  EXPECT_NEAR(explained[2].expected, 2e-4, 1e-6);
}

TEST(Explainer, InfiniteDistancesAreNoExcuseLaterOn) {
  Step step;
  step.Add(Key("a"), std::numeric_limits<double>::infinity());
  step.Add(Key("b"), 0.5);
  Explainer explainer;
  const auto explained = explainer.Step(step.pairs);
  EXPECT_EQ(RatioOf(explained[0]), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isfinite(explained[1].expected));
}

// Behind a linear layer with centred inputs a mean is zero except for rounding.
TEST(Explainer, ARunningMeanIsMeasuredAgainstTheDeviationOfItsChannels) {
  for (const double deviation : {0.0, 1.0}) {
    Step step;
    const auto buffer = [&](const char* name, double l2, double each) {
      step.Add(Key(name, Kind::kBuffer), l2 < 1 ? 0.1 : 0,
               {.l2 = l2, .l2_b = l2, .numel = 64, .shape = {64}, .mean_abs = each});
    };
    buffer("bn.running_mean", 1e-7, 1e-8);
    buffer("bn.running_var", 8 * deviation + 1, deviation);
    const Explained mean = Explainer().Step(step.pairs).front();
    if (deviation > 0) {
      EXPECT_NEAR(mean.observed, 0.1 * 1e-7 / 8, 1e-12);
    } else {
      EXPECT_EQ(mean.observed, 0.1) << "nothing is known of its channels";
    }
  }
}

TEST(Explainer, TakesAnEmptyStep) {
  Explainer explainer;
  EXPECT_THAT(explainer.Step({}), IsEmpty());
}

// --- JumpFinder

// Four sisters "blocks.N.ln", each after an input that differs by `rounding`.
Step Sisters(double rounding, double second, const Step::Given& given = {}) {
  Step step;
  for (int i = 0; i < 4; ++i) {
    const std::string block = "blocks." + std::to_string(i);
    step.Add(Key(block + ".in"), rounding, given);
    step.Add(Key(block + ".ln"), i == 2 ? second : rounding, given);
  }
  return step;
}

std::vector<std::size_t> Found(const std::vector<Jump>& jumps) {
  std::vector<std::size_t> indexes;
  for (const Jump& jump : jumps) indexes.push_back(jump.index);
  return indexes;
}

TEST(JumpFinder, FindsASisterThatStandsOut) {
  const Step step = Sisters(3e-7, 3e-6);
  Explainer explainer;
  JumpFinder finder(0);
  const auto jumps = finder.Find(explainer.Step(step.pairs));
  ASSERT_THAT(Found(jumps), ElementsAre(5));
  EXPECT_EQ(jumps[0].kind, JumpKind::kExcess);
  EXPECT_EQ(jumps[0].sisters, 3u);
  EXPECT_NEAR(jumps[0].ratio, std::log(10), 0.1);
}

TEST(JumpFinder, PassesWhatAllSistersShow) {
  Step step;
  for (int i = 0; i < 4; ++i) {
    const std::string block = "blocks." + std::to_string(i);
    step.Add(Key(block + ".in"), 3e-7);
    step.Add(Key(block + ".ln"), 1.5e-6);
    step.Add(Key(block + ".out"), 3e-7);
    step.Add(Key(block), 3e-7);
  }
  Explainer explainer;
  JumpFinder finder(0);
  EXPECT_THAT(finder.Find(explainer.Step(step.pairs)), IsEmpty());
}

TEST(JumpFinder, TakesSistersOfItsClassOnly) {
  Step step;
  for (int i = 0; i < 4; ++i) {
    const std::string block = "blocks." + std::to_string(i);
    step.Add(Key(block + ".in"), 3e-7);
    Step::Given given;
    given.class_name = i == 3 ? "LayerNorm" : "Linear";
    step.Add(Key(block + ".ln"), 1.5e-6, given);
    step.Add(Key(block + ".out"), 3e-7);
    step.Add(Key(block), 3e-7);
  }
  Explainer explainer;
  JumpFinder finder(0);
  EXPECT_THAT(Found(finder.Find(explainer.Step(step.pairs))), ElementsAre(13));
}

TEST(JumpFinder, PassesWhatItsOwnPastShows) {
  Explainer explainer;
  JumpFinder finder(0);
  const std::vector<double> sizes = {4.5e-7, 9e-7, 1.8e-6, 2.7e-6};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Step step;
    step.Add(Key("in"), 3e-7);
    step.Add(Key("fc"), sizes[i]);
    const auto jumps = finder.Find(explainer.Step(step.pairs));
    EXPECT_THAT(jumps, IsEmpty()) << "step " << i;
  }
  Step step;
  step.Add(Key("in"), 3e-7);
  step.Add(Key("fc"), 2.7e-5);
  const auto jumps = finder.Find(explainer.Step(step.pairs));
  ASSERT_THAT(Found(jumps), ElementsAre(1));
  EXPECT_EQ(jumps[0].past, 4u);
}

TEST(JumpFinder, TakesATinyDifferenceWhereSistersAgree) {
  for (const double size : {1e-6, 1e-7}) {
    const Step step = Sisters(0, size);
    Explainer explainer;
    JumpFinder finder(0);
    const auto jumps = finder.Find(explainer.Step(step.pairs));
    if (size < 3 * kUnitF32) {
      EXPECT_THAT(jumps, IsEmpty()) << "a unit or two";
      continue;
    }
    ASSERT_THAT(Found(jumps), ElementsAre(5));
    EXPECT_EQ(jumps[0].kind, JumpKind::kUnchanged);
    EXPECT_EQ(jumps[0].sisters, 2u) << "what comes later has other inputs";
    EXPECT_EQ(jumps[0].past, 0u);
  }
}

TEST(JumpFinder, SmallTensorsMayAgreeByChance) {
  const Step step = Sisters(0, 2.5e-7, {.numel = 64, .shape = {64}});
  Explainer explainer;
  JumpFinder finder(3);
  EXPECT_THAT(finder.Find(explainer.Step(step.pairs)), IsEmpty());
  const Step large = Sisters(0, 2.5e-7);
  EXPECT_THAT(JumpFinder(3).Find(Explainer().Step(large.pairs)), SizeIs(1));
}

TEST(JumpFinder, WithoutSistersOrPastATinyDifferenceIsAKernels) {
  Step step;
  step.Add(Key("in"), 0);
  step.Add(Key("fc"), 2.5e-7);
  EXPECT_THAT(JumpFinder(0).Find(Explainer().Step(step.pairs)), IsEmpty());
  EXPECT_THAT(Found(JumpFinder(2).Find(Explainer().Step(step.pairs))), ElementsAre(1));
}

TEST(JumpFinder, TakesInputsAsTheyAre) {
  Step step;
  step.Add(Key("a.weight", Kind::kWeight, "", 0, 0, Mode::kInit), kUnitF32);
  step.Add(Key("b.weight", Kind::kWeight, "", 0, 0, Mode::kInit), 1e-5);
  step.Add(Key("ids", Kind::kBatch), 1e-9, {.dtype = DType::kI64});
  const auto jumps = JumpFinder(0).Find(Explainer().Step(step.pairs));
  EXPECT_THAT(Found(jumps), ElementsAre(1, 2))
      << "rounded weights are no jump, any batch of integers is";
  EXPECT_EQ(jumps[0].kind, JumpKind::kInput);
}

TEST(JumpFinder, TakesWhatCannotBeMeasured) {
  Step step;
  step.Add(Key("a"), std::numeric_limits<double>::infinity());
  EXPECT_THAT(Found(JumpFinder(0).Find(Explainer().Step(step.pairs))), ElementsAre(0));
}

}  // namespace
}  // namespace statcollect::query
