#include "agent/export/exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fake_clock.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;
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
    std::int64_t attempt_start = 0;
    bool acknowledge = true;
    std::uint64_t break_after =
        0;  // ends (UNAVAILABLE) after so many batches, before acknowledging the last; 0: never
    StreamLimits limits;
  };

  class FakeStream final : public Stream {
   public:
    FakeStream(FakeTransport* owner, StreamReceiver* receiver)
        : owner_(owner), receiver_(receiver) {}
    ~FakeStream() override {
      if (!ended_) receiver_->OnEnd();
    }

    bool SendHello(const SessionInfo& session, std::uint64_t first_unacked_seq) override {
      if (session.if_exists == IfExists::kReplace) owner_->Note("replace");
      if (session.attempt_start_unix_nanos != 0)
        owner_->Note("welcomed " + std::to_string(session.attempt_start_unix_nanos));
      script_ = owner_->NextScript(first_unacked_seq);
      if (!script_.end.ok()) return End(script_.end);
      receiver_->OnWelcome({.attempt = 1,
                            .durable_seq = script_.durable_seq,
                            .limits = script_.limits,
                            .attempt_start_unix_nanos = script_.attempt_start});
      return true;
    }
    bool Send(const EncodedBatch& batch) override {
      const bool again =
          batch.first_seq > 1 && batch.bytes.find("the.first.layer") != std::string::npos;
      owner_->Note("batch " + std::to_string(batch.first_seq) + ".." +
                   std::to_string(batch.last_seq()) + (again ? " with the definitions" : ""));
      if (++batches_ == script_.break_after)
        return End(Status(Code::kUnavailable, "connection reset"));
      if (script_.acknowledge) receiver_->OnAck(batch.last_seq());
      return true;
    }
    bool SendGoodbye(const AgentCounters& counters) override {
      const std::uint64_t dropped = counters.dropped();
      owner_->Note("goodbye acked=" + std::to_string(counters.acked) +
                   (dropped > 0 ? " dropped=" + std::to_string(dropped) : ""));
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
    return changed_.wait_for(
        lock, seconds(30), [&] { return std::find(log_.begin(), log_.end(), what) != log_.end(); });
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
  ~ExporterTest() override {
    if (!spill_.directory.empty()) fs::remove_all(spill_.directory);
  }
  Exporter& Make(std::vector<FakeTransport::Script> scripts) {
    for (auto& script : scripts) transport_.Push(std::move(script));
    exporter_ =
        std::make_unique<Exporter>(session_,
                                   ExporterOptions{.collector = "c:1",
                                                   .backoff = {milliseconds(1), milliseconds(2)},
                                                   .definitions = definitions_,
                                                   .spill = spill_},
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

  // --- with a spill file: this thread is the batcher
  void WithSpill(std::uint64_t bytes_max = 1u << 30) {
    std::string pattern = ::testing::TempDir() + "/exporter_XXXXXX";
    spill_ = {.directory = mkdtemp(pattern.data()), .bytes_max = bytes_max};
  }
  // A batch of one record, 1 MiB.
  void SubmitLarge() {
    RecordBatch batch;
    batch.events.resize(1, {.kind = "note", .text = std::string((1u << 20) - 100, 'x')});
    ledger_.Produce();
    exporter_->Submit(std::move(batch), 0);
  }
  bool TendUntil(const std::function<bool()>& done) {
    for (const auto deadline = In(seconds(30));
         !done() && std::chrono::steady_clock::now() < deadline;) {
      (void)exporter_->Tend();
      std::this_thread::sleep_for(milliseconds(1));
    }
    return done();
  }
  bool Balanced() const {
    const AgentCounters c = ledger_.Snapshot();
    return c.produced == c.acked + c.dropped() + c.pending;
  }
  std::vector<std::string> SpillFiles() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(spill_.directory))
      files.push_back(entry.path());
    return files;
  }
  // Every batch that the collector took, in order, without gaps and twice at most where a stream
  // broke.
  void ExpectEachOnce(std::uint64_t first, std::uint64_t last) {
    std::vector<std::string> expected, found;
    for (std::uint64_t i = first; i <= last; ++i)
      expected.push_back("batch " + std::to_string(i) + ".." + std::to_string(i));
    for (const std::string& line : transport_.log()) {
      if (line.starts_with("batch ")) found.push_back(line);
    }
    EXPECT_EQ(found, expected);
  }

  static Exporter::TimePoint In(milliseconds wait) {
    return std::chrono::steady_clock::now() + wait;
  }

  testing::FakeClock clock_;
  std::vector<std::string> lines_;
  LogLimiter log_{&clock_, [this](const std::string& line) { lines_.push_back(line); }};
  Ledger ledger_;
  FakeTransport transport_;
  const Definitions* definitions_ = nullptr;
  SpillOptions spill_;
  SessionInfo session_;
  std::unique_ptr<Exporter> exporter_;
};

const Status kRefused(Code::kUnavailable, "connection refused");

TEST_F(ExporterTest, SendsAcknowledgesAndSaysGoodbyeWithTheFinalCounters) {
  Exporter& exporter = Make({{}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  Submit(3);
  Submit(2);
  EXPECT_TRUE(exporter.Finish(In(seconds(30))).ok());
  EXPECT_THAT(transport_.log(),
              ElementsAre("hello from 1", "batch 1..3", "batch 4..5", "goodbye acked=5"));
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
  definitions.Add(TensorDef{.id = 0, .key = {.name = "the.first.layer", .kind = Kind::kOutput}});
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

TEST_F(ExporterTest, TellsAConnectedCollectorWhatItWillNotGet) {
  Exporter& exporter = Make({{.acknowledge = false}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  Submit(3);
  ASSERT_TRUE(transport_.WaitFor("batch 1..3"));
  ledger_.Produce(5);  // never submitted: the window had no room
  EXPECT_EQ(exporter.Finish(In(milliseconds(20))).code(), Code::kDeadlineExceeded);
  EXPECT_THAT(transport_.log(),
              ElementsAre("hello from 1", "batch 1..3", "goodbye acked=0 dropped=5"))
      << "what was sent may still arrive, and is not told as dropped";
}

TEST_F(ExporterTest, AFailedProcessSaysNoGoodbye) {
  Exporter& exporter = Make({{}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  Submit(3);
  EXPECT_TRUE(exporter.Finish(In(seconds(30)), /*goodbye=*/false).ok());
  EXPECT_THAT(transport_.log(), ElementsAre("hello from 1", "batch 1..3"));
  EXPECT_EQ(ledger_.Snapshot().acked, 3u);
}

TEST(IsFatal, SeparatesRefusalsFromBadDays) {
  for (const Code code :
       {Code::kAlreadyExists, Code::kInvalidArgument, Code::kFailedPrecondition, Code::kAborted}) {
    EXPECT_TRUE(IsFatal(code));
  }
  for (const Code code : {Code::kUnavailable, Code::kResourceExhausted, Code::kCancelled,
                          Code::kInternal, Code::kDeadlineExceeded, Code::kUnknown,
                          Code::kPermissionDenied, Code::kUnauthenticated, Code::kUnimplemented}) {
    EXPECT_FALSE(IsFatal(code));
  }
}

// A wrong token or address is said to whoever starts; in the middle of a training it may be a
// proxy's bad minute.
TEST_F(ExporterTest, AnAccessRefusedAtTheStartEndsItAndLaterIsTriedAgain) {
  for (const Code code : {Code::kPermissionDenied, Code::kUnauthenticated, Code::kUnimplemented}) {
    FakeTransport transport;
    transport.Push({.end = Status(code, "not here")});
    Exporter refused(session_, {.collector = "c:1"}, &transport, &ledger_, &log_, [] {});
    refused.Start();
    EXPECT_EQ(refused.WaitForWelcome(In(seconds(30)), true).code(), code);
    EXPECT_TRUE(refused.Failed());
  }
}

TEST_F(ExporterTest, EveryStatusInTheMiddleLeavesTheRecordsDeliveredOrInTheFile) {
  for (int number = 1; number <= static_cast<int>(Code::kUnauthenticated); ++number) {
    const Code code = static_cast<Code>(number);
    SCOPED_TRACE(number);
    WithSpill();
    FakeTransport transport;
    Ledger ledger;
    transport.Push({.acknowledge = false, .break_after = 8});
    transport.Push({.end = kRefused});
    Exporter exporter(
        session_,
        {.collector = "c:1", .backoff = {milliseconds(1), milliseconds(2)}, .spill = spill_},
        &transport, &ledger, &log_, [] {});
    exporter.Start();
    ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
    RecordBatch batch;
    batch.events.resize(1, {.kind = "note", .text = std::string((1u << 20) - 100, 'x')});
    for (int i = 0; i < 12; ++i) {
      ledger.Produce();
      exporter.Submit(batch, 0);
    }
    ASSERT_EQ(SpillFiles().size(), 1u);
    transport.Push({.end = Status(code, "a bad minute")});
    transport.Push({});
    const auto settled = [&] { return exporter.Failed() || ledger.Snapshot().pending == 0; };
    for (const auto deadline = In(seconds(30));
         !settled() && std::chrono::steady_clock::now() < deadline;) {
      (void)exporter.Tend();
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_EQ(exporter.Failed(), IsFatal(code));
    const Status end = exporter.Finish(In(seconds(30)));
    const AgentCounters c = ledger.Snapshot();
    EXPECT_EQ(c.dropped(), 0u);
    EXPECT_EQ(c.pending, IsFatal(code) ? 12u : 0u);
    EXPECT_EQ(SpillFiles().size(), IsFatal(code) ? 1u : 0u);
    if (IsFatal(code)) {
      EXPECT_THAT(end.message(), HasSubstr("statctl move import spill " + spill_.directory));
    }
    fs::remove_all(spill_.directory);
  }
}

TEST_F(ExporterTest, AStatusThatEndsTheSessionLeavesAFileAlsoIfNothingHadSpilledBefore) {
  WithSpill();
  Exporter& exporter = Make({{.acknowledge = false, .break_after = 2},
                             {.end = Status(Code::kAborted, "fenced by a newer session")}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  Submit(3);
  Submit(2);
  ASSERT_TRUE(TendUntil([&] { return exporter.Failed(); }));
  EXPECT_EQ(exporter.Finish(In(seconds(30))).code(), Code::kAborted);
  EXPECT_EQ(SpillFiles().size(), 1u);
  EXPECT_EQ(ledger_.Snapshot().pending, 5u);
}

TEST_F(ExporterTest, PassesTheCollectorsRefusalToWhoeverStarts) {
  Exporter& exporter =
      Make({{.end = Status(Code::kAlreadyExists, "run 'base' has 3 steps since Monday")}});
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
  Exporter& exporter = Make({{.end = kRefused},
                             {.end = kRefused},
                             {.end = Status(Code::kResourceExhausted, "disk full")},
                             {}});
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

TEST_F(ExporterTest, WhatHasNoRoomGoesToTheSpillFileAndIsSentInOrder) {
  WithSpill();
  Exporter& exporter = Make({{.end = kRefused}});
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(exporter.HasRoom());
    SubmitLarge();
    EXPECT_TRUE(Balanced());
  }
  EXPECT_EQ(ledger_.Snapshot().pending, 40u);
  EXPECT_EQ(exporter.progress().spilled, 40u) << "with what the window holds";
  ASSERT_EQ(SpillFiles().size(), 1u);
  transport_.Push({});
  ASSERT_TRUE(TendUntil([&] { return ledger_.Snapshot().acked == 40; }));
  SubmitLarge();
  ASSERT_TRUE(ledger_.WaitSettled(In(seconds(30))));
  ASSERT_TRUE(TendUntil([&] { return SpillFiles().empty(); })) << "no longer needed";
  EXPECT_TRUE(exporter.Finish(In(seconds(30))).ok());
  ExpectEachOnce(1, 41);
  EXPECT_TRUE(Balanced());
}

TEST_F(ExporterTest, ACollectorThatIsTooSlowFillsTheSpillFileAndNothingIsOvertaken) {
  WithSpill();
  Exporter& exporter = Make({{.acknowledge = false, .break_after = 8}, {.durable_seq = 5}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(exporter.HasRoom()) << i;
    SubmitLarge();
    (void)exporter.Tend();
    EXPECT_TRUE(Balanced());
  }
  ASSERT_TRUE(TendUntil([&] { return ledger_.Snapshot().acked == 200; }));
  ASSERT_TRUE(TendUntil([&] { return SpillFiles().empty(); }));
  EXPECT_TRUE(exporter.Finish(In(seconds(30))).ok());
  const auto log = transport_.log();
  std::uint64_t last = 0;
  for (const std::string& line : log) {
    if (!line.starts_with("batch ")) continue;
    const std::uint64_t seq = std::stoull(line.substr(6));
    if (seq == 6) last = 5;  // the second stream resumes
    EXPECT_EQ(seq, last + 1);
    last = seq;
  }
  EXPECT_EQ(last, 200u);
}

// A stream acknowledges half of the window and breaks off before anything more is read from the
// file.
TEST_F(ExporterTest, RoomInTheWindowIsForWhatWaitsInTheFileFirst) {
  WithSpill();
  Exporter& exporter = Make({{.end = kRefused}});
  for (int i = 0; i < 40; ++i) SubmitLarge();
  transport_.Push({.durable_seq = 4, .break_after = 1});
  transport_.Push({.end = kRefused});
  ASSERT_TRUE(TendUntil([&] { return ledger_.Snapshot().acked == 4; }));
  ASSERT_TRUE(transport_.WaitFor("hello from 5"));
  Submit(3);  // has room, and must wait
  transport_.Push({.durable_seq = 4});
  ASSERT_TRUE(TendUntil([&] { return ledger_.Snapshot().pending == 0; }));
  EXPECT_TRUE(exporter.Finish(In(seconds(30))).ok());
  const auto log = transport_.log();
  EXPECT_EQ(std::count(log.begin(), log.end(), "batch 41..43"), 1);
}

TEST_F(ExporterTest, TheSpillFileHasACap) {
  WithSpill(64u << 20);
  Exporter& exporter = Make({{.end = kRefused}});
  std::uint64_t submitted = 0;
  while (exporter.HasRoom() && submitted < 1000) {
    SubmitLarge();
    ++submitted;
  }
  EXPECT_GE(submitted, 60u);
  EXPECT_LE(submitted, 64u);
  EXPECT_LE(fs::file_size(SpillFiles().at(0)), 64u << 20);
  transport_.Push({});
  ASSERT_TRUE(TendUntil([&] { return ledger_.Snapshot().acked == submitted; }));
  EXPECT_TRUE(exporter.HasRoom()) << "again";
  EXPECT_TRUE(exporter.Finish(In(seconds(30))).ok());
  ExpectEachOnce(1, submitted);
}

TEST_F(ExporterTest, WhatTheCollectorDoesNotHaveAtTheEndStaysInTheFileAndIsPending) {
  WithSpill();
  Exporter& exporter = Make({{.break_after = 3}, {.end = kRefused}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  for (int i = 0; i < 30; ++i) SubmitLarge();
  ASSERT_TRUE(transport_.WaitFor("batch 3..3"));
  const Status end = exporter.Finish(In(milliseconds(50)));
  EXPECT_EQ(end.code(), Code::kDeadlineExceeded);
  ASSERT_EQ(SpillFiles().size(), 1u);
  EXPECT_THAT(end.message(), HasSubstr("statctl move import spill " + SpillFiles()[0]));
  const AgentCounters c = ledger_.Snapshot();
  EXPECT_EQ(c.acked, 2u);
  EXPECT_EQ(c.pending, 28u);
  EXPECT_EQ(c.dropped(), 0u);
  EXPECT_EQ(exporter.progress().spilled, 28u);
  EXPECT_GT(fs::file_size(SpillFiles()[0]), 28u << 20 >> 1);
}

TEST_F(ExporterTest, AShortTrainingWithoutACollectorLeavesASpillFileToo) {
  WithSpill();
  Exporter& exporter = Make({{.end = kRefused}});
  Submit(7);
  EXPECT_TRUE(SpillFiles().empty()) << "while the window has room";
  EXPECT_EQ(exporter.Finish(In(milliseconds(50))).code(), Code::kDeadlineExceeded);
  EXPECT_EQ(SpillFiles().size(), 1u);
  EXPECT_EQ(ledger_.Snapshot().pending, 7u);
}

// Its rest still belongs to its own attempt, and can be sent there late.
TEST_F(ExporterTest, AFencedSessionKeepsItsSpillFileAndCountsWhatComesAfter) {
  WithSpill();
  Exporter& exporter = Make({{.acknowledge = false, .break_after = 8}, {.end = kRefused}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  for (int i = 0; i < 30; ++i) SubmitLarge();
  EXPECT_EQ(SpillFiles().size(), 1u);
  transport_.Push({.end = Status(Code::kAborted, "fenced by a newer session")});
  ASSERT_TRUE(TendUntil([&] { return exporter.Failed(); }));
  Submit(4);
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("rejected"), 4u);
  EXPECT_EQ(exporter.Finish(In(seconds(30))).code(), Code::kAborted);
  EXPECT_EQ(SpillFiles().size(), 1u);
  EXPECT_EQ(ledger_.Snapshot().pending, 30u);
  EXPECT_TRUE(Balanced());
}

TEST_F(ExporterTest, WhatACollectorRefusesFromTheStartStaysInTheFileForAnotherName) {
  WithSpill();
  Exporter& exporter = Make({{.end = kRefused}});
  for (int i = 0; i < 30; ++i) SubmitLarge();
  transport_.Push({.end = Status(Code::kAlreadyExists, "run 'base' has 3 steps since Monday")});
  ASSERT_TRUE(TendUntil([&] { return exporter.Failed(); }));
  EXPECT_FALSE(exporter.HasRoom());
  const Status end = exporter.Finish(In(seconds(30)));
  EXPECT_EQ(end.code(), Code::kAlreadyExists);
  EXPECT_THAT(end.message(), HasSubstr("statctl move import spill"));
  EXPECT_EQ(SpillFiles().size(), 1u);
  EXPECT_EQ(ledger_.Snapshot().pending, 30u);
  EXPECT_TRUE(Balanced());
}

// Frames 20 and, behind it, everything from 30 on cannot be read back.
TEST_F(ExporterTest, CountsWhatTheDiskDamagedAndGivesTheDefinitionsAgain) {
  Definitions definitions;
  definitions.Add(TensorDef{.id = 0, .key = {.name = "the.first.layer", .kind = Kind::kOutput}});
  definitions.Add(Layout{.id = 0, .dtype = DType::kF32, .shape = {2}});
  definitions_ = &definitions;
  WithSpill();
  Exporter& exporter = Make({{.end = kRefused}});
  std::vector<std::uint64_t> ends;
  for (int i = 0; i < 40; ++i) {
    RecordBatch batch;
    if (i == 0) {
      batch.activations = definitions.Activations(0, 0);
      batch.layouts = definitions.Layouts(0, 0);
    }
    batch.events.resize(1, {.kind = "note", .text = std::string(1u << 20, 'x')});
    ledger_.Produce();
    exporter.Submit(std::move(batch), 0);
    ends.push_back(SpillFiles().empty() ? 0 : fs::file_size(SpillFiles()[0]));
  }
  {
    std::fstream file(SpillFiles()[0], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(ends[19] - 1));  // the payload of the 20th
    file.put('y');
    file.seekp(static_cast<std::streamoff>(ends[28] + 5));  // the head of the 30th
    file.put('y');
  }
  transport_.Push({});
  ASSERT_TRUE(TendUntil([&] { return ledger_.Snapshot().pending == 0; }));
  const AgentCounters c = ledger_.Snapshot();
  EXPECT_EQ(c.dropped_by_cause.at("spill_damaged"), 1u + 11u);
  EXPECT_EQ(c.produced, 40u + 2u) << "and two events that tell of it";
  EXPECT_EQ(c.acked, 30u);
  EXPECT_TRUE(exporter.Finish(In(seconds(30))).ok());
  const auto log = transport_.log();
  EXPECT_EQ(std::count(log.begin(), log.end(), "batch 20..20 with the definitions"), 1);
  EXPECT_EQ(std::count(log.begin(), log.end(), "batch 30..30 with the definitions"), 1);
  EXPECT_TRUE(SpillFiles().empty());
}

// The ring holds 8 MiB; the collector comes back with what it had long before.
TEST_F(ExporterTest, NumbersTheSpilledRecordsAnewAfterACollectorLostMoreThanTheRingHolds) {
  WithSpill();
  Exporter& exporter = Make({{.break_after = 21}, {.end = kRefused}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  for (int i = 0; i < 20; ++i) {
    SubmitLarge();
    ASSERT_TRUE(ledger_.WaitSettled(In(seconds(30))));
  }
  for (int i = 0; i < 30; ++i) SubmitLarge();
  EXPECT_EQ(SpillFiles().size(), 1u);
  transport_.Push({.durable_seq = 4});
  ASSERT_TRUE(TendUntil([&] { return ledger_.Snapshot().pending == 0; }));
  EXPECT_TRUE(exporter.Finish(In(seconds(30))).ok());
  const AgentCounters c = ledger_.Snapshot();
  const std::uint64_t gone = c.dropped_by_cause.at("regressed");
  EXPECT_EQ(c.produced, 51u);
  EXPECT_EQ(c.acked, 51u - gone);
  const auto log = transport_.log();
  auto line = std::find(log.begin(), log.end(), "batch 21..21") + 1;  // the first stream's last
  for (std::uint64_t seq = 5; seq <= 51 - gone; ++seq, ++line) {
    while (line != log.end() && line->starts_with("hello")) ++line;
    ASSERT_NE(line, log.end());
    EXPECT_EQ(*line, "batch " + std::to_string(seq) + ".." + std::to_string(seq));
  }
  EXPECT_TRUE(SpillFiles().empty());
}

// Whoever sends the file later must go on with the collector's numbers.
TEST_F(ExporterTest, TheFilesMarkHasTheNewNumbersBeforeAnythingIsSentUnderThem) {
  WithSpill();
  Exporter& exporter = Make({{.break_after = 21}, {.end = kRefused}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  for (int i = 0; i < 20; ++i) {
    SubmitLarge();
    ASSERT_TRUE(ledger_.WaitSettled(In(seconds(30))));
  }
  for (int i = 0; i < 30; ++i) SubmitLarge();
  transport_.Push({.durable_seq = 4, .acknowledge = false});
  ASSERT_TRUE(TendUntil([&] {
    const auto log = transport_.log();
    return std::count(log.begin(), log.end(), "batch 6..6") == 2;
  }));
  std::ifstream file(SpillFiles().at(0), std::ios::binary);
  std::string head(spill::kHeadBytes, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  const auto mark = spill::DecodeMark(head.substr(spill::kMarkAt));
  ASSERT_TRUE(mark.ok());
  EXPECT_EQ(mark->seq, 6u) << "5 tells of the loss and is in memory only";
  EXPECT_EQ(mark->offset, spill::DecodeHead(head.substr(0, spill::kMarkAt))->frames_at());
}

TEST_F(ExporterTest, LaterHellosNameTheAttemptOfTheLastWelcome) {
  Exporter& exporter =
      Make({{.attempt_start = 7, .break_after = 1}, {.attempt_start = 9, .break_after = 1}, {}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  Submit(1);
  ASSERT_TRUE(ledger_.WaitSettled(In(seconds(30))));
  EXPECT_TRUE(exporter.Finish(In(seconds(30))).ok());
  EXPECT_THAT(transport_.log(),
              ElementsAre("hello from 1", "batch 1..1", "welcomed 7", "hello from 1", "batch 1..1",
                          "welcomed 9", "hello from 1", "batch 1..1", "goodbye acked=1"));
}

TEST_F(ExporterTest, AsksToReplaceWhatIsThereUntilItIsWelcomed) {
  session_.if_exists = IfExists::kReplace;
  Exporter& exporter = Make({{.end = kRefused}, {.break_after = 1}, {}});
  ASSERT_TRUE(exporter.WaitForWelcome(In(seconds(30)), true).ok());
  Submit(1);
  ASSERT_TRUE(ledger_.WaitSettled(In(seconds(30))));
  EXPECT_TRUE(exporter.Finish(In(seconds(30))).ok());
  const auto log = transport_.log();
  EXPECT_EQ(std::count(log.begin(), log.end(), "replace"), 2);
  EXPECT_EQ(std::count(log.begin(), log.end(), "hello from 1"), 3);
}

TEST_F(ExporterTest, ADiskThatRefusesWritesCostsNothingThatTheMemoryHolds) {
  WithSpill();
  Exporter& exporter = Make({{.end = kRefused}});
  fs::remove_all(spill_.directory);  // also root cannot write there
  std::uint64_t submitted = 0;
  while (exporter.HasRoom() && submitted < 100) {
    SubmitLarge();
    ++submitted;
  }
  EXPECT_GE(submitted, 8u);
  EXPECT_LE(submitted, 17u);
  EXPECT_FALSE(exporter.HasRoom());
  EXPECT_EQ(ledger_.Snapshot().pending, submitted);
  ASSERT_FALSE(lines_.empty());
  transport_.Push({});
  ASSERT_TRUE(TendUntil([&] { return ledger_.Snapshot().acked == submitted; }));
  ExpectEachOnce(1, submitted);
}

// The last batch has found room neither in the window nor on the disk when the program ends.
TEST_F(ExporterTest, WhatTheDiskRefusedIsSentAtTheEndOnceTheWindowHasRoom) {
  WithSpill();
  Exporter& exporter = Make({{.end = kRefused}});
  fs::remove_all(spill_.directory);
  std::uint64_t submitted = 0;
  while (exporter.HasRoom() && submitted < 100) {
    SubmitLarge();
    ++submitted;
  }
  ASSERT_LT(submitted, 100u);
  transport_.Push({});
  EXPECT_TRUE(exporter.Finish(In(seconds(30))).ok());
  EXPECT_EQ(ledger_.Snapshot().acked, submitted);
  ExpectEachOnce(1, submitted);
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

TEST(LogLimiter, ALossIsSaidWithTheNextLineOrAtTheEnd) {
  testing::FakeClock clock;
  std::vector<std::string> lines;
  LogLimiter log(&clock, [&](const std::string& line) { lines.push_back(line); });
  log.Log("one");
  log.LogLoss("7 records lost");
  log.Log("swallowed");
  ASSERT_EQ(lines.size(), 1u);
  clock.Advance(LogLimiter::kInterval);
  log.Log("two");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1], "two (before that: 7 records lost) (1 earlier messages not shown)");
  log.LogLoss("8 records lost");
  log.LogLoss("9 records lost");
  log.FlushLosses();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[2], "8 records lost; 9 records lost");
  log.FlushLosses();
  EXPECT_EQ(lines.size(), 3u) << "nothing is left to say";
  clock.Advance(LogLimiter::kInterval);
  log.LogLoss("10 records lost");
  EXPECT_EQ(lines.back(), "10 records lost") << "at once, where a line is due";
}

TEST(LogLimiter, WritesWhatItsLevelAllows) {
  const auto lines_at = [](const char* level) {
    testing::FakeClock clock;
    std::vector<std::string> lines;
    LogLimiter log(
        &clock, [&](const std::string& line) { lines.push_back(line); }, *ParseLogLevel(level));
    for (const auto& say : std::vector<std::function<void()>>{
             [&] { log.LogOnce("once"); }, [&] { log.Log("detail", LogLevel::kInfo); },
             [&] { log.Log("warning"); }, [&] { log.LogLoss("loss"); },
             [&] { log.LogFinal("final"); }}) {
      clock.Advance(LogLimiter::kInterval);
      say();
    }
    return lines;
  };
  EXPECT_THAT(lines_at("off"), ElementsAre());
  EXPECT_THAT(lines_at("error"), ElementsAre("loss", "final"));
  EXPECT_THAT(lines_at("warning"), ElementsAre("warning", "loss", "final"));
  EXPECT_THAT(lines_at(""), ElementsAre("warning", "loss", "final"));
  EXPECT_THAT(lines_at("info"), ElementsAre("once", "detail", "warning", "loss", "final"));
  EXPECT_EQ(ParseLogLevel("loud"), std::nullopt);
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
