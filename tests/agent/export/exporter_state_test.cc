// Walks the table of exporter_state.h with an exporter and a transport in the test's hands.
#include "agent/export/exporter_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/export/exporter.h"
#include "tests/support/fake_clock.h"

namespace statcollect {

// For messages of a failed test.
void PrintTo(ExporterState state, std::ostream* out) { *out << Name(state); }

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using enum ExporterState;

// Its streams do nothing by themselves: the test is the transport's thread, and says how each ends.
class HandTransport final : public Transport {
 public:
  std::unique_ptr<Stream> Open(StreamReceiver* receiver) override {
    std::lock_guard lock(mutex_);
    receiver_ = receiver;
    end_.reset();
    return std::make_unique<HandStream>(this);
  }
  StreamReceiver& receiver() {
    std::lock_guard lock(mutex_);
    return *receiver_;
  }
  void End(Status status) {
    receiver().OnEnd();
    SetEnd(std::move(status));
  }

 private:
  class HandStream final : public Stream {
   public:
    explicit HandStream(HandTransport* owner) : owner_(owner) {}
    bool SendHello(const SessionInfo&, std::uint64_t) override { return true; }
    bool Send(const EncodedBatch&) override { return true; }
    bool SendGoodbye(const AgentCounters&) override { return true; }
    void Cancel() override { owner_->SetEnd(Status(Code::kCancelled, "cancelled")); }
    Status Finish() override { return owner_->WaitForEnd(); }

   private:
    HandTransport* const owner_;
  };

  void SetEnd(Status status) {
    {
      std::lock_guard lock(mutex_);
      if (!end_) end_ = std::move(status);
    }
    changed_.notify_all();
  }
  Status WaitForEnd() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return end_.has_value(); });
    return *end_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  StreamReceiver* receiver_ = nullptr;
  std::optional<Status> end_;
};

const Status kAway(Code::kUnavailable, "connection reset");
const Status kFenced(Code::kAborted, "fenced by a newer session");

class World {
 public:
  World() {
    exporter_.Start();
    Expect(kConnecting);
  }
  ~World() { exporter_.Leave(); }

  void Welcome(std::uint64_t durable_seq = 0) {
    transport_.receiver().OnWelcome({.attempt = 1, .durable_seq = durable_seq});
  }
  void Record() {
    RecordBatch batch;
    batch.scalars.resize(1, {.name = "x"});
    ledger_.Produce(1);
    exporter_.Submit(std::move(batch), 100);
  }
  void Ack(std::uint64_t durable_seq) { transport_.receiver().OnAck(durable_seq); }
  void End(const Status& status) { transport_.End(status); }
  Status Finish(milliseconds wait) {
    return exporter_.Finish(std::chrono::steady_clock::now() + wait);
  }
  void FinishLater() {
    finisher_ = std::jthread([this] { (void)Finish(seconds(60)); });
  }
  void Leave() { exporter_.Leave(); }

  bool Reaches(ExporterState state) {
    for (const auto until = std::chrono::steady_clock::now() + seconds(30);
         exporter_.state() != state && std::chrono::steady_clock::now() < until;)
      std::this_thread::sleep_for(milliseconds(1));
    return exporter_.state() == state;
  }
  void Expect(ExporterState state) {
    EXPECT_TRUE(Reaches(state)) << "expected " << Name(state) << ", found "
                                << Name(exporter_.state());
  }
  void Sending() {
    Welcome();
    Expect(kSending);
  }
  // All is delivered, and the goodbye not answered yet.
  void Leaving() {
    Sending();
    Record();
    FinishLater();
    End(kAway);  // uses up the one attempt that Finish does not wait for
    Expect(kConnecting);
    Sending();
    Ack(1);
    Expect(kLeaving);
  }
  void Waiting() {
    Record();
    End(kAway);
    Expect(kWaiting);
  }

 private:
  testing::FakeClock clock_;
  LogLimiter log_{&clock_, [](const std::string&) {}};
  Ledger ledger_;
  HandTransport transport_;
  // Waits so long between two attempts that a test sees kWaiting.
  Exporter exporter_{
      SessionInfo(), ExporterOptions{.collector = "c:1", .backoff = {seconds(3600), seconds(3600)}},
      &transport_,   &ledger_,
      &log_,         [] {}};
  std::jthread finisher_;  // joined first
};

struct Walk {
  ExporterTransition row;
  std::function<void(World&)> to_from, step;
};

void Stay(World&) {}

// How each transition comes about.
const std::vector<Walk>& Walks() {
  static const std::vector<Walk> walks = {
      {{kWaiting, kConnecting}, &World::Waiting, &World::FinishLater},
      {{kConnecting, kSending}, Stay, [](World& w) { w.Welcome(); }},
      {{kSending, kLeaving}, &World::Sending, &World::FinishLater},
      {{kConnecting, kWaiting}, Stay, [](World& w) { w.End(kAway); }},
      {{kSending, kWaiting}, &World::Sending, [](World& w) { w.End(kAway); }},
      // A collector that loses what it had acknowledged after the goodbye: it is sent again.
      {{kLeaving, kWaiting},
       &World::Leaving,
       [](World& w) {
         w.Welcome(0);
         w.End(kAway);
       }},
      {{kConnecting, kFailed}, Stay, [](World& w) { w.End(kFenced); }},
      {{kSending, kFailed}, &World::Sending, [](World& w) { w.End(kFenced); }},
      {{kLeaving, kFailed},
       &World::Leaving,
       [](World& w) {
         w.Welcome(0);
         w.End(kFenced);
       }},
      {{kConnecting, kEnded}, Stay, &World::Leave},
      {{kSending, kEnded}, &World::Sending, &World::Leave},
      {{kLeaving, kEnded}, &World::Leaving, [](World& w) { w.End(Status::Ok()); }},
      {{kWaiting, kEnded}, &World::Waiting, &World::Leave},
  };
  return walks;
}

TEST(ExporterState, EachTransitionOfTheTableHappensAndLeadsWhereItSays) {
  for (const Walk& walk : Walks()) {
    SCOPED_TRACE(std::string(Name(walk.row.from)) + " to " + std::string(Name(walk.row.to)));
    World world;
    walk.to_from(world);
    world.Expect(walk.row.from);
    walk.step(world);
    world.Expect(walk.row.to);
  }
}

TEST(ExporterState, TheTableHasNoTransitionThatNobodyWalks) {
  std::vector<ExporterTransition> walked;
  for (const Walk& walk : Walks()) walked.push_back(walk.row);
  EXPECT_THAT(walked, ::testing::UnorderedElementsAreArray(kExporterTransitions));
}

// The transitions that lead there.
ExporterStates In(ExporterState state) {
  ExporterStates states;
  const auto go = [&](ExporterState to) { EXPECT_TRUE(states.Move(to).ok()); };
  if (state == kWaiting) return states;
  if (state == kEnded) {
    go(kEnded);
    return states;
  }
  go(kConnecting);
  if (state == kFailed) go(kFailed);
  if (state == kSending || state == kLeaving) go(kSending);
  if (state == kLeaving) go(kLeaving);
  return states;
}

TEST(ExporterState, ATransitionThatTheTableDoesNotHaveIsRefusedAndChangesNothing) {
  for (const ExporterState last : {kFailed, kEnded}) {
    for (const ExporterState to : {kWaiting, kConnecting, kSending, kLeaving, kFailed, kEnded}) {
      ExporterStates states = In(last);
      const Status moved = states.Move(to);
      EXPECT_EQ(moved.code(), Code::kInternal)
          << Name(last) << " is final, not followed by " << Name(to);
      EXPECT_EQ(states.now(), last);
    }
  }
  ExporterStates states = In(kConnecting);
  const Status moved = states.Move(kLeaving);
  EXPECT_EQ(moved.code(), Code::kInternal) << "a goodbye without a welcome";
  EXPECT_THAT(moved.message(), HasSubstr("from connecting to leaving"));
  EXPECT_EQ(states.now(), kConnecting);
  EXPECT_FALSE(In(kWaiting).Move(kSending).ok()) << "a welcome without a stream";
  EXPECT_FALSE(In(kLeaving).Move(kSending).ok()) << "a second welcome";
  EXPECT_FALSE(In(kWaiting).Move(kFailed).ok()) << "nobody has refused it";
}

}  // namespace
}  // namespace statcollect
