#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/loss_names.h"
#include "server/query/answers/losses.h"
#include "tests/server/query/ask.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using testing::Ask;
using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::IsEmpty;
using testing::Key;
using testing::RunWriter;

class LossesTest : public ::testing::Test {
 protected:
  // Steps need statistics: they say how far a run has come.
  static void Step(RunWriter& run, std::uint32_t rank, std::uint64_t step) {
    run.Observe(rank, step, Key("x"), {.values = {1.0}});
  }
  v1::RunLoss LossOf(const std::string& run, std::uint32_t points = kLossPoints) {
    auto losses = Ask(store_, ListLosses, {.runs = {run}, .points = points});
    EXPECT_TRUE(losses.ok()) << losses.status().message();
    EXPECT_EQ(losses->runs_size(), 1);
    return losses->runs(0);
  }
  FakeStore store_;
};

// web/tests/text.test.ts and tests/e2e/naive know the same rule.
TEST(LossNames, AreToldFromOtherScalars) {
  for (const char* const name :
       {"loss", "train/loss", "eval_Loss", "valloss", "lm loss", "train_loss_step", "loss/gen",
        "Loss_total", "losses/aux", "loss-G", "mtp_1 loss"})
    EXPECT_TRUE(IsLoss(name)) << name;
  for (const char* const name :
       {"", "lr", "glossary", "lossless", "loss_scale", "loss-scale", "amp/loss_scale",
        "loss_weight", "time/loss_ms", "aux_loss_coeff", "grad_norm"})
    EXPECT_FALSE(IsLoss(name)) << name;
  for (const char* const name : {"loss_scale", "amp/Loss_Scale", "loss-scale", "loss scale"})
    EXPECT_TRUE(IsLossScale(name)) << name;
  for (const char* const name : {"loss", "scale", "loss_scale_growth", "gloss_scale"})
    EXPECT_FALSE(IsLossScale(name)) << name;
}

TEST(LossNames, OneStandsForAll) {
  EXPECT_EQ(MainLoss({}), "");
  EXPECT_EQ(MainLoss({"aux_loss", "loss", "train_loss_step"}), "loss");
  EXPECT_EQ(MainLoss({"loss_gen", "train/loss"}), "train/loss");
  EXPECT_EQ(MainLoss({"train_loss_epoch", "train_loss_step"}), "train_loss_epoch");
}

TEST_F(LossesTest, SpreadsThePointsOverTheRunAndEndsWithItsLastStep) {
  RunWriter run(store_, "r");
  for (std::uint64_t step = 0; step < 1000; ++step) {
    Step(run, 0, step);
    run.Scalar(0, step, "lr", 0.1).Scalar(0, step, "loss", 1000.0 - static_cast<double>(step));
  }
  run.Commit();
  const v1::RunLoss loss = LossOf("r", 5);
  EXPECT_EQ(loss.name(), "loss");
  EXPECT_THAT(loss.steps(), ElementsAre(0, 249, 499, 749, 999));
  EXPECT_THAT(loss.values(), ElementsAre(1000, 751, 501, 251, 1));
  EXPECT_EQ(LossOf("r").steps_size(), static_cast<int>(kLossPoints));
  EXPECT_THAT(LossOf("r", 1).steps(), ElementsAre(999));
}

TEST_F(LossesTest, HasEveryStepOfAShortRunAndWhatIsNotFinite) {
  RunWriter run(store_, "r");
  for (std::uint64_t step = 0; step < 3; ++step) Step(run, 0, step);
  run.Scalar(0, 0, "loss", 2).Scalar(0, 1, "loss", std::numeric_limits<double>::infinity());
  run.Scalar(0, 2, "loss", std::nan(""));
  run.Commit();
  const v1::RunLoss loss = LossOf("r");
  EXPECT_THAT(loss.steps(), ElementsAre(0, 1, 2));
  EXPECT_TRUE(std::isinf(loss.values(1)));
  EXPECT_TRUE(std::isnan(loss.values(2)));
}

TEST_F(LossesTest, FindsTheLossByItsNameOnTheRankThatLogsIt) {
  RunWriter named(store_, "named", 2), pipeline(store_, "pipeline", 4), none(store_, "none");
  for (std::uint64_t step = 0; step < 2; ++step) {
    Step(named, 0, step);
    named.Scalar(0, step, "val/loss", 3)
        .Scalar(0, step, "train/Loss", 2)
        .Scalar(0, step, "lossless", 1);
    for (std::uint32_t rank = 0; rank < 4; ++rank) Step(pipeline, rank, step);
    pipeline.Scalar(0, step, "lr", 0.1).Scalar(3, step, "loss", 7);
    Step(none, 0, step);
    none.Scalar(0, step, "lr", 0.1);
  }
  for (RunWriter* run : {&named, &pipeline, &none}) run->Commit();
  EXPECT_EQ(LossOf("named").name(), "train/Loss");
  EXPECT_THAT(LossOf("named").values(), ElementsAre(2, 2));
  EXPECT_THAT(LossOf("pipeline").values(), ElementsAre(7, 7));
  EXPECT_EQ(LossOf("none").name(), "");
  EXPECT_THAT(LossOf("none").values(), IsEmpty());
}

TEST_F(LossesTest, IsTheLossOfTheLowestRankOfThoseThatLogOne) {
  RunWriter all(store_, "all", 3), inner(store_, "inner", 4);
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      const double loss = 10.0 * rank + static_cast<double>(step);
      if (rank < 3) Step(all, rank, step);
      if (rank < 3) all.Scalar(rank, step, "loss", loss);
      Step(inner, rank, step);
      if (rank == 1 || rank == 2) inner.Scalar(rank, step, "loss", loss);
    }
  }
  all.Commit();
  inner.Commit();
  EXPECT_THAT(LossOf("all").values(), ElementsAre(0, 1, 2));
  EXPECT_THAT(LossOf("inner").values(), ElementsAre(10, 11, 12));
}

TEST_F(LossesTest, TakesEachPointFromTheNewestLaunchThatHasIt) {
  RunWriter old(store_, "r"), now(store_, "r");
  for (std::uint64_t step = 0; step < 4; ++step) {
    Step(old, 0, step);
    old.Scalar(0, step, "loss", 100);
  }
  for (std::uint64_t step = 2; step < 5; ++step) {
    Step(now, 0, step);
    now.Scalar(0, step, "loss", 1);
  }
  old.Commit();
  now.Commit();
  EXPECT_THAT(LossOf("r").values(), ElementsAre(100, 100, 1, 1, 1));
}

// What the collector says about an alarm besides raising it, and what a program logs, is not
// counted.
TEST_F(LossesTest, CountsAnAlarmOnceAlsoWhenItIsOver) {
  RunWriter run(store_, "r");
  Step(run, 0, 0);
  run.Commit();
  const auto attempts = store_.Attempts("r");
  std::vector<CollectorEvent> events;
  const auto add = [&](const char* kind, const char* severity) {
    EventRecord event{.kind = kind, .step = events.size(), .text = "'loss' ..."};
    event.fields = {{"severity", severity}, {"rule", "loss_spike"}, {"subject", "loss"}};
    events.push_back({.rank = 0, .number = events.size(), .event = std::move(event)});
  };
  add("loss_spike", "alarm");
  add("alarm_cleared", "cleared");
  add("overflow", "note");
  ASSERT_TRUE(store_.PutEvents(attempts->front().id, events).ok());
  EXPECT_EQ(LossOf("r").alarms(), 1u);
}

TEST_F(LossesTest, TakesTheSeverityOfAProgramsEventForNoAlarm) {
  RunWriter run(store_, "r");
  Step(run, 0, 0);
  run.Event(0, 0, "note", "of the program", {{"severity", "alarm"}});
  run.Commit();
  EXPECT_EQ(LossOf("r").alarms(), 0u);
}

TEST_F(LossesTest, CountsAlarmsAndLeavesOutUnknownRuns) {
  RunWriter run(store_, "r");
  Step(run, 0, 0);
  run.Event(0, 0, "note", "not an alarm");
  run.Commit();
  const auto attempts = store_.Attempts("r");
  EventRecord alarm{.kind = "alarm_raised", .step = 0, .text = "loss is NaN"};
  alarm.fields["severity"] = "alarm";
  const CollectorEvent events[] = {{.rank = 0, .number = 1, .event = alarm},
                                   {.rank = 0, .number = 2, .event = alarm}};
  ASSERT_TRUE(store_.PutEvents(attempts->front().id, events).ok());
  auto losses = Ask(store_, ListLosses, {.runs = {"nobody", "r"}});
  ASSERT_TRUE(losses.ok()) << losses.status().message();
  ASSERT_EQ(losses->runs_size(), 1);
  EXPECT_EQ(losses->runs(0).run(), "r");
  EXPECT_EQ(losses->runs(0).alarms(), 2u);
}

}  // namespace
}  // namespace statcollect::query
