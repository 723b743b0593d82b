// The rule that measures rounding from twins, by hand: a few records, what B and each twin have.
#include "server/query/verdict/measured_rule.h"

#include <cmath>
#include <deque>
#include <limits>

#include "tests/server/query/verdict/verdict_fixture.h"

namespace statcollect::query {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kOtherShape = std::numeric_limits<double>::infinity();  // or not finite
const std::string kLossName = "loss";

// Steps of one rank. Distances are relative; 0: equal bits, infinite: of another shape.
class Records {
 public:
  struct Given {
    DType dtype = DType::kF32;
    std::uint64_t numel = kElements;
    double l2 = 1;
    std::size_t sums = 16;
    std::uint32_t absent = 0;
  };
  using Distances = std::vector<std::optional<double>>;  // by twin; none: it lacks the tensor

  void Add(const TensorKey& key, double of_b, const Distances& of_twins, const Given& given) {
    Stored& of = stored_.emplace_back();
    of.def.key = key;
    of.layout = {.dtype = given.dtype, .shape = {32, 64}, .absent = given.absent};
    of.reshaped = of.layout;
    of.reshaped.shape = {64, 32};
    const Observation a = of.Make(given, 0);
    const Observation b = of.Make(given, of_b);
    pairs.push_back({.a = a, .b = b, .distance = of_b});
    step.twins.resize(of_twins.size());
    step.losses.resize(of_twins.size());
    for (std::size_t t = 0; t < of_twins.size(); ++t) {
      step.twins[t].push_back(of_twins[t] ? of.Make(given, *of_twins[t]) : Observation());
      step.losses[t].emplace_back();
    }
  }
  void AddLoss(double a, double b, const Distances& of_twins, const std::string& name = kLossName) {
    pairs.push_back({.distance = std::abs(a - b) / a, .loss = &name, .loss_a = a, .loss_b = b});
    step.twins.resize(of_twins.size());
    step.losses.resize(of_twins.size());
    for (std::size_t t = 0; t < of_twins.size(); ++t) {
      step.twins[t].emplace_back();
      step.losses[t].push_back(of_twins[t] ? std::optional(a * (1 + *of_twins[t])) : std::nullopt);
    }
  }
  const MeasuredStep& Step() {
    step.pairs = pairs;
    return step;
  }

  std::vector<TensorPair> pairs;
  MeasuredStep step;

 private:
  struct Stored {
    TensorDef def;
    Layout layout, reshaped;
    std::deque<TensorStats> stats;
    std::deque<std::vector<double>> sketches;

    Observation Make(const Given& given, double distance) {
      TensorStats& one = stats.emplace_back();
      one.numel = one.pos = given.numel;
      one.has_finite = true;
      one.l2 = given.l2;
      one.hash = distance == 0 ? 0 : stats.size();
      std::vector<double>& sketch = sketches.emplace_back(given.sums, 0);
      const double sum = given.l2 / std::sqrt(static_cast<double>(given.sums));
      const bool measured = std::isfinite(distance);
      for (std::size_t k = 0; k < sketch.size(); ++k)
        sketch[k] = sum * (1 + (measured ? distance : 0) * (k % 2 == 0 ? 1 : -1));
      return {
          .def = &def, .layout = measured ? &layout : &reshaped, .stats = &one, .sketch = sketch};
    }
  };
  std::deque<Stored> stored_;
};

// Two twins of a unit, whose noise is 1e-7 unless a test says otherwise.
class MeasuredRuleTest : public ::testing::Test {
 protected:
  using Given = Records::Given;
  static constexpr double kNoise = 1e-7;
  static const Records::Distances kTwins;

  void Add(const TensorKey& key, double of_b, const Records::Distances& of_twins = kTwins) {
    steps_.back().Add(key, of_b, of_twins, Given());
  }
  void Add(const TensorKey& key, double of_b, const Records::Distances& of_twins,
           const Given& given) {
    steps_.back().Add(key, of_b, of_twins, given);
  }
  // Judges the step, and begins the next one.
  std::vector<Jump> Jumps(std::span<const RankTrail* const> others = {}) {
    Records& now = steps_.back();
    steps_.emplace_back();
    return rule_->Judge(now.Step(), others).jumps;
  }
  std::vector<std::size_t> Found(std::span<const RankTrail* const> others = {}) {
    std::vector<std::size_t> found;
    for (const Jump& jump : Jumps(others)) found.push_back(jump.index);
    return found;
  }
  // The record alone.
  bool IsJump(double of_b, const Records::Distances& of_twins, const Given& given = {},
              std::vector<double> ulps = {1, 1}) {
    Records records;
    records.Add(Key("x"), of_b, of_twins, given);
    return !MeasuredRule(std::move(ulps)).Judge(records.Step()).jumps.empty();
  }

  std::optional<MeasuredRule> rule_{std::in_place, std::vector<double>{1, 1}};
  std::deque<Records> steps_{1};  // names and observations outlive the rule's steps
};

const Records::Distances MeasuredRuleTest::kTwins = {kNoise, kNoise};

TEST_F(MeasuredRuleTest, TheNoiseIsThatOfTheTwinsThatHaveTheTensor) {
  EXPECT_FALSE(IsJump(1.5e-7, {kNoise, std::nullopt}));
  EXPECT_TRUE(IsJump(1e-5, {kNoise, std::nullopt}));
  EXPECT_TRUE(IsJump(1e-5, {kNoise, kOtherShape})) << "of another shape in one twin";
}

TEST_F(MeasuredRuleTest, WhatTheTwinsOfAUnitDoNotShowFollowsFromTheNextScale) {
  const std::vector<double> ladder = {1, 32};
  EXPECT_FALSE(IsJump(1.5e-7, {std::nullopt, 32 * kNoise}, {}, ladder));
  EXPECT_TRUE(IsJump(1e-5, {std::nullopt, 32 * kNoise}, {}, ladder));
  EXPECT_TRUE(IsJump(8e-7, {kNoise, 32 * kNoise}, {}, ladder));
  EXPECT_FALSE(IsJump(8e-7, {kNoise / 10, 32 * kNoise}, {}, ladder))
      << "rare events, of which the twin of a unit met none";
}

TEST_F(MeasuredRuleTest, AShapeThatATwinHasTooIsTheDatas) {
  EXPECT_TRUE(IsJump(kOtherShape, {kNoise, kNoise}));
  EXPECT_FALSE(IsJump(kOtherShape, {kNoise, kOtherShape}));
}

TEST_F(MeasuredRuleTest, WholeNumbersHaveNoNoiseAndOnlyABatchOfThemIsGiven) {
  const Records::Distances none = {0.0, 0.0};
  EXPECT_FALSE(IsJump(0.01, none, {.dtype = DType::kI64}));
  Add(Key("ids", Kind::kBatch), 1e-9, none, {.dtype = DType::kI64});
  const std::vector<Jump> jumps = Jumps();
  ASSERT_EQ(jumps.size(), 1u);
  EXPECT_EQ(jumps[0].kind, JumpKind::kInput);
  EXPECT_EQ(jumps[0].confidence, Confidence::kCertain);
}

// As imports of other tools have them.
TEST_F(MeasuredRuleTest, RecordsWithFewSumsOrWithoutHashesAreMeasuredByTheirDistances) {
  const Records::Distances noise = {1e-4, 1e-4};
  for (const Given& given : {Given{.sums = 8}, Given{.absent = BitOf(Statistic::kHash)}}) {
    EXPECT_FALSE(IsJump(1.5e-4, noise, given));
    EXPECT_TRUE(IsJump(1e-2, noise, given));
    EXPECT_FALSE(IsJump(0, noise, given));
  }
}

TEST_F(MeasuredRuleTest, ZerosThatDifferAreMeasuredAgainstWhatBHas) {
  Records records;
  records.Add(Key("x"), 0.5, {0.0, 0.0}, {.numel = 8, .l2 = 0});
  TensorStats of_b;
  of_b.numel = 8;
  of_b.l2 = 2;
  of_b.hash = 7;
  std::vector<double> sums(16, 0.5);
  records.pairs[0].b.stats = &of_b;
  records.pairs[0].b.sketch = sums;
  const auto answer = rule_->Judge(records.Step());
  ASSERT_EQ(answer.jumps.size(), 1u);
  EXPECT_NEAR(answer.explained[0].observed, 1, 1e-9);
}

// Logged as a double, it was computed in the type that its digits show.
TEST_F(MeasuredRuleTest, ALossAfterEqualOutputsMayRoundAsItsDigitsShow) {
  const auto is_jump = [](double a, double relative) {
    Records records;
    records.Add(Key("x"), 0, kTwins, {.numel = 1});
    records.AddLoss(a, a * (1 + relative), kTwins);
    return !MeasuredRule({1, 1}).Judge(records.Step()).jumps.empty();
  };
  const double f32 = 2.3, f16 = 2.25 + 0x1p-9, bf16 = 2.25;
  EXPECT_FALSE(is_jump(f32, 1e-7));
  EXPECT_TRUE(is_jump(f32, 1e-3));
  EXPECT_FALSE(is_jump(f16, 1e-3));
  EXPECT_TRUE(is_jump(f16, 8e-3));
  EXPECT_FALSE(is_jump(bf16, 8e-3));
  EXPECT_TRUE(is_jump(bf16, 0.1));
}

TEST_F(MeasuredRuleTest, ALossAfterEqualOutputsDiffersAlsoWhereNoTwinLoggedIt) {
  const auto is_jump = [](double relative) {
    Records records;
    records.Add(Key("x"), 0, kTwins, {.numel = 1});
    records.AddLoss(2.3, 2.3 * (1 + relative), {std::nullopt, std::nullopt});
    return !MeasuredRule({1, 1}).Judge(records.Step()).jumps.empty();
  };
  EXPECT_TRUE(is_jump(0.1));
  EXPECT_FALSE(is_jump(1e-7));
}

// A step's losses, with their names, are gone when the next step is read.
TEST_F(MeasuredRuleTest, TheSmallestNoiseOfALossIsKnownWithoutTheStepThatShowedIt) {
  std::string name = kLossName;
  steps_.back().AddLoss(2.3, 2.3, kTwins, name);
  EXPECT_TRUE(Jumps().empty());
  name = "gone";
  steps_.back().AddLoss(2.3, 2.3 * (1 + 1e-3), {1e-2, 1e-2});
  EXPECT_EQ(Found(), std::vector<std::size_t>{0});
}

// --- what a record may inherit

TEST_F(MeasuredRuleTest, AnUpdateFromEqualGradientWeightAndStateInheritsNothing) {
  const auto add = [&](double of_update, const Records::Distances& of_twins) {
    const Records::Distances noisy = {1e-3, 1e-3};
    Add(Key("x"), 1e-3, noisy);
    Add(Key("fc.weight", Kind::kWeightGrad), 0, noisy);
    Add(Key("fc.weight", Kind::kOptimizerState, "exp_avg"), 0, noisy);
    Add(Key("fc.weight", Kind::kOptimizerState, "exp_avg_sq"), 0, noisy);
    Add(Key("fc.weight", Kind::kWeight), of_update, of_twins);
  };
  add(0, kTwins);
  EXPECT_THAT(Found(), IsEmpty());
  add(1e-3, {1e-3, 1e-3});
  const std::vector<Jump> jumps = Jumps();
  ASSERT_EQ(jumps.size(), 1u);
  EXPECT_EQ(jumps[0].index, 4u);
  EXPECT_EQ(jumps[0].confidence, Confidence::kCertain);
}

// A stage of a pipeline has other tensors, but the gradients' norm is that of all stages.
TEST_F(MeasuredRuleTest, RanksOfOneProgramExplainAllAndOthersOnlyGradients) {
  const auto trail_of = [&](const char* first) {
    Records records;
    records.Add(Key(first), 1e-4, kTwins, Given());
    records.Add(Key("y"), 1e-4, kTwins, Given());
    records.Add(Key("y.weight", Kind::kWeightGrad), 1e-4, kTwins, Given());
    return MeasuredRule({1, 1}).Follow(records.Step());
  };
  const RankTrail same = trail_of("x"), other = trail_of("stage1.x");
  const auto found = [&](const RankTrail* trail) {
    rule_.emplace(std::vector<double>{1, 1});
    Add(Key("x"), 0);
    Add(Key("y"), 1e-5);
    Add(Key("y.weight", Kind::kWeightGrad), 3e-5);
    return trail == nullptr ? Found() : Found(std::array{trail});
  };
  EXPECT_THAT(found(nullptr), ElementsAre(1, 2));
  EXPECT_THAT(found(&same), IsEmpty());
  EXPECT_THAT(found(&other), ElementsAre(1)) << "its outputs are of another stage";
}

// --- how certain, and which

TEST_F(MeasuredRuleTest, AnExcessIsAsCertainAsItAndItsTensorAreLarge) {
  const auto confidence = [](double of_b, std::uint64_t numel, bool behind_noise = true) {
    Records records;
    records.Add(Key("x"), behind_noise ? kNoise : 0, kTwins, Given());
    records.Add(Key("y"), of_b, kTwins, {.numel = numel});
    const auto jumps = MeasuredRule({1, 1}).Judge(records.Step()).jumps;
    return jumps.empty() ? std::nullopt : jumps.front().confidence;
  };
  EXPECT_EQ(confidence(2e-6, kElements), Confidence::kCertain);
  EXPECT_EQ(confidence(2e-6, 128), Confidence::kLikely) << "of few elements";
  EXPECT_EQ(confidence(4.5e-7, kElements), Confidence::kLikely);
  EXPECT_EQ(confidence(3e-7, kElements), Confidence::kPossible);
  EXPECT_EQ(confidence(2e-7, kElements), std::nullopt);
  EXPECT_EQ(confidence(2e-6, kElements, /*behind_noise=*/false), Confidence::kPossible)
      << "the first difference may be another kernel's";
  EXPECT_EQ(confidence(1e-4, kElements, /*behind_noise=*/false), Confidence::kLikely);
}

TEST_F(MeasuredRuleTest, OfGradientsTheLargestIsTheRootAndASettingBeforeAny) {
  Add(Key("x"), kNoise);
  Add(Key("a.weight", Kind::kWeightGrad), 1e-5);
  Add(Key("b.weight", Kind::kWeightGrad), 1e-3);
  Add(Key("c.weight", Kind::kWeightGrad), 1e-4);
  Add(Key("a.weight", Kind::kWeight), 1);
  std::vector<Jump> jumps = Jumps();
  ASSERT_EQ(jumps.size(), 4u);
  EXPECT_EQ(jumps[rule_->ChooseJump(jumps)].index, 2u) << "not the update that follows";
  jumps[2].kind = JumpKind::kSetting;
  EXPECT_EQ(jumps[rule_->ChooseJump(jumps)].index, 3u);
  jumps[0].kind = JumpKind::kSetting;
  EXPECT_EQ(jumps[rule_->ChooseJump(jumps)].index, 1u);
}

}  // namespace
}  // namespace statcollect::query
