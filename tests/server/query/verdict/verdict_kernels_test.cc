// What a kernel's own rounding may be: long sums, other algorithms of a convolution, derivatives
// that leap.
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

constexpr double kRoundoffF32 = 0x1p-24;

// Roundoffs that are expected of the output of a module with one weight, after equal inputs.
double RoundoffsOf(const std::string& class_name, std::vector<std::int64_t> shape,
                   DType dtype = DType::kF32, OtherConvolutions other = OtherConvolutions::kNone,
                   Kind kind = Kind::kOutput) {
  Step step;
  std::uint64_t numel = 1;
  for (const std::int64_t size : shape) numel *= static_cast<std::uint64_t>(size);
  step.Add(Key("m.weight", Kind::kWeight, "", 0, 0, Mode::kInit), 0,
           {.numel = numel, .shape = std::move(shape)});
  step.Add(Key("m", kind), 0, {.dtype = dtype, .class_name = class_name});
  const Explained one = Explainer({.other_convolutions = other}).Step(step.pairs).back();
  return one.rounding / one.unit;
}

TEST(Rounding, IsOneUnitWithoutAMatrix) { EXPECT_EQ(RoundoffsOf("Identity", {4096}), 1); }

TEST(Rounding, IsMoreTheLongerTheSum) {
  EXPECT_NEAR(RoundoffsOf("Conv2d", {32, 128, 3, 3}), 0.08 * std::sqrt(128 * 9), 1e-6);
  EXPECT_NEAR(RoundoffsOf("Linear", {16, 65536}), 0.08 * 256, 1e-6);
  EXPECT_EQ(RoundoffsOf("Linear", {16, 65536}, DType::kBf16), 1)
      << "coarse values are summed in f32";
}

TEST(Rounding, OfAWindowIsMoreIfItsAlgorithmMayDiffer) {
  const auto roundoffs = [](OtherConvolutions other, Kind kind) {
    return RoundoffsOf("Conv2d", {64, 64, 3, 3}, DType::kF32, other, kind);
  };
  EXPECT_LT(roundoffs(OtherConvolutions::kNone, Kind::kOutput), 2);
  EXPECT_EQ(roundoffs(OtherConvolutions::kForward, Kind::kOutput), 18);
  EXPECT_EQ(roundoffs(OtherConvolutions::kAll, Kind::kOutput), 18);
  EXPECT_LT(roundoffs(OtherConvolutions::kForward, Kind::kGradOutput), 2)
      << "NNPACK computes no gradients";
  EXPECT_EQ(roundoffs(OtherConvolutions::kAll, Kind::kGradOutput), 18);
  EXPECT_LT(RoundoffsOf("Conv2d", {64, 64, 1, 1}, DType::kF32, OtherConvolutions::kAll), 2)
      << "no window";
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
  EXPECT_EQ(ConvolutionsThatMayDiffer(without, without), OtherConvolutions::kForward)
      << "by batch size";
  for (const char* key :
       {"cudnn.version", "torch.version", "torch.cudnn.deterministic", "hardware.gpu"})
    EXPECT_EQ(ConvolutionsThatMayDiffer(plain, with(key, "other")), OtherConvolutions::kAll) << key;
  Config benchmark = with("torch.cudnn.benchmark", "true");
  EXPECT_EQ(ConvolutionsThatMayDiffer(benchmark, benchmark), OtherConvolutions::kNone)
      << "without a GPU";
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
    store_ = std::make_unique<FakeStore>();
    if (twins_) WriteTwins([](double ulps) { return RoundingOf(kRounding * ulps); });
    return DiffWith(BugAt("blocks.0.fc", size));
  }
  bool twins_ = false;  // whose algorithms are A's
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

TEST_F(VerdictKernelsTest, AnotherAlgorithmExplainsAsMuchWhereTwinsMeasureTheNoise) {
  twins_ = true;
  ExpectExplained(ConvolutionDiffersBy(60 * kRoundoffF32, "false"));
  EXPECT_EQ(Say(ConvolutionDiffersBy(60 * kRoundoffF32, "true")), "0 forward blocks.0.fc");
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

// Gradients of five biases; all differ by `others`, one by `one`.
Step Biases(double others, double one) {
  Step step;
  step.Add(Key("fc"), 4e-7);
  for (int i = 0; i < 5; ++i) step.Add(GradOutput("fc" + std::to_string(i)), 1e-6);
  for (int i = 0; i < 5; ++i)
    step.Add(Gradient("fc" + std::to_string(i) + ".bias"), i == 2 ? one : others);
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

}  // namespace
}  // namespace statcollect::query
