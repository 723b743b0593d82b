// Roots that recorded settings of modules and optimizers name.
#include "tests/server/query/verdict/verdict_fixture.h"

namespace statcollect::query {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class VerdictSettingsTest : public VerdictTest {
 protected:
  using Config = std::map<std::string, std::string>;
  static Level RoundingEverywhere() { return RoundingOf(kRounding); }

  // Asks twice: with equal configurations, then with these.
  DiffReport DiffWithout(const Level& level) {
    store_ = std::make_unique<FakeStore>();
    before_ = {};
    return DiffWith(level);
  }
  DiffReport DiffOf(const Config& a, const Config& b, const Level& level,
                    DiffRequest request = {}) {
    store_ = std::make_unique<FakeStore>();
    before_ = [=, this](RunWriter& run, bool is_b) {
      run.Config(0, is_b ? b : a);
      if (also_) also_(run, is_b);
    };
    Write(level);
    return Ask(std::move(request));
  }
  static std::string CauseOf(const DiffReport& report) {
    if (!report.root || report.root->causes.empty()) return "none";
    return report.root->causes[0].rule + ": " + report.root->causes[0].text;
  }

  const Config ln_ = {{"module.blocks.*.ln.eps", "1e-05"}};
  const Config other_ln_ = {{"module.blocks.*.ln.eps", "1e-05 x 3; 1.1e-05 (blocks.2.ln)"}};
  std::function<void(RunWriter&, bool is_b)> also_;
};

// --- modules

TEST_F(VerdictSettingsTest, AnEpsIsTheRootHoweverLittleItChanges) {
  ExpectExplained(DiffWithout(RoundingEverywhere()));
  const DiffReport report = DiffOf(ln_, other_ln_, RoundingEverywhere());
  ASSERT_EQ(Say(report), "0 forward blocks.2.ln");
  EXPECT_EQ(report.root->confidence, Confidence::kLikely);
  EXPECT_THAT(report.root->because, ElementsAre("a recorded setting of its module differs",
                                                "its effect here is no larger than rounding"));
  EXPECT_EQ(CauseOf(report), "module_setting: eps is 1e-05 in a and 1.1e-05 in b (blocks.2.ln)");
  EXPECT_FALSE(report.explained_by_rounding);
}

TEST_F(VerdictSettingsTest, AnEpsThatShowsIsCertain) {
  const DiffReport report =
      DiffOf(ln_, other_ln_, Sum(RoundingEverywhere(), BugAt("blocks.2.ln", 3e-7)));
  ASSERT_EQ(Say(report), "0 forward blocks.2.ln");
  EXPECT_EQ(report.root->confidence, Confidence::kCertain);
  EXPECT_THAT(report.root->because, Contains("a recorded setting of its module differs"));
  EXPECT_THAT(report.root->because,
              Contains(HasSubstr("times what its inputs and rounding explain")));
  EXPECT_TRUE(report.root->times_expected);
}

TEST_F(VerdictSettingsTest, ASettingOfAContainerIsTheJumpInIt) {
  const Level level = Sum(RoundingEverywhere(), BugAt("blocks.2.fc", 2.5e-7));
  ExpectExplained(DiffWithout(level));
  const DiffReport report =
      DiffOf({{"module.blocks.*.scale", "0.25"}},
             {{"module.blocks.*.scale", "0.25 x 3; 0.2500001 (blocks.2)"}}, level);
  ASSERT_EQ(Say(report), "0 forward blocks.2.fc");
  EXPECT_THAT(report.root->because, Contains("a recorded setting of a module around it differs"));
  EXPECT_EQ(CauseOf(report), "module_setting: scale is 0.25 in a and 0.2500001 in b (blocks.2)");
}

TEST_F(VerdictSettingsTest, ASettingOfAContainerInWhichNothingStandsOutIsTheFirstDifferenceInside) {
  const Level level = BugAt("blocks.2.ln", 7e-8);
  ExpectExplained(DiffWithout(level));
  const Config a = {{"module.blocks.*.scale", "0.25"}};
  const DiffReport report =
      DiffOf(a, {{"module.blocks.*.scale", "0.25 x 3; 0.2500001 (blocks.2)"}}, level);
  ASSERT_EQ(Say(report), "0 forward blocks.2.ln");
  EXPECT_EQ(report.root->confidence, Confidence::kCertain);
  EXPECT_THAT(report.root->because, ElementsAre("a recorded setting of a module around it differs",
                                                "everything before it agrees bit for bit"));
  EXPECT_TRUE(report.root->agreeing);
  ExpectExplained(DiffOf(a, {{"module.blocks.*.scale", "0.25 x 3; 0.2500001 (blocks.3)"}}, level));
}

TEST_F(VerdictSettingsTest, AMomentumOfRunningStatisticsIsTheBuffer) {
  const TensorKey buffer = Key("blocks.1.ln.running_mean", Kind::kBuffer);
  also_ = [&](RunWriter& run, bool is_b) {
    for (std::uint64_t step = 0; step < options_.steps; ++step) {
      const Tensor tensor = Noise(SeedOf(buffer, step));
      run.Observe(0, step, buffer, is_b ? Differing(tensor, kRounding, 3) : tensor);
    }
  };
  const Config a = {{"module.blocks.*.ln.momentum", "0.1"}};
  ExpectExplained(DiffOf(a, a, RoundingEverywhere()));
  const DiffReport report = DiffOf(
      a, {{"module.blocks.*.ln.momentum", "0.1 x 3; 0.10001 (blocks.1.ln)"}}, RoundingEverywhere());
  ASSERT_EQ(Say(report), "0 forward blocks.1.ln.running_mean");
  EXPECT_EQ(report.root->at.kind, Kind::kBuffer);
  EXPECT_EQ(CauseOf(report), "module_setting: momentum is 0.1 in a and 0.10001 in b (blocks.1.ln)");
}

TEST_F(VerdictSettingsTest, ASettingThatOneRunChangedWhileItRanIsTheRootFromThenOn) {
  options_.steps = 9;
  also_ = [&](RunWriter& run, bool is_b) {
    if (is_b)
      run.Event(
          0, 6, "setting_changed", "",
          {{"key", ln_.begin()->first}, {"from", "1e-05"}, {"to", other_ln_.begin()->second}});
  };
  const DiffReport report = DiffOf(ln_, other_ln_, RoundingEverywhere());
  ASSERT_EQ(Say(report), "6 forward blocks.2.ln")
      << "found when step 5 had ended, however little it changes";
  EXPECT_EQ(CauseOf(report),
            "module_setting: eps is 1e-05 in a and 1.1e-05 in b (blocks.2.ln); it changed while b "
            "ran, between "
            "steps 4 and 6");
  const DiffReport seen =
      DiffOf(ln_, other_ln_, Sum(RoundingEverywhere(), BugAt("blocks.2.ln", 3e-7, /*from=*/5)));
  EXPECT_EQ(Say(seen), "5 forward blocks.2.ln") << "where it stands out";
}

TEST_F(VerdictSettingsTest, ASettingThatBothRunsChangedIsNotLookedAt) {
  also_ = [&](RunWriter& run, bool is_b) {
    run.Event(0, 2, "setting_changed", "",
              {{"key", ln_.begin()->first},
               {"from", "0"},
               {"to", (is_b ? other_ln_ : ln_).begin()->second}});
  };
  ExpectExplained(DiffOf(ln_, other_ln_, RoundingEverywhere()));
}

TEST_F(VerdictSettingsTest, AJumpBeforeItComesFirst) {
  const DiffReport report =
      DiffOf(ln_, other_ln_, Sum(RoundingEverywhere(), BugAt("blocks.1.ln", 1e-4)));
  EXPECT_EQ(Say(report), "0 forward blocks.1.ln");
  EXPECT_THAT(report.root->because, Not(Contains(HasSubstr("setting"))));
  EXPECT_EQ(CauseOf(report).find("module_setting"), std::string::npos);
}

TEST_F(VerdictSettingsTest, AJumpBehindItIsTheAlternative) {
  const DiffReport report =
      DiffOf(ln_, other_ln_, Sum(RoundingEverywhere(), BugAt("blocks.3.fc", 1e-4)));
  ASSERT_EQ(Say(report), "0 forward blocks.2.ln");
  ASSERT_THAT(report.root->alternatives, Not(IsEmpty()));
  EXPECT_EQ(report.root->alternatives[0].activation, "blocks.3.fc");
}

// --- optimizers

TEST_F(VerdictSettingsTest, BetasAreTheRootInTheResultsOfTheNamedModelsOptimizer) {
  options_.adam = true;
  const Config a = {{"optimizer.head.group0.betas", "(0.9, 0.99)"},
                    {"optimizer.embed.group0.betas", "(0.9, 0.99)"}},
               b = {{"optimizer.head.group0.betas", "(0.9, 0.9900001)"},
                    {"optimizer.embed.group0.betas", "(0.9, 0.99)"}};
  ExpectExplained(DiffWithout(RoundingEverywhere()));
  const DiffReport report = DiffOf(a, b, RoundingEverywhere());
  ASSERT_EQ(Say(report), "0 optimizer head.weight");
  EXPECT_EQ(report.root->confidence, Confidence::kLikely);
  EXPECT_THAT(report.root->because,
              ElementsAre("a recorded setting of the optimizer differs in this step",
                          "its effect here is no larger than rounding"));
  EXPECT_THAT(CauseOf(report), HasSubstr("betas: betas of group 0 of head are (0.9, 0.99) in a"));
}

TEST_F(VerdictSettingsTest, TwoSettingsOfOnePlaceAreOneRootWithoutAlternatives) {
  const DiffReport report =
      DiffOf({{"optimizer.group0.betas", "(0.9, 0.99)"}, {"optimizer.group0.eps", "1e-08"}},
             {{"optimizer.group0.betas", "(0.9, 0.9900001)"}, {"optimizer.group0.eps", "1.1e-08"}},
             RoundingEverywhere());
  ASSERT_TRUE(report.root);
  EXPECT_EQ(report.root->at.stage, Stage::kOptimizer);
  EXPECT_NE(report.root->confidence, Confidence::kCertain);
  EXPECT_THAT(report.root->alternatives, IsEmpty());
}

TEST_F(VerdictSettingsTest, AMomentumIsNotTheRootInTheFirstStep) {
  const Config a = {{"optimizer.group0.momentum", "0.9"}},
               b = {{"optimizer.group0.momentum", "0.90001"}};
  DiffReport report = DiffOf(a, b, RoundingEverywhere());
  ASSERT_TRUE(report.root);
  EXPECT_EQ(report.root->at.step, 1u);
  EXPECT_EQ(report.root->at.stage, Stage::kOptimizer);
  EXPECT_THAT(CauseOf(report),
              HasSubstr("momentum: momentum of group 0 is 0.9 in a and 0.90001 in b"));
  DiffRequest later;
  later.steps = "2-";
  report = DiffOf(a, b, RoundingEverywhere(), later);
  ASSERT_TRUE(report.root) << "the first compared step is not the first of the run";
  EXPECT_EQ(report.root->at.step, 2u);
}

TEST_F(VerdictSettingsTest, BetasThatAScheduleMovedUntilAResumeAreRounding) {
  const auto launch = [&](const char* name, std::uint64_t first, std::uint64_t end,
                          const char* betas) {
    RunWriter run(*store_, name);
    run.NarrowSketches();
    run.Config(0, {{"optimizer.group0.betas", betas}});
    for (std::uint64_t step = first; step < end; ++step) {
      for (const TensorKey& key :
           {Key("fc"), Key("fc", Kind::kGradOutput), Key("fc.weight", Kind::kWeightGrad),
            Key("fc.weight", Kind::kOptimizerState, "exp_avg")}) {
        const Tensor tensor = Noise(SeedOf(key, step));
        run.Observe(0, step, key, *name == 'b' ? Differing(tensor, kRounding, step + 1) : tensor);
      }
    }
    run.Commit();
  };
  launch("a", 0, 6, "(0.95, 0.99)");
  launch("b", 0, 3, "(0.95, 0.99)");
  launch("b", 3, 6, "(0.9, 0.99)");
  ExpectExplained(Ask());
  store_ = std::make_unique<FakeStore>();
  launch("a", 0, 6, "(0.95, 0.99)");
  launch("b", 0, 3, "(0.9, 0.99)");
  launch("b", 3, 6, "(0.9, 0.99)");
  EXPECT_EQ(Say(Ask()), "0 optimizer fc.weight") << "they differed when both began";
}

TEST_F(VerdictSettingsTest, NesterovIsTheRootInTheFirstStep) {
  const DiffReport report = DiffOf({{"optimizer.group0.nesterov", "false"}},
                                   {{"optimizer.group0.nesterov", "true"}}, RoundingEverywhere());
  EXPECT_EQ(Say(report), "0 optimizer embed.weight");
  EXPECT_THAT(CauseOf(report),
              HasSubstr("nesterov: nesterov of group 0 is false in a and true in b"));
}

TEST_F(VerdictSettingsTest, AFusedOptimizerIsRounding) {
  ExpectExplained(
      DiffOf({{"optimizer.group0.fused", "None"}, {"optimizer.group0.initial_lr", "0.1"}},
             {{"optimizer.group0.fused", "true"}, {"optimizer.group0.initial_lr", "0.2"}},
             RoundingEverywhere()));
}

TEST_F(VerdictSettingsTest, AReplacedForwardIsRounding) {
  ExpectExplained(DiffOf({{"module.blocks.*.ln.forward", "function f"}},
                         {{"module.blocks.*.ln.forward", "function g"}}, RoundingEverywhere()));
}

}  // namespace
}  // namespace statcollect::query
