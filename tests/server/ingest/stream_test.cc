#include "server/ingest/ingest_stream.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/convert.h"
#include "tests/server/ingest/fake_wire.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_store.h"
#include "tests/support/random_batch.h"

namespace statcollect {
namespace {

using testing::FakeClock;
using testing::FakeStore;
using testing::FakeWire;
using testing::RandomBatch;
using testing::ThreadPool;

constexpr std::uint64_t kBatchRecords = 5;  // 2 statistics, a scalar, a step end, an event

v1::AgentMessage Hello(std::uint32_t rank, std::uint8_t session, IfExists policy = IfExists::kError,
                       std::uint32_t world = 8) {
  SessionInfo info;
  info.run = "base";
  info.launch = "L";
  info.rank = rank;
  info.world_size = world;
  info.session = {session};
  info.if_exists = policy;
  v1::AgentMessage message;
  *message.mutable_hello() = ToWire(info, 1);
  return message;
}

v1::AgentMessage Batch(std::uint64_t n) {
  v1::AgentMessage message;
  const auto layouts = testing::StandardLayouts();
  *message.mutable_batch() =
      ToWire(RandomBatch(n, 1 + n * kBatchRecords,
                         {.activations = 2, .first_step = n, .steps = 1, .define = n == 0}),
             layouts);
  return message;
}

v1::AgentMessage Goodbye() {
  v1::AgentMessage message;
  message.mutable_goodbye();
  return message;
}

class IngestStreamTest : public ::testing::Test {
 protected:
  ~IngestStreamTest() override {
    store_.ReleaseAppends();
    memory_.Stop();
    committer_.Drain();
    pool_.Finish();
    EXPECT_EQ(store_.violation(), "");
    for (const auto& wire : wires_) EXPECT_EQ(wire->violation(), "");
  }
  FakeWire& Open() {
    wires_.push_back(std::make_unique<FakeWire>(pool_));
    wires_.back()->Join(std::make_shared<IngestStream>(context_, wires_.back().get()));
    return *wires_.back();
  }
  RankMeta Stored(std::uint32_t rank) {
    return store_.Ranks(store_.Attempts("base").value().back().id).value()[rank];
  }

  FakeStore store_;
  FakeClock clock_;
  IngestCounters counters_;
  Committer committer_{store_, clock_, {.queue_bytes_max = 4000}};
  SessionRegistry registry_{store_, clock_, committer_};
  MemoryGates memory_{std::size_t{1} << 20};
  DefinitionBudget definitions_;
  std::vector<std::unique_ptr<FakeWire>> wires_;
  ThreadPool pool_{4};
  StreamContext context_{store_,
                         store_,
                         clock_,
                         registry_,
                         committer_,
                         counters_,
                         [this](const std::string&, std::uint32_t, std::function<void()> job) {
                           pool_.Post(std::move(job));
                         },
                         memory_,
                         definitions_};
};

TEST_F(IngestStreamTest, AcknowledgesOnceForEverythingThatBecameDurableDuringAWrite) {
  FakeWire& wire = Open();
  wire.Send(Hello(0, 1));
  wire.AwaitMessages(1);
  wire.HoldWrites();
  wire.Send(Batch(0));
  wire.AwaitMessages(2);  // the first acknowledgement, which stays under way
  for (std::uint64_t n = 1; n < 6; ++n) wire.Send(Batch(n));
  while (counters_.records < 6 * kBatchRecords) std::this_thread::yield();
  wire.Send(Goodbye());
  while (!Stored(0).finished) std::this_thread::yield();
  EXPECT_EQ(wire.sent().size(), 2u);
  EXPECT_FALSE(wire.ended()) << "not during a write";
  wire.ReleaseWrites();
  EXPECT_TRUE(wire.AwaitEnd().ok());
  const auto sent = wire.sent();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[2].ack().durable_seq(), 6 * kBatchRecords);
}

TEST_F(IngestStreamTest, GoodbyeEndsTheStreamOnlyWhenItIsDurable) {
  FakeWire& wire = Open();
  wire.Send(Hello(0, 1));
  wire.AwaitMessages(1);
  store_.BlockAppends();
  wire.Send(Goodbye());
  store_.AwaitBlockedAppend();
  wire.stream().Drain();
  EXPECT_FALSE(wire.ended());
  EXPECT_FALSE(Stored(0).finished);
  store_.ReleaseAppends();
  EXPECT_TRUE(wire.AwaitEnd().ok()) << "also when the collector drains meanwhile";
  EXPECT_TRUE(Stored(0).finished);
}

TEST_F(IngestStreamTest, EndingBeforeTheHelloIsAnsweredLeavesNoOpenStream) {
  FakeWire& wire = Open();
  wire.Send(Hello(0, 1));
  wire.stream().OnCancel();
  EXPECT_FALSE(wire.AwaitEnd().ok());
  pool_.Finish();  // the hello has been dealt with
  EXPECT_EQ(registry_.OpenStreams(), 0u);
}

TEST_F(IngestStreamTest,
       StreamsThatAreFencedCancelledDeletedAndDrainedInAnyOrderEndOnceAndHarmNobody) {
  std::mt19937_64 rng(7);
  constexpr std::uint32_t kRanks = 8;
  for (int round = 0; round < 25; ++round) {
    std::vector<FakeWire*> open;
    for (std::uint32_t i = 0; i < 2 * kRanks; ++i) {
      FakeWire& wire = Open();
      open.push_back(&wire);
      const auto session = static_cast<std::uint8_t>(round % 5 * 2 + rng() % 2);
      wire.Send(Hello(i % kRanks, session, i % 3 == 0 ? IfExists::kReplace : IfExists::kAppend));
      for (std::uint64_t n = 0; n < 4; ++n) wire.Send(Batch(n));
      if (i % 2 == 0) wire.Send(Goodbye());
    }
    for (FakeWire* wire : open) {
      switch (rng() % 4) {
        case 0:
          pool_.Post([wire] { wire->stream().OnCancel(); });
          break;
        case 1:
          pool_.Post([this] { (void)registry_.DeleteRun("base", true); });
          [[fallthrough]];
        default:
          pool_.Post([wire] { wire->stream().Drain(); });
      }
    }
    for (FakeWire* wire : open) (void)wire->AwaitEnd();
    EXPECT_EQ(store_.violation(), "");
  }
}

}  // namespace
}  // namespace statcollect
