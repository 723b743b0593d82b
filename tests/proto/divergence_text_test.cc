#include "proto/text/divergence_text.h"
#include "proto/text/verdict_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "proto/text/zoom_place.h"

namespace statcollect {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

v1::Divergence Row(v1::Stage stage, v1::Kind kind, const std::string& activation,
                   v1::Reason reason) {
  v1::Divergence row;
  row.set_step(3);
  row.set_stage(stage);
  row.set_kind(kind);
  row.set_activation(activation);
  row.set_reason(reason);
  row.set_origin(true);
  row.set_mode("train");
  return row;
}

v1::Divergence Forward(v1::Reason reason) {
  v1::Divergence row = Row(v1::STAGE_FORWARD, v1::KIND_OUTPUT, "h.1.proj", reason);
  row.set_output_path("0");
  return row;
}

v1::DiffReport Runs() {
  v1::DiffReport report;
  report.set_run_a("base");
  report.set_run_b("port");
  return report;
}

std::string Next(const v1::Divergence& first, const std::vector<std::string>& only_b = {}) {
  v1::DiffReport report = Runs();
  *report.mutable_first() = first;
  for (const std::string& name : only_b) report.mutable_unmatched()->add_only_b(name);
  return NextStep(report);
}

TEST(DivergenceText, HeadlineTellsMicroBatchAndDistance) {
  v1::Divergence row = Forward(v1::REASON_NUMERIC);
  row.set_micro_batch(1);
  row.set_class_name("Linear");
  row.set_distance(0.011);
  row.set_distance_low(0.008);
  row.set_distance_high(0.02);
  row.set_tolerance(1e-4);
  EXPECT_EQ(Headline(row, Runs()),
            "at step 3, micro-batch 1, rank 0, forward, h.1.proj (Linear): numeric, distance "
            "1.1e-2 (8e-3 to "
            "2e-2), "
            "tolerance 1e-4");
}

TEST(RankText, NamesTheRanksOfBOnlyIfTheyAreOthers) {
  v1::Divergence of;
  of.add_ranks_a(0);
  of.add_ranks_b(0);
  EXPECT_EQ(RankText(of), "0");
  of.add_ranks_b(1);
  EXPECT_EQ(RankText(of), "0 (B: 0, 1)");
}

TEST(RankText, ReplicasThatDifferAreThoseOfOneRun) {
  v1::DiffReport report;
  report.set_run_a("base");
  report.set_run_b("ort");
  v1::Divergence d;
  d.set_step(3);
  d.set_stage(v1::STAGE_OPTIMIZER);
  d.set_kind(v1::KIND_WEIGHT);
  d.set_activation("head.weight");
  d.set_reason(v1::REASON_NUMERIC);
  d.set_distance(0.04);
  for (const std::uint32_t rank : {1u, 3u}) d.add_ranks_b(rank);
  EXPECT_EQ(Headline(d, report),
            "at step 3, ranks 1, 3, optimizer, head.weight: the replicas of ort differ, distance "
            "4e-2");
}

TEST(DivergenceText, ValuesOfMergedRanksAreFetchedFromTheRankOfEachRun) {
  v1::DiffReport report;
  report.set_run_a("base");
  report.set_run_b("port");
  *report.mutable_first() =
      Row(v1::STAGE_OPTIMIZER, v1::KIND_WEIGHT, "fc.weight", v1::REASON_NUMERIC);
  report.mutable_first()->set_rank(1);
  EXPECT_THAT(ValuesAdvice(report), AllOf(HasSubstr(" --rank 1"), Not(HasSubstr("--rank-b"))));
  report.mutable_first()->set_rank_b(3);
  EXPECT_THAT(ValuesAdvice(report), HasSubstr(" --rank 1 --rank-b 3"));
}

TEST(DivergenceText, RunsAreLaunchedAgainUnderNamesThatAreFree) {
  v1::DiffReport report = Runs();
  *report.mutable_first() = Forward(v1::REASON_NUMERIC);
  EXPECT_EQ(
      ValuesAdvice(report),
      "launch both again as base-2 and port-2 (statctl run NAME -- COMMAND, or STATAGENT_RUN=NAME) "
      "with STATAGENT_CAPTURES=h.1.proj@3, then statctl values diff base-2 port-2 h.1.proj --step "
      "3");
  report.set_run_a("base-2");
  report.set_run_b("2025-11-22");
  EXPECT_THAT(ValuesAdvice(report), HasSubstr("again as base-3 and 2025-11-22-2 ("));
}

TEST(DivergenceText, HeadlineTellsWhatDiffersWhereNoDistanceDoes) {
  v1::Divergence row = Forward(v1::REASON_SHAPE);
  row.set_tolerance(1e-4);
  row.mutable_a()->add_shape(4);
  row.mutable_a()->add_shape(16);
  EXPECT_THAT(Headline(row, Runs()),
              AllOf(HasSubstr("shape, 4x16 in base and 0-d in port"), Not(HasSubstr("tolerance"))));

  row = Forward(v1::REASON_DTYPE);
  row.mutable_a()->set_dtype("f32");
  row.mutable_b()->set_dtype("bf16");
  row.set_distance(2e-3);
  EXPECT_THAT(Headline(row, Runs()),
              HasSubstr("dtype, f32 in base and bf16 in port, distance 2e-3"));

  row = Forward(v1::REASON_NONFINITE);
  row.set_distance(std::numeric_limits<double>::infinity());
  row.mutable_b()->set_nan(2);
  row.mutable_b()->set_pos_inf(1000);
  row.mutable_b()->set_neg_inf(24);
  EXPECT_THAT(
      Headline(row, Runs()),
      HasSubstr("nonfinite, 0 NaN and 0 infinite in base and 2 NaN and 1,024 infinite in port"));

  row = Row(v1::STAGE_LOSS, v1::KIND_UNSPECIFIED, "loss", v1::REASON_NONFINITE);
  row.mutable_a()->set_value(2.5);
  row.mutable_b()->set_value(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(Headline(row, Runs()), HasSubstr("nonfinite, 2.5 in base and nan in port"));
}

TEST(DivergenceText, WhatIsMissingIsSaidWithTheNameOfTheRun) {
  EXPECT_EQ(ReasonText(Forward(v1::REASON_MISSING_IN_A), Runs()), "missing in base");
  EXPECT_EQ(ReasonText(Forward(v1::REASON_MISSING_IN_B), Runs()), "missing in port");
  EXPECT_THAT(Headline(Forward(v1::REASON_MISSING_IN_B), Runs()),
              HasSubstr("h.1.proj: missing in port"));
  EXPECT_EQ(ReasonText(Forward(v1::REASON_NUMERIC), Runs()), "numeric");
}

TEST(DivergenceText, ForwardPointsAtWhatLiesBetween) {
  v1::Divergence row = Forward(v1::REASON_NUMERIC);
  EXPECT_EQ(Next(row), "look at h.1.proj");
  row.set_previous("h.1.qkv");
  EXPECT_EQ(
      Next(row),
      "look at h.1.proj, and at what is computed between it and h.1.qkv, which agrees bit for bit");
  row.set_previous_distance(3e-8);
  EXPECT_THAT(Next(row), HasSubstr("which agrees to 3e-8"));
}

TEST(DivergenceText, AModulesForwardPassCanBeZoomedInto) {
  v1::DiffReport report = Runs();
  v1::Divergence& first = *report.mutable_first();
  first = Forward(v1::REASON_NUMERIC);
  first.set_class_name("Linear");
  const std::string advice =
      "look at h.1.proj; statctl zoom base port leads to the operator and the line of code";
  EXPECT_EQ(NextStep(report), advice);
  EXPECT_EQ(PlaceToZoom(report)->ToText(), "h.1.proj@3");
  first.set_activation("blocks[0].*");
  EXPECT_EQ(PlaceToZoom(report)->ToText(), "blocks[[]0].[*]@3") << "a pattern of the shell";
  first.set_activation("h.1.proj");
  report.set_source_b("import");
  EXPECT_THAT(NextStep(report), Not(HasSubstr("zoom"))) << "nobody can train an import again";
  report.set_source_b("agent");
  EXPECT_EQ(NextStep(report), advice);
}

TEST(DivergenceText, WhatNoForwardPassOfBothComputesCannotBeZoomedInto) {
  const auto reason = [](const v1::Divergence& first) {
    v1::DiffReport report = Runs();
    *report.mutable_first() = first;
    report.mutable_first()->set_class_name("Linear");
    EXPECT_THAT(NextStep(report), Not(HasSubstr("zoom"))) << first.ShortDebugString();
    return PlaceToZoom(report).status().message();
  };
  EXPECT_THAT(reason(Row(v1::STAGE_GRAD, v1::KIND_WEIGHT_GRAD, "h.1.w", v1::REASON_NUMERIC)),
              HasSubstr("begins at h.1.w (weight_grad), step 3, which no forward pass"));
  EXPECT_THAT(reason(Forward(v1::REASON_MISSING_IN_A)), HasSubstr("expected the output"));
  EXPECT_THAT(reason(Forward(v1::REASON_ORDER)), HasSubstr("expected the output"));
  v1::Divergence row = Forward(v1::REASON_NUMERIC);
  row.set_mode("eval");
  EXPECT_THAT(reason(row), HasSubstr("in the training of both"));
  row = Forward(v1::REASON_NUMERIC);
  row.set_activation_b("blocks.1.proj");
  EXPECT_THAT(reason(row), HasSubstr("of both")) << "a zoom pairs modules by name";
  EXPECT_THAT(PlaceToZoom(Runs()).status().message(), HasSubstr("names no tensor"));
}

TEST(DivergenceText, BackwardPointsAtWhatUsedTheTensor) {
  v1::Divergence row =
      Row(v1::STAGE_BACKWARD, v1::KIND_GRAD_OUTPUT, "h.1.ln2", v1::REASON_NONFINITE);
  EXPECT_THAT(Next(row), HasSubstr("how the gradient of the loss reaches h.1.ln2"));
  row.set_previous("h.1.mlp.fc1");
  EXPECT_EQ(Next(row),
            "look at the backward pass between h.1.mlp.fc1, whose gradient agrees bit for bit, and "
            "h.1.ln2: "
            "forward pass and loss agree");
}

TEST(DivergenceText, TheVerdictSaysWhereOneRunEndedEarlier) {
  v1::DiffReport report = Runs();
  report.set_verdict(v1::VERDICT_IDENTICAL);
  report.mutable_compared()->set_records(48);
  v1::PremiseCheck& steps = *report.add_comparable();
  steps.set_check("steps");
  steps.set_detail("0..3 in both (4); base has 0..7, port has 0..3");
  EXPECT_EQ(
      VerdictText(report).sentence(),
      "base and port: all 48 records compared are equal bit for bit. Steps: 0..3 in both (4); "
      "base has 0..7, port has 0..3.");
  steps.set_ok(true);
  EXPECT_EQ(VerdictText(report).sentence(),
            "base and port: all 48 records compared are equal bit for bit.");
}

TEST(DivergenceText, EqualBitsAreSaidOnlyWhereHashesTell) {
  v1::DiffReport report = Runs();
  v1::Divergence& first = *report.mutable_first();
  first = Forward(v1::REASON_NUMERIC);
  first.set_previous("h.1.qkv");
  report.set_without_hash(1);
  EXPECT_THAT(NextStep(report),
              AllOf(HasSubstr("which agrees in every recorded statistic"), Not(HasSubstr("bit"))));
}

class BeforeTheRoot : public ::testing::Test {
 protected:
  BeforeTheRoot() : report_(Runs()) {
    const v1::Divergence row =
        Row(v1::STAGE_BACKWARD, v1::KIND_GRAD_OUTPUT, "h.1.ln2", v1::REASON_NUMERIC);
    *report_.mutable_first() = row;
    report_.mutable_root()->ParseFromString(row.SerializeAsString());
    report_.mutable_root()->set_confidence("certain");
  }
  v1::Divergence& Bitwise(v1::Stage stage, const std::string& activation) {
    *report_.mutable_first_bitwise() = Row(stage, v1::KIND_OUTPUT, activation, v1::REASON_BITWISE);
    return *report_.mutable_first_bitwise();
  }
  v1::DiffReport report_;
};

TEST_F(BeforeTheRoot, IsKnownToAgreeIfItWasCounted) {
  report_.mutable_root()->set_agreeing(7);
  EXPECT_EQ(WhatIsBefore(report_), Before::kAgrees);
  report_.mutable_root()->set_agreeing(0);
  EXPECT_EQ(WhatIsBefore(report_), Before::kNothing);
}

TEST_F(BeforeTheRoot, IsNothingOfModelsThatAreBuiltDifferently) {
  report_.mutable_root()->set_stage(v1::STAGE_WEIGHTS);
  report_.mutable_root()->set_kind(v1::KIND_WEIGHT);
  for (const v1::Reason reason :
       {v1::REASON_MISSING_IN_A, v1::REASON_MISSING_IN_B, v1::REASON_SHAPE}) {
    report_.mutable_root()->set_reason(reason);
    EXPECT_EQ(WhatIsBefore(report_), Before::kNothing) << reason;
  }
}

TEST_F(BeforeTheRoot, IsOtherwiseExplainedByRounding) {
  EXPECT_EQ(WhatIsBefore(report_), Before::kWithinRounding);
  EXPECT_THAT(NextStep(report_), ::testing::EndsWith("forward pass and loss agree up to rounding"));
}

TEST_F(BeforeTheRoot, OfWhatDiffersInMoreThanSizeTheFirstDifferenceTells) {
  report_.mutable_root()->set_reason(v1::REASON_NONFINITE);
  EXPECT_EQ(WhatIsBefore(report_), Before::kAgrees) << "nothing else differs";
  EXPECT_THAT(NextStep(report_), ::testing::EndsWith("forward pass and loss agree"));
  Bitwise(v1::STAGE_FORWARD, "h.0");
  EXPECT_EQ(WhatIsBefore(report_), Before::kWithinRounding);
  EXPECT_THAT(NextStep(report_), ::testing::EndsWith("forward pass and loss agree up to rounding"));
  Bitwise(v1::STAGE_OPTIMIZER, "h.0.w");
  EXPECT_EQ(WhatIsBefore(report_), Before::kAgrees) << "it comes later";
  Bitwise(v1::STAGE_OPTIMIZER, "h.0.w").set_step(2);
  EXPECT_EQ(WhatIsBefore(report_), Before::kWithinRounding) << "in an earlier step";
}

TEST_F(BeforeTheRoot, OfTheFirstAboveItsToleranceNothingElseIsKnown) {
  report_.mutable_root()->set_confidence("possible");
  EXPECT_EQ(WhatIsBefore(report_), Before::kWithinTolerance);
  EXPECT_THAT(NextStep(report_),
              ::testing::EndsWith("forward pass and loss agree within tolerance"));
}

TEST(CausesOf, ARowIsPropagatedOnlyFromOneThatCanCauseIt) {
  v1::DiffReport report = Runs();
  const auto add = [&](v1::Stage stage, v1::Kind kind, const std::string& name, v1::Reason reason,
                       bool origin) {
    v1::Divergence row = Row(stage, kind, name, reason);
    row.set_origin(origin);
    *report.add_diverged() = row;
  };
  add(v1::STAGE_BATCH, v1::KIND_BATCH, "mask", v1::REASON_NUMERIC, true);
  add(v1::STAGE_BATCH, v1::KIND_BATCH, "ids", v1::REASON_NUMERIC,
      false);  // no batch is computed from another
  add(v1::STAGE_FORWARD, v1::KIND_OUTPUT, "h.0", v1::REASON_NUMERIC, false);
  add(v1::STAGE_FORWARD, v1::KIND_OUTPUT, "h.1", v1::REASON_MISSING_IN_A, false);
  add(v1::STAGE_BATCH, v1::KIND_BATCH, "rollout", v1::REASON_NUMERIC,
      false);  // what a model computed
  EXPECT_THAT(CausesOf(report),
              ::testing::ElementsAre("origin", "-", "propagated", "-", "propagated"));
  report.clear_diverged();
  add(v1::STAGE_LOSS, v1::KIND_UNSPECIFIED, "loss", v1::REASON_NUMERIC, true);
  add(v1::STAGE_LOSS, v1::KIND_UNSPECIFIED, "loss", v1::REASON_NUMERIC, false);
  EXPECT_THAT(CausesOf(report), ::testing::ElementsAre("origin", "-"));
  // From a root below its tolerance, which is no row.
  report.mutable_root()->ParseFromString(Forward(v1::REASON_NUMERIC).SerializeAsString());
  EXPECT_THAT(CausesOf(report), ::testing::ElementsAre("origin", "propagated"));
}

TEST(DivergenceText, WhatIsNotOfAnAgentIsNotLaunchedAgain) {
  v1::DiffReport report = Runs();
  *report.mutable_first() = Forward(v1::REASON_NUMERIC);
  report.set_source_a("golden");
  report.set_source_b("agent");
  EXPECT_EQ(ValuesAdvice(report),
            "a golden has no values: launch its training and the other run again as values-a and "
            "port-2 (statctl run NAME -- COMMAND, or STATAGENT_RUN=NAME) with "
            "STATAGENT_CAPTURES=h.1.proj@3, then statctl values diff values-a port-2 h.1.proj "
            "--step 3");
  report.set_source_b("import");
  EXPECT_EQ(ValuesAdvice(report), "");
  report.mutable_bracket()->set_last_agreeing(1);
  report.mutable_bracket()->set_first_seen(3);
  EXPECT_THAT(NextStep(report),
              HasSubstr("run the golden's training and the other one again with steps=1-3"));
}

TEST(DivergenceText, OptimizerNamesTheWeightNotItsState) {
  v1::Divergence row = Row(v1::STAGE_OPTIMIZER, v1::KIND_OPTIMIZER_STATE, "w", v1::REASON_NUMERIC);
  row.set_output_path("exp_avg_sq");
  EXPECT_THAT(Next(row), HasSubstr("the gradient of w agrees, its update does not"));
}

TEST(DivergenceText, WhatIsMissingIsNotCalledDifferentData) {
  v1::Divergence batch = Row(v1::STAGE_BATCH, v1::KIND_BATCH, "tokens", v1::REASON_MISSING_IN_B);
  EXPECT_THAT(Next(batch), AllOf(HasSubstr("port got no tokens"), HasSubstr("micro-batches")));
  batch.set_reason(v1::REASON_MISSING_IN_A);
  EXPECT_THAT(Next(batch), HasSubstr("base got no tokens"));
  EXPECT_EQ(Next(Row(v1::STAGE_WEIGHTS, v1::KIND_WEIGHT, "h.9.w", v1::REASON_MISSING_IN_B)),
            "the models are built differently: port has no h.9.w");
  EXPECT_EQ(Next(Row(v1::STAGE_WEIGHTS, v1::KIND_WEIGHT, "h.9.w", v1::REASON_SHAPE)),
            "the models are built differently: h.9.w has a different shape");
  EXPECT_EQ(Next(Row(v1::STAGE_GRAD, v1::KIND_WEIGHT_GRAD, "w", v1::REASON_MISSING_IN_B)),
            "port has no gradient of w: is it frozen, unused, or left out of the optimizer?");
}

TEST(DivergenceText, AModuleThatRanInEvaluationOnlyIsToldSo) {
  const v1::Divergence row = Forward(v1::REASON_MISSING_IN_B);
  EXPECT_EQ(Next(row), "port did not run h.1.proj: look at what calls it");
  EXPECT_EQ(Next(row, {"output h.1.proj2[0] call 0 (eval)", "output h.1.proj[0] call 1"}),
            "port did not run h.1.proj: look at what calls it");
  EXPECT_EQ(Next(row, {"output h.1.proj[0] call 1 (eval)"}),
            "port ran h.1.proj in evaluation mode: is the model set to training?");
}

TEST(DivergenceText, AnOutputOfAnotherNameIsNoModuleThatDidNotRun) {
  EXPECT_EQ(Next(Forward(v1::REASON_MISSING_IN_B), {"output h.1.proj[loss] call 0"}),
            "port calls an output of h.1.proj [loss], the other run [0]: let the model return its "
            "outputs in the same form in both");
}

TEST(DivergenceText, ALossThatDiffersIsNotSaidToAgree) {
  v1::DiffReport report = Runs();
  v1::Root& root = *report.mutable_root();
  root.set_stage(v1::STAGE_BACKWARD);
  root.set_kind(v1::KIND_GRAD_OUTPUT);
  root.set_activation("router");
  root.set_reason(v1::REASON_NUMERIC);
  EXPECT_THAT(NextStep(report), HasSubstr("hooks): forward pass and loss agree"));
  root.add_causes()->set_rule("loss_term");
  EXPECT_THAT(NextStep(report), HasSubstr("hooks): the forward pass agrees"));
}

}  // namespace
}  // namespace statcollect
