// The memory of what was received: counted as decoded, bounded over all streams, and given back.
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/decoded_bytes.h"
#include "proto/convert.h"
#include "server/ingest/memory_gate.h"
#include "server/ingest/session.h"
#include "tests/server/ingest/fake_wire.h"
#include "tests/support/append_batch.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_store.h"
#include "tests/support/random_batch.h"

namespace statcollect {
namespace {

using ::testing::ElementsAre;
using testing::FakeClock;
using testing::FakeStore;
using testing::FakeWire;
using ::testing::HasSubstr;
using testing::MakeActivation;
using testing::MakeLayout;
using testing::RandomBatch;
using testing::ThreadPool;
using Share = MemoryGate::Share;

template <typename Condition>
bool Eventually(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(MemoryGate, RunsHereWhileThereIsRoomAndLaterInOrder) {
  MemoryGate gate(100, /*threads=*/1);
  std::mutex mutex;
  std::vector<std::string> ran;
  std::vector<Share> held;
  const auto job = [&](const std::string& name) {
    return [&, name](Share share) {
      std::lock_guard lock(mutex);
      ran.push_back(name);
      held.push_back(std::move(share));
    };
  };
  gate.Enter(60, job("first"));
  gate.Enter(40, job("fits"));
  ASSERT_THAT(ran, ElementsAre("first", "fits")) << "on this thread, at once";
  gate.Enter(50, job("large"));
  gate.Enter(1, job("small"));
  EXPECT_EQ(gate.waiting(), 2u) << "a small one does not overtake";
  EXPECT_EQ(gate.bytes(), 100u);
  held[1] = Share();  // 60 in use: still no room for the large one
  EXPECT_EQ(gate.bytes(), 60u);
  EXPECT_EQ(gate.waiting(), 2u);
  {
    std::lock_guard lock(mutex);
    held[0].Resize(10);
  }
  EXPECT_TRUE(Eventually([&] {
    std::lock_guard lock(mutex);
    return ran.size() == 4;
  }));
  EXPECT_EQ(gate.waiting(), 0u);
  EXPECT_EQ(gate.bytes(), 61u);
  std::lock_guard lock(mutex);
  EXPECT_THAT(ran, ElementsAre("first", "fits", "large", "small"));
}

TEST(MemoryGate, AJobLargerThanAllRunsAlone) {
  MemoryGate gate(100);
  Share held;
  gate.Enter(1, [&](Share share) { held = std::move(share); });
  std::atomic<bool> ran{false};
  gate.Enter(1000, [&](const Share& share) {
    EXPECT_EQ(share.bytes(), 1000u);
    ran = true;
  });
  EXPECT_EQ(gate.waiting(), 1u);
  held = Share();
  EXPECT_TRUE(Eventually([&] { return ran && gate.bytes() == 0; }));
}

TEST(MemoryGate, StopDropsWhatWaits) {
  MemoryGate gate(10);
  Share held;
  gate.Enter(10, [&](Share share) { held = std::move(share); });
  const auto resource = std::make_shared<int>();
  bool ran = false;
  gate.Enter(5, [&, resource](const Share&) { ran = true; });
  gate.Stop();
  gate.Enter(5, [&, resource](const Share&) { ran = true; });
  held = Share();
  EXPECT_FALSE(ran);
  EXPECT_EQ(resource.use_count(), 1) << "the jobs are gone";
}

TEST(DecodedBytes, CountsEveryPart) {
  RecordBatch batch = RandomBatch(1, 1, {.activations = 50, .steps = 2});
  std::size_t before = DecodedBytes(batch);
  EXPECT_GE(before, 100 * (sizeof(TensorStats) + 16 * sizeof(double)));
  const auto grew = [&](std::size_t least) {
    const std::size_t now = DecodedBytes(batch);
    EXPECT_GE(now, before + least);
    EXPECT_LT(now, before + 4 * least + 4096);
    before = now;
  };
  const std::string text(10'000, 'x');
  batch.activations.push_back(MakeActivation(50));
  batch.activations.back().key.name = text;
  grew(10'000);
  batch.scalars.push_back({.name = text});
  grew(10'000);
  batch.events.push_back({.kind = "note", .text = text, .fields = {{"a", text}, {"b", text}}});
  grew(30'000);
  batch.settings.push_back({.name = "s", .value = text});
  grew(10'000);
  batch.memory.push_back({.module = text});
  grew(10'000);
  batch.densities.push_back({.input = text, .valid_per_sample = std::vector<std::uint64_t>(1000)});
  grew(18'000);
  batch.captures.push_back({.data = text});
  grew(10'000);
  batch.exponents.push_back({.counts = std::vector<std::uint64_t>(1000)});
  grew(8'000);
  batch.tokens.push_back({.tap = text, .rows = std::vector<TokenRow>(100)});
  grew(10'000 + 100 * sizeof(TokenRow));
  batch.layouts.push_back({.id = 9, .shape = std::vector<std::int64_t>(1000)});
  grew(8'000);
}

constexpr std::uint32_t kRanks = 24;
constexpr std::uint64_t kDefined = 200;

v1::AgentMessage Hello(std::uint32_t rank) {
  SessionInfo info;
  info.run = "base";
  info.launch = "L";
  info.rank = rank;
  info.world_size = kRanks;
  info.session = {static_cast<std::uint8_t>(rank + 1)};
  v1::AgentMessage message;
  *message.mutable_hello() = ToWire(info, 1);
  return message;
}

// With 200 new definitions: small on the wire, large in memory.
RecordBatch Definitions(std::uint64_t n) {
  std::mt19937_64 random(n);
  RecordBatch batch;
  batch.first_seq = n + 1;
  if (n == 0) batch.layouts = {MakeLayout(0)};
  for (std::uint64_t i = 0; i < kDefined; ++i)
    batch.activations.push_back(MakeActivation(static_cast<std::uint32_t>(n * kDefined + i)));
  testing::AddStat(&batch, static_cast<std::uint32_t>(n * kDefined), MakeLayout(0), n, 0, random);
  return batch;
}

// All ranks send at once, and the disk is slow.
TEST(StreamMemory, IsBoundedOverAllStreamsAndNothingIsLost) {
  constexpr std::uint64_t kBatches = 5;
  const std::size_t one = DecodedBytes(Definitions(0));
  FakeStore store;
  FakeClock clock;
  IngestCounters counters;
  MemoryGates memory(4 * one);
  DefinitionBudget definitions;
  Committer committer(store, clock, {.queue_bytes_max = 2 * one});
  SessionRegistry registry(store, clock, committer);
  ThreadPool pool(4);
  const StreamContext context{store,
                              store,
                              clock,
                              registry,
                              committer,
                              counters,
                              [&](const std::string&, std::uint32_t, std::function<void()> job) {
                                pool.Post(std::move(job));
                              },
                              memory,
                              definitions};
  std::vector<std::unique_ptr<FakeWire>> wires;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    wires.push_back(std::make_unique<FakeWire>(pool));
    wires.back()->Join(std::make_shared<IngestStream>(context, wires.back().get()));
    wires.back()->Send(Hello(rank));
    wires.back()->AwaitMessages(1);
  }
  store.BlockAppends();
  const auto layouts = std::vector{MakeLayout(0)};
  for (auto& wire : wires) {
    for (std::uint64_t n = 0; n < kBatches; ++n) {
      v1::AgentMessage message;
      *message.mutable_batch() = ToWire(Definitions(n), layouts);
      wire->Send(std::move(message));
    }
  }
  store.AwaitBlockedAppend();
  // Of every other stream one message waits undecoded, and no further one is read.
  EXPECT_TRUE(Eventually([&] { return memory.of(0).waiting() >= kRanks - 8; }));
  EXPECT_LE(memory.of(0).bytes(), 4 * one + one / 2);
  EXPECT_LT(memory.of(0).bytes(), kRanks * one / 2) << "what all streams hold would be more";
  store.ReleaseAppends();
  for (auto& wire : wires) {
    v1::AgentMessage goodbye;
    goodbye.mutable_goodbye();
    wire->Send(std::move(goodbye));
  }
  for (auto& wire : wires) EXPECT_TRUE(wire->AwaitEnd().ok());
  const AttemptId attempt = store.Attempts("base")->back().id;
  const auto ranks = store.Ranks(attempt);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank)
    EXPECT_EQ(ranks->at(rank).durable_seq, kBatches);
  EXPECT_TRUE(Eventually([&] { return memory.of(0).bytes() == 0; })) << "all of it is given back";
  EXPECT_GT(definitions.bytes(), kRanks * kBatches * kDefined * sizeof(TensorDef));
  memory.Stop();
  committer.Drain();
  pool.Finish();
  wires.clear();
  EXPECT_EQ(definitions.bytes(), 0u);
  EXPECT_EQ(store.violation(), "");
}

class SessionMemory : public ::testing::Test {
 protected:
  SessionMemory() {
    attempt_ = store_.CreateAttempt({.run = "base", .world_size = 1})->id;
    EXPECT_TRUE(store_.PutRank(attempt_, 0, {}).ok());
  }
  Result<std::unique_ptr<IngestSession>> Load(DefinitionBudget& budget) {
    return IngestSession::Load(store_, attempt_, store_.Ranks(attempt_)->at(0), budget);
  }
  // Stores what the session accepts.
  Status Send(IngestSession& session, const RecordBatch& batch) {
    const auto accepted = session.Accept(batch, 77);
    if (!accepted.ok()) return accepted.status();
    return AppendBatch(store_, attempt_, 0, *accepted->batch, accepted->meta);
  }

  FakeStore store_;
  AttemptId attempt_ = 0;
};

TEST_F(SessionMemory, DefinitionsOfASessionAreCappedWithAnErrorThatEndsTheSession) {
  DefinitionBudget budget(/*bytes_max=*/0, /*session_bytes_max=*/300 * sizeof(TensorDef));
  auto session = *Load(budget);
  ASSERT_TRUE(Send(*session, Definitions(0)).ok());
  const std::uint64_t held = budget.bytes();
  const Status refused = Send(*session, Definitions(1));
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition) << "the agent would repeat it for ever";
  EXPECT_THAT(refused.message(), HasSubstr("observe tensors under shorter names that repeat"));
  EXPECT_EQ(budget.bytes(), held) << "what was refused is not counted";
  EXPECT_EQ(session->received(), 1u);
  RecordBatch plain = Definitions(1);
  plain.activations.clear();
  plain.stats.activation[0] = 0;
  EXPECT_TRUE(Send(*session, plain).ok()) << "what defines nothing goes on";
}

TEST_F(SessionMemory, WithoutRoomForAllSessionsTheAgentIsToTryAgain) {
  const std::size_t one = DecodedBytes(Definitions(0));
  DefinitionBudget budget(one + one / 2);
  auto session = *Load(budget);
  ASSERT_TRUE(Send(*session, Definitions(0)).ok());
  const Status later = Send(*session, Definitions(1));
  EXPECT_EQ(later.code(), Code::kResourceExhausted);
  EXPECT_THAT(later.message(), HasSubstr("the agent tries again"));
  const auto second = Load(budget);  // the same rank again: its definitions are read from the store
  EXPECT_EQ(second.status().code(), Code::kResourceExhausted) << "a resumed session counts as well";
  session.reset();
  EXPECT_EQ(budget.bytes(), 0u);
  auto third = Load(budget);
  ASSERT_TRUE(third.ok()) << third.status().message();
  EXPECT_GT(budget.bytes(), 0u);
}

}  // namespace
}  // namespace statcollect
