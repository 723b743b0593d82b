// What a kernel's own rounding may be: long sums, other algorithms of a convolution, derivatives that leap.
#include "server/query/verdict/kernels.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "server/query/verdict/explain.h"
#include "server/query/verdict/jumps.h"
#include "tests/server/query/verdict/step_of_pairs.h"
#include "tests/server/query/verdict/verdict_fixture.h"

namespace statcollect::query {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kRoundoffF32 = 0x1p-24, kRoundoffBf16 = 0x1p-8;

// Kernels that know one module with one matrix.
Kernels With(const std::string& class_name, std::vector<std::int64_t> shape,
             OtherConvolutions other = OtherConvolutions::kNone) {
  static const TensorDef weight{.key = Key("m.weight", Kind::kWeight), .class_name = "Parameter"};
  static TensorDef output{.key = Key("m")};
  output.class_name = class_name;
  Kernels kernels(other);
  kernels.Note(weight, {.dtype = DType::kF32, .shape = std::move(shape)});
  kernels.Note(output, {.dtype = DType::kF32, .shape = {1}});
  return kernels;
}

// --- long sums

TEST(Kernels, AModuleWithoutMatricesRoundsOnce) {
  const Kernels kernels = With("LayerNorm", {64});
  EXPECT_EQ(kernels.OfOutput("m", kRoundoffF32), kRoundoffF32);
  EXPECT_EQ(kernels.OfOutput("other", kRoundoffBf16), kRoundoffBf16);
}

TEST(Kernels, RoundsMoreTheLongerTheSum) {
  const Kernels kernels = With("Conv2d", {32, 128, 3, 3});
  EXPECT_NEAR(kernels.OfOutput("m", kRoundoffF32) / kRoundoffF32, 0.08 * std::sqrt(128 * 9), 1e-6);
  EXPECT_NEAR(kernels.OfInputGradient("m", kRoundoffF32) / kRoundoffF32, 0.08 * std::sqrt(32 * 9), 1e-6);
}

TEST(Kernels, TransposedConvolutionsHaveInputsFirst) {
  const Kernels kernels = With("ConvTranspose2d", {128, 32, 3, 3});
  EXPECT_NEAR(kernels.OfOutput("m", kRoundoffF32) / kRoundoffF32, 0.08 * std::sqrt(128 * 9), 1e-6);
}

TEST(Kernels, RowsOfEmbeddingsAreNotSummed) {
  EXPECT_EQ(With("Embedding", {4, 4096}).OfOutput("m", kRoundoffF32), kRoundoffF32);
}

TEST(Kernels, ABatchNormSumsOverTheBatchInTraining) {
  TensorDef output{.key = Key("m"), .class_name = "BatchNorm2d"};
  const Layout layout{.dtype = DType::kF32, .shape = {8, 32, 16, 16}};
  Kernels kernels(OtherConvolutions::kNone);
  kernels.Note(output, layout);
  EXPECT_NEAR(kernels.OfOutput("m", kRoundoffF32) / kRoundoffF32, 0.08 * std::sqrt(8 * 16 * 16), 1e-6);
  EXPECT_EQ(kernels.OfInputGradient("m", kRoundoffF32), kRoundoffF32);
  Kernels evaluating(OtherConvolutions::kNone);
  output.key.mode = Mode::kEval;
  evaluating.Note(output, layout);
  EXPECT_EQ(evaluating.OfOutput("m", kRoundoffF32), kRoundoffF32);
}

TEST(Kernels, CoarseValuesAreSummedInF32) {
  const Kernels kernels = With("Linear", {16, 65536});
  EXPECT_EQ(kernels.OfOutput("m", kRoundoffBf16), kRoundoffBf16);
  EXPECT_GT(kernels.OfOutput("m", kRoundoffF32), 20 * kRoundoffF32);
}

TEST(Kernels, GradientsOfParametersAreSumsOverTheBatch) {
  const Kernels kernels = With("Conv2d", {64, 64, 3, 3});
  const Layout weight{.dtype = DType::kF32, .shape = {64, 64, 3, 3}},
      bias{.dtype = DType::kF32, .shape = {64}};
  for (const Layout& layout : {weight, bias}) {
    EXPECT_EQ(kernels.OfParameterGradient("m", layout, kRoundoffF32, 64.0 * 100), 4 * kRoundoffF32)
        << "a short one";
    EXPECT_NEAR(kernels.OfParameterGradient("m", layout, kRoundoffF32, 64.0 * 1e6) / kRoundoffF32, 80, 1e-3);
  }
}

// --- Winograd

TEST(Kernels, OnlyOtherAlgorithmsRoundCoarsely) {
  const auto output = [](OtherConvolutions other) {
    return With("Conv2d", {64, 64, 3, 3}, other).OfOutput("m", kRoundoffF32) / kRoundoffF32;
  };
  EXPECT_LT(output(OtherConvolutions::kNone), 2);
  EXPECT_EQ(output(OtherConvolutions::kForward), 18);
  EXPECT_EQ(output(OtherConvolutions::kAll), 18);
}

TEST(Kernels, NnpackComputesNoGradients) {
  const Layout weight{.dtype = DType::kF32, .shape = {64, 64, 3, 3}};
  for (const auto other : {OtherConvolutions::kForward, OtherConvolutions::kAll}) {
    const Kernels kernels = With("Conv2d", {64, 64, 3, 3}, other);
    const bool all = other == OtherConvolutions::kAll;
    EXPECT_EQ(kernels.OfInputGradient("m", kRoundoffF32) > 10 * kRoundoffF32, all);
    EXPECT_EQ(kernels.OfParameterGradient("m", weight, kRoundoffF32, 64) > 10 * kRoundoffF32, all);
  }
}

TEST(Kernels, OnlyWindowsHaveSuchAnAlgorithm) {
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{64, 64, 1, 1}, {64, 64}, {64, 64, 3}})
    EXPECT_LT(With("Conv2d", shape, OtherConvolutions::kAll).OfOutput("m", kRoundoffF32), 2 * kRoundoffF32);
}

TEST(ConvolutionsThatMayDiffer, ByTheRecordedSwitches) {
  const Config plain = {{"torch.mkldnn.enabled", "true"}, {"torch.cudnn.benchmark", "false"}};
  const auto with = [&](const std::string& key, const std::string& value) {
    Config config = plain;
    config[key] = value;
    return config;
  };
  EXPECT_EQ(ConvolutionsThatMayDiffer({}, {}), OtherConvolutions::kNone);
  EXPECT_EQ(ConvolutionsThatMayDiffer(plain, plain), OtherConvolutions::kNone);
  const Config without = with("torch.mkldnn.enabled", "false");
  EXPECT_EQ(ConvolutionsThatMayDiffer(plain, without), OtherConvolutions::kForward);
  EXPECT_EQ(ConvolutionsThatMayDiffer(without, without), OtherConvolutions::kForward) << "by batch size";
  for (const char* key : {"cudnn.version", "torch.version", "torch.cudnn.deterministic", "hardware.gpu"})
    EXPECT_EQ(ConvolutionsThatMayDiffer(plain, with(key, "other")), OtherConvolutions::kAll) << key;
  Config benchmark = with("torch.cudnn.benchmark", "true");
  EXPECT_EQ(ConvolutionsThatMayDiffer(benchmark, benchmark), OtherConvolutions::kNone) << "without a GPU";
  benchmark["hardware.gpu"] = "H200";
  EXPECT_EQ(ConvolutionsThatMayDiffer(benchmark, benchmark), OtherConvolutions::kAll);
}

// A 3x3 convolution whose first output differs by `size`, with these configurations.
class VerdictKernelsTest : public VerdictTest {
 protected:
  DiffReport ConvolutionDiffersBy(double size, const std::string& onednn_of_b) {
    options_.elements = 2034;  // 113 * 2 * 9
    base_ = [](std::uint64_t, const TensorKey& key, Tensor tensor) -> std::optional<Tensor> {
      if (key.name.ends_with(".weight")) tensor.shape = {113, 2, 3, 3};
      return tensor;
    };
    before_ = [=](RunWriter& run, bool is_b) {
      run.Config(0, {{"torch.mkldnn.enabled", is_b ? onednn_of_b : "true"}});
    };
    return DiffWith(BugAt("blocks.0.fc", size));
  }
};

TEST_F(VerdictKernelsTest, AnotherAlgorithmExplainsAConvolution) {
  ExpectExplained(ConvolutionDiffersBy(60 * kRoundoffF32, "false"));
}

TEST_F(VerdictKernelsTest, NothingElseDoes) {
  EXPECT_EQ(Say(ConvolutionDiffersBy(60 * kRoundoffF32, "true")), "0 forward blocks.0.fc");
}

TEST_F(VerdictKernelsTest, AnotherAlgorithmExplainsNoMoreThanThat) {
  EXPECT_EQ(Say(ConvolutionDiffersBy(600 * kRoundoffF32, "false")), "0 forward blocks.0.fc");
}

// --- derivatives that leap

TEST(HasKink, OfTheseClasses) {
  for (const char* name :
       {"ReLU", "LeakyReLU", "PReLU", "ReLU6", "Hardtanh", "Hardswish", "SELU", "MaxPool2d"})
    EXPECT_TRUE(HasKink(name)) << name;
  for (const char* name : {"GELU", "SiLU", "ELU", "Tanh", "Conv2d", "BatchNorm2d", ""})
    EXPECT_FALSE(HasKink(name)) << name;
}

TEST(Explainer, SlopesFlipBehindALeakyReLU) {
  for (const std::string class_name : {"LeakyReLU", "GELU"}) {
    Step step;
    step.Add(Key("norm"), 1e-3);
    step.Add(Key("act"), 1e-3);
    step.Add(GradOutput("act"), 1e-3, {.class_name = class_name});
    step.Add(GradOutput("norm"), 0.05, {.largest = 0.1});
    Explainer explainer;
    const auto explained = explainer.Step(step.pairs);
    if (class_name == "GELU") {
      EXPECT_LT(explained[3].expected, 2e-3);
    } else {
      EXPECT_GT(explained[3].expected, 0.03) << "2 of 2,048 elements";
    }
  }
}

TEST(Explainer, OnlyOneGradientIsDirectlyBehindIt) {
  Step step;
  step.Add(Key("fc"), 1e-3);
  step.Add(GradOutput("act"), 1e-3, {.class_name = "LeakyReLU"});
  step.Add(GradOutput("norm"), 1e-3);
  step.Add(GradOutput("fc"), 0.05, {.largest = 0.1});
  Explainer explainer;
  EXPECT_LT(explainer.Step(step.pairs)[3].expected, 2e-3);
}

// --- what gradients are computed from

TEST(Explainer, AGateIsJudgedByWhatItMultiplies) {
  Step step;
  step.Add(Key("other.gate"), 1e-7);
  step.Add(Key("moe.gate"), 1e-7);
  step.Add(Key("moe.experts.0.fc"), 1e-5);
  step.Add(Key("norm"), 1e-7);
  step.Add(GradOutput("norm"), 1e-7);
  step.Add(GradOutput("other.gate"), 1e-7);
  step.Add(GradOutput("moe.gate"), 1e-5);
  Explainer explainer;
  const auto explained = explainer.Step(step.pairs);
  EXPECT_LT(explained[5].expected, 1e-6) << "it multiplies nothing";
  EXPECT_NEAR(explained[6].expected, 1e-5, 1e-6);
}

TEST(Explainer, ParametersOfTheModuleAroundReachItsFirstParts) {
  Step step;
  step.Add(Key("model.positions", Kind::kWeight, "", 0, 0, Mode::kInit), 1e-4);
  for (const char* name : {"model.embed", "model.first", "model.a", "model.b", "model.last"})
    step.Add(Key(name), 1e-7);
  Explainer explainer;
  const auto explained = explainer.Step(step.pairs);
  EXPECT_NEAR(explained[2].expected, 1e-4, 1e-6);
  EXPECT_LT(explained[5].expected, 1e-6);
}

TEST(Explainer, OfAFewElementsTheSketchMayShowTooLittle) {
  for (const std::uint64_t elements : {16, 4096}) {
    Step step;
    const Step::Given given{.numel = elements, .shape = {static_cast<std::int64_t>(elements)}};
    step.Add(GradOutput("fc"), 1e-5);
    step.Add(Gradient("fc.bias"), 1e-7, given);
    step.Add(Key("fc.bias", Kind::kOptimizerState, "exp_avg_sq"), 1e-5, given);
    Explainer explainer;
    const double expected = explainer.Step(step.pairs)[2].expected;
    EXPECT_NEAR(expected, elements == 16 ? 2e-5 : 2e-7, 0.1 * expected) << elements;
  }
}

// Gradients of five biases; all differ by `others`, one by `one`.
Step Biases(double others, double one) {
  Step step;
  step.Add(Key("fc"), 4e-7);
  for (int i = 0; i < 5; ++i) step.Add(GradOutput("fc" + std::to_string(i)), 1e-6);
  for (int i = 0; i < 5; ++i) step.Add(Gradient("fc" + std::to_string(i) + ".bias"), i == 2 ? one : others);
  return step;
}

std::vector<std::size_t> JumpsOf(const Step& step) {
  Explainer explainer;
  JumpFinder finder(0);
  std::vector<std::size_t> found;
  for (const Jump& jump : finder.Find(explainer.Step(step.pairs))) found.push_back(jump.index);
  return found;
}

TEST(JumpFinder, PassesAGradientThatStandsOutNoMoreThanOthers) {
  EXPECT_THAT(JumpsOf(Biases(4.5e-6, 8e-6)), IsEmpty());
}

TEST(JumpFinder, TakesAGradientThatStandsOutAlone) {
  EXPECT_THAT(JumpsOf(Biases(1e-6, 8e-6)), ElementsAre(8));
  EXPECT_THAT(JumpsOf(Biases(4.5e-6, 1e-4)), ElementsAre(8));
}

TEST(FindOutliers, PassesWhatItsTermsBring) {
  for (const double terms : {0.0, 7e-4}) {
    Step step;
    for (int i = 0; i < 6; ++i) {
      const std::string fc = "fc" + std::to_string(i);
      step.Add(GradOutput(fc), i == 5 ? terms : 0, {.dtype = DType::kBf16});
      step.Add(Gradient(fc + ".weight"), i == 5 ? 1.4e-3 : 1e-7);
    }
    Explainer explainer;
    EXPECT_EQ(FindOutliers(explainer.Step(step.pairs)).size(), terms > 0 ? 0u : 1u) << terms;
  }
}

// Rounding of a few elements that carry the norm changes it, and all that is computed from it.
TEST(FindScale, PassesAFactorThatFewElementsBring) {
  for (const double largest : {0.01, 0.5}) {
    Step step;
    for (int i = 0; i < 6; ++i) {
      const Step::Given given{.dtype = DType::kBf16, .l2_b = 1.001, .largest = largest};
      step.Add(GradOutput("fc" + std::to_string(i)), 4e-3, given);
    }
    Explainer explainer;
    EXPECT_EQ(FindScale(explainer.Step(step.pairs)).has_value(), largest < 0.1) << largest;
  }
}

}  // namespace
}  // namespace statcollect::query
