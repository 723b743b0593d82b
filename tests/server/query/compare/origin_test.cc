// Origin or propagated: the rule of docs/divergence.md, through Diff.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "server/query/query.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::IsEmpty;
using testing::Key;
using testing::RunWriter;
using testing::Tensor;

// One step of one or more ranks, as a list of (identity, differs in B).
struct Point {
  TensorKey key;
  bool differs = false;
  std::uint32_t rank = 0;
  std::uint64_t step = 0;
  bool only_a = false;
};

Tensor Values(double scale) {
  Tensor tensor;
  for (int i = 0; i < 32; ++i) tensor.values.push_back(scale * std::sin(i + 1.0));
  return tensor;
}

std::string Text(const Divergence& row) {
  std::string text = row.stage == Stage::kLoss ? "loss" : std::string(Name(row.kind));
  text += " " + row.activation;
  if (!row.output_path.empty()) text += "[" + row.output_path + "]";
  return text;
}

DiffReport DiffOf(const std::vector<Point>& points) {
  FakeStore store;
  RunWriter a(store, "a", 4), b(store, "b", 4);
  for (const Point& p : points) {
    a.Observe(p.rank, p.step, p.key, Values(1));
    if (!p.only_a) b.Observe(p.rank, p.step, p.key, Values(p.differs ? 1.5 : 1));
  }
  a.Commit();
  b.Commit();
  auto report = QueryEngine(store).Diff({.run_a = "a", .run_b = "b", .all = true});
  EXPECT_TRUE(report.ok());
  return *report;
}

std::vector<std::string> Origins(const std::vector<Point>& points) {
  std::vector<std::string> texts;
  const DiffReport report = DiffOf(points);
  for (const Divergence& row : report.origins) texts.push_back(Text(row));
  return texts;
}

constexpr bool kDiffers = true;

TEST(Origin, WhatFollowsTheFirstDivergenceIsPropagated) {
  EXPECT_THAT(Origins({{Key("embed")},
                       {Key("h.0.ln"), kDiffers},
                       {Key("h.0.mlp"), kDiffers},
                       {Key("h.0"), kDiffers},
                       {Key("h.1.ln"), kDiffers},
                       {Key("h.1"), kDiffers},
                       {Key("head"), kDiffers}}),
              ElementsAre("output h.0.ln"));
}

TEST(Origin, AParentIsPropagatedFromItsChildren) {
  EXPECT_THAT(Origins({{Key("h.0.ln")},
                       {Key("h.0.mlp.fc"), kDiffers},
                       {Key("h.0.mlp"), kDiffers},
                       {Key("h.0"), kDiffers}}),
              ElementsAre("output h.0.mlp.fc"));
}

TEST(Origin, AParentWhoseChildrenAgreeIsItselfTheOrigin) {
  EXPECT_THAT(
      Origins(
          {{Key("h.0.ln")}, {Key("h.0.mlp")}, {Key("h.0"), kDiffers}, {Key("h.1.ln"), kDiffers}}),
      ElementsAre("output h.0"));
}

TEST(Origin, RecordedInputsDecideForAModule) {
  // Two independent mistakes: the second module's inputs agree although something before it
  // differs.
  EXPECT_THAT(Origins({{Key("x", Kind::kInput)},
                       {Key("x"), kDiffers},
                       {Key("y", Kind::kInput)},
                       {Key("y"), kDiffers}}),
              ElementsAre("output x", "output y"));
  EXPECT_THAT(Origins({{Key("x", Kind::kInput)},
                       {Key("x"), kDiffers},
                       {Key("y", Kind::kInput), kDiffers},
                       {Key("y"), kDiffers}}),
              ElementsAre("output x"));
}

TEST(Origin, BranchesThatDoNotSeeEachOtherAreIndependent) {
  EXPECT_THAT(Origins({{Key("left.a"), kDiffers},
                       {Key("right", Kind::kInput)},
                       {Key("right.a", Kind::kInput)},
                       {Key("right.a"), kDiffers},
                       {Key("join"), kDiffers}}),
              ElementsAre("output left.a", "output right.a"));
}

TEST(Origin, EarlierAgreeingSiblingsMakeAnOriginAtTheNearestLevel) {
  // h.1.ln agrees, so what h.1.mlp was computed from agrees, although h.0.mlp differed (and was
  // absorbed).
  EXPECT_THAT(
      Origins(
          {{Key("h.0.mlp"), kDiffers}, {Key("h.0")}, {Key("h.1.ln")}, {Key("h.1.mlp"), kDiffers}}),
      ElementsAre("output h.0.mlp", "output h.1.mlp"));
}

TEST(Origin, TwoOutputsOfOneModuleAreOneOrigin) {
  EXPECT_THAT(
      Origins({{Key("m", Kind::kOutput, "0"), kDiffers}, {Key("m", Kind::kOutput, "1"), kDiffers}}),
      ElementsAre("output m[0]"));
}

TEST(Origin, TheSameActivationOnSeveralRanksIsOneOriginOfTheLowestRank) {
  const DiffReport r =
      DiffOf({{Key("x")}, {Key("y"), kDiffers, 0}, {Key("x"), false, 2}, {Key("y"), kDiffers, 2}});
  ASSERT_EQ(r.origins.size(), 1u);
  EXPECT_EQ(r.origins[0].rank, 0u);
  EXPECT_THAT(r.spread.ranks, ElementsAre(0, 2));
  for (const Divergence& row : r.diverged) EXPECT_TRUE(row.origin);
}

TEST(Origin, EveryMicroBatchRepeatsTheSameOrigin) {
  EXPECT_THAT(Origins({{Key("x", Kind::kOutput, "", 0)},
                       {Key("y", Kind::kOutput, "", 0), kDiffers},
                       {Key("x", Kind::kOutput, "", 1)},
                       {Key("y", Kind::kOutput, "", 1), kDiffers}}),
              ElementsAre("output y"));
}

TEST(Origin, BackwardIsPropagatedFromForward) {
  EXPECT_THAT(Origins({{Key("x"), kDiffers}, {Key("x", Kind::kGradOutput), kDiffers}}),
              ElementsAre("output x"));
}

TEST(Origin, BackwardAloneHasOneOrigin) {
  EXPECT_THAT(Origins({{Key("x")},
                       {Key("y")},
                       {Key("y", Kind::kGradOutput)},
                       {Key("y", Kind::kGradInput), kDiffers},
                       {Key("x", Kind::kGradOutput), kDiffers}}),
              ElementsAre("grad_input y"));
}

TEST(Origin, GradientsArePropagatedFromAnyRank) {
  // Gradients are summed over ranks: rank 0's differ because rank 1's backward pass does.
  EXPECT_THAT(Origins({{Key("x", Kind::kGradOutput), false, 0},
                       {Key("x.weight", Kind::kWeightGrad), kDiffers, 0},
                       {Key("x", Kind::kGradOutput), kDiffers, 1},
                       {Key("x.weight", Kind::kWeightGrad), kDiffers, 1}}),
              ElementsAre("grad_output x"));
}

TEST(Origin, OptimizerIsPropagatedFromGradientsAndElseItsOwnOrigin) {
  EXPECT_THAT(
      Origins({{Key("w", Kind::kWeightGrad), kDiffers}, {Key("w", Kind::kWeight), kDiffers}}),
      ElementsAre("weight_grad w"));
  EXPECT_THAT(Origins({{Key("w", Kind::kWeightGrad)}, {Key("w", Kind::kWeight), kDiffers}}),
              ElementsAre("weight w"));
}

Point OnlyInA(TensorKey key) { return {.key = std::move(key), .only_a = true}; }

TEST(Origin, AMissingGradientExplainsTheUpdateOfItsOwnWeight) {
  EXPECT_THAT(Origins({{Key("v", Kind::kWeightGrad)},
                       OnlyInA(Key("w", Kind::kWeightGrad)),
                       {Key("v", Kind::kWeight)},
                       {Key("w", Kind::kWeight), kDiffers}}),
              ElementsAre("weight_grad w"));
  EXPECT_THAT(Origins({{Key("v", Kind::kWeightGrad)},
                       OnlyInA(Key("w", Kind::kWeightGrad)),
                       {Key("v", Kind::kWeight), kDiffers}}),
              ElementsAre("weight_grad w", "weight v"));
}

TEST(Origin, ATrainingPassOfOneRunOnlyExplainsGradients) {
  EXPECT_THAT(Origins({{Key("h.0")},
                       OnlyInA(Key("h.0", Kind::kOutput, "", 1)),
                       {Key("w", Kind::kWeightGrad), kDiffers},
                       {Key("w", Kind::kWeight), kDiffers}}),
              ElementsAre("output h.0"));
}

TEST(Origin, AMissingModuleExplainsNoValuesAsItMayNotHaveBeenRecorded) {
  EXPECT_THAT(Origins({{Key("h.0")}, OnlyInA(Key("h.1")), {Key("h.2"), kDiffers}}),
              ElementsAre("output h.1", "output h.2"));
}

TEST(Origin, AMissingModuleOfARankWhoseValuesAgreeExplainsNoGradientOfAnother) {
  EXPECT_THAT(Origins({{Key("fc1")},
                       {Key("fc2"), false, 0, 0, /*only_a=*/true},
                       {Key("fc1"), false, 1},
                       {Key("fc2"), false, 1},
                       {Key("fc1.weight", Kind::kWeightGrad), true, 1}}),
              ElementsAre("output fc2", "weight_grad fc1.weight"));
}

TEST(Origin, LaterStepsArePropagatedOnEveryRank) {
  const DiffReport r = DiffOf({{Key("x"), kDiffers, 0, 0},
                               {Key("y"), false, 1, 0},
                               {Key("x"), kDiffers, 0, 1},
                               {Key("y"), kDiffers, 1, 1}});
  ASSERT_EQ(r.origins.size(), 1u);
  ASSERT_EQ(r.diverged.size(), 3u);
  EXPECT_TRUE(r.diverged[0].origin);
  EXPECT_FALSE(r.diverged[1].origin);
  EXPECT_FALSE(r.diverged[2].origin);
}

TEST(Origin, DifferentDataExplainsTheForwardPass) {
  EXPECT_THAT(Origins({{Key("ids", Kind::kBatch), kDiffers},
                       {Key("embed"), kDiffers},
                       {Key("head"), kDiffers}}),
              ElementsAre("batch ids"));
}

TEST(Origin, EvalPassIsJudgedByItsOwnRecords) {
  const auto eval = [](const std::string& name) {
    return Key(name, Kind::kOutput, "", 0, 0, Mode::kEval);
  };
  EXPECT_THAT(Origins({{Key("h.0")},
                       {Key("h.1")},
                       {Key("h.2")},
                       {eval("h.0")},
                       {eval("h.1"), kDiffers},
                       {eval("h.2"), kDiffers}}),
              ElementsAre("output h.1"));
  const DiffReport r =
      DiffOf({{Key("h.0")}, {eval("h.0")}, {eval("h.1"), kDiffers}, {eval("h.2"), kDiffers}});
  EXPECT_EQ(r.first->mode, "eval");
  EXPECT_EQ(r.first->previous, "h.0");
}

TEST(Origin, EvalPassIsPropagatedFromTheTrainingPassOfItsStep) {
  const auto eval = [](const std::string& name) {
    return Key(name, Kind::kOutput, "", 0, 0, Mode::kEval);
  };
  EXPECT_THAT(
      Origins(
          {{Key("h.0")}, {Key("h.1"), kDiffers}, {eval("h.0"), kDiffers}, {eval("h.1"), kDiffers}}),
      ElementsAre("output h.1"));
}

TEST(Origin, SecondCallOfASharedModuleIsPropagatedFromTheFirst) {
  EXPECT_THAT(Origins({{Key("shared", Kind::kOutput, "", 0, 0), kDiffers},
                       {Key("shared", Kind::kOutput, "", 0, 1), kDiffers}}),
              ElementsAre("output shared"));
}

TEST(Origin, NamesThatShareAPrefixAreNotRelatives) {
  // "h.1" is not a child of "h.10", and "h.10.a" is not a child of "h.1".
  EXPECT_THAT(
      Origins({{Key("h.10.a"), kDiffers}, {Key("h.1", Kind::kInput)}, {Key("h.1"), kDiffers}}),
      ElementsAre("output h.10.a", "output h.1"));
}

}  // namespace
}  // namespace statcollect::query
