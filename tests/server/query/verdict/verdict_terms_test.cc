// Gradients of parameters where those of outputs were not compared: runs that split the batch differently.
#include <cmath>
#include <deque>

#include "server/query/verdict/explain.h"
#include "server/query/verdict/jumps.h"
#include "tests/server/query/verdict/step_of_pairs.h"
#include "tests/server/query/verdict/verdict_fixture.h"

namespace statcollect::query {
namespace {

constexpr double kRows = 128, kWidth = 64;
constexpr double kRow = 8, kTerms = 1e-3;  // norms of a row of the input and of the terms

TensorKey Weight(const std::string& name) { return Key(name, Kind::kWeight, "", 0, 0, Mode::kInit); }

Step::Given OfRms(double rms, double elements, std::vector<std::int64_t> shape) {
  const double l2 = rms * std::sqrt(elements);
  const auto numel = static_cast<std::uint64_t>(elements);
  return {.l2 = l2, .l2_b = l2, .numel = numel, .shape = std::move(shape), .mean_abs = 0.8 * rms};
}

struct Given {
  double bias = 1e-10;                   // norm of its gradient
  double distance = 0.04;                // of that
  double factor = 1;                     // of B's weight gradient
  bool outputs = false;                  // whether gradients of outputs are compared
  double of_weights = 0, of_output = 0;  // distances
};

// A linear layer, as that of a key, and the gradients of its parameters. The bias's comes first.
Step StepOf(const Given& given) {
  Step step;
  step.Add(Weight("later.weight"), given.of_weights);
  step.Add(Weight("fc.weight"), 0, OfRms(0.1, kWidth * kWidth, {64, 64}));
  step.Add(Key("fc"), given.of_output, OfRms(0.1 * kRow, kRows * kWidth, {128, 64}));
  if (given.outputs)
    step.Add(GradOutput("fc"), 1e-7, OfRms(kTerms / std::sqrt(kRows * kWidth), kRows * kWidth, {128, 64}));
  step.Add(Gradient("fc.bias"), given.distance, OfRms(given.bias / std::sqrt(kWidth), kWidth, {64}));
  Step::Given weight = OfRms(kTerms * kRow / kWidth, kWidth * kWidth, {64, 64});
  weight.l2_b *= given.factor;
  step.Add(Gradient("fc.weight"), 1e-7, weight);
  return step;
}

Explained OfBias(const Given& given) {
  const Step step = StepOf(given);
  Explainer explainer;
  Explained bias = explainer.Step(step.pairs)[given.outputs ? 4 : 3];
  bias.pair = nullptr;  // `step` is gone
  return bias;
}

double RatioOfBias(const Given& given) {
  const Explained bias = OfBias(given);
  return bias.observed / bias.expected;
}

TEST(Terms, ASumThatCancelsIsJudgedAgainstThem) {
  const Explained bias = OfBias({});
  EXPECT_TRUE(bias.cancelled);
  EXPECT_NEAR(bias.observed, 0.04 * 1e-10 / (kTerms * std::sqrt(kRows)), 1e-12);
  EXPECT_LT(bias.observed, bias.expected);
}

TEST(Terms, AreAsLargeAsTheGradientsOfOutputsShow) {
  const double estimate = OfBias({}).observed, recorded = OfBias({.outputs = true}).observed;
  EXPECT_GT(estimate / recorded, 0.3);
  EXPECT_LT(estimate / recorded, 3);
}

TEST(Terms, ABugInASumThatCancelsOtherwiseIsFound) {
  EXPECT_GT(RatioOfBias({.bias = 1e-4, .distance = 1}), 1000);  // B's gradient a million times as large
}

TEST(Terms, ASumThatDoesNotCancelIsJudgedByItself) {
  const Explained bias = OfBias({.bias = 2 * kTerms, .distance = 0.01});
  EXPECT_FALSE(bias.cancelled);
  EXPECT_EQ(bias.observed, 0.01);
  EXPECT_GT(RatioOfBias({.bias = 2 * kTerms, .distance = 0.01}), 1000);
  EXPECT_GT(RatioOfBias({.bias = 2 * kTerms, .distance = 0.5}), 1000);
}

TEST(Terms, ALargeWeightGradientOfOneRunExcusesNothing) {
  EXPECT_FALSE(OfBias({.bias = 2 * kTerms, .distance = 0.01, .factor = 1e6}).cancelled);
}

TEST(Terms, OfTheWeightItselfAreNotKnown) {
  Step step;
  step.Add(Weight("ln.weight"), 0, OfRms(1, kWidth, {64}));
  step.Add(Key("ln"), 0, OfRms(1, kRows * kWidth, {128, 64}));
  step.Add(Gradient("ln.weight"), 0.04, OfRms(1e-10, kWidth, {64}));
  Explainer explainer;
  EXPECT_FALSE(explainer.Step(step.pairs)[2].cancelled);
}

TEST(Terms, AreNotKnownWithoutWhatTellsOfThem) {
  Step step;
  step.Add(Key("fc"), 0, OfRms(1, kRows * kWidth, {128, 64}));
  step.Add(Gradient("fc.bias"), 0.04, OfRms(1e-10, kWidth, {64}));
  step.Add(Gradient("fc.weight"), 1e-7, OfRms(1, kWidth * kWidth, {64, 64}));
  Explainer explainer;
  const auto explained = explainer.Step(step.pairs);
  EXPECT_FALSE(explained[1].cancelled);
  EXPECT_EQ(explained[1].observed, 0.04);
}

// --- What other gradients inherit then

TEST(UncomparedBackward, GradientsFollowOutputsAndMatrices) {
  EXPECT_LT(OfBias({.bias = kTerms}).expected, 1e-6);
  EXPECT_NEAR(OfBias({.bias = kTerms, .of_output = 3e-5}).expected, 3e-5, 1e-6);
  EXPECT_NEAR(OfBias({.bias = kTerms, .of_weights = 2e-5}).expected, 6e-5, 1e-6);
  EXPECT_LT(OfBias({.bias = kTerms, .outputs = true, .of_weights = 2e-5}).expected, 1e-5)
      << "known from the terms";
}

TEST(UncomparedBackward, GradientsRoundLikeTheOutputs) {
  Step step;
  step.Add(Key("fc"), 0, {.dtype = DType::kBf16});
  step.Add(Gradient("fc.weight"), 2e-3);
  Explainer explainer;
  EXPECT_GE(explainer.Step(step.pairs)[1].expected, 0x1p-8);
}

TEST(UncomparedBackward, WithoutASketchInBothADistanceIsUncertain) {
  Step step;
  step.Add(Key("a"), 1e-7);
  step.Add(Key("b"), 1e-7);
  step.pairs[1].b.sketch = {};
  Explainer explainer;
  const auto explained = explainer.Step(step.pairs);
  EXPECT_LT(explained[0].spread, 0.25);
  EXPECT_GT(explained[1].spread, 0.7);
}

}  // namespace
}  // namespace statcollect::query
