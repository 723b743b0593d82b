// Differences that follow from something of which there is no record: batches that the model has computed, models
// whose weights change without an optimizer, losses.
#include <cmath>
#include <vector>

#include "server/query/verdict/explain.h"
#include "server/query/verdict/jumps.h"
#include "tests/server/query/verdict/step_of_pairs.h"
#include "tests/server/query/verdict/verdict_fixture.h"

namespace statcollect::query {
namespace {

using ::testing::SizeIs;

// Sketches of B: a multiple of A's, or A's and something across.
std::vector<double> SumsOfB(const Step& step, double distance, bool is_factor) {
  std::vector<double> sums(step.pairs.back().a.sketch.begin(), step.pairs.back().a.sketch.end());
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] *= 1 + distance * (is_factor || i % 2 == 0 ? 1 : -1);
  return sums;
}

// --- batches

// Whether a batch is a jump in a step after which the weights differed by `of_weights`.
bool IsJump(double distance, double of_weights, DType dtype = DType::kF32, bool is_factor = false) {
  Explainer explainer;
  JumpFinder finder(0);
  Step before, now;
  before.Add(Key("fc.weight", Kind::kWeight), of_weights);
  finder.Find(explainer.Step(before.pairs));
  now.Add(Key("observations", Kind::kBatch), distance, {.dtype = dtype});
  const std::vector<double> sums = SumsOfB(now, distance, is_factor);
  now.pairs.back().b.sketch = sums;
  return !finder.Find(explainer.Step(now.pairs)).empty();
}

TEST(Batch, OfARolloutDiffersAsTheWeightsDo) {
  EXPECT_FALSE(IsJump(2e-5, 1e-5));
  EXPECT_TRUE(IsJump(2e-4, 1e-5));
  EXPECT_TRUE(IsJump(2e-5, 0));
}

TEST(Batch, MayBeRounded) {
  EXPECT_FALSE(IsJump(2e-7, 0));
  EXPECT_TRUE(IsJump(3e-7, 0));
}

TEST(Batch, OfWholeNumbersIsNotRounded) { EXPECT_TRUE(IsJump(1e-9, 1e-5, DType::kI64)); }

TEST(Batch, IsNotMultipliedByRounding) { EXPECT_TRUE(IsJump(2e-7, 1e-5, DType::kF32, /*is_factor=*/true)); }

class RolloutTest : public VerdictTest {
 protected:
  // Rounding, and batches of real numbers that differ by so much from step 1 on.
  DiffReport DiffWithBatches(double size) {
    options_.steps = 6;
    return DiffWith(Sum(RoundingOf(kRounding), [=](std::uint64_t step, const TensorKey& key) {
      return key.kind == Kind::kBatch && step > 0 ? size : 0.0;
    }));
  }
};

TEST_F(RolloutTest, RoundedBatchesAreRounding) { EXPECT_EQ(Say(DiffWithBatches(kRounding)), "none"); }

// The runs move apart evenly, until batches exceed their tolerance.
TEST_F(RolloutTest, BatchesThatFollowTheWeightsAreRounding) {
  options_.steps = 13;
  options_.update = 1;  // as large as the weight
  const DiffReport report = DiffWith([=](std::uint64_t step, const TensorKey& key) {
    if (IsInitial(key) || (step == 0 && key.kind != Kind::kWeight)) return 0.0;
    return 1e-7 * std::pow(2, step);
  });
  EXPECT_TRUE(std::any_of(report.diverged.begin(), report.diverged.end(),
                          [](const Divergence& row) { return row.stage == Stage::kBatch; }));
  ExpectExplained(report);
}

TEST_F(RolloutTest, OtherBatchesAreTheRoot) { EXPECT_EQ(Say(DiffWithBatches(1e-2)), "1 batch ids"); }

// --- losses with bends

constexpr double kOutput = 1e-7;  // difference of the output

// Whether the first gradient is a jump that differs by so much, with a loss that does by `of_loss`.
bool JumpsBehindLoss(double distance, double of_loss, bool is_factor = false) {
  static const std::string kLoss = "loss";
  Step step;
  step.Add(Key("fc"), kOutput);
  step.pairs.push_back({.distance = of_loss, .loss = &kLoss, .loss_a = 1, .loss_b = 1 + of_loss});
  step.Add(GradOutput("fc"), distance);
  const std::vector<double> sums = SumsOfB(step, distance, is_factor);
  step.pairs.back().b.sketch = sums;
  for (const Jump& jump : JumpFinder(0).Find(Explainer().Step(step.pairs))) {
    if (jump.index == 2) return true;
  }
  return false;
}

// The L1 loss's gradient is a sign: of 1e-7 of the elements it flips, which are 2 sqrt(1e-7) of its norm.
TEST(LossWithBends, MayFlipSigns) {
  EXPECT_FALSE(JumpsBehindLoss(3e-3, kOutput));
  EXPECT_TRUE(JumpsBehindLoss(1e-2, kOutput));
}

TEST(LossWithBends, IsNoExcuseForALossThatDiffers) {
  EXPECT_FALSE(JumpsBehindLoss(3e-3, 16 * 0x1p-24));
  EXPECT_TRUE(JumpsBehindLoss(3e-3, 17 * 0x1p-24));
}

TEST(LossWithBends, IsNotMultipliedByRounding) {
  EXPECT_TRUE(JumpsBehindLoss(3e-3, kOutput, /*is_factor=*/true));
}

// Gradients of four modules and their weights that are `factor` times as large; the first differs by `distance`.
std::vector<Explained> TimesAFactor(Step& step, double factor, double distance) {
  static const std::string kLoss = "loss";
  step.Add(Key("fc"), kOutput);
  step.pairs.push_back({.distance = kOutput, .loss = &kLoss, .loss_a = 1, .loss_b = 1});
  for (int i = 0; i < 4; ++i)
    step.Add(GradOutput("fc" + std::to_string(i)), i == 0 ? distance : factor - 1,
             {.l2_b = factor, .largest = 0.02});
  return Explainer().Step(step.pairs);
}

TEST(LossWithBends, AFewSignsMayLieAlongTheGradient) {
  for (const double across : {0.0, 0.01}) {
    Step step;
    auto explained = TimesAFactor(step, 1.001, std::hypot(across, 1e-3));
    std::vector<double> sums(16, 0.25);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] *= 1.001 + across * (i % 2 == 0 ? 1 : -1);
    step.pairs[2].b.sketch = sums;
    explained = Explainer().Step(step.pairs);
    EXPECT_EQ(FindScale(explained).has_value(), across == 0) << across;
  }
}

TEST(FindScale, ALargeDifferenceWithoutDirectionAddsToTheNorm) {
  for (const double across : {0.0, 0.3}) {
    Step step;
    std::vector<double> sums(16, 0.25);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] *= 1.05 + across * (i % 2 == 0 ? 1 : -1);
    for (int i = 0; i < 5; ++i) {
      step.Add(Gradient("fc" + std::to_string(i) + ".weight"), std::hypot(across, 0.05), {.l2_b = 1.05});
      step.pairs.back().b.sketch = sums;
    }
    auto explained = Explainer().Step(step.pairs);
    EXPECT_EQ(FindScale(explained).has_value(), across == 0) << across;
  }
}

// --- a gradient before clipping

// Five gradients clipped to one norm after the third was multiplied by 1.5: with its share of the norm, the others are
// smaller by `spread`.
std::vector<Explained> Clipped(Step& step, double spread, double own) {
  for (int i = 0; i < 5; ++i) {
    const double factor = i == 2 ? own : spread;
    const double l2 = i == 2 ? 2 : 1;
    step.Add(Gradient("fc" + std::to_string(i) + ".weight"), std::abs(factor - 1),
             {.l2 = l2, .l2_b = l2 * factor});
  }
  return Explainer().Step(step.pairs);
}

TEST(FindClipped, TheRootIsWhatHasNotTheFactorOfTheOthers) {
  // It was 2 of sqrt(8), 71 % of the norm, and is 83 %: its own difference is the smaller one.
  const double spread = std::sqrt(8.0 / (4 + 9));
  Step step;
  std::vector<std::vector<double>> sums;
  for (int i = 0; i < 5; ++i) sums.emplace_back(16, (i == 2 ? 0.5 * 1.5 : 0.25) * spread);
  auto explained = Clipped(step, spread, 1.5 * spread);
  for (std::size_t i = 0; i < sums.size(); ++i) step.pairs[i].b.sketch = sums[i];
  explained = Explainer().Step(step.pairs);
  EXPECT_LT(explained[2].observed, explained[0].observed);
  const auto jump = FindClipped(explained);
  ASSERT_TRUE(jump);
  EXPECT_EQ(jump->index, 2u);
  EXPECT_NEAR(jump->factor, spread, 1e-9);
  const auto jumps = JumpFinder(0).Find(explained);
  EXPECT_EQ(jumps[0].index, 0u);
  EXPECT_EQ(jumps[ChooseRoot(explained, jumps)].index, 2u);
}

TEST(FindClipped, NeedsTheSameNormOfAll) {
  Step step;
  std::vector<double> sums(16, 0.2);
  auto explained = Clipped(step, 0.8, 0.8);
  for (TensorPair& pair : step.pairs) pair.b.sketch = sums;
  explained = Explainer().Step(step.pairs);
  EXPECT_FALSE(FindClipped(explained)) << "another factor of all, not clipping";
}

}  // namespace
}  // namespace statcollect::query
