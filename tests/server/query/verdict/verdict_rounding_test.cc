// What Diff calls explained by rounding, and what it does not.
#include "tests/server/query/verdict/verdict_fixture.h"

namespace statcollect::query {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using VerdictRoundingTest = VerdictTest;

class GrowthTest : public VerdictTest {
 protected:
  static constexpr std::uint64_t kSteps = 24;
  Level Growing() const {
    return [](std::uint64_t step, const TensorKey& key) {
      const double size =
          kRounding * std::pow(1e4, static_cast<double>(step) / static_cast<double>(kSteps - 1));
      return RoundingOf(size)(step, key);
    };
  }
  // Updates as large as the weights: what gradients differ reaches the next step.
  void SetUp() override {
    options_.steps = kSteps;
    options_.update = 1;
  }
};

TEST_F(VerdictRoundingTest, SeveralLossesOfOneNameAreComparedInTheirOrder) {
  options_.losses = options_.losses_twice = true;
  const DiffReport report = DiffWith(RoundingOf(kRounding));
  EXPECT_EQ(Say(report), "none");
  EXPECT_TRUE(report.explained_by_rounding);
}

// One of two losses of a step is no other place than the other.
TEST_F(VerdictRoundingTest, TheRootsOwnLossIsNoAlternative) {
  options_.losses_twice = true;
  const DiffReport report = DiffWith([](std::uint64_t step, const TensorKey& key) {
    return step == 1 && key.name == "loss" ? 1e-3 : 0.0;
  });
  EXPECT_EQ(Say(report), "1 loss loss");
  for (const Divergence& other : report.root->alternatives) EXPECT_NE(other.activation, "loss");
}

TEST_F(VerdictRoundingTest, EqualRunsHaveNeitherRootNorRounding) {
  const DiffReport report = DiffWith(Nothing());
  EXPECT_EQ(report.verdict, Verdict::kIdentical);
  EXPECT_EQ(Say(report), "none");
  EXPECT_FALSE(report.explained_by_rounding);
}

TEST_F(VerdictRoundingTest, RoundingEverywhereIsExplained) {
  const DiffReport report = DiffWith(RoundingOf(kRounding));
  ExpectExplained(report);
  EXPECT_FALSE(report.first);
  EXPECT_TRUE(report.first_bitwise);
}

TEST_F(VerdictRoundingTest, AJumpWithinTheToleranceIsARoot) {
  const DiffReport report = DiffWith(Sum(RoundingOf(kRounding), BugAt("blocks.2.ln", 1e-5)));
  EXPECT_EQ(Say(report), "0 forward blocks.2.ln");
  EXPECT_EQ(report.verdict, Verdict::kWithinTolerance);
  EXPECT_FALSE(report.explained_by_rounding);
  EXPECT_FALSE(report.root->above_tolerance);
}

TEST_F(GrowthTest, GrowthBeyondTheToleranceIsExplained) {
  const DiffReport report = DiffWith(Growing());
  ExpectExplained(report);
  ASSERT_TRUE(report.first) << "it does exceed the tolerance";
  EXPECT_GT(report.first->step, kSteps / 2);
  EXPECT_GT(report.compared.diverged, 0u);
}

TEST_F(GrowthTest, AJumpBeyondTheToleranceIsNot) {
  const DiffReport report = DiffWith(Sum(Growing(), BugAt("blocks.1.ln", 1e-3, 6)));
  EXPECT_EQ(Say(report), "6 forward blocks.1.ln");
  EXPECT_EQ(report.verdict, Verdict::kDiverged);
  EXPECT_EQ(report.root->above_tolerance, 6u);
}

TEST_F(GrowthTest, AToleranceOfTheUsersStaysARule) {
  Write(Growing());
  const DiffReport report = Ask({.tolerance = 1e-4});
  EXPECT_EQ(report.verdict, Verdict::kDiverged);
  EXPECT_FALSE(report.explained_by_rounding);
  EXPECT_EQ(Say(report), "none");
  const DiffReport loose = Ask({.tolerance = 0.5});
  EXPECT_EQ(loose.verdict, Verdict::kWithinTolerance);
}

TEST_F(GrowthTest, ExactStaysARule) {
  Write(Growing());
  const DiffReport report = Ask({.exact = true});
  EXPECT_EQ(report.verdict, Verdict::kDiverged);
  EXPECT_FALSE(report.explained_by_rounding);
  EXPECT_EQ(Say(report), "none") << "each difference is one of bits or size";
}

TEST_F(GrowthTest, SomeKindsOnlyDoNotTell) {
  Write(Growing());
  const DiffReport report = Ask({.kinds = {Kind::kOutput}});
  EXPECT_EQ(report.verdict, Verdict::kDiverged);
  EXPECT_FALSE(report.explained_by_rounding);
  EXPECT_THAT(report.notes, Contains(HasSubstr("with --kinds")));
  ASSERT_TRUE(report.root);
  EXPECT_EQ(report.root->confidence, Confidence::kPossible);
}

TEST_F(GrowthTest, StatisticsOnlyDoNotTell) {
  options_.sketch = 0;
  const DiffReport report = DiffWith(Growing());
  EXPECT_THAT(report.notes, Contains(HasSubstr("statistics but no sketches")));
  EXPECT_FALSE(report.explained_by_rounding);
  ASSERT_TRUE(report.root);
  EXPECT_EQ(report.root->confidence, Confidence::kPossible);
  EXPECT_EQ(report.root->at.step, report.first->step);
  EXPECT_EQ(report.root->at.activation, report.first->activation);
}

TEST_F(GrowthTest, SketchesTell) {
  EXPECT_THAT(DiffWith(Growing()).notes,
              Not(Contains(HasSubstr("rounding was not distinguished"))));
}

TEST_F(VerdictRoundingTest, ElementsThatBf16RoundsTheOtherWayAreSilent) {
  options_.dtype = DType::kBf16;
  ExpectExplained(DiffWith(RoundingOf(1e-4)));
}

TEST_F(VerdictRoundingTest, MoreThanBf16RoundsIsNot) {
  options_.dtype = DType::kBf16;
  EXPECT_EQ(Say(DiffWith(Sum(RoundingOf(1e-4), BugAt("blocks.1.ln", 0.1)))),
            "0 forward blocks.1.ln");
}

TEST_F(VerdictRoundingTest, InitialWeightsThatAreRoundedAreSilent) {
  ExpectExplained(DiffWith([](std::uint64_t, const TensorKey& key) {
    return key.kind == Kind::kBatch ? 0.0 : kRounding;
  }));
}

// --- little to go by

TEST_F(VerdictRoundingTest, OneStepIsEnough) {
  options_.steps = 1;
  ExpectExplained(DiffWith(RoundingOf(kRounding)));
}

TEST_F(VerdictRoundingTest, NoGradientsAreNoReason) {
  options_.gradients = false;
  ExpectExplained(DiffWith(RoundingOf(kRounding)));
}

TEST_F(VerdictRoundingTest, NoGradientsHideNoJump) {
  options_.gradients = false;
  EXPECT_EQ(Say(DiffWith(Sum(RoundingOf(kRounding), BugAt("blocks.2.ln", 1e-5)))),
            "0 forward blocks.2.ln");
}

TEST_F(VerdictRoundingTest, NoOrderOfExecutionIsNoReason) {
  options_.order = false;
  const DiffReport report = DiffWith(RoundingOf(kRounding));
  EXPECT_EQ(Say(report), "none");
  EXPECT_TRUE(report.explained_by_rounding);
}

TEST_F(VerdictRoundingTest, NoOrderOfExecutionHidesNoJump) {
  options_.order = false;
  const DiffReport report = DiffWith(Sum(RoundingOf(kRounding), BugAt("blocks.2.ln", 1e-4)));
  ASSERT_TRUE(report.root);
  EXPECT_EQ(report.root->at.step, 0u);
}

TEST_F(VerdictRoundingTest, AnEmptyStepIsPassedOver) {
  options_.steps = 4;
  options_.empty_step = 1;
  ExpectExplained(DiffWith(RoundingOf(kRounding)));
}

TEST_F(VerdictRoundingTest, AnEmptyFirstStepIsPassedOver) {
  options_.empty_step = 0;
  const DiffReport report = DiffWith(BugAt("blocks.2.ln", 1e-3, 1));
  EXPECT_EQ(Say(report), "1 forward blocks.2.ln");
}

TEST_F(VerdictRoundingTest, TinyTensorsDoNotCrash) {
  options_.elements = 1;
  const DiffReport report = DiffWith(RoundingOf(kRounding));
  EXPECT_NE(report.verdict, Verdict::kIncomparable);
}

}  // namespace
}  // namespace statcollect::query
