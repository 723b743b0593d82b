// That a root claims no more than what was recorded and asked for shows.
#include "tests/server/query/premises.h"
#include "tests/server/query/verdict/verdict_fixture.h"

namespace statcollect::query {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class VerdictScopeTest : public VerdictTest {
 protected:
  using Config = std::map<std::string, std::string>;

  // A wrong update of one weight in a step, and what follows from it.
  static Level WrongUpdate(std::uint64_t at, const std::string& weight) {
    return [=](std::uint64_t step, const TensorKey& key) {
      if (step < at || IsInitial(key) || key.kind == Kind::kBatch) return 0.0;
      if (step > at) return 1e-3;
      return key.kind == Kind::kWeight && key.name == weight ? 0.3 : 0.0;
    };
  }
  // A wrong update of all weights in each step; outputs differ from the step after it on.
  static Level WrongUpdates(std::uint64_t from) {
    return [=](std::uint64_t step, const TensorKey& key) {
      if (step < from || IsInitial(key) || key.kind == Kind::kBatch) return 0.0;
      if (key.kind == Kind::kWeight) return 0.3;
      return step > from ? 1e-3 : 0.0;
    };
  }
  static Level BugAndRounding(const std::string& module, double size, std::uint64_t from) {
    const Level bug = BugAt(module, size, from);
    return Sum(RoundingOf(kRounding), bug);
  }
  void Configure(const Config& a, const Config& b) {
    before_ = [=](RunWriter& run, bool is_b) { run.Config(0, is_b ? b : a); };
  }
  DiffReport AskFor(const std::string& steps) {
    DiffRequest request;
    request.steps = steps;
    return Ask(request);
  }
};

// --- steps that were not requested

TEST_F(VerdictScopeTest, WeightsThatDifferBeforeTheComparedStepsAreNoRootInThem) {
  options_.steps = 8;
  Write(WrongUpdate(2, "blocks.0.fc.weight"));
  ASSERT_EQ(Say(Ask()), "2 optimizer blocks.0.fc.weight");
  const DiffReport report = AskFor("5-");
  ASSERT_TRUE(report.root);
  EXPECT_EQ(report.root->confidence, Confidence::kPossible) << Say(report);
  EXPECT_THAT(
      report.root->because,
      Contains(HasSubstr("the weights differ already after step 4, which was not requested")));
  EXPECT_THAT(report.notes, Contains(HasSubstr("where that began lies before the compared steps")));
  EXPECT_EQ(report.verdict, Verdict::kDiverged);
  EXPECT_FALSE(report.explained_by_rounding);
}

TEST_F(VerdictScopeTest, AJumpBehindWeightsThatDifferedBeforeIsNotCertain) {
  options_.steps = 8;
  Write(Sum(WrongUpdate(2, "blocks.0.fc.weight"), BugAt("blocks.2.ln", 0.2, 6)));
  const DiffReport report = AskFor("5-");
  ASSERT_EQ(Say(report), "6 forward blocks.2.ln");
  EXPECT_EQ(report.root->confidence, Confidence::kLikely);
  EXPECT_THAT(report.root->because, Contains(HasSubstr("the weights differ already after step 4")));
}

TEST_F(VerdictScopeTest, StepsBeforeThatAgreeLeaveTheRootCertain) {
  options_.steps = 8;
  Write(BugAt("blocks.2.ln", 1e-5, 6));
  for (const char* steps : {"5-", "6-", "0-2,6-7"}) {
    const DiffReport report = AskFor(steps);
    ASSERT_EQ(Say(report), "6 forward blocks.2.ln") << steps;
    EXPECT_EQ(report.root->confidence, Confidence::kCertain) << steps;
    EXPECT_TRUE(report.root->agreeing) << steps;
    EXPECT_THAT(report.notes, Not(Contains(HasSubstr("earlier origin")))) << steps;
  }
}

TEST_F(VerdictScopeTest, RoundingBeforeTheComparedStepsIsRounding) {
  options_.steps = 8;
  Write(RoundingOf(kRounding));
  const DiffReport report = AskFor("5-");
  EXPECT_EQ(Say(report), "none");
  EXPECT_TRUE(report.explained_by_rounding);
}

TEST_F(VerdictScopeTest, AGapInTheStepsIsLookedInto) {
  options_.steps = 9;
  Write(WrongUpdates(4));
  const DiffReport report = AskFor("0-2,7-");
  ASSERT_TRUE(report.root);
  EXPECT_EQ(report.root->confidence, Confidence::kPossible) << Say(report);
  EXPECT_THAT(report.root->because, Contains(HasSubstr("already after step 6")));
}

// --- steps and kinds that were not recorded

TEST_F(VerdictScopeTest, RunsThatWereRecordedFromALaterStepOnHaveNoCertainRoot) {
  options_.first_step = 5;
  options_.steps = 8;
  options_.initial = false;
  const DiffReport report = DiffWith(WrongUpdates(2));
  ASSERT_TRUE(report.root);
  EXPECT_EQ(report.root->confidence, Confidence::kPossible) << Say(report);
  const auto says =
      Contains(HasSubstr("the weights before step 5 were not recorded in both runs, so an earlier "
                         "origin cannot be excluded"));
  EXPECT_THAT(report.root->because, says);
  EXPECT_THAT(report.notes, says);
}

TEST_F(VerdictScopeTest, OutputsThatAgreeMakeEqualWeightsLikely) {
  options_.first_step = 5;
  options_.steps = 8;
  options_.initial = false;
  const DiffReport report = DiffWith(BugAt("blocks.2.ln", 1e-4, 5));
  ASSERT_EQ(Say(report), "5 forward blocks.2.ln");
  EXPECT_EQ(report.root->confidence, Confidence::kLikely);
}

TEST_F(VerdictScopeTest, AResumedRunKnowsItsWeights) {
  options_.first_step = 5;
  options_.steps = 8;
  const DiffReport report = DiffWith(BugAt("embed", 1e-4, 5));
  ASSERT_EQ(Say(report), "5 forward embed");
  EXPECT_EQ(report.root->confidence, Confidence::kLikely) << "the rules' most";
  EXPECT_THAT(report.notes, Not(Contains(HasSubstr("earlier origin"))));
}

TEST_F(VerdictScopeTest, WithoutWeightsAnUpdateMayBeTheOrigin) {
  options_.gradients = false;  // no weights after updates either
  options_.losses = false;
  const DiffReport report = DiffWith(WrongUpdates(0));
  ASSERT_EQ(Say(report), "1 forward embed");
  EXPECT_EQ(report.root->confidence, Confidence::kPossible);
  EXPECT_THAT(report.root->because, Contains(HasSubstr("weights before step 1 were not recorded")));
}

// --- what only one run was asked to record

TEST_F(VerdictScopeTest, WhatOnlyOneRunWasAskedToRecordIsNotMissing) {
  const Edit only_blocks = [](std::uint64_t, const TensorKey& key, Tensor tensor) {
    const bool kept = key.name.starts_with("blocks.") || key.kind == Kind::kBatch;
    return kept ? std::optional(std::move(tensor)) : std::nullopt;
  };
  EXPECT_EQ(DiffWith(Nothing(), only_blocks).verdict, Verdict::kDiverged) << "nothing says why";
  store_ = std::make_unique<FakeStore>();
  Configure({}, {{"recording.include", "blocks.*"}});
  const DiffReport report = DiffWith(Nothing(), only_blocks);
  EXPECT_EQ(Say(report), "none");
  EXPECT_EQ(report.verdict, Verdict::kWithinTolerance);
  EXPECT_THAT(report.diverged, IsEmpty());
  EXPECT_THAT(testing::Broken(report),
              Contains("recording: b was recorded with include=blocks.*, a was not: what only one "
                       "of them was asked to record was not compared"));
}

TEST_F(VerdictScopeTest, WhatBothWereAskedToRecordIsMissing) {
  Configure({}, {{"recording.include", "blocks.*"}});
  const DiffReport report = DiffWith(
      Nothing(), [](std::uint64_t, const TensorKey& key, Tensor tensor) -> std::optional<Tensor> {
        const bool kept = key.name.starts_with("blocks.") || key.kind == Kind::kBatch;
        if (!kept || (key.name == "blocks.1.fc" && key.kind == Kind::kOutput)) return std::nullopt;
        return tensor;
      });
  ASSERT_EQ(Say(report), "0 forward blocks.1.fc");
  EXPECT_EQ(report.root->at.reason, Reason::kMissingInB);
}

TEST_F(VerdictScopeTest, ParametersOfOtherStepsAreNotMissing) {
  options_.steps = 6;
  Configure({}, {{"recording.parameter_steps", "every=2"}});
  const Edit even = [](std::uint64_t step, const TensorKey& key, Tensor tensor) {
    const bool of_parameter = key.kind == Kind::kWeight || key.kind == Kind::kWeightGrad;
    const bool left_out = of_parameter && !IsInitial(key) && step % 2 == 1;
    return left_out ? std::nullopt : std::optional(std::move(tensor));
  };
  const DiffReport report = DiffWith(Nothing(), even);
  EXPECT_EQ(Say(report), "none");
  EXPECT_THAT(report.diverged, IsEmpty());
  store_ = std::make_unique<FakeStore>();
  const DiffReport missing = DiffWith(
      Nothing(),
      [&](std::uint64_t step, const TensorKey& key, Tensor tensor) -> std::optional<Tensor> {
        if (step >= 2 && !IsInitial(key) && key.name == "head.weight" && key.kind == Kind::kWeight)
          return std::nullopt;
        return even(step, key, std::move(tensor));
      });
  EXPECT_EQ(Say(missing), "2 optimizer head.weight")
      << "in a step in which it would have been recorded";
}

TEST_F(VerdictScopeTest, NothingIsMissingInStepsThatTheAgentWasNotAskedFor) {
  Configure({}, {{"recording.agent_steps", "1-"}});
  const DiffReport report =
      DiffWith(Nothing(), [](std::uint64_t step, const TensorKey& key, Tensor tensor) {
        const bool left_out = step == 0 && !IsInitial(key);
        return left_out ? std::nullopt : std::optional(std::move(tensor));
      });
  EXPECT_EQ(Say(report), "none");
  EXPECT_THAT(report.diverged, IsEmpty());
  EXPECT_THAT(testing::Broken(report), Contains(HasSubstr("b was recorded with steps=1-")));
}

TEST_F(VerdictScopeTest, ARootBehindWhatWasLeftOutIsNotCertain) {
  Configure({{"recording.include", "blocks.*"}}, {{"recording.include", "blocks.*"}});
  base_ = {};
  const DiffReport report = DiffWith(BugAt("blocks.2.ln", 1e-4));
  ASSERT_EQ(Say(report), "0 forward blocks.2.ln");
  EXPECT_EQ(report.root->confidence, Confidence::kLikely);
  EXPECT_THAT(report.root->because,
              Contains(AllOf(HasSubstr("include=blocks.*"),
                             HasSubstr("something before it that was left out"))));
}

}  // namespace
}  // namespace statcollect::query
