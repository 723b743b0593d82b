// Runs with overhead budgets: which steps a diff compares, what it does not count, and how it
// brackets a divergence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "server/query/query.h"
#include "server/query/settings/full_steps.h"
#include "tests/server/query/premises.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using ::testing::Contains;
using testing::FakeStore;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Key;
using ::testing::Not;
using testing::RunWriter;
using testing::Tensor;

constexpr std::uint64_t kSteps = 40;

Tensor Wave(double scale) {
  Tensor tensor;
  for (int i = 0; i < 40; ++i) tensor.values.push_back(scale * std::cos(i + 1.0));
  return tensor;
}

std::optional<RecordedInFull> Parse(const std::string& text) {
  return RecordedInFull::Of({{"recording.full_steps", text}});
}

TEST(RecordedInFullTest, HasTheStepsOfEachRange) {
  const auto full = Parse("0-3/1, 4-29/10, 30-/2, 33-34/1");
  ASSERT_TRUE(full);
  std::vector<std::uint64_t> steps;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    if (full->Contains(step)) steps.push_back(step);
  }
  EXPECT_EQ(steps, (std::vector<std::uint64_t>{0, 1, 2, 3, 10, 20, 30, 32, 33, 34, 36, 38}));
}

TEST(RecordedInFullTest, WhatCannotBeReadRestrictsNothing) {
  EXPECT_FALSE(RecordedInFull::Of({}));
  for (const char* bad : {"", "x", "0-3", "0/1", "3-/0", "0-3/1,4-/2", "-3/1"})
    EXPECT_FALSE(Parse(bad)) << bad;
}

TEST(RecordedInFullTest, StepsAreDescribedBriefly) {
  EXPECT_EQ(DescribeSteps({0, 1, 2, 3, 10, 20, 30}), "0..3 and multiples of 10 in 10..30");
  EXPECT_EQ(DescribeSteps({7}), "7");
  EXPECT_EQ(DescribeSteps({3, 10, 17, 24}), "3, 10, 17 and 24") << "not multiples of 7";
  EXPECT_EQ(DescribeSteps({1, 5, 6, 7, 20}), "1, 5..7 and 20");
  EXPECT_EQ(DescribeSteps({1, 4, 9, 16, 25, 36, 49, 64}), "1, 4, 9, 16, 25, 36 and others");
}

class BudgetTest : public ::testing::Test {
 protected:
  // Every step has its loss and batch; x and y are there in the steps in full. From step `other`
  // on, x and y differ, and the loss too if `loss_too`.
  void Write(const std::string& name, const std::string& full, const std::string& budget,
             std::uint64_t other = kSteps, bool loss_too = false, bool batches = true) {
    RunWriter run(store_, name);
    std::map<std::string, std::string> config = {{"recording.kinds", "grad_output, output"}};
    if (!full.empty()) {
      config["recording.full_steps"] = full;
      config["recording.overhead"] = budget;
      config["recording.overhead_measured"] = "1.7%";
    }
    run.Config(0, config);
    const auto steps = Parse(full);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const double scale = step >= other ? 1.5 : 1;
      if (batches) run.Observe(0, step, {.name = "input", .kind = Kind::kBatch}, Wave(3));
      if (!steps || steps->Contains(step))
        run.Observe(0, step, Key("x"), Wave(scale)).Observe(0, step, Key("y"), Wave(2 * scale));
      run.Scalar(0, step, "loss", loss_too ? scale : 1.0);
    }
    run.Commit();
  }
  DiffReport Ask(const std::string& b) {
    auto report = QueryEngine(store_).Diff({.run_a = "a", .run_b = b});
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : DiffReport();
  }

  FakeStore store_;
};

TEST_F(BudgetTest, RunsThatChoseDifferentStepsAreIdenticalInThoseTheyShare) {
  Write("a", "0-3/1, 4-/2", "5%");
  Write("b", "0-5/1, 6-/5", "2%");
  const DiffReport report = Ask("b");
  EXPECT_EQ(report.verdict, Verdict::kIdentical);
  EXPECT_THAT(report.unmatched.only_a, IsEmpty());
  EXPECT_THAT(report.unmatched.only_b, IsEmpty());
  EXPECT_THAT(testing::Broken(report),
              ElementsAre(HasSubstr("compared in full: 8 of 40 steps (0..4 and multiples of 10 in "
                                    "10..30)")));
  ASSERT_EQ(report.inputs.config.size(), 1u) << "what was measured is not a setting";
  EXPECT_EQ(report.inputs.config[0].key, "recording.overhead");
}

TEST_F(BudgetTest, StepsWithoutAnyTensorAreNotUnpairedIfTheBudgetLeftThemOut) {
  Write("a", "", "", kSteps, false, /*batches=*/false);
  Write("b", "0-3/1, 4-/10", "2%", kSteps, false, /*batches=*/false);
  const DiffReport report = Ask("b");
  EXPECT_EQ(report.verdict, Verdict::kIdentical);
  EXPECT_THAT(testing::Broken(report), Not(Contains(HasSubstr("has no statistics"))));
}

TEST_F(BudgetTest, WhatIsMissingInAStepInFullStillCounts) {
  Write("a", "", "");
  RunWriter run(store_, "b");
  run.Config(0, {{"recording.full_steps", "0-/2"}, {"recording.kinds", "grad_output, output"}});
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    run.Observe(0, step, {.name = "input", .kind = Kind::kBatch}, Wave(3));
    if (step % 2 == 0) run.Observe(0, step, Key("x"), Wave(1));
    run.Scalar(0, step, "loss", 1.0);
  }
  run.Commit();
  const DiffReport report = Ask("b");
  EXPECT_EQ(report.verdict, Verdict::kDiverged);
  ASSERT_TRUE(report.first);
  EXPECT_EQ(report.first->activation, "y");
  EXPECT_EQ(report.first->reason, Reason::kMissingInB);
  EXPECT_EQ(report.first->step, 0u);
}

TEST_F(BudgetTest, ADivergenceIsBracketedByTheStepsInFull) {
  Write("a", "0-3/1, 4-/2", "5%");
  Write("b", "0-5/1, 6-/5", "2%", /*other=*/13);
  const DiffReport report = Ask("b");
  EXPECT_EQ(report.verdict, Verdict::kDiverged);
  ASSERT_TRUE(report.bracket);
  EXPECT_EQ(report.bracket->first_seen, 20u);
  EXPECT_EQ(report.bracket->last_agreeing, 10u);
  const std::string sentence =
      "first seen at step 20; last agreeing step 10; run both again with steps=10-20 to see where "
      "it began";
  EXPECT_THAT(report.notes, Contains(sentence));
  ASSERT_TRUE(report.root);
  EXPECT_THAT(report.root->because, Contains(sentence));
  EXPECT_NE(report.root->confidence, Confidence::kCertain);
}

TEST_F(BudgetTest, ALossThatDiffersBetweenThemNarrowsTheBracket) {
  Write("a", "0-3/1, 4-/2", "5%");
  Write("b", "0-5/1, 6-/5", "2%", /*other=*/13, /*loss_too=*/true);
  const DiffReport report = Ask("b");
  ASSERT_TRUE(report.bracket);
  EXPECT_EQ(report.bracket->first_seen, 13u);
  EXPECT_EQ(report.bracket->last_agreeing, 10u);
}

TEST_F(BudgetTest, NothingIsBracketedWhereTheStepBeforeAgreesInFull) {
  Write("a", "0-3/1, 4-/2", "5%");
  Write("b", "0-5/1, 6-/5", "2%", /*other=*/3);
  EXPECT_EQ(Ask("b").first->step, 3u);
  EXPECT_FALSE(Ask("b").bracket);
  Write("c", "", "", /*other=*/13);
  Write("d", "", "");
  const auto report = QueryEngine(store_).Diff({.run_a = "d", .run_b = "c"});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->first->step, 13u);
  EXPECT_FALSE(report->bracket) << "without a budget";
}

}  // namespace
}  // namespace statcollect::query
