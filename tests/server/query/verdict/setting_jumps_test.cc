// Where a recorded setting that differs is placed in a step.
#include "server/query/verdict/setting_jumps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "server/query/compare/step_order.h"
#include "tests/server/query/run_writer.h"

namespace statcollect::query {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Key;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class SettingJumpsTest : public ::testing::Test {
 protected:
  // A record of the step that differs by `distance`, where 1 is what is expected.
  void Record(const TensorKey& key, double distance = 1, int depth = 3) {
    Observation seen;
    seen.def = &defs_.emplace_back(
        TensorDef{.id = 0, .key = key, .parent = "", .class_name = "", .depth = depth});
    Add({.a = seen, .b = seen, .distance = distance}, StageOf(key));
  }
  void Model(const std::string& name, double distance = 1) { Record(Key(name), distance, 1); }
  void Loss(double distance = 1) { Add({.distance = distance, .loss = &loss_}, Stage::kLoss); }
  void Update(const std::string& name, double distance = 1, const std::string& state = "") {
    Record(Key(name, state.empty() ? Kind::kWeight : Kind::kOptimizerState, state), distance);
  }
  // What is judged of the newest record, such as a weight's update.
  void Observed(double observed) { step_.back().observed = observed; }

  void Differ(const std::string& key, const std::string& a = "1", const std::string& b = "2") {
    a_[key] = a;
    b_[key] = b;
  }
  // Names of the records in which a setting shows, in order.
  std::vector<std::string> Find(bool quiet = false, bool first_step = false) {
    for (std::size_t i = 0; i < step_.size(); ++i) step_[i].pair = &pairs_[i];
    jumps_ = FindSettingJumps(OtherSettings(a_, b_), step_, quiet, first_step);
    std::vector<std::string> names;
    for (const Jump& jump : jumps_) {
      EXPECT_EQ(jump.kind, JumpKind::kSetting);
      const TensorKey& key = step_[jump.index].pair->a.def->key;
      names.push_back(key.name + (key.output_path.empty() ? "" : "/" + key.output_path));
    }
    return names;
  }

  std::vector<Jump> jumps_;

 private:
  void Add(const TensorPair& pair, Stage stage) {
    pairs_.push_back(pair);
    step_.push_back({.stage = stage, .observed = pair.distance, .expected = 1});
  }

  const std::string loss_ = "loss";
  std::deque<TensorDef> defs_;
  std::deque<TensorPair> pairs_;
  std::vector<Explained> step_;
  Config a_, b_;
};

// --- a module

TEST_F(SettingJumpsTest, OfALeafIsItsFirstOutputThatDiffers) {
  Differ("module.blocks.*.ln.eps");
  Record(Key("blocks.0.ln"), 0);
  Record(Key("blocks.0.fc"));
  Record(Key("blocks.1.ln", Kind::kInput));
  Record(Key("blocks.1.ln"), 0.01);
  Record(Key("blocks.1.ln", Kind::kOutput, "1"), 5);
  Record(Key("blocks.1.ln", Kind::kGradOutput));
  EXPECT_THAT(Find(), ElementsAre("blocks.1.ln"));
  EXPECT_EQ(jumps_[0].index, 3u);
  EXPECT_FALSE(jumps_[0].of_outer);
}

TEST_F(SettingJumpsTest, OfEqualModulesIsOneEach) {
  Differ("module.blocks.*.ln.eps");
  Differ("module.blocks.*.ln.scale");
  Record(Key("blocks.0.ln"));
  Record(Key("blocks.1.ln"));
  EXPECT_THAT(Find(), ElementsAre("blocks.0.ln", "blocks.1.ln"));
}

TEST_F(SettingJumpsTest, InEvaluationSaysNothing) {
  Differ("module.ln.eps");
  Record(Key("ln", Kind::kOutput, "", 0, 0, Mode::kEval));
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(SettingJumpsTest, OfAContainerIsWhatStandsOutMostInIt) {
  Differ("module.blocks.*.attn.scale");
  Record(Key("blocks.0.ln"), 9);
  Record(Key("blocks.0.attn.q"));
  Record(Key("blocks.0.attn.out"), 3);
  Record(Key("blocks.0.attn"), 2);
  EXPECT_THAT(Find(), ElementsAre("blocks.0.attn.out"));
  EXPECT_TRUE(jumps_[0].of_outer);
}

TEST_F(SettingJumpsTest, OfAContainerMayBeItsOwnOutput) {
  Differ("module.attn.scale");
  Record(Key("attn.q"));
  Record(Key("attn"), 2);
  EXPECT_THAT(Find(), ElementsAre("attn"));
  EXPECT_FALSE(jumps_[0].of_outer);
}

TEST_F(SettingJumpsTest, OfAContainerInWhichNothingStandsOutIsItsFirstIfAllBeforeAgrees) {
  Differ("module.blocks.*.attn.scale");
  Record(Key("embed"), 0);
  Record(Key("blocks.0.attn.q"));
  Record(Key("blocks.0.attn"), 1.2);
  Record(Key("blocks.1.attn.q"));
  EXPECT_THAT(Find(/*quiet=*/true), ElementsAre("blocks.0.attn.q"));
  EXPECT_THAT(Find(/*quiet=*/false), IsEmpty()) << "rounding may have come from an earlier step";
}

TEST_F(SettingJumpsTest, OfAContainerBehindTheFirstDifferenceSaysNothingWhereNothingStandsOut) {
  Differ("module.attn.scale");
  Record(Key("embed"));
  Record(Key("attn.q"));
  EXPECT_THAT(Find(/*quiet=*/true), IsEmpty());
}

TEST_F(SettingJumpsTest, WhatCannotBeMeasuredStandsOut) {
  Differ("module.attn.scale");
  Record(Key("attn.q"));
  Record(Key("attn.k"), kInfinity);
  Record(Key("attn.v"), 100);
  EXPECT_THAT(Find(), ElementsAre("attn.k"));
}

TEST_F(SettingJumpsTest, ANotANumberAsADistanceIsNoDifference) {
  Differ("module.attn.scale");
  Differ("module.ln.eps");
  Record(Key("ln"), kNaN);
  Record(Key("attn.q"), kNaN);
  Record(Key("attn.k"), 2);
  EXPECT_THAT(Find(), ElementsAre("attn.k"));
}

TEST_F(SettingJumpsTest, ALossIsOfNoModule) {
  Differ("module.loss.scale");
  Differ("optimizer.group0.eps");
  Loss(5);
  EXPECT_THAT(Find(/*quiet=*/true), IsEmpty());
}

TEST_F(SettingJumpsTest, ALossThatDiffersFirstComesBeforeAContainer) {
  Differ("module.attn.scale");
  Loss();
  Record(Key("attn.q"));
  EXPECT_THAT(Find(/*quiet=*/true), IsEmpty());
}

// --- the model itself

TEST_F(SettingJumpsTest, OfTheModelIsWhatStandsOutMostAnywhere) {
  Differ("module.Gpt.scale");
  Record(Key("embed"));
  Record(Key("blocks.0.fc"), 3);
  Model("Gpt");
  EXPECT_THAT(Find(), ElementsAre("blocks.0.fc"));
}

TEST_F(SettingJumpsTest, OfOneModelIsNotInAnother) {
  Differ("module.gen.scale");
  Record(Key("gen.fc"));
  Model("gen");
  Record(Key("dis.fc"), 9);
  Model("dis", 9);
  EXPECT_THAT(Find(), IsEmpty());
  Record(Key("gen.out"), 2);
  EXPECT_THAT(Find(), ElementsAre("gen.out"));
}

// --- running statistics

TEST_F(SettingJumpsTest, OfAMomentumIsTheRunningStatistic) {
  Differ("module.bn.momentum");
  Record(Key("bn"), 2);
  Record(Key("bn.running_mean", Kind::kBuffer), 0);
  Record(Key("bn.running_var", Kind::kBuffer));
  EXPECT_THAT(Find(), ElementsAre("bn.running_var"));
  EXPECT_FALSE(jumps_[0].of_outer);
}

TEST_F(SettingJumpsTest, OfAMomentumIsNotTheOutput) {
  Differ("module.bn.momentum");
  Record(Key("bn"), 2);
  EXPECT_THAT(Find(/*quiet=*/true), IsEmpty());
}

TEST_F(SettingJumpsTest, OfAnEpsIsTheOutputAndNotTheRunningStatistic) {
  Differ("module.bn.eps");
  Record(Key("bn.running_mean", Kind::kBuffer));
  Record(Key("bn"));
  EXPECT_THAT(Find(), ElementsAre("bn"));
}

// --- an optimizer

TEST_F(SettingJumpsTest, OfAnOptimizerIsTheFirstResultThatStandsOutElseTheFirst) {
  Differ("optimizer.group0.eps");
  Record(Key("fc"), 9);
  Record(Key("fc.weight", Kind::kWeightGrad), 9);
  Update("fc.weight", 0);
  Update("fc.bias");
  Update("fc.bias", 1.2, "exp_avg");
  EXPECT_THAT(Find(), ElementsAre("fc.bias"));
  Update("head.weight", 10);
  EXPECT_THAT(Find(), ElementsAre("head.weight"));
  Update("tail.weight", 11);
  EXPECT_THAT(Find(), ElementsAre("head.weight")) << "about as much";
  Update("last.weight", 1000);
  EXPECT_THAT(Find(), ElementsAre("last.weight"));
}

TEST_F(SettingJumpsTest, OfAnUpdateThatAgreesThereIsNone) {
  Differ("optimizer.group0.eps");
  Update("fc.weight");
  Observed(0);  // the weight differs from before; its update agrees
  EXPECT_THAT(Find(), IsEmpty());
  Update("fc.bias");
  EXPECT_THAT(Find(), ElementsAre("fc.bias"));
}

TEST_F(SettingJumpsTest, OfANamedModelsOptimizerIsInItsOwnParameters) {
  Differ("optimizer.dis.group0.betas", "(0.9, 0.99)", "(0.8, 0.99)");
  Update("gen.fc.weight", 9);
  EXPECT_THAT(Find(), IsEmpty());
  Update("dis.fc.weight");
  Update("discount.weight", 9);
  EXPECT_THAT(Find(), ElementsAre("dis.fc.weight"));
}

TEST_F(SettingJumpsTest, OfAModelWithACapitalNameIsInItsOwnParametersToo) {
  Differ("optimizer.D.group0.eps");
  Update("G.fc.weight", 9);
  Update("D.fc.weight");
  EXPECT_THAT(Find(), ElementsAre("D.fc.weight"));
}

TEST_F(SettingJumpsTest, OfAModelThatGoesByItsClassIsInAnyParameters) {
  Differ("optimizer.Critic.group0.eps");
  Update("fc.weight");
  EXPECT_THAT(Find(), ElementsAre("fc.weight"));
}

TEST_F(SettingJumpsTest, OfAMomentumIsNotInTheFirstStep) {
  Differ("optimizer.group0.momentum", "0.9", "0.8");
  Update("fc.weight");
  EXPECT_THAT(Find(/*quiet=*/false, /*first_step=*/true), IsEmpty());
  EXPECT_THAT(Find(/*quiet=*/false, /*first_step=*/false), ElementsAre("fc.weight"));
  Differ("optimizer.group0.eps");
  EXPECT_THAT(Find(/*quiet=*/false, /*first_step=*/true), ElementsAre("fc.weight"));
}

TEST_F(SettingJumpsTest, OfADecayOfTheRateIsNotInTheFirstStep) {
  Differ("optimizer.group0.lr_decay", "0.01", "0.02");
  Update("fc.weight");
  EXPECT_THAT(Find(/*quiet=*/false, /*first_step=*/true), IsEmpty());
  EXPECT_THAT(Find(/*quiet=*/false, /*first_step=*/false), ElementsAre("fc.weight"));
}

TEST_F(SettingJumpsTest, OfANesterovMomentumIsInTheFirstStepToo) {
  Differ("optimizer.group0.momentum", "0.9", "0.8");
  Differ("optimizer.group0.nesterov", "true", "true");
  Update("fc.weight");
  EXPECT_THAT(Find(/*quiet=*/false, /*first_step=*/true), ElementsAre("fc.weight"));
}

TEST_F(SettingJumpsTest, OfNesterovItselfIsInTheFirstStep) {
  Differ("optimizer.group0.nesterov", "false", "true");
  Update("fc.weight");
  EXPECT_THAT(Find(/*quiet=*/false, /*first_step=*/true), ElementsAre("fc.weight"));
}

TEST_F(SettingJumpsTest, OfAnEpsIsNotInStateThatDoesNotDependOnIt) {
  Differ("optimizer.group0.eps");
  Update("fc.weight", 1);
  Update("fc.weight", 9, "exp_avg");
  Update("fc.weight", 9, "exp_avg_sq");
  EXPECT_THAT(Find(), ElementsAre("fc.weight"));
  Differ("optimizer.group0.betas", "(0.9, 0.99)", "(0.8, 0.99)");
  EXPECT_THAT(Find(), ElementsAre("fc.weight/exp_avg", "fc.weight"));
}

}  // namespace
}  // namespace statcollect::query
