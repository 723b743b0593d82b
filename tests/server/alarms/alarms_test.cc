// Alarms over a store: what is written, what survives a restart, and what happens when it is too
// much.
#include <chrono>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/alarms/alarms.h"
#include "server/query/event_kinds.h"
#include "tests/server/alarms/steps.h"
#include "tests/support/append_batch.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_store.h"

namespace statcollect::alarms {
namespace {

using ::testing::HasSubstr;
using namespace statcollect::testing;
using namespace std::chrono_literals;

class AlarmsTest : public ::testing::Test {
 protected:
  AlarmsTest() { attempt_ = store_.CreateAttempt({.run = "base", .world_size = 1}).value(); }

  void Start(AlarmsOptions options = {}) {
    options.feed = &feed_;
    options.notify = [this](const FeedEvent& event) {
      {
        std::lock_guard lock(mutex_);
        notified_.push_back(event.event.kind);
      }
      if (hold_) hold_();
    };
    alarms_ = std::make_unique<Alarms>(store_, store_, clock_, std::move(options));
    alarms_->AwaitIdle();
  }
  // As a crash does: nothing is judged or kept any more.
  void Kill() {
    alarms_->Drain();
    ASSERT_TRUE(store_.PutDocument("base", kDocument, document_).ok());
    alarms_.reset();
  }
  // A step of the rank: stored, and passed to the alarms unless the daemon dies before (`told`).
  void Step(std::uint64_t step, const std::vector<TensorStats>& stats, bool told = true,
            std::uint32_t rank = 0) {
    RecordBatch batch{.first_seq = seq_[rank] + 1};
    if (seq_[rank] == 0) {
      for (std::uint32_t id = 0; id < stats.size(); ++id)
        batch.activations.push_back(Def(id, "layer" + std::to_string(id), kind_));
      batch.layouts = {{.id = 0, .dtype = DType::kF32, .shape = {100}}};
    }
    batch.stats = StepOf(step, stats);
    batch.steps = {{.step = step}};
    Store(std::move(batch), step, told, rank);
  }
  void Store(RecordBatch batch, std::uint64_t step, bool told = true, std::uint32_t rank = 0) {
    seq_[rank] = batch.last_seq();
    RankMeta meta{.durable_seq = seq_[rank], .first_step = 0, .last_step = step};
    meta.info.rank = rank;
    meta.last_write_unix_nanos = clock_.UnixNanos();
    ASSERT_TRUE(AppendBatch(store_, attempt_.id, rank, batch, meta).ok());
    if (!told) return;
    alarms_->Take({.attempt = attempt_, .rank = rank, .batch = batch});
    if (await_) alarms_->AwaitIdle();
  }
  void Healthy20(std::uint64_t first = 0) {
    for (std::uint64_t step = first; step < first + 20; ++step) Step(step, {Rms(1), Rms(2)});
  }
  std::vector<EventRecord> Events(const std::string& kind, std::uint32_t rank = 0) {
    std::vector<EventRecord> found;
    const auto events = store_.Events(attempt_.id, rank);
    for (const EventRecord& event : *events) {
      if (event.kind == kind) found.push_back(event);
    }
    return found;
  }

  FakeClock clock_;
  FakeStore store_;
  EventFeed feed_;
  AttemptMeta attempt_;
  Kind kind_ = Kind::kOutput;
  std::string document_;  // what was kept before the crash
  std::map<std::uint32_t, std::uint64_t> seq_;
  std::mutex mutex_;
  std::vector<std::string> notified_;
  std::function<void()> hold_;  // called from the alarms' own thread when it notifies
  bool await_ = true;           // that a step has been judged
  std::unique_ptr<Alarms> alarms_;
};

TEST(AlarmRules, AreKindsOfEventsThatMayBeAskedFor) {
  for (const std::string_view rule : kAlarmRuleNames)
    EXPECT_THAT(query::KnownEventKinds(), ::testing::Contains(std::string(rule)));
}

TEST_F(AlarmsTest, AnAlarmIsAnEventOfTheCollectorsAndIsHandedOn) {
  std::vector<FeedEvent> followed;
  const auto id = feed_.Follow("base", [&](const FeedEvent* event) { followed.push_back(*event); });
  Start();
  Healthy20();
  Step(20, {Rms(1), WithNan(2)});
  ASSERT_EQ(Events("nan_first_seen").size(), 1u);
  const EventRecord event = Events("nan_first_seen").front();
  EXPECT_TRUE(event.from_collector);
  EXPECT_EQ(event.step, 20u);
  EXPECT_EQ(event.fields.at("severity"), "alarm");
  EXPECT_EQ(event.fields.at("activation"), "layer1");
  EXPECT_THAT(event.text, HasSubstr("no other rank"));
  alarms_->Drain();
  feed_.Unfollow(id);
  ASSERT_EQ(followed.size(), 1u);
  EXPECT_EQ(followed[0].event.kind, "nan_first_seen");
  EXPECT_EQ(notified_, std::vector<std::string>{"nan_first_seen"});
  EXPECT_EQ(alarms_->GetStatus().raised.at("nan_first_seen"), 1u);
  EXPECT_EQ(alarms_->GetStatus().evaluated_records, 42u);
}

TEST_F(AlarmsTest, TheSecondRankSaysWhichWasFirst) {
  Start();
  Step(0, {Rms(1)}, true, 0);
  Step(0, {Rms(1)}, true, 1);
  Step(1, {WithNan(1)}, true, 1);
  Step(1, {WithNan(1)}, true, 0);
  EXPECT_EQ(Events("nan_first_seen", 1).at(0).fields.at("first_of_run"), "true");
  EXPECT_THAT(Events("nan_first_seen", 0).at(0).text, HasSubstr("before rank 1"));
}

TEST_F(AlarmsTest, ActiveAlarmsAreCountedUntilTheyClear) {
  Start();
  Healthy20();
  Step(20, {Rms(1), Rms(500)});
  clock_.Advance(1s);
  EXPECT_EQ(Events("norm_explosion").size(), 1u);
  const auto active = [&] {
    for (int n = 0; n < 1000 && alarms_->GetStatus().active.at("norm_explosion") == 0; ++n)
      std::this_thread::sleep_for(10ms);
    return alarms_->GetStatus().active.at("norm_explosion");
  };
  EXPECT_EQ(active(), 1u);
  Step(21, {Rms(1), Rms(2)});
  EXPECT_EQ(Events("alarm_cleared").size(), 1u);
  EXPECT_EQ(alarms_->GetStatus().raised.at("norm_explosion"), 1u);
}

TEST_F(AlarmsTest, AnOrdinaryRestartRepeatsAndLosesNothing) {
  Start();
  Healthy20();
  Step(20, {Rms(1), Rms(500)});
  Step(21, {WithNan(1), Rms(500)});
  alarms_.reset();
  EXPECT_EQ(store_.Document("base", kDocument).value(), "1 0 21\n");
  Start();
  Step(22, {WithNan(1), Rms(500)});
  Step(23, {Rms(1), Rms(500)});
  alarms_.reset();
  EXPECT_EQ(Events("nan_first_seen").size(), 1u);
  EXPECT_EQ(Events("norm_explosion").size(), 1u);
  EXPECT_EQ(notified_.size(), 2u);
}

TEST_F(AlarmsTest, TheMeasureIsRebuiltAfterARestart) {
  Start();
  Healthy20();
  alarms_.reset();
  Start();
  Step(20, {Rms(1), Rms(500)});  // no second warm-up
  EXPECT_EQ(Events("norm_explosion").size(), 1u);
}

TEST_F(AlarmsTest, WhatWasStoredAndNotJudgedBeforeACrashIsJudgedAtTheNextStart) {
  Start();
  Healthy20();
  alarms_->Drain();
  document_ = store_.Document("base", kDocument).value().value();
  Step(20, {Rms(1), Rms(500)}, /*told=*/false);
  Step(21, {Rms(1), WithNan(1)}, /*told=*/false);
  Kill();
  Start();
  EXPECT_EQ(Events("norm_explosion").size(), 1u);
  EXPECT_EQ(Events("nan_first_seen").size(), 1u);
  alarms_.reset();
  Start();
  alarms_.reset();
  EXPECT_EQ(notified_.size(), 2u) << "once";
}

// Under load the queue holds more than can be judged before a service manager loses its patience.
TEST_F(AlarmsTest, WhatIsQueuedWhenTheTimeToStopIsUpIsJudgedAtTheNextStart) {
  Start({.drain = 0ms});
  Healthy20();
  std::promise<void> told, go_on;
  hold_ = [&, once = false]() mutable {
    if (std::exchange(once, true)) return;
    told.set_value();
    go_on.get_future().wait();
  };
  await_ = false;
  Step(20, {Rms(1), Rms(500)});
  told.get_future().wait();  // its thread is busy
  Step(21, {Rms(1), WithNan(1)});
  std::thread stopping([&] { alarms_->Drain(); });
  alarms_->AwaitIdle();  // until it is asked to stop
  go_on.set_value();
  stopping.join();
  EXPECT_TRUE(Events("nan_first_seen").empty());
  EXPECT_EQ(store_.Document("base", kDocument).value(), "1 0 20\n");
  hold_ = {};
  alarms_.reset();
  Start();
  alarms_.reset();
  EXPECT_EQ(Events("norm_explosion").size(), 1u);
  EXPECT_EQ(Events("nan_first_seen").size(), 1u);
  EXPECT_EQ(notified_.size(), 2u);
}

TEST_F(AlarmsTest, WhatWasWrittenButNotKeptAsJudgedIsFoundAgainAndNotRepeated) {
  Start();
  Healthy20();
  alarms_->Drain();
  document_ = store_.Document("base", kDocument).value().value();
  alarms_.reset();
  Start();
  Step(20, {Rms(1), Rms(500)});
  Step(21, {Rms(1), WithNan(1)});
  Kill();  // the document is as of step 19
  Start();
  alarms_.reset();
  EXPECT_EQ(Events("norm_explosion").size(), 1u);
  EXPECT_EQ(Events("nan_first_seen").size(), 1u);
  EXPECT_EQ(notified_.size(), 2u);
}

TEST_F(AlarmsTest, AStoreThatTakesNoWritesGetsTheEventsLater) {
  Start();
  Healthy20();
  store_.FailAppends(Status(Code::kResourceExhausted, "full"));
  alarms_->Take(
      {.attempt = attempt_,
       .rank = 0,
       .batch = {
           .first_seq = 100, .stats = StepOf(20, {Rms(1), WithNan(1)}), .steps = {{.step = 20}}}});
  alarms_->AwaitIdle();
  EXPECT_TRUE(Events("nan_first_seen").empty());
  store_.FailAppends(Status::Ok());
  alarms_->Drain();
  EXPECT_EQ(Events("nan_first_seen").size(), 1u);
}

TEST_F(AlarmsTest, ARunThatIsRemovedIsForgotten) {
  Start();
  Healthy20();
  const AttemptId id = attempt_.id;
  ASSERT_TRUE(store_.DropAttempts(std::span(&id, 1)).ok());
  alarms_->Take(
      {.attempt = attempt_,
       .rank = 0,
       .batch = {
           .first_seq = 100, .stats = StepOf(20, {Rms(1), WithNan(1)}), .steps = {{.step = 20}}}});
  alarms_->AwaitIdle();
  clock_.Advance(6s);
  for (int n = 0; n < 1000 && alarms_->GetStatus().state_bytes > 0; ++n)
    std::this_thread::sleep_for(10ms);
  EXPECT_EQ(alarms_->GetStatus().state_bytes, 0u);
  EXPECT_TRUE(store_.Events(id, 0)->empty());
}

TEST_F(AlarmsTest, WhatDoesNotFitIntoTheQueueIsCountedAndScalarsAreStillJudged) {
  Start({.queue_bytes_max = 50'000});
  Healthy20();
  std::uint64_t step = 20, records = 0;
  for (int n = 0; n < 500; ++n) {
    RecordBatch many{.first_seq = 1000};
    for (int of = 0; of < 100; ++of) {
      const StatColumns one = StepOf(step++, {Rms(1), Rms(2)});
      many.stats.activation.insert(many.stats.activation.end(), one.activation.begin(),
                                   one.activation.end());
      many.stats.layout.insert(many.stats.layout.end(), one.layout.begin(), one.layout.end());
      many.stats.step.insert(many.stats.step.end(), one.step.begin(), one.step.end());
      many.stats.order.insert(many.stats.order.end(), one.order.begin(), one.order.end());
      many.stats.stats.insert(many.stats.stats.end(), one.stats.begin(), one.stats.end());
    }
    records += many.stats.size();
    alarms_->Take({.attempt = attempt_, .rank = 0, .batch = std::move(many)});
  }
  const std::uint64_t at_once = alarms_->GetStatus().skipped_records;
  RecordBatch last{.first_seq = 9000};
  last.scalars = {
      {.name = "loss", .step = step, .value = std::numeric_limits<double>::quiet_NaN()}};
  alarms_->Take({.attempt = attempt_, .rank = 0, .batch = last});
  alarms_->Drain();
  EXPECT_GT(at_once, 0u);
  EXPECT_EQ(alarms_->GetStatus().skipped_records + alarms_->GetStatus().evaluated_records,
            records + 40);
  EXPECT_EQ(Events("loss_not_finite").size(), 1u);
}

TEST_F(AlarmsTest, StateIsBoundedAndWhoWasSilentForLongestIsForgottenFirst) {
  AlarmsOptions options;
  options.settings.memory_bytes_max = 20'000;
  Start(std::move(options));
  for (std::uint32_t rank = 0; rank < 8; ++rank) {
    for (std::uint64_t step = 0; step < 20; ++step)
      Step(step, std::vector<TensorStats>(30, Rms(1)), true, rank);
    clock_.Advance(11s);
    EXPECT_LE(alarms_->GetStatus().state_bytes, 40'000u);
  }
  std::vector<TensorStats> exploded(30, Rms(1));
  exploded[3] = Rms(1000);
  Step(20, exploded, true, 0);  // forgotten, and rebuilt
  EXPECT_EQ(Events("norm_explosion", 0).size(), 1u);
  EXPECT_EQ(alarms_->GetStatus().skipped_records, 0u);
}

TEST_F(AlarmsTest, RanksThatPartAreToldOnTheOneThatDoes) {
  attempt_ = store_.CreateAttempt({.run = "ddp", .world_size = 2}).value();
  kind_ = Kind::kWeight;
  Start();
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) Step(step, {Rms(1, 7 + step)}, true, rank);
  }
  Step(3, {Rms(1, 1)}, true, 0);
  Step(3, {Rms(1, 2)}, true, 1);
  ASSERT_EQ(Events("rank_disagreement", 1).size(), 1u);
  EXPECT_EQ(Events("rank_disagreement", 1)[0].step, 3u);
  EXPECT_TRUE(Events("rank_disagreement", 0).empty());
}

}  // namespace
}  // namespace statcollect::alarms
