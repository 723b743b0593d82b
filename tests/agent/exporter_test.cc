#include "agent/export/exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/fake_clock.h"

namespace statcollect {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A collector in the test's hands: every stream waits for what the test lets it do.
class FakeTransport final : public Transport {
 public:
  // What a stream does on its hello: welcome with this watermark, or end with this status.
  struct Script {
    Status end;
    std::uint64_t durable_seq = 0;
    bool acknowledge = true;
    std::uint64_t break_after =
        0;  // ends (UNAVAILABLE) after so many batches, before acknowledging the last; 0: never
    StreamLimits limits;
  };

  class FakeStream final : public Stream {
   public:
    FakeStream(FakeTransport* owner, StreamReceiver* receiver) : owner_(owner), receiver_(receiver) {}
    ~FakeStream() override {
      if (!ended_) receiver_->OnEnd();
    }

    bool SendHello(const SessionInfo& /*session*/, std::uint64_t first_unacked_seq) override {
      script_ = owner_->NextScript(first_unacked_seq);
      if (!script_.end.ok()) return End(script_.end);
      receiver_->OnWelcome({.attempt = 1, .durable_seq = script_.durable_seq, .limits = script_.limits});
      return true;
    }
    bool Send(const EncodedBatch& batch) override {
      const bool again = batch.first_seq > 1 && batch.bytes.find("the.first.layer") != std::string::npos;
      owner_->Note("batch " + std::to_string(batch.first_seq) + ".." + std::to_string(batch.last_seq()) +
                   (again ? " with the definitions" : ""));
      if (++batches_ == script_.break_after) return End(Status(Code::kUnavailable, "connection reset"));
      if (script_.acknowledge) receiver_->OnAck(batch.last_seq());
      return true;
    }
    bool SendGoodbye(const AgentCounters& counters) override {
      owner_->Note("goodbye acked=" + std::to_string(counters.acked));
      End(Status::Ok());
      return true;
    }
    void Cancel() override {
      cancelled_ = true;  // never blocks and never calls the receiver: Finish does
    }
    Status Finish() override {
      if (!ended_) End(Status(Code::kCancelled, cancelled_ ? "cancelled" : "finished early"));
      return status_;
    }

   private:
    bool End(const Status& status) {
      if (ended_) return false;
      ended_ = true;
      status_ = status;
      receiver_->OnEnd();
      return false;
    }

    FakeTransport* const owner_;
    StreamReceiver* const receiver_;
    Script script_;
    std::uint64_t batches_ = 0;
    bool ended_ = false;
    std::atomic<bool> cancelled_{false};
    Status status_;
  };

  std::unique_ptr<Stream> Open(StreamReceiver* receiver) override {
    return std::make_unique<FakeStream>(this, receiver);
  }

  void Push(Script script) {
    std::lock_guard lock(mutex_);
    scripts_.push_back(std::move(script));
  }
  // The last script repeats.
  Script NextScript(std::uint64_t first_unacked_seq) {
    Note("hello from " + std::to_string(first_unacked_seq));
    std::lock_guard lock(mutex_);
    Script script = scripts_.front();
    if (scripts_.size() > 1) scripts_.pop_front();
    return script;
  }
  void Note(const std::string& what) {
    {
      std::lock_guard lock(mutex_);
      log_.push_back(what);
    }
    changed_.notify_all();
  }
  bool WaitFor(const std::string& what) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(30),
                             [&] { return std::find(log_.begin(), log_.end(), what) != log_.end(); });
  }
  std::vector<std::string> log() {
    std::lock_guard lock(mutex_);
    return log_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Script> scripts_;
  std::vector<std::string> log_;
};

class ExporterTest : public ::testing::Test {
 protected:
  Exporter& Make(std::vector<FakeTransport::Script> scripts) {
    for (auto& script : scripts) transport_.Push(std::move(script));
    exporter_ = std::make_unique<Exporter>(
        SessionInfo{},
        ExporterOptions{
            .collector = "c:1", .backoff = {milliseconds(1), milliseconds(2)}, .definitions = definitions_},
        &transport_, &ledger_, &log_, [] {});
    exporter_->Start();
    return *exporter_;
  }

  void Submit(std::size_t records) {
    RecordBatch batch;
    batch.scalars.resize(records, {.name = "x"});
    ledger_.Produce(records);
    exporter_->Submit(std::move(batch), 100);
  }

  static Exporter::TimePoint In(milliseconds wait) { return std::chrono::steady_clock::now() + wait; }

  testing::FakeClock clock_;
  std::vector<std::string> lines_;
  LogLimiter log_{&clock_, [this](const std::string& line) { lines_.push_back(line); }};
  Ledger ledger_;
  FakeTransport transport_;
  const Definitions* definitions_ = nullptr;
  std::unique_ptr<Exporter> exporter_;
};

const Status kRefused(Code::kUnavailable, "connection refused");

TEST_F(ExporterTest, SendsAcknowledgesAndSaysGoodbyeWithTheFinalCounters) {
  Exporter& exporter = Make({{}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  Submit(3);
  Submit(2);
  EXPECT_TRUE(exporter.Finish(In(seconds(30))).ok());
  EXPECT_THAT(transport_.log(), ElementsAre("hello from 1", "batch 1..3", "batch 4..5", "goodbye acked=5"));
  EXPECT_EQ(ledger_.Snapshot().acked, 5u);
  EXPECT_TRUE(exporter.Finish(In(seconds(0))).ok()) << "a second time";
}

TEST_F(ExporterTest, ResendsAfterAReconnectOnlyWhatIsNotDurable) {
  // The second batch becomes durable, but the connection breaks before the acknowledgement comes.
  Exporter& exporter = Make({{.break_after = 2}, {.end = kRefused}, {.durable_seq = 5}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  Submit(3);
  Submit(2);
  Submit(1);
  EXPECT_TRUE(exporter.Finish(In(seconds(30))).ok());
  const auto log = transport_.log();
  ASSERT_GE(log.size(), 5u);
  EXPECT_EQ(std::count(log.begin(), log.end(), "batch 1..3"), 1);
  EXPECT_EQ(std::count(log.begin(), log.end(), "batch 4..5"), 1);
  EXPECT_EQ(std::count(log.begin(), log.end(), "batch 6..6"), 1);
  EXPECT_EQ(log.back(), "goodbye acked=6");
  EXPECT_EQ(ledger_.Snapshot().acked, 6u);
}

TEST_F(ExporterTest, ResendsWhatWasInFlightWhenTheCollectorDoesNotHaveIt) {
  Exporter& exporter = Make({{.break_after = 2}, {.durable_seq = 3}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  Submit(3);
  Submit(2);
  EXPECT_TRUE(exporter.Finish(In(seconds(30))).ok());
  const auto log = transport_.log();
  EXPECT_EQ(std::count(log.begin(), log.end(), "batch 1..3"), 1);
  EXPECT_EQ(std::count(log.begin(), log.end(), "batch 4..5"), 2);
  EXPECT_EQ(ledger_.Snapshot().acked, 5u);
}

TEST_F(ExporterTest, CountsAndLogsWhatTheCollectorLostAfterAcknowledging) {
  Exporter& exporter = Make({{.break_after = 3}, {.durable_seq = 1}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  Submit(1);
  Submit(1);
  ASSERT_TRUE(ledger_.WaitSettled(In(seconds(30))));
  Submit(1);
  EXPECT_TRUE(exporter.Finish(In(seconds(30))).ok());
  EXPECT_EQ(exporter.progress().lost_after_ack, 1u);
  EXPECT_EQ(ledger_.Snapshot().acked, 3u);
  const auto log = transport_.log();
  EXPECT_EQ(std::count(log.begin(), log.end(), "batch 2..2"), 2);
}

// 1 MiB batches: eight of them fill the ring. The definitions were in the first.
TEST_F(ExporterTest, CountsAsRegressedWhatItNoLongerHoldsAndGivesTheDefinitionsAgain) {
  Definitions definitions;
  definitions.Add(ActivationDef{.id = 0, .key = {.name = "the.first.layer", .kind = Kind::kOutput}});
  definitions.Add(Layout{.id = 0, .dtype = DType::kF32, .shape = {2}});
  definitions_ = &definitions;
  Exporter& exporter = Make({{.break_after = 21}, {.durable_seq = 4}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  for (int i = 0; i < 20; ++i) {
    RecordBatch batch;
    if (i == 0) {
      batch.activations = definitions.Activations(0, 0);
      batch.layouts = definitions.Layouts(0, 0);
    }
    batch.events.resize(1, {.kind = "note", .text = std::string(1u << 20, 'x')});
    ledger_.Produce();
    exporter.Submit(std::move(batch), 0);
    ASSERT_TRUE(ledger_.WaitSettled(In(seconds(30))));
  }
  Submit(1);
  ASSERT_TRUE(exporter.Finish(In(seconds(30))).ok());
  const AgentCounters c = ledger_.Snapshot();
  const std::uint64_t gone = c.dropped_by_cause.at("regressed");
  EXPECT_GE(gone, 8u);
  EXPECT_LE(gone, 10u);
  EXPECT_EQ(c.produced, 22u) << "21 and the event that tells of the loss";
  EXPECT_EQ(c.acked, 22u - gone);
  EXPECT_EQ(c.pending, 0u);
  const auto log = transport_.log();
  const auto repair = std::find(log.begin(), log.end(), "batch 5..5 with the definitions");
  ASSERT_NE(repair, log.end()) << "the first after the watermark";
  EXPECT_EQ(*(repair + 1), "batch 6..6");
  ASSERT_FALSE(lines_.empty());
}

TEST(IsFatal, SeparatesRefusalsFromBadDays) {
  for (const Code code : {Code::kAlreadyExists, Code::kInvalidArgument, Code::kFailedPrecondition,
                          Code::kPermissionDenied, Code::kUnauthenticated, Code::kAborted}) {
    EXPECT_TRUE(IsFatal(code));
  }
  for (const Code code : {Code::kUnavailable, Code::kResourceExhausted, Code::kCancelled, Code::kInternal,
                          Code::kDeadlineExceeded, Code::kUnknown}) {
    EXPECT_FALSE(IsFatal(code));
  }
}

TEST_F(ExporterTest, PassesTheCollectorsRefusalToWhoeverStarts) {
  Exporter& exporter = Make({{.end = Status(Code::kAlreadyExists, "run 'base' has 3 steps since Monday")}});
  const Status status = exporter.WaitForWelcome(In(seconds(30)), true);
  EXPECT_EQ(status.code(), Code::kAlreadyExists);
  EXPECT_EQ(status.message(), "run 'base' has 3 steps since Monday");
  EXPECT_TRUE(exporter.Failed());
  EXPECT_FALSE(exporter.HasRoom());
  Submit(4);
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("rejected"), 4u);
  EXPECT_TRUE(lines_.empty()) << "the caller says it";
}

TEST_F(ExporterTest, DropsTheWindowAndLogsOneLineWhenFencedInTheMiddle) {
  Exporter& exporter = Make({{.acknowledge = false, .break_after = 2},
                             {.end = Status(Code::kAborted, "fenced by a newer session")}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  Submit(3);
  Submit(2);
  ASSERT_TRUE(ledger_.WaitSettled(In(seconds(30))));
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("rejected"), 5u);
  EXPECT_EQ(exporter.Finish(In(seconds(30))).code(), Code::kAborted);
  ASSERT_FALSE(lines_.empty());
  EXPECT_THAT(lines_.back(), HasSubstr("fenced by a newer session"));
}

TEST_F(ExporterTest, ImpatientCallersHearOfTheFirstFailure) {
  Exporter& exporter = Make({{.end = kRefused}});  // for ever
  const Status first = exporter.WaitForWelcome(In(seconds(30)), false);
  EXPECT_EQ(first.code(), Code::kUnavailable);
  EXPECT_THAT(first.message(), HasSubstr("c:1"));
  EXPECT_THAT(first.message(), HasSubstr("connection refused"));
}

TEST_F(ExporterTest, KeepsTryingWhileTheCollectorIsAway) {
  Exporter& exporter = Make(
      {{.end = kRefused}, {.end = kRefused}, {.end = Status(Code::kResourceExhausted, "disk full")}, {}});
  EXPECT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  Submit(1);
  EXPECT_TRUE(ledger_.WaitSettled(In(seconds(30))));
  EXPECT_EQ(ledger_.Snapshot().acked, 1u);
  EXPECT_LE(lines_.size(), 1u) << "at most one line a minute";
}

TEST_F(ExporterTest, FinishIsBoundedAndCountsTheRestAsClosed) {
  Exporter& exporter = Make({{.end = kRefused}});
  Submit(7);
  EXPECT_EQ(exporter.Finish(In(milliseconds(50))).code(), Code::kDeadlineExceeded);
  const AgentCounters c = ledger_.Snapshot();
  EXPECT_EQ(c.pending, 0u);
  EXPECT_EQ(c.dropped_by_cause.at("closed"), 7u);
}

TEST_F(ExporterTest, FinishDoesNotWaitForACollectorThatNobodyNeeds) {
  Exporter& exporter = Make({{.end = kRefused}});
  EXPECT_TRUE(exporter.Finish(In(std::chrono::hours(1))).ok());
}

TEST_F(ExporterTest, FinishIsBoundedWhenNothingIsAcknowledged) {
  Exporter& exporter = Make({{.acknowledge = false}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  Submit(2);
  ASSERT_TRUE(transport_.WaitFor("batch 1..2"));
  EXPECT_EQ(exporter.Finish(In(milliseconds(20))).code(), Code::kDeadlineExceeded);
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("closed"), 2u);
}

TEST_F(ExporterTest, HonoursTheCollectorsWindow) {
  Exporter& exporter = Make({{.acknowledge = false, .limits = {.window_batches_max = 2}}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  Submit(1);
  EXPECT_TRUE(exporter.HasRoom());
  Submit(1);
  EXPECT_FALSE(exporter.HasRoom());
}

TEST_F(ExporterTest, StopsWhenTheCollectorAcknowledgesWhatWasNeverSent) {
  Exporter& exporter = Make({{.durable_seq = 9}});
  EXPECT_EQ(exporter.WaitForWelcome(In(seconds(30)), true).code(), Code::kDataLoss);
  EXPECT_TRUE(exporter.Failed());
}

TEST(Backoff, DoublesUpToItsMaximumWithARandomPartAndStartsAnewAfterReset) {
  Backoff backoff({milliseconds(100), milliseconds(5000)}, 1);
  milliseconds wait{100};
  for (int i = 0; i < 20; ++i) {
    const milliseconds next = backoff.Next();
    EXPECT_GE(next, wait / 2);
    EXPECT_LE(next, wait);
    wait = std::min(wait * 2, milliseconds(5000));
  }
  backoff.Reset();
  EXPECT_LE(backoff.Next(), milliseconds(100));
  Backoff other({milliseconds(100), milliseconds(5000)}, 2);
  Backoff same({milliseconds(100), milliseconds(5000)}, 2);
  EXPECT_EQ(other.Next(), same.Next());
}

TEST(LogLimiter, WritesAtMostOneLineAMinuteAndSaysHowManyItSwallowed) {
  testing::FakeClock clock;
  std::vector<std::string> lines;
  LogLimiter log(&clock, [&](const std::string& line) { lines.push_back(line); });
  log.Log("first");
  log.Log("second");
  log.Log("third");
  EXPECT_THAT(lines, ElementsAre("first"));
  clock.Advance(LogLimiter::kInterval);
  log.Log("fourth\nwith a line break");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[1], HasSubstr("(2 earlier messages not shown)"));
  EXPECT_EQ(lines[1].find('\n'), std::string::npos);
  log.LogFinal("the end");
  log.LogFinal("the end again");
  EXPECT_EQ(lines.size(), 3u);
}

}  // namespace
}  // namespace statcollect
