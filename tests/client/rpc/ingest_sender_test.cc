// The importer's stream against a real gRPC server that breaks off, comes back, refuses, stays
// silent.
#include <chrono>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/imports/record_batcher.h"
#include "client/rpc/ingest_sender.h"
#include "common/clock.h"
#include "tests/support/fake_collector.h"

namespace statcollect::client {
namespace {

using namespace std::chrono_literals;
using formats::Observation;
using formats::Tally;
using testing::FakeCollector;
using ::testing::HasSubstr;
using testing::MemoryStore;
using testing::Observations;
using testing::Steps;

SessionInfo Info() {
  SessionInfo info;
  info.run = "base";
  info.session = RandomSessionId();
  info.launch = "import-1";
  return info;
}

SenderOptions Options(const FakeCollector& server, std::chrono::milliseconds patience = 20s) {
  return {.address = server.address(), .patience = patience};
}

Observation Make(std::uint64_t step, const std::string& name) {
  Observation o;
  o.step = step;
  o.def.key.name = name;
  o.def.key.kind = Kind::kOutput;
  o.layout.dtype = DType::kF32;
  o.layout.shape = {4};
  o.layout.absent = BitOf(Statistic::kL1) | BitOf(Statistic::kHash);
  o.stats = {.numel = 4,
             .zero = 1,
             .neg = 1,
             .pos = 2,
             .has_finite = true,
             .min = -1,
             .max = 2,
             .mean = 0.5,
             .std = 1,
             .l2 = 2};
  return o;
}

// Records as the importer makes them.
class Feeder {
 public:
  explicit Feeder(BatchOutput& output) : batcher_(output, tally_, clock_, nullptr) {}
  Status Steps(std::uint64_t first, std::uint64_t count, int tensors) {
    for (std::uint64_t step = first; step < first + count; ++step) {
      for (int i = 0; i < tensors; ++i)
        STATCOLLECT_RETURN_IF_ERROR(batcher_.Take(Make(step, "layer_" + std::to_string(i))));
      STATCOLLECT_RETURN_IF_ERROR(batcher_.EndStep(step));
    }
    return batcher_.Flush();
  }
  RecordBatcher& batcher() { return batcher_; }
  const Tally& tally() const { return tally_; }

 private:
  Tally tally_;
  const SystemClock clock_;
  RecordBatcher batcher_;
};

TEST(IngestSender, DeliversEverythingOnceAndSaysGoodbye) {
  MemoryStore store;
  FakeCollector server(&store);
  IngestSender sender(Options(server), Info());
  Feeder feeder(sender);
  ASSERT_TRUE(feeder.Steps(0, 300, 100).ok());
  ASSERT_TRUE(sender.Finish({}).ok());
  const auto session = store.Only();
  EXPECT_EQ(session.error, "");
  EXPECT_EQ(Observations(session), 30'000u);
  EXPECT_EQ(Steps(session).size(), 300u);
  EXPECT_EQ(session.activations.size(), 100u);
  EXPECT_GT(session.batches.size(), 5u);
  ASSERT_TRUE(session.goodbye.has_value());
  EXPECT_EQ(session.goodbye->acked, 30'300u);
  EXPECT_EQ(sender.durable_records(), 30'000u);
  EXPECT_EQ(sender.attempt(), 1u);
}

TEST(IngestSender, ResumesOverACollectorThatIsStoppedAndComesBack) {
  MemoryStore store;
  auto server = std::make_unique<FakeCollector>(&store);
  const int port = server->port();
  IngestSender sender(Options(*server), Info());
  Feeder feeder(sender);
  for (std::uint64_t round = 0; round < 5; ++round) {
    ASSERT_TRUE(feeder.Steps(round * 50, 50, 100).ok());
    server.reset();
    server = std::make_unique<FakeCollector>(&store, port);
    ASSERT_TRUE(server->running());
  }
  ASSERT_TRUE(sender.Finish({{"bad_file", 2}}).ok());
  const auto session = store.Only();
  EXPECT_EQ(session.error, "");
  EXPECT_EQ(Observations(session), 25'000u);
  EXPECT_EQ(Steps(session).size(), 250u);
  EXPECT_EQ(session.goodbye->dropped_by_cause.at("bad_file"), 2u);
  EXPECT_EQ(session.goodbye->produced, session.goodbye->acked + 2);
}

TEST(IngestSender, ReportsARefusalAtOnceAndInTheCollectorsWords) {
  MemoryStore store;
  FakeCollector server(&store, 0,
                       {.hello = {grpc::StatusCode::ALREADY_EXISTS, "run 'base' has data"}});
  IngestSender sender(Options(server), Info());
  Feeder feeder(sender);
  const auto begin = std::chrono::steady_clock::now();
  const Status status = feeder.Steps(0, 1, 1);
  EXPECT_EQ(status.code(), Code::kAlreadyExists);
  EXPECT_THAT(status.message(), HasSubstr("run 'base' has data"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_EQ(feeder.Steps(1, 1, 1).code(), Code::kAlreadyExists)
      << "after a failure everything fails";
}

TEST(IngestSender, GivesUpOnACollectorThatStaysAway) {
  MemoryStore store;
  auto server = std::make_unique<FakeCollector>(&store);
  IngestSender sender(Options(*server, 1500ms), Info());
  server.reset();
  Feeder feeder(sender);
  const Status status = feeder.Steps(0, 1, 1);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("lost the collector"));
}

TEST(IngestSender, KeepsWithinTheWindowAndIsEndedByCancel) {
  MemoryStore store;
  FakeCollector server(&store, 0, {.acknowledge = false});
  IngestSender sender(Options(server), Info());
  Feeder feeder(sender);
  std::thread canceller([&] {
    EXPECT_TRUE(store.WaitFor(
        [](const auto& session) { return session.batches.size() >= kWindowBatchesMax; }));
    std::this_thread::sleep_for(50ms);  // for a batch too many, if there were one
    sender.Cancel();
  });
  EXPECT_EQ(feeder.Steps(0, 1000, 100).code(), Code::kCancelled);
  canceller.join();
  EXPECT_EQ(store.Only().batches.size(), kWindowBatchesMax);
  EXPECT_EQ(sender.durable_records(), 0u);
}

TEST(IngestSender, SaysNothingToTheCollectorIfThereIsNothing) {
  MemoryStore store;
  FakeCollector server(&store);
  IngestSender sender(Options(server), Info());
  EXPECT_TRUE(sender.Finish({}).ok());
  EXPECT_EQ(store.sessions(), 0u);
}

TEST(RecordBatcher, SkipsAnIdentityThatTheStepHasAlreadyAndCountsIt) {
  MemoryStore store;
  FakeCollector server(&store);
  IngestSender sender(Options(server), Info());
  Feeder feeder(sender);
  for (const std::uint64_t step : {3u, 3u, 4u})
    ASSERT_TRUE(feeder.batcher().Take(Make(step, "x")).ok());
  EXPECT_EQ(feeder.batcher().Take(Make(2, "x")).code(), Code::kInternal) << "steps do not decrease";
  EXPECT_EQ(feeder.tally().skipped.at("repeated in a step"), 1u);
  EXPECT_EQ(feeder.batcher().records(), 2u);
  EXPECT_EQ(feeder.batcher().steps(), 2u);
}

TEST(RecordBatcher, GivesALayoutOfItsOwnToRecordsThatLackAnotherStatistic) {
  MemoryStore store;
  FakeCollector server(&store);
  IngestSender sender(Options(server), Info());
  Feeder feeder(sender);
  Observation without_mean = Make(1, "x");
  without_mean.layout.absent |= BitOf(Statistic::kMean);
  without_mean.stats.mean = 0;
  ASSERT_TRUE(feeder.batcher().Take(Make(0, "x")).ok());
  ASSERT_TRUE(feeder.batcher().Take(without_mean).ok());
  ASSERT_TRUE(feeder.batcher().Take(Make(2, "x")).ok());
  ASSERT_TRUE(feeder.batcher().Flush().ok());
  ASSERT_TRUE(sender.Finish({}).ok());
  const auto session = store.Only();
  EXPECT_EQ(session.error, "");
  ASSERT_EQ(session.layouts.size(), 2u);
  EXPECT_FALSE(session.layouts[1].Has(Statistic::kMean));
  EXPECT_THAT(session.batches[0].stats.layout, ::testing::ElementsAre(0, 1, 0));
}

}  // namespace
}  // namespace statcollect::client
