// Integers that rounding moves, such as the expert that a router sends a token to.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/query/verdict/choices.h"
#include "server/query/verdict/jumps.h"
#include "tests/server/query/verdict/step_of_pairs.h"

namespace statcollect::query {
namespace {

struct Routing {
  double logits = 1e-3, chosen = 0.06;
  double expert = 1.2, expert_l2 = 1;  // its distance, its norm in B; 1 in A
  std::string beside = "layers.0.mlp.experts.act_fn";
  double experts = 1e-3, gradient = 0;
};

// Names of the jumps in a step of a block with a router and experts, behind a difference that is one itself.
std::vector<std::string> JumpsOf(const Routing& r) {
  Step step;
  step.Add(Key("layers.0.norm"), r.logits);
  step.Add(Key("layers.0.mlp.gate", Kind::kOutput, "0"), r.logits);
  step.Add(Key("layers.0.mlp.gate", Kind::kOutput, "2"), r.chosen,
           {.dtype = DType::kI64, .l2 = 17, .l2_b = 17, .numel = 160, .shape = {80, 2}, .largest = 3});
  step.Add(Key(r.beside), r.expert, {.l2_b = r.expert_l2});
  step.Add(Key("layers.0.mlp.experts"), r.experts, {.shape = {4, 20, 32}});
  step.Add(GradOutput("layers.0.mlp.experts"), r.logits);
  step.Add(GradOutput("layers.0.mlp.experts.act_fn"), r.gradient);
  step.Add(GradOutput("layers.0.norm"), r.logits);
  Explainer explainer;
  const auto explained = explainer.Step(step.pairs);
  std::vector<std::string> names;
  for (const Jump& jump : JumpFinder(0).Find(explained)) {
    const TensorKey& key = step.pairs[jump.index].a.def->key;
    if (key.name != "layers.0.norm")
      names.push_back((key.kind == Kind::kGradOutput ? "grad " : "") + key.name + key.output_path);
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(Choices, ATokenThatGoesElsewhereMovesTheRowsOfTheExperts) {
  EXPECT_EQ(JumpsOf({}), Names());
  EXPECT_EQ(JumpsOf({.gradient = 0.9}), Names()) << "in the backward pass, too";
}

TEST(Choices, RowsMoveOnlyIfAChoiceHas) {
  EXPECT_EQ(JumpsOf({.chosen = 0}), Names({"layers.0.mlp.experts.act_fn"}));
}

TEST(Choices, OtherRowsHaveOtherNorms) {
  EXPECT_EQ(JumpsOf({.expert_l2 = 4}), Names({"layers.0.mlp.experts.act_fn"}));
}

TEST(Choices, NothingMovesOutsideOfTheModuleWithTheRouter) {
  EXPECT_EQ(JumpsOf({.beside = "layers.0.attn.q"}), Names({"layers.0.attn.q"}));
}

TEST(Choices, WhatTheExpertsAddUpToDiffersByARow) {
  EXPECT_EQ(JumpsOf({.experts = 0.2}), Names());
  EXPECT_EQ(JumpsOf({.experts = 0.9}), Names({"layers.0.mlp.experts"}));
}

TEST(Choices, MoreChoicesThanRoundingMovesAreAJump) {
  EXPECT_EQ(JumpsOf({.logits = 1e-7, .chosen = 0.8, .experts = 1e-7}), Names({"layers.0.mlp.gate2"}));
}

TEST(Choices, AnElementMovesFromAFewThousandthsOn) {
  Step step;
  step.Add(Key("gate"), 0.1, {.dtype = DType::kI64, .l2 = 10, .numel = 100, .largest = 2});
  EXPECT_TRUE(IsChoice(step.pairs[0]));
  EXPECT_EQ(MovedByRounding(step.pairs[0], 1e-5), 0);
  EXPECT_DOUBLE_EQ(MovedByRounding(step.pairs[0], 1e-4), 0.4);
  EXPECT_DOUBLE_EQ(MovedByRounding(step.pairs[0], 0.04), 0.8);
}

}  // namespace
}  // namespace statcollect::query
