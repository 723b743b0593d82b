// What people read about a root, and about runs that only rounding tells apart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/commands/commands.h"
#include "proto/text/divergence_text.h"

namespace statcollect::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RootReport : public ::testing::Test {
 protected:
  RootReport() {
    report_.set_run_a("base");
    report_.set_run_b("ort");
    report_.set_verdict(v1::VERDICT_DIVERGED);
    report_.mutable_compared()->set_records(1200);
    report_.mutable_compared()->set_identical(200);
    report_.mutable_compared()->set_within_tolerance(400);
    report_.mutable_compared()->set_diverged(600);
    v1::Divergence& first = *report_.mutable_first();
    first.set_step(6);
    first.set_stage(v1::STAGE_OPTIMIZER);
    first.set_kind(v1::KIND_WEIGHT);
    first.set_activation("blocks.1.qkv.bias");
    first.set_reason(v1::REASON_NUMERIC);
    first.set_distance(2e-4);
    first.set_mode("train");
  }
  v1::Root& AddRoot() {
    v1::Root& root = *report_.mutable_root();
    root.set_step(2);
    root.set_rank(3);
    root.set_stage(v1::STAGE_FORWARD);
    root.set_kind(v1::KIND_OUTPUT);
    root.set_activation("blocks.2.ln");
    root.set_class_name("LayerNorm");
    root.set_reason(v1::REASON_NUMERIC);
    root.set_distance(3e-6);
    root.set_origin(true);
    root.set_mode("train");
    root.set_confidence("likely");
    root.add_because("it differs by 3e-6, 20 times what its inputs and rounding explain (1.5e-7)");
    return root;
  }
  std::string Text() { return RenderVerdict(report_).ToText({}) + RenderDiff(report_).ToText({}); }

  v1::DiffReport report_;
};

TEST_F(RootReport, RowOfKeepsTheSharedFieldsOnly) {
  v1::Root& root = AddRoot();
  root.set_rank_b(7);
  root.mutable_a()->set_l2(2);
  root.set_previous("blocks.1");
  const v1::Divergence row = RowOf(root);
  EXPECT_EQ(row.step(), 2u);
  EXPECT_EQ(row.rank(), 3u);
  EXPECT_EQ(row.rank_b(), 7u);
  EXPECT_EQ(row.activation(), "blocks.2.ln");
  EXPECT_EQ(row.class_name(), "LayerNorm");
  EXPECT_EQ(row.distance(), 3e-6);
  EXPECT_EQ(row.a().l2(), 2);
  EXPECT_EQ(row.previous(), "blocks.1");
  EXPECT_FALSE(row.has_tolerance());
  EXPECT_EQ(row.GetReflection()->GetUnknownFields(row).field_count(), 0) << "what only a root has";
}

TEST_F(RootReport, FocusIsTheRootElseTheFirst) {
  EXPECT_EQ(Focus(report_).activation(), "blocks.1.qkv.bias");
  AddRoot();
  EXPECT_EQ(Focus(report_).activation(), "blocks.2.ln");
}

TEST_F(RootReport, LeadsWithTheRootAndWhy) {
  v1::Root& root = AddRoot();
  v1::Divergence& other = *root.add_alternatives();
  other.set_step(2);
  other.set_stage(v1::STAGE_FORWARD);
  other.set_kind(v1::KIND_OUTPUT);
  other.set_activation("blocks.3.fc");
  other.set_distance(4e-6);
  EXPECT_THAT(Text(),
              AllOf(HasSubstr("DIVERGED"), HasSubstr("blocks.2.ln"),
                    HasSubstr("Why there (likely)"), HasSubstr("20 times what its inputs"),
                    HasSubstr("first above its tolerance: step 6"), HasSubstr("blocks.1.qkv.bias"),
                    HasSubstr("also possible: step 2"), HasSubstr("blocks.3.fc")));
}

TEST_F(RootReport, SaysTheCause) {
  v1::Root& root = AddRoot();
  EXPECT_THAT(Text(), Not(HasSubstr("Cause")));
  v1::Cause& cause = *root.mutable_cause();
  cause.set_text("eps is 1e-05 in base and 2e-05 in ort");
  cause.set_confidence("certain");
  EXPECT_THAT(Text(), HasSubstr("Cause: eps is 1e-05 in base and 2e-05 in ort."));
  cause.set_confidence("likely");
  EXPECT_THAT(Text(), HasSubstr("Cause (likely): eps is 1e-05"));
}

TEST_F(RootReport, AdvisesToLookForNothingWhereTheCauseIsCertain) {
  v1::Cause& cause = *AddRoot().mutable_cause();
  cause.set_text("eps is 1e-05 in base and 2e-05 in ort");
  cause.set_confidence("likely");
  EXPECT_THAT(RenderDiff(report_).ToText({}), HasSubstr("Next: look at"));
  cause.set_confidence("certain");
  EXPECT_THAT(RenderDiff(report_).ToText({}), Not(HasSubstr("Next:")));
}

TEST_F(RootReport, ListsSeveralCauses) {
  v1::Root& root = AddRoot();
  for (const char* text :
       {"eps is 1e-05 in base and 2e-05 in ort", "momentum is 0.1 in base and 0.2 in ort"}) {
    v1::Cause& cause = *root.add_causes();
    cause.set_text(text);
    cause.set_confidence("certain");
  }
  *root.mutable_cause() = root.causes(0);
  EXPECT_THAT(
      Text(),
      HasSubstr("Causes: (1) eps is 1e-05 in base and 2e-05 in ort; (2) momentum is 0.1 in"));
  root.mutable_causes()->RemoveLast();
  EXPECT_THAT(Text(), HasSubstr("Cause: eps is 1e-05"));
}

TEST_F(RootReport, DataOfTheSameSamplesAreNotTheLoaders) {
  v1::Root& root = AddRoot();
  root.set_stage(v1::STAGE_BATCH);
  root.set_kind(v1::KIND_BATCH);
  root.set_activation("labels");
  EXPECT_THAT(NextStep(report_), HasSubstr("check the data loader"));
  root.add_causes()->set_rule("same_samples");
  EXPECT_THAT(NextStep(report_),
              HasSubstr("both runs have the same samples; look at how labels is made"));
}

TEST_F(RootReport, WhatIsOnlyPossibleIsSaidInTheHeadline) {
  v1::Root& root = AddRoot();
  const auto headline = [&] { return RenderVerdict(report_).ToText({}); };
  EXPECT_THAT(headline(), HasSubstr("DIVERGED at step 2"));
  root.set_confidence("possible");
  EXPECT_THAT(headline(),
              AllOf(HasSubstr("DIVERGED (possible) at step 2"), Not(HasSubstr("origin"))));
  root.set_agreeing(7);
  EXPECT_THAT(headline(), HasSubstr("origin: everything observed before it agrees"));
  report_.clear_first();
  report_.set_verdict(v1::VERDICT_WITHIN_TOLERANCE);
  EXPECT_THAT(headline(), HasSubstr("they begin (possible) at step 2"));
}

TEST_F(RootReport, CountsWhatAgrees) {
  v1::Root& root = AddRoot();
  EXPECT_THAT(Text(), Not(HasSubstr("were compared before it")));
  root.set_agreeing(1234);
  EXPECT_THAT(Text(), HasSubstr("1,234 records of its rank were compared before it"));
}

TEST_F(RootReport, ARootWithinTheToleranceIsSaid) {
  AddRoot();
  report_.clear_first();
  report_.set_verdict(v1::VERDICT_WITHIN_TOLERANCE);
  EXPECT_THAT(Text(), AllOf(HasSubstr("WITHIN TOLERANCE"), HasSubstr("rounding does not explain"),
                            HasSubstr("blocks.2.ln")));
}

TEST_F(RootReport, WhatDiffersBeforeARootIsNotSaidToAgree) {
  AddRoot();
  v1::Divergence& before = *report_.mutable_first_bitwise();
  before.set_activation("embed");
  before.set_step(2);
  before.set_distance(0);
  EXPECT_THAT(Text(), AllOf(HasSubstr("Rounding explains everything before it."),
                            HasSubstr("first difference of any size: step 2"),
                            HasSubstr("smaller than its sketch resolves"),
                            Not(HasSubstr("everything observed before it agrees"))));
  before.set_step(1);
  before.set_distance(1e-7);
  EXPECT_THAT(Text(), AllOf(HasSubstr("Rounding explains everything before it."),
                            HasSubstr("distance 1e-7"),
                            Not(HasSubstr("everything observed before it agrees"))));
  report_.clear_first_bitwise();
  report_.clear_first();
  report_.set_verdict(v1::VERDICT_WITHIN_TOLERANCE);
  EXPECT_THAT(Text(), HasSubstr("Rounding explains everything before it."));
  report_.mutable_root()->set_agreeing(7);
  EXPECT_THAT(Text(), HasSubstr("everything observed before it agrees"));
}

TEST_F(RootReport, WhatIsComputedAtOnceIsNotSaidToBeExplained) {
  v1::Root& root = AddRoot();
  root.set_stage(v1::STAGE_GRAD);
  report_.clear_diverged();
  *report_.add_diverged() = RowOf(root);
  *report_.add_diverged() = RowOf(root);
  v1::Divergence& before = *report_.mutable_diverged(0);
  before.set_activation("embed.weight");
  EXPECT_THAT(Text(), HasSubstr("Rounding explains everything before the gradients of this step."));
  before.set_step(1);
  EXPECT_THAT(Text(), HasSubstr("Rounding explains everything before it."));
}

TEST_F(RootReport, WhatRepeatsDoNotExplainIsSaid) {
  AddRoot();
  report_.clear_first();
  report_.set_verdict(v1::VERDICT_WITHIN_TOLERANCE);
  report_.mutable_noise()->add_runs("repeat");
  EXPECT_THAT(
      Text(),
      HasSubstr(
          "none by more than its tolerance or ten times the noise of the repeats. But neither "
          "rounding nor the noise explains them: they begin at step 2"));
  report_.clear_root();
  report_.set_explained("rounding");
  EXPECT_THAT(Text(), HasSubstr("rounding and the noise of the repeats explain all of them"));
}

TEST_F(RootReport, WhoHasTwinsIsNotToldToRecordThem) {
  AddRoot();
  report_.mutable_root()->set_confidence("likely");
  EXPECT_THAT(Text(), HasSubstr("to measure it: statctl twins base -- COMMAND"));
  report_.add_notes("the twin base.twin-1-1 has other weights, so it was not used");
  EXPECT_THAT(Text(), Not(HasSubstr("statctl twins")));
  EXPECT_THAT(Text(), HasSubstr("because no twin could be used"));
}

TEST_F(RootReport, RoundingBeyondTheToleranceIsSaid) {
  report_.set_verdict(v1::VERDICT_WITHIN_TOLERANCE);
  report_.set_explained("rounding");
  for (const double distance : {1e-7, 1e-3}) {
    v1::GrowthPoint& point = *report_.mutable_growth()->add_points();
    point.set_step(distance < 1e-5 ? 0 : 9);
    point.set_distance(distance);
  }
  EXPECT_THAT(Text(),
              AllOf(HasSubstr("SAME UP TO ROUNDING"), HasSubstr("1,000 of 1,200 records differ"),
                    HasSubstr("How rounding grows"), Not(HasSubstr("Why there"))));
}

TEST_F(RootReport, RecordsAboveTheToleranceAreNotCalledEqual) {
  report_.set_verdict(v1::VERDICT_WITHIN_TOLERANCE);
  report_.set_explained("rounding");
  report_.mutable_compared()->set_within_tolerance(0);
  report_.mutable_compared()->set_diverged(960);
  EXPECT_THAT(Text(),
              AllOf(HasSubstr("SAME UP TO ROUNDING"), HasSubstr("960 of 1,200 records differ"),
                    Not(HasSubstr("bit for bit"))));
}

TEST_F(RootReport, RoundingWithinTheToleranceIsSaid) {
  report_.set_verdict(v1::VERDICT_WITHIN_TOLERANCE);
  report_.clear_first();
  EXPECT_THAT(Text(), Not(HasSubstr("rounding explains")));
  report_.set_explained("rounding");
  EXPECT_THAT(Text(),
              AllOf(HasSubstr("WITHIN TOLERANCE"), HasSubstr("rounding explains all of them")));
}

}  // namespace
}  // namespace statcollect::client
