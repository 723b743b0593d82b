// Gradients and what an optimizer makes of them: cancelled sums, noise-driven updates, one factor.
#include "tests/server/query/verdict/verdict_fixture.h"

namespace statcollect::query {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr const char* kBias = "blocks.1.fc.bias";

class VerdictGradientsTest : public VerdictTest {
 protected:
  static Level Rounding() { return RoundingOf(kRounding); }
  // What both runs have of the bias's gradient, on grad_outputs of size 1e-2.
  void GradientOfSize(double size) {
    base_ = [=](std::uint64_t step, const TensorKey& key, Tensor tensor) -> std::optional<Tensor> {
      return key == Key(kBias, Kind::kWeightGrad) ? Noise(SeedOf(key, step), size)
                                                  : std::move(tensor);
    };
  }
  static Level OfBias(Kind kind, double size, const std::string& state = "") {
    return [=](std::uint64_t, const TensorKey& key) {
      return key == Key(kBias, kind, state) ? size : 0.0;
    };
  }
  static Edit GradientsTimes(double factor, const std::string& of = "") {
    return [=](std::uint64_t step, const TensorKey& key, Tensor tensor) -> std::optional<Tensor> {
      const bool gradient = key.kind == Kind::kGradOutput || key.kind == Kind::kWeightGrad;
      const DType dtype = tensor.dtype;
      if (step == 0 || !gradient || !key.name.starts_with(of)) return tensor;
      Tensor scaled = Scaled(std::move(tensor), factor);
      return dtype == DType::kBf16 ? AsBf16(scaled) : scaled;
    };
  }
};

// --- a gradient that is mathematically zero

TEST_F(VerdictGradientsTest, ASumThatCancelsIsJudgedAgainstItsTerms) {
  GradientOfSize(1e-11);
  ExpectExplained(DiffWith(Sum(Rounding(), OfBias(Kind::kWeightGrad, 1))));
}

TEST_F(VerdictGradientsTest, ASumThatDoesNotCancelIsNot) {
  GradientOfSize(1e-2);
  const DiffReport report = DiffWith(Sum(Rounding(), OfBias(Kind::kWeightGrad, 1e-2)));
  EXPECT_EQ(Say(report), std::string("0 grad ") + kBias);
}

TEST_F(VerdictGradientsTest, ASumThatCancelsALittleIsNot) {
  GradientOfSize(1e-3);
  const DiffReport report = DiffWith(Sum(Rounding(), OfBias(Kind::kWeightGrad, 1e-1)));
  EXPECT_EQ(Say(report), std::string("0 grad ") + kBias);
}

TEST_F(VerdictGradientsTest, WhatAdamMakesOfNoiseIsNoise) {
  options_.adam = true;
  GradientOfSize(1e-11);
  const DiffReport report = DiffWith(
      Sum(Sum(Rounding(), OfBias(Kind::kWeightGrad, 1)),
          Sum(OfBias(Kind::kOptimizerState, 1, "exp_avg"),
              Sum(OfBias(Kind::kOptimizerState, 1, "exp_avg_sq"), OfBias(Kind::kWeight, 1)))));
  ExpectExplained(report);
  EXPECT_TRUE(report.first) << "the weight exceeds its tolerance";
}

TEST_F(VerdictGradientsTest, NoiseIsNeitherTheFirstDivergenceNorAnOrigin) {
  GradientOfSize(1e-11);
  const DiffReport report = DiffWith(
      Sum(Sum(Rounding(), OfBias(Kind::kWeightGrad, 1)), BugAt("blocks.2.ln", 1e-2, /*from=*/1)));
  ASSERT_EQ(Say(report), "1 forward blocks.2.ln");
  ASSERT_TRUE(report.first);
  EXPECT_EQ(report.first->activation, "blocks.2.ln")
      << "the gradient exceeds its tolerance at step 0";
  EXPECT_EQ(report.root->above_tolerance, 1u);
  for (const Divergence& origin : report.origins) EXPECT_NE(origin.activation, kBias);
  for (const Divergence& row : report.diverged) EXPECT_FALSE(row.activation == kBias && row.origin);
  EXPECT_THAT(report.notes, Contains(HasSubstr(std::string("are noise, not an origin: ") + kBias)));
}

TEST_F(VerdictGradientsTest, AnUpdateThatNoGradientExplainsIsARoot) {
  options_.adam = true;
  GradientOfSize(1e-2);
  const DiffReport report = DiffWith(Sum(Rounding(), OfBias(Kind::kWeight, 0.5)));
  ASSERT_EQ(Say(report), std::string("0 optimizer ") + kBias);
  EXPECT_THAT(report.root->because, Contains(HasSubstr("its update differs by")));
}

TEST_F(VerdictGradientsTest, AnUpdateThatFollowsItsGradientIsNot) {
  EXPECT_EQ(Say(DiffWith(Sum(Rounding(), OfBias(Kind::kWeight, 2e-7)))), "none");
}

TEST_F(VerdictGradientsTest, SignsThatFlipAreRoundingForLionAndNotForOthers) {
  const auto flips = Sum(Rounding(), OfBias(Kind::kWeight, 0.006));
  EXPECT_EQ(Say(DiffWith(flips)), std::string("0 optimizer ") + kBias);
  options_.lion = true;
  EXPECT_EQ(Say(DiffWith(flips)), "none");
}

// --- loss scales

class VerdictLossScaleTest : public VerdictGradientsTest {
 protected:
  static std::optional<Tensor> Scale(std::uint64_t, const TensorKey& key, Tensor tensor) {
    return key.kind == Kind::kGradOutput ? Scaled(std::move(tensor), 1024) : std::move(tensor);
  }
  void RecordScale(double scale) {
    before_ = [=](RunWriter& run, bool is_b) {
      for (std::uint64_t step = 0; step < 3 && is_b; ++step)
        run.Scalar(0, step, "loss_scale", scale);
    };
  }
};

TEST_F(VerdictLossScaleTest, OfOneRunIsDividedOut) {
  RecordScale(1024);
  const DiffReport report = DiffWith(Rounding(), Scale);
  ExpectExplained(report);
  EXPECT_GT(report.compared.diverged, 0u) << "as recorded";
  EXPECT_THAT(report.notes, Contains(HasSubstr("gradients of outputs were divided by it")));
}

TEST_F(VerdictLossScaleTest, AFactorWithoutARecordedScaleIsABug) {
  EXPECT_EQ(Say(DiffWith(Rounding(), Scale)), "0 backward head");
}

TEST_F(VerdictLossScaleTest, AnotherFactorThanTheScaleIsABug) {
  RecordScale(1025);
  EXPECT_EQ(Say(DiffWith(Rounding(), Scale)), "0 backward head");
}

TEST_F(VerdictLossScaleTest, ABugBesideItIsFound) {
  RecordScale(1024);
  EXPECT_EQ(Say(DiffWith(Sum(Rounding(), BugAt("blocks.2.ln", 1e-2, /*from=*/1)), Scale)),
            "1 forward blocks.2.ln");
}

// --- one factor

TEST_F(VerdictGradientsTest, AllGradientsTimesOneFactor) {
  const DiffReport report = DiffWith(Rounding(), GradientsTimes(1.01));
  ASSERT_EQ(Say(report), "1 backward head");
  EXPECT_EQ(report.verdict, Verdict::kDiverged);
}

TEST_F(VerdictGradientsTest, CoarseRoundingWithoutFactorIsSilent) {
  options_.dtype = DType::kBf16;
  ExpectExplained(DiffWith(RoundingOf(5e-3)));
}

// --- several ranks

// The reduced gradients of both ranks differ as much as what rank 1 computes, where the difference
// grows from module to module.
TEST_F(VerdictGradientsTest, WhatOneRankComputesExplainsTheReducedGradientsOfAll) {
  options_.ranks = 2;
  options_.steps = 1;
  const auto grown = [](const std::string& module) {
    return kRounding * std::pow(1.4, static_cast<double>(OrderOf(module)));
  };
  const double largest = grown("head");
  const auto reduced = [=](std::uint64_t step, const TensorKey& key) {
    const bool of_parameter = key.kind == Kind::kWeightGrad || key.kind == Kind::kWeight;
    return of_parameter && !IsInitial(key) ? largest : RoundingOf(kRounding)(step, key);
  };
  const auto say = [&](bool grows) {
    store_ = std::make_unique<FakeStore>();
    of_rank_ = [=](std::uint32_t rank, const TensorKey& key, Tensor& tensor) {
      const bool output = key.kind == Kind::kOutput;
      if (!grows || rank == 0 || (!output && key.kind != Kind::kGradOutput)) return;
      tensor = Differing(std::move(tensor), output ? grown(key.name) : largest, SeedOf(key, 0, 7));
    };
    return Say(DiffWith(reduced));
  };
  EXPECT_EQ(say(/*grows=*/true), "none");
  EXPECT_EQ(say(/*grows=*/false), "0 grad embed.weight");
}

TEST_F(VerdictGradientsTest, AFactorOfParametersOnlyBeginsThere) {
  const DiffReport report =
      DiffWith(Rounding(), [](std::uint64_t step, const TensorKey& key, Tensor tensor) {
        const bool scaled = step == 1 && key.kind == Kind::kWeightGrad;
        return std::optional<Tensor>(scaled ? Scaled(std::move(tensor), 1.01) : std::move(tensor));
      });
  EXPECT_EQ(Say(report), "1 grad embed.weight");
}

}  // namespace
}  // namespace statcollect::query
