// Causes that the configuration, scalars and events tell.
#include "tests/server/query/cause/cause_fixture.h"

namespace statcollect::query {
namespace {

using CauseSettingsTest = CauseTest;

const TensorKey kWeight = Key("blocks.1.mlp.weight", Kind::kWeight);

TEST_F(CauseSettingsTest, LearningRateOfTheStepIsNamedWithBothValues) {
  Scalars(4, "lr/group0", 0.025, 0.05);
  Put(4, kWeight, Noise(1), Noise(2));
  const auto cause = Ask(Root(4, kWeight));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "learning_rate");
  EXPECT_EQ(cause->text, "learning rate of group 0 is 0.025 in base and 0.05 in ort at step 4");
  EXPECT_EQ(cause->confidence, Confidence::kCertain);
  EXPECT_EQ(cause->key, "lr/group0");
  EXPECT_EQ(cause->a, "0.025");
  EXPECT_EQ(cause->b, "0.05");
}

TEST_F(CauseSettingsTest, ALearningRateThatDiffersOnlyLaterSaysNothing) {
  Scalars(4, "lr/group0", 0.025, 0.025);
  Put(4, kWeight, Noise(1), Noise(2));
  Scalars(5, "lr/group0", 0.025, 0.05);
  Put(5, kWeight, Noise(3), Noise(4));
  // As the watch found it, before a scheduler made both equal.
  Configure({{"optimizer.group0.lr", "0.1"}}, {{"optimizer.group0.lr", "0.2"}});
  EXPECT_EQ(Say(Root(4, kWeight)), "nothing");
}

TEST_F(CauseSettingsTest, LearningRatesThatPrintAlikeAreToldApart) {
  Scalars(0, "lr/group0", 0.1, 0.10000001);
  Put(0, kWeight, Noise(1), Noise(2));
  EXPECT_EQ(
      Say(Root(0, kWeight)),
      "learning_rate: learning rate of group 0 is 0.1 in base and 0.10000001 in ort at step 0");
}

TEST_F(CauseSettingsTest, TheStateOfAdamDoesNotDependOnTheLearningRate) {
  Scalars(0, "lr/group0", 0.1, 0.2);
  const auto key = Key("blocks.1.mlp.weight", Kind::kOptimizerState, "exp_avg");
  Put(0, key, Noise(1), Noise(2));
  Configure({{"optimizer.group0.betas", "(0.9, 0.99)"}},
            {{"optimizer.group0.betas", "(0.8, 0.99)"}});
  EXPECT_EQ(Say(Root(0, key)),
            "betas: betas of group 0 are (0.9, 0.99) in base and (0.8, 0.99) in ort at step 0 "
            "(optimizer.group0.betas)");
}

TEST_F(CauseSettingsTest, OfSeveralGroupsTheUpdateTellsWhichOneIsMeant) {
  const Tensor before = Noise(1), update = Noise(2, 256, 0.01);
  const auto write = [&](double factor) {
    Reset();
    Both(3, kWeight, before);
    Put(4, kWeight, Sum(before, update), Sum(before, Times(update, factor)));
    Scalars(4, "lr/group0", 0.1, 0.1);
    Scalars(4, "lr/group1", 0.1, 0.2);
  };
  write(2);
  const auto cause = Ask(Root(4, kWeight));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->key, "lr/group1");
  EXPECT_EQ(cause->confidence, Confidence::kCertain);
  write(1.5);  // the root's update is not twice A's: it is not of that group
  EXPECT_EQ(Say(Root(4, kWeight)), "nothing");
}

TEST_F(CauseSettingsTest, AnotherModelsOptimizerSaysNothing) {
  Scalars(0, "gen/lr/group0", 0.1, 0.2);
  Scalars(0, "dis/lr/group0", 0.1, 0.1);
  const auto dis = Key("dis.main.0.weight", Kind::kWeight),
             gen = Key("gen.main.0.weight", Kind::kWeight);
  Put(0, dis, Noise(1), Noise(2));
  Put(0, gen, Noise(3), Noise(4));
  EXPECT_EQ(Say(Root(0, dis)), "nothing");
  EXPECT_THAT(Say(Root(0, gen)), HasSubstr("learning rate of group 0 of gen is 0.1 in base"));
}

TEST_F(CauseSettingsTest, AModelWithACapitalNameHasItsOwnOptimizer) {
  Scalars(0, "G/lr/group0", 0.1, 0.2);
  const auto d = Key("D.main.0.weight", Kind::kWeight), g = Key("G.main.0.weight", Kind::kWeight);
  Put(0, d, Noise(1), Noise(2));
  Put(0, g, Noise(3), Noise(4));
  EXPECT_EQ(Say(Root(0, d)), "nothing");
  EXPECT_THAT(Say(Root(0, g)), HasSubstr("learning rate of group 0 of G is 0.1 in base"));
}

TEST_F(CauseSettingsTest, ALearningRateOfAnUpdateThatOneRunDidNotMakeSaysNothing) {
  Scalars(4, "lr/group0", 0.1, 0.1);
  Both(4, kWeight, Noise(1));
  Put(5, kWeight, Noise(1), Noise(2));
  b_->Scalar(0, 5, "lr/group0", 0.09);  // of a schedule; base skipped the update
  EXPECT_THAT(Say(Root(5, kWeight)), HasSubstr("not_updated: "));
  a_->Scalar(0, 5, "lr/group0", 0.1);
  EXPECT_THAT(Say(Root(5, kWeight)),
              HasSubstr("learning_rate: learning rate of group 0 is 0.1 in base"));
}

TEST_F(CauseSettingsTest, AWeightDecayThatOnlyAChangedIsFoundInTheStepsBefore) {
  const auto out = Key("embed");
  Scalars(0, "weight_decay/group0", 0.1, 0.1);
  Both(0, out, Noise(1));
  a_->Scalar(0, 2, "weight_decay/group0", 0.2);
  Put(4, out, Noise(2), Noise(3));
  EXPECT_EQ(Say(Root(4, out)),
            "weight_decay: weight decay of group 0 is 0.2 in base and 0.1 in ort at step 2, whose "
            "update was "
            "not recorded");
}

TEST_F(CauseSettingsTest, WhatHasNoEffectInTheFirstUpdateSaysNothingThere) {
  const auto ask = [&](std::uint64_t step, const std::string& setting, Config more) {
    Reset();
    if (step > 0) Both(0, kWeight, Noise(9));
    Put(step, kWeight, Noise(1), Noise(2));
    Config a = more, b = std::move(more);
    a["optimizer.group0." + setting] = "0.9";
    b["optimizer.group0." + setting] = "0.8";
    Configure(std::move(a), std::move(b));
    const auto cause = Ask(Root(step, kWeight));
    return cause ? cause->rule : "nothing";
  };
  EXPECT_EQ(ask(0, "momentum", {}), "nothing");
  EXPECT_EQ(ask(0, "momentum", {{"optimizer.group0.nesterov", "false"}}), "nothing");
  EXPECT_EQ(ask(0, "momentum", {{"optimizer.group0.nesterov", "true"}}), "momentum");
  EXPECT_EQ(ask(1, "momentum", {}), "momentum");
  EXPECT_EQ(ask(0, "dampening", {{"optimizer.group0.nesterov", "true"}}), "nothing");
  EXPECT_EQ(ask(0, "alpha", {}), "alpha");
}

TEST_F(CauseSettingsTest, WhatAScheduleMovedUntilAResumeSaysNothing) {
  // OneCycleLR moves lr and betas; ort was launched again at step 3.
  const std::string betas = "optimizer.group0.betas", eps = "optimizer.group0.eps";
  const auto write = [&](const std::string& first, const std::string& eps_of_launch) {
    Reset();
    a_->Config(0, {{betas, "(0.95, 0.99)"}, {eps, "1e-08"}});
    b_->Config(0, {{betas, first}, {eps, "1e-08"}});
    for (std::uint64_t step = 0; step < 3; ++step) Both(step, kWeight, Noise(step));
    b_->Commit();
    b_.emplace(*store_, "ort");
    b_->Config(0, {{betas, "(0.9, 0.99)"}, {eps, eps_of_launch}});
    Put(3, kWeight, Noise(11), Noise(12));
  };
  write("(0.95, 0.99)", "1e-08");
  EXPECT_EQ(Say(Root(3, kWeight)),
            "resume: ort was launched again at step 3: gradients agree and updates do not, so the "
            "optimizer's "
            "state or its settings were not restored");
  write("(0.85, 0.99)", "1e-08");
  EXPECT_THAT(Say(Root(3, kWeight)),
              HasSubstr("betas of group 0 are (0.95, 0.99) in base and (0.85, 0.99)"))
      << "they differed when both began";
  write("(0.95, 0.99)", "1e-06");
  const auto cause = Ask(Root(3, kWeight));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "adam_eps");
  EXPECT_EQ(cause->confidence, Confidence::kLikely) << "a program may have moved it";
}

TEST_F(CauseSettingsTest, WeightDecayHoldsUntilItChanges) {
  Scalars(0, "weight_decay/group0", 0.01, 0.1);
  Both(0, kWeight, Noise(1));
  Put(5, kWeight, Noise(1), Noise(2));
  EXPECT_EQ(Say(Root(5, kWeight)),
            "weight_decay: weight decay of group 0 is 0.01 in base and 0.1 in ort at step 5");
}

TEST_F(CauseSettingsTest, AnUpdateThatWasNotRecordedIsSeenInTheNextForwardPass) {
  const auto out = Key("embed");
  Scalars(3, "lr/group0", 0.1, 0.101);
  Scalars(4, "lr/group0", 0.1, 0.101);
  Both(2, out, Noise(1));
  Put(4, out, Noise(2), Noise(3));
  EXPECT_EQ(
      Say(Root(4, out)),
      "learning_rate: learning rate of group 0 is 0.1 in base and 0.101 in ort at step 3, whose "
      "update was not recorded");
  Reset();  // the weights after it were recorded, and agree: the rate of an idle group
  Scalars(3, "lr/group0", 0.1, 0.101);
  Both(3, kWeight, Noise(1));
  Put(4, out, Noise(2), Noise(3));
  EXPECT_EQ(Say(Root(4, out)), "nothing");
}

TEST_F(CauseSettingsTest, AModulesSettingIsNamedWithItsModule) {
  const auto key = Key("blocks.1.ln2");
  Put(0, key, Noise(1), Noise(2));
  Configure({{"module.blocks.*.ln2.eps", "1e-05"}},
            {{"module.blocks.*.ln2.eps", "1e-05 x 3; 0.001 (blocks.1.ln2)"}});
  const auto cause = Ask(Root(0, key));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "module_setting");
  EXPECT_EQ(cause->text, "eps is 1e-05 in base and 0.001 in ort (blocks.1.ln2)");
  EXPECT_EQ(cause->confidence, Confidence::kCertain);
  EXPECT_EQ(cause->key, "module.blocks.*.ln2.eps");
}

// A model that is loaded from another folder is another only if its numbers are.
TEST_F(CauseSettingsTest, ATextThatNamesFilesOrModelsIsNoCause) {
  const auto say = [&](const std::string& setting, const std::string& a, const std::string& b) {
    Reset();
    Put(0, Key("blocks.1.ln2"), Noise(1), Noise(2));
    const std::string key = "module.blocks.*.ln2." + setting;
    Configure({{key, a}}, {{key, b}});
    return Say(Root(0, Key("blocks.1.ln2")));
  };
  EXPECT_EQ(say("cache", "/tmp/a", "/tmp/b"), "nothing");
  EXPECT_EQ(say("cache", "/tmp/a", "not a file"), "nothing");
  EXPECT_EQ(say("name_or_path", "gpt2", "gpt2-medium"), "nothing");
  EXPECT_THAT(say("norm", "before", "after"),
              HasSubstr("module_setting: norm is before in base and after in ort"));
  EXPECT_THAT(say("forward", "function f (src/a.py:3)", "not set"), HasSubstr("module_setting: "));
}

TEST_F(CauseSettingsTest, AnotherNameOfAModelDoesNotExplainWhatOneRunLacks) {
  a_->Observe(0, 0, Key("blocks.1.ln2"), Noise(1));
  Both(0, Key("blocks.1.ln1"), Noise(3));
  Configure({{"model.config._name_or_path", "/tmp/a"}}, {{"model.config._name_or_path", "/tmp/b"}});
  EXPECT_EQ(Say(Root(0, Key("blocks.1.ln2"), Reason::kMissingInB)), "nothing");
}

TEST_F(CauseSettingsTest, ASettingOfAnotherModuleSaysNothing) {
  const auto key = Key("blocks.1.ln2");
  Put(0, key, Noise(1), Noise(2));
  Both(0, Key("blocks.2.ln2"), Noise(3));
  Both(0, Key("blocks.1.ln1"), Noise(3));
  Configure({{"module.blocks.*.ln2.eps", "1e-05"}, {"module.blocks.*.ln1.eps", "1e-05"}},
            {{"module.blocks.*.ln2.eps", "1e-05 x 3; 0.001 (blocks.2.ln2)"},
             {"module.blocks.*.ln1.eps", "1e-06"}});
  EXPECT_EQ(Say(Root(0, key)), "nothing");
}

TEST_F(CauseSettingsTest, ASettingOfWhichTheValueIsNotShownSaysNothing) {
  const auto key = Key("blocks.1.ln2");
  Put(0, key, Noise(1), Noise(2));
  Configure({{"module.blocks.*.ln2.eps", "1e-05"}},
            {{"module.blocks.*.ln2.eps", "1e-05 x 9; 0.001 x 9"}});
  EXPECT_EQ(Say(Root(0, key)), "nothing");
}

TEST_F(CauseSettingsTest, ASettingThatChangedAfterTheRootSaysNothing) {
  const std::string changed = "1e-05 x 3; 0.001 (blocks.1.ln2)", name = "module.blocks.*.ln2.eps";
  const auto key = Key("blocks.1.ln2");
  const auto write = [&](std::uint64_t seen) {
    Reset();
    for (std::uint64_t step = 0; step < 9; ++step) {
      if (step == 3) {
        Put(step, key, Noise(step), Noise(step + 100));
      } else {
        Both(step, key, Noise(step));
      }
    }
    Configure({{name, "1e-05"}}, {{name, changed}});
    b_->Event(0, seen, "setting_changed", "", {{"key", name}, {"from", "1e-05"}, {"to", changed}});
  };
  write(4);  // looked at after 1, 2, 4 steps: it changed in step 2, 3 or 4
  EXPECT_EQ(Say(Root(3, key)),
            "module_setting: eps is 1e-05 in base and 0.001 in ort (blocks.1.ln2); it changed "
            "while ort ran, "
            "between steps 2 and 4");
  write(8);  // it had not changed after step 4
  EXPECT_EQ(Say(Root(3, key)), "nothing");
}

TEST_F(CauseSettingsTest, AModuleOfWhichNoModeIsRecordedIsInThatOfItsModel) {
  const auto key = Key("blocks.1.ln2");
  Put(3, key, Noise(1), Noise(2));
  Configure({{"model.training", "true"}, {"module.blocks.*.ln2.class", "LayerNorm"}},
            {{"model.training", "true"},
             {"module.blocks.*.ln2.class", "LayerNorm"},
             {"module.blocks.*.ln2.training", "true x 3; false (blocks.1.ln2)"}});
  EXPECT_EQ(Say(Root(3, key)),
            "module_setting: training is true in base and false in ort (blocks.1.ln2)");
}

TEST_F(CauseSettingsTest, ASettingOfTheParentExplainsWhatIsBetweenItsModules) {
  const auto key = Key("blocks.0.attn.proj");
  Put(0, key, Noise(1), Noise(2));
  Configure({{"module.blocks.*.attn.scale", "0.25"}},
            {{"module.blocks.*.attn.scale", "0.25 x 3; 0.125 (blocks.0.attn)"}});
  const auto cause = Ask(Root(0, key));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text, "scale is 0.25 in base and 0.125 in ort (blocks.0.attn)");
  EXPECT_EQ(cause->confidence, Confidence::kLikely);
}

// As of PEFT: the layer scales what its adapter's modules compute; ModuleDicts run by themselves
// never.
TEST_F(CauseSettingsTest, AnAdaptersScalingExplainsTheGradientInsideIt) {
  const std::string layer = "layers.1.v_proj";
  for (const Kind kind : {Kind::kGradOutput, Kind::kOutput}) {
    Reset();
    for (const std::string& name : {layer, layer + ".lora_B.default"}) Both(0, Key(name), Noise(3));
    const auto key = Key(layer + ".lora_B.default", kind);
    Put(kind == Kind::kOutput ? 1 : 0, key, Noise(1), Times(Noise(1), 8));
    Configure({{"module.layers.*.v_proj.scaling[default]", "2.0"}},
              {{"module.layers.*.v_proj.scaling[default]", "16.0"}});
    const auto cause = Ask(Root(kind == Kind::kOutput ? 1 : 0, key));
    ASSERT_TRUE(cause);
    if (kind == Kind::kGradOutput) {
      EXPECT_EQ(cause->text, "scaling[default] is 2.0 in base and 16.0 in ort (layers.1.v_proj)");
      EXPECT_EQ(cause->confidence, Confidence::kLikely);
    } else {
      EXPECT_EQ(cause->rule, "tensor_scale") << "the layer agreed before with the same settings";
    }
  }
}

TEST_F(CauseSettingsTest, ALikelySettingIsWorthMoreThanACertainDescription) {
  const auto key = Key("blocks.0.attn.proj");
  const auto write = [&](const std::string& b) {
    Reset();
    Put(0, key, Noise(1), Times(Noise(1), 1.5));
    Configure({{"module.blocks.*.attn.scale", "0.25"}}, {{"module.blocks.*.attn.scale", b}});
  };
  write("0.25 x 3; 0.125 (blocks.0.attn)");
  auto cause = Ask(Root(0, key));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "module_setting");
  EXPECT_EQ(cause->confidence, Confidence::kLikely);
  write("0.25");
  cause = Ask(Root(0, key));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "tensor_scale");
  EXPECT_EQ(cause->confidence, Confidence::kCertain);
}

TEST_F(CauseSettingsTest, ACertainDescriptionIsWorthMoreThanAPossibleSetting) {
  const auto key = Key("blocks.0.attn.proj");
  Put(0, key, Noise(1), Times(Noise(1), 1.5));
  Put(0, Key("blocks.0.attn"), Noise(3), Noise(4));
  Put(0, Key("blocks.0"), Noise(3), Noise(4));
  Configure({{"module.blocks.*.scale", "0.25"}},
            {{"module.blocks.*.scale", "0.25 x 3; 0.125 (blocks.0)"}});
  const auto cause = Ask(Root(0, key));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "tensor_scale");
}

TEST_F(CauseSettingsTest, ASettingOfTheModelIsFoundFromInside) {
  const auto key = Key("blocks.0.fc");
  const auto write = [&](const std::string& model) {
    Reset();
    Put(0, key, Noise(1), Noise(2));
    a_->Root();
    b_->Root();
    Put(0, Key(model), Noise(3), Noise(4));
    Configure({{"module.Gpt.scale", "0.25"}}, {{"module.Gpt.scale", "0.125"}});
  };
  write("Gpt");
  auto cause = Ask(Root(0, key));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text, "scale is 0.25 in base and 0.125 in ort (Gpt)");
  EXPECT_EQ(cause->confidence, Confidence::kPossible);
  write("Gpt");
  cause = Ask(Root(0, Key("Gpt")));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->confidence, Confidence::kCertain) << "its own";
  write("Net");
  EXPECT_EQ(Say(Root(0, key)), "nothing") << "another model's";
}

TEST_F(CauseSettingsTest, ASettingOfOneModelDoesNotExplainAnother) {
  const auto gen = Key("gen.fc"), dis = Key("dis.fc");
  for (const std::string model : {"gen", "dis"}) {
    Put(0, Key(model + ".fc"), Noise(1), Noise(2));
    a_->Root();
    b_->Root();
    Put(0, Key(model), Noise(3), Noise(4));
  }
  Configure({{"module.gen.scale", "0.25"}}, {{"module.gen.scale", "0.125"}});
  EXPECT_THAT(Say(Root(0, gen)), HasSubstr("(gen)"));
  EXPECT_EQ(Say(Root(0, dis)), "nothing");
}

TEST_F(CauseSettingsTest, AModelMayHaveANameThatBeginsLikeAClass) {
  const auto key = Key("D.1");
  Put(0, key, Noise(1), Noise(2));
  Configure({{"module.D.*.negative_slope", "0.2 (1, 4); not set x 4"}},
            {{"module.D.*.negative_slope", "0.25 (1); 0.2 (4); not set x 4"}});
  EXPECT_EQ(Say(Root(0, key)),
            "module_setting: negative_slope is 0.2 in base and 0.25 in ort (D.1)");
}

TEST_F(CauseSettingsTest, APlaceMayBeAPatternOfPlaces) {
  const Config a = {{"module.*.*.approximate", "none (*.2); not set x 9"}},
               b = {{"module.*.*.approximate", "tanh (*.2); not set x 9"}};
  Put(0, Key("0.2"), Noise(1), Noise(2));
  Configure(a, b);
  EXPECT_EQ(Say(Root(0, Key("0.2"))),
            "module_setting: approximate is none in base and tanh in ort (0.2)");
  Reset();  // another part of the same block
  Both(0, Key("0.2"), Noise(3));
  Put(0, Key("0.1"), Noise(1), Noise(2));
  Configure(a, b);
  EXPECT_EQ(Say(Root(0, Key("0.1"))), "nothing");
}

TEST_F(CauseSettingsTest, AModuleThatIsNotRecordedIsFoundBesideTheRoot) {
  const auto key = Key("blocks.0.mlp.fc1");
  const Config a = {{"module.blocks.*.ln2.eps", "1e-05"}},
               b = {{"module.blocks.*.ln2.eps", "1e-05 x 3; 0.001 (blocks.0.ln2)"}};
  Put(0, key, Noise(1), Noise(2));
  Configure(a, b);
  EXPECT_EQ(Say(Root(0, key)),
            "module_setting: eps is 1e-05 in base and 0.001 in ort (blocks.0.ln2)");
  Reset();  // it is recorded, and agrees
  Both(0, Key("blocks.0.ln2"), Noise(3));
  Put(0, key, Noise(1), Noise(2));
  Configure(a, b);
  EXPECT_EQ(Say(Root(0, key)), "nothing");
}

TEST_F(CauseSettingsTest, ASettingOfABuffersModuleIsItsMomentum) {
  const auto key = Key("stages.1.bn.running_mean", Kind::kBuffer);
  Put(0, key, Noise(1), Noise(2));
  Configure({{"module.stages.*.bn.momentum", "0.1"}}, {{"module.stages.*.bn.momentum", "0.01"}});
  EXPECT_EQ(Say(Root(0, key)),
            "module_setting: momentum is 0.1 in base and 0.01 in ort (stages.1.bn)");
}

TEST_F(CauseSettingsTest, ASettingWithWhichASisterAgreedIsOnlyPossible) {
  const auto write = [&](const char* sister_value) {
    Reset();
    Both(3, Key("blocks.0.attn"), Noise(3));
    Put(3, Key("blocks.1.attn"), Noise(1), Noise(2));
    Configure({{"module.blocks.*.attn.fused", "true"}},
              {{"module.blocks.*.attn.fused", sister_value}});
  };
  write("false");
  auto cause = Ask(Root(3, Key("blocks.1.attn")));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->confidence, Confidence::kPossible);
  write("true (blocks.0.attn); false (blocks.1.attn)");
  cause = Ask(Root(3, Key("blocks.1.attn")));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->confidence, Confidence::kCertain);
}

TEST_F(CauseSettingsTest, ASettingWithWhichTheModuleAgreedBeforeIsOnlyPossible) {
  const auto key = Key("blocks.1.ln2");
  const std::string name = "module.blocks.*.ln2.eps";
  const auto write = [&] {
    Reset();
    for (std::uint64_t step = 0; step < 3; ++step) Both(step, key, Noise(step));
    Put(3, key, Noise(1), Noise(2));
    Configure({{name, "1e-05"}}, {{name, "0.001"}});
  };
  write();
  auto cause = Ask(Root(3, key));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->confidence, Confidence::kPossible);
  write();
  b_->Event(0, 4, "setting_changed", "", {{"key", name}, {"from", "1e-05"}, {"to", "0.001"}});
  cause = Ask(Root(3, key));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->confidence, Confidence::kCertain) << "it changed since";
}

TEST_F(CauseSettingsTest, AFunctionOfAModulesOwnIsReplaced) {
  const auto key = Key("blocks.1.mlp");
  Put(0, key, Noise(1), Noise(2));
  Configure(
      {{"module.blocks.*.mlp.class", "Mlp"}, {"module.blocks.*.mlp.scale", "0.25"}},
      {{"module.blocks.*.mlp.class", "Mlp"},
       {"module.blocks.*.mlp.forward", "function plant.<locals>.f (blocks.1.mlp); not set x 3"},
       {"module.blocks.*.mlp.scale", "0.25"}});
  EXPECT_EQ(
      Say(Root(0, key)),
      "module_setting: forward() is replaced in ort by function plant.<locals>.f (blocks.1.mlp)");
}

TEST_F(CauseSettingsTest, AFrozenParameterExplainsItsMissingGradient) {
  const auto key = Key("blocks.1.mlp.fc1.weight", Kind::kWeightGrad);
  const auto write = [&](const std::string& frozen) {
    Reset();
    a_->Observe(0, 0, key, Noise(1));
    Both(0, Key("blocks.1.mlp.fc1"), Noise(2));
    Configure(
        {}, {{"module.blocks.*.mlp.fc1.weight.requires_grad", "true x 3; false (" + frozen + ")"}});
  };
  write("blocks.1.mlp.fc1.weight");
  Both(0, Key("blocks.1.mlp.fc1.weight", Kind::kWeight), Noise(3));
  Both(0, Key("fc2.weight", Kind::kWeightGrad), Noise(4));
  const auto causes = AskAll(Root(0, key, Reason::kMissingInB));
  ASSERT_EQ(causes.size(), 1u) << "said once";
  EXPECT_EQ(causes[0].text,
            "requires_grad is true in base and false in ort (blocks.1.mlp.fc1.weight)");
  EXPECT_EQ(causes[0].rule, "module_setting");
  write("blocks.0.mlp.fc1.weight");
  EXPECT_EQ(Say(Root(0, key, Reason::kMissingInB)), "nothing");
}

TEST_F(CauseSettingsTest, AFrozenParameterExplainsThatItIsNotUpdated) {
  const auto key = Key("fc1.weight", Kind::kWeight);
  const auto write = [&](const std::string& frozen) {
    Reset();
    Put(0, key, Noise(1), Noise(2));
    Configure({}, {{"module." + frozen + ".weight.requires_grad", "false"}});
  };
  write("fc1");
  const auto cause = Ask(Root(0, key));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text, "requires_grad is true in base and false in ort (fc1.weight)");
  EXPECT_EQ(cause->confidence, Confidence::kCertain);
  write("fc2");
  EXPECT_EQ(Say(Root(0, key)), "nothing");
}

// Gradients of outputs and weights of two layers; ort lacks those that the test leaves out.
class CauseUntrainedTest : public CauseTest {
 protected:
  void Step(const std::function<bool(const TensorKey&)>& lacks) {
    for (const TensorKey& key :
         {Key("0"), Key("1"), Key("2"), Key("2", Kind::kGradOutput), Key("1", Kind::kGradOutput),
          Key("0", Kind::kGradOutput), Key("0.weight", Kind::kWeightGrad),
          Key("2.weight", Kind::kWeightGrad), Key("0.weight", Kind::kWeight),
          Key("2.weight", Kind::kWeight)}) {
      const Tensor tensor = Noise(static_cast<std::uint64_t>(key.kind) * 8 + key.name.size());
      a_->Observe(0, 3, key, tensor);
      if (!lacks(key)) b_->Observe(0, 3, key, tensor);
    }
  }
  static bool OfFirst(const TensorKey& key) {
    return key.name.starts_with("0.") && key.kind != Kind::kOutput;
  }
  static bool IsGradient(const TensorKey& key) {
    return key.kind == Kind::kWeightGrad && OfFirst(key);
  }
};

TEST_F(CauseUntrainedTest, NothingBeforeAnOutputWithoutGradientIsTrained) {
  const auto root = Root(3, Key("1", Kind::kGradOutput), Reason::kMissingInB);
  const auto write = [&](const char* trained_in_a, const char* trained_in_b) {
    Reset();
    Step([](const TensorKey& key) { return key.kind == Kind::kGradOutput && key.name != "2"; });
    Configure({{"module.0.weight.requires_grad", trained_in_a}},
              {{"module.0.weight.requires_grad", trained_in_b}});
  };
  write("true", "false");
  EXPECT_EQ(Say(root),
            "requires_grad: 0.weight is trained in base and frozen in ort (requires_grad), so grad "
            "output 1 "
            "has no gradient there");
  write("false", "true");  // the run that has it
  EXPECT_EQ(Say(root), "nothing");
  write("false", "false");
  EXPECT_EQ(Say(root), "nothing");
}

TEST_F(CauseUntrainedTest, AParameterThatTheOptimizerWasNotGivenIsNamed) {
  const auto write = [&](const char* tensors) {
    Reset();
    Step(OfFirst);
    Configure({{"optimizer.group0.tensors", "2"}, {"optimizer.group1.tensors", "3"}},
              {{"optimizer.group0.tensors", tensors}, {"optimizer.group1.tensors", "3"}});
  };
  const auto root = Root(3, Key("0.weight", Kind::kWeightGrad), Reason::kMissingInB);
  write("1");
  const auto cause = Ask(root);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rule, "not_in_optimizer");
  EXPECT_EQ(cause->text,
            "0.weight is not updated in ort: the number of tensors that were given to the "
            "optimizer is 5 in "
            "base and 4 in ort");
  EXPECT_EQ(cause->confidence, Confidence::kLikely);
  write("2");
  EXPECT_EQ(Say(root), "nothing");
  write("7");
  EXPECT_EQ(Say(root), "nothing");
}

TEST_F(CauseSettingsTest, OtherParameterGroupsAreCounted) {
  Put(0, kWeight, Noise(1), Noise(2));
  Scalars(0, "lr/group0", 0.1, 0.1);
  Configure({{"optimizer.groups", "1"}, {"optimizer.group0.betas", "(0.9, 0.99)"}},
            {{"optimizer.groups", "2"},
             {"optimizer.group0.betas", "(0.9, 0.99)"},
             {"optimizer.group1.betas", "(0.9, 0.99)"}});
  EXPECT_EQ(Say(Root(0, kWeight)),
            "optimizer_groups: number of parameter groups of the optimizer is 1 in base and 2 in "
            "ort at step 0 "
            "(optimizer.groups)");
}

TEST_F(CauseSettingsTest, ParametersThatMovedToAnotherGroupAreCounted) {
  const auto key = Key("norm.weight", Kind::kWeight);
  const auto say = [&](const std::string& decay, const std::string& of_b_0,
                       const std::string& of_b_1) {
    Reset();
    Put(0, key, Noise(1), Noise(2));
    Config a = {{"optimizer.group0.tensors", "16"},
                {"optimizer.group1.tensors", "5"},
                {"optimizer.group0.weight_decay", "0.1"},
                {"optimizer.group1.weight_decay", decay}};
    Config b = a;
    b["optimizer.group0.tensors"] = of_b_0;
    b["optimizer.group1.tensors"] = of_b_1;
    Configure(a, b);
    return Say(Root(0, key));
  };
  EXPECT_EQ(say("0.0", "20", "1"),
            "group_tensors: group 0 of the optimizer (weight_decay 0.1) has 16 tensors in base and "
            "20 in ort, group 1 "
            "(weight_decay 0.0) has 5 and 1: parameters are in another group");
  EXPECT_EQ(say("0.1", "20", "1"), "nothing") << "groups with the same settings";
  EXPECT_EQ(say("0.0", "16", "5"), "nothing");
  EXPECT_EQ(say("0.0", "16", "4"), "nothing") << "in no group";
}

TEST_F(CauseSettingsTest, EverySettingThatHoldsIsListed) {
  const auto key = Key("fc.weight", Kind::kWeight);
  Put(3, key, Noise(1), Noise(2));
  Scalars(3, "lr/group0", 0.1, 0.2);
  Scalars(3, "weight_decay/group0", 0.01, 0.1);
  std::vector<Cause> causes = AskAll(Root(3, key));
  ASSERT_EQ(causes.size(), 2u);
  EXPECT_EQ(causes[0].rule, "learning_rate");
  EXPECT_EQ(causes[1].rule, "weight_decay");
  Reset();
  Put(3, Key("norm"), Noise(1), Noise(2));
  Configure({{"module.norm.eps", "1e-05"}, {"module.norm.momentum", "0.1"}},
            {{"module.norm.eps", "1e-03"}, {"module.norm.momentum", "0.2"}});
  causes = AskAll(Root(3, Key("norm")));
  ASSERT_EQ(causes.size(), 2u);
  EXPECT_EQ(causes[0].key, "module.norm.eps");
  EXPECT_EQ(causes[1].key, "module.norm.momentum");
  Reset();  // of two groups, only one of which has another weight decay
  Put(3, key, Noise(1), Noise(2));
  for (const char* group : {"0", "1"}) Scalars(3, std::string("lr/group") + group, 0.1, 0.2);
  Scalars(3, "weight_decay/group0", 0.01, 0.1);
  causes = AskAll(Root(3, key));
  ASSERT_EQ(causes.size(), 2u);
  EXPECT_EQ(causes[0].confidence, Confidence::kCertain);
  EXPECT_EQ(causes[1].rule, "weight_decay");
  EXPECT_EQ(causes[1].confidence, Confidence::kLikely);
  Reset();  // a description is no second cause
  Put(3, Key("norm"), Noise(1), Times(Noise(1), 2));
  Configure({{"module.norm.eps", "1e-05"}}, {{"module.norm.eps", "1e-03"}});
  EXPECT_EQ(AskAll(Root(3, Key("norm"))).size(), 1u);
}

TEST_F(CauseSettingsTest, AModulesSettingDoesNotExplainItsUpdate) {
  const auto key = Key("blocks.1.ln2.weight", Kind::kWeight);
  Put(0, key, Noise(1), Noise(2));
  Configure({{"module.blocks.*.ln2.eps", "1e-05"}}, {{"module.blocks.*.ln2.eps", "1e-03"}});
  EXPECT_EQ(Say(Root(0, key)), "nothing");
}

TEST_F(CauseSettingsTest, AReplacedModuleIsNamedWhereItIsNearTheRoot) {
  const auto key = Key("blocks.1.mlp.fc1");
  Both(0, key, Noise(1));
  Put(3, key, Noise(1), Noise(2));
  const auto replace = [&](RunWriter& run, std::uint64_t step) {
    run.Event(
        0, step, "graph_transition", "",
        {{"reason", "modules"}, {"element", "blocks.1.mlp"}, {"from", "Mlp"}, {"to", "Gated"}});
  };
  replace(*b_, 2);
  const auto cause = Ask(Root(3, key));
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text, "blocks.1.mlp was replaced in ort at step 2: it was Mlp and is Gated");
  EXPECT_EQ(cause->confidence, Confidence::kLikely);
  replace(*a_, 2);
  EXPECT_EQ(Say(Root(3, key)), "nothing") << "both runs did";
}

TEST_F(CauseSettingsTest, AModuleThatIsReplacedAfterTheRootSaysNothing) {
  const auto key = Key("blocks.1.mlp.fc1");
  Put(3, key, Noise(1), Noise(2));
  b_->Event(0, 4, "graph_transition", "", {{"reason", "modules"}, {"element", "blocks.1.mlp"}});
  EXPECT_EQ(Say(Root(3, key)), "nothing");
}

TEST_F(CauseSettingsTest, AMissingLayerIsExplainedByTheNumberOfLayers) {
  const auto key = Key("blocks.1.ln1.weight", Kind::kWeight, "", 0, 0, Mode::kInit);
  Both(0, Key("embed"), Noise(1));
  a_->Observe(0, 0, key, Noise(2));
  Configure({{"model.layers.blocks", "2"}}, {{"model.layers.blocks", "1"}});
  EXPECT_EQ(Say(Root(0, key, Reason::kMissingInB)),
            "model_structure: blocks has 2 layers in base and 1 in ort");
  EXPECT_EQ(Say(Root(0, key, Reason::kNumeric)), "nothing");
}

TEST_F(CauseSettingsTest, AModelLeftInEvaluationModeIsSeen) {
  const auto train = Key("tok"), eval = Key("tok", Kind::kOutput, "", 0, 0, Mode::kEval);
  a_->Observe(0, 3, train, Noise(1));
  b_->Observe(0, 3, eval, Noise(1));
  EXPECT_EQ(Say(Root(3, train, Reason::kMissingInB)),
            "evaluation_mode: the model is in training mode in base and in evaluation mode in ort "
            "at step 3");
  Reset();  // beside an evaluation of both
  Both(3, eval, Noise(2));
  a_->Observe(0, 3, train, Noise(1));
  b_->Observe(0, 3, Key("tok", Kind::kOutput, "", 0, 1, Mode::kEval), Noise(1));
  EXPECT_THAT(Say(Root(3, train, Reason::kMissingInB)), HasSubstr("evaluation_mode: "));
  Reset();  // both evaluate in this step, and one does not train
  a_->Observe(0, 3, train, Noise(1));
  Both(3, eval, Noise(1));
  EXPECT_EQ(Say(Root(3, train, Reason::kMissingInB)), "nothing");
}

// The agent reports when the model changes between training and evaluation; of the batch it records
// the model's mode.
TEST_F(CauseSettingsTest, EvaluationWithoutTrainAfterItIsNamed) {
  const auto mode = [](RunWriter& run, std::uint64_t step, const std::string& from,
                       const std::string& to) {
    run.Event(0, step, "graph_transition", "",
              {{"reason", "train_eval"}, {"element", "root"}, {"from", from}, {"to", to}});
  };
  for (const Kind kind : {Kind::kBatch, Kind::kOutput}) {
    for (const bool recorded : {true, false}) {  // passes in evaluation mode
      Reset();
      const auto train = Key("tok", kind), eval = Key("tok", kind, "", 0, 0, Mode::kEval);
      Both(2, train, Noise(1));
      a_->Observe(0, 3, train, Noise(1));
      if (recorded) b_->Observe(0, 3, eval, Noise(1));
      if (!recorded) b_->Scalar(0, 3, "loss", 1);
      for (RunWriter* run : {&*a_, &*b_}) mode(*run, 2, "train", "eval");
      mode(*a_, 3, "eval", "train");
      const auto cause = Ask(Root(3, train, Reason::kMissingInB));
      ASSERT_TRUE(cause);
      EXPECT_EQ(cause->rule, "evaluation_mode");
      EXPECT_EQ(cause->text,
                "ort was left in evaluation mode after step 2 (eval() without train())");
      EXPECT_EQ(cause->confidence, Confidence::kCertain);
    }
  }
  Reset();  // trained in both modes
  a_->Observe(0, 3, Key("tok", Kind::kBatch), Noise(1));
  b_->Observe(0, 3, Key("tok"), Noise(1));
  mode(*b_, 2, "train", "eval");
  mode(*b_, 3, "eval", "train");
  EXPECT_EQ(Say(Root(3, Key("tok", Kind::kBatch), Reason::kMissingInB)), "nothing");
}

}  // namespace
}  // namespace statcollect::query
