#include "server/ingest/ingest_server.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/ingest/harness.h"

namespace statcollect {
namespace {

using testing::Harness;
using ::testing::HasSubstr;
using testing::NthBatch;
using testing::RawAgent;
using testing::StandardLayouts;
using ::testing::StartsWith;

TEST(CollectorStream, StoresAndAcknowledgesBatchesAndTheGoodbye) {
  Harness h;
  auto agent = h.Agent();
  const v1::Welcome welcome = agent->Open();
  EXPECT_EQ(welcome.protocol_version(), kProtocolVersion);
  EXPECT_EQ(welcome.attempt(), 1u);
  EXPECT_EQ(welcome.durable_seq(), 0u);
  EXPECT_TRUE(welcome.fsync());
  EXPECT_EQ(welcome.limits().window_batches_max(), kWindowBatchesMax);
  for (int n = 0; n < 3; ++n) ASSERT_TRUE(agent->WriteBatch(NthBatch(n)));
  ASSERT_TRUE(agent->AwaitAck(NthBatch(2).last_seq()));
  EXPECT_TRUE(h.collector->IsStreamOpen(1, 0));
  EXPECT_EQ(h.collector->GetStatus().streams_open, 1u);

  AgentCounters counters;
  counters.dropped_by_cause = {{"buffer_full", 5}};
  ASSERT_TRUE(agent->WriteGoodbye(counters));
  EXPECT_TRUE(agent->Finish().ok());
  EXPECT_FALSE(h.collector->IsStreamOpen(1, 0)) << "closed before the agent is told";
  const RankMeta meta = h.Stored();
  EXPECT_TRUE(meta.finished);
  EXPECT_EQ(meta.durable_seq, NthBatch(2).last_seq());
  EXPECT_EQ(meta.dropped.at("buffer_full"), 5u);
  const CollectorStatus status = h.collector->GetStatus();
  EXPECT_EQ(status.state, "ready");
  EXPECT_EQ(status.runs, 1u);
  EXPECT_EQ(status.streams_open, 0u);
  EXPECT_EQ(status.streams_total, 1u);
  EXPECT_EQ(status.batches_total, 3u);
  EXPECT_EQ(status.records_total, NthBatch(2).last_seq());
  EXPECT_EQ(status.agents_dropped_total, 5u);
  EXPECT_GT(status.bytes_total, 100u);
  EXPECT_GE(status.commits_total, 1u);
}

TEST(CollectorStream, ALimitOfBytesASecondSlowsDownAndLosesNothing) {
  Harness h({.rates = {.in_all = 1000}});  // the test's clock stands still: nothing is earned after
                                           // the first second's
  auto agent = h.Agent();
  agent->Open();
  for (int n = 0; n < 5; ++n) ASSERT_TRUE(agent->WriteBatch(NthBatch(n)));
  ASSERT_TRUE(agent->AwaitAck(NthBatch(4).last_seq()));
  EXPECT_GT(h.collector->GetStatus().access.throttled_millis, 0u);
  ASSERT_TRUE(agent->WriteGoodbye());
  EXPECT_TRUE(agent->Finish().ok());
  EXPECT_EQ(h.Stored().durable_seq, NthBatch(4).last_seq());
}

TEST(CollectorStream, AHelloDoesNotWaitForTheRate) {
  Harness h({.rates = {.in_all = 1}});
  auto first = h.Agent(Harness::Session(0));
  first->Open();
  while (h.collector->GetStatus().access.throttled_millis == 0) std::this_thread::yield();
  h.Agent(Harness::Session(1))->Open();
}

TEST(CollectorStream, AStreamThatWaitsForItsRateEndsAtOnce) {
  Harness h({.rates = {.in_all = 1}});
  auto cancelled = h.Agent(Harness::Session(0)), drained = h.Agent(Harness::Session(1));
  cancelled->Open();
  drained->Open();
  ASSERT_TRUE(cancelled->WriteBatch(NthBatch(0)));
  ASSERT_TRUE(drained->WriteBatch(NthBatch(0)));
  cancelled->Cancel();
  EXPECT_EQ(cancelled->Finish().code(), Code::kCancelled);
  h.collector->Drain();
  EXPECT_EQ(drained->Finish().code(), Code::kUnavailable)
      << "not after the minutes that the rate asks for";
}

TEST(ByteRates, EachCallerHasItsOwnAndAllHaveOne) {
  using namespace std::chrono_literals;
  ByteRates rates({.each = 100, .in_all = 1000});
  ByteRates::Time now{1h};
  EXPECT_EQ(rates.Take("a", 100, now), 0ns) << "a burst of a second";
  EXPECT_EQ(rates.Take("a", 100, now), 1s);
  EXPECT_EQ(rates.Take("b", 100, now), 0ns) << "another caller does not wait for it";
  now += 1s;
  EXPECT_EQ(rates.Take("a", 0, now), 0ns);
  EXPECT_EQ(rates.Take("a", 50, now), 500ms);
  const auto wait = rates.Take("", 100'000, now);
  EXPECT_GT(wait, 99s) << "nobody in particular: only the limit of all";
  EXPECT_LT(wait, 100s);
  EXPECT_GT(rates.Take("c", 1, now), 90s);
  EXPECT_GT(rates.waited_millis(), 1500u);
  ByteRates off({});
  EXPECT_FALSE(off.any());
  EXPECT_EQ(off.Take("a", 1 << 30, now), 0ns);
}

TEST(CollectorStream, RefusesStreamsBeyondTheLimitAndKeepsTheOthers) {
  Harness h({.streams_max = 2});
  auto first = h.Agent(Harness::Session(0, 1, 3)), second = h.Agent(Harness::Session(1, 1, 3));
  first->Open();
  second->Open();
  auto third = h.Agent(Harness::Session(2, 1, 3));
  const Status refused = third->Finish();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("--connections-max"));
  ASSERT_TRUE(first->WriteBatch(NthBatch(0)));
  EXPECT_TRUE(first->AwaitAck(NthBatch(0).last_seq()));
  ASSERT_TRUE(first->WriteGoodbye());
  EXPECT_TRUE(first->Finish().ok());
  EXPECT_TRUE(Harness::Eventually([&] {
    auto again = h.Agent(Harness::Session(2, 1, 3));
    again->WriteHello();
    return again->Read().has_welcome();
  })) << "there is room again";
}

TEST(CollectorStream, KeepsNothingBackThatItAcknowledged) {
  Harness h;
  auto agent = h.Agent();
  agent->Open();
  h.store.BlockAppends();
  agent->WriteBatch(NthBatch(0));
  h.store.AwaitBlockedAppend();
  agent->WriteBatch(NthBatch(1));
  EXPECT_EQ(h.Stored().durable_seq, 0u);
  h.store.ReleaseAppends();
  ASSERT_TRUE(agent->AwaitAck(NthBatch(0).last_seq()));
  EXPECT_GE(h.Stored().durable_seq, agent->acked());
}

TEST(CollectorStream, ResumesWhereTheStoreIsAndTakesNothingTwice) {
  Harness h;
  auto first = h.Agent();
  first->Open();
  first->WriteBatch(NthBatch(0));
  ASSERT_TRUE(first->AwaitAck(NthBatch(0).last_seq()));
  first->Cancel();
  EXPECT_EQ(first->Finish().code(), Code::kCancelled);

  auto second = h.Agent();
  EXPECT_EQ(second->Open(StandardLayouts()).durable_seq(), NthBatch(0).last_seq());
  second->WriteBatch(NthBatch(0));
  ASSERT_TRUE(second->AwaitAck(NthBatch(0).last_seq())) << "a duplicate is acknowledged";
  second->WriteBatch(NthBatch(1));
  second->WriteGoodbye();
  EXPECT_TRUE(second->Finish().ok());
  EXPECT_EQ(h.Stored().records, NthBatch(1).last_seq());
  EXPECT_EQ(h.collector->GetStatus().duplicate_records_total, NthBatch(0).records());
  EXPECT_EQ(h.store.Attempts("base").value().size(), 1u);
}

TEST(CollectorStream, ResumesWhileTheOlderStreamIsStillWriting) {
  Harness h;
  auto older = h.Agent();
  older->Open();
  h.store.BlockAppends();
  older->WriteBatch(NthBatch(0));
  h.store.AwaitBlockedAppend();
  older->WriteBatch(NthBatch(1));
  auto newer = h.Agent();
  newer->WriteHello();
  h.store.ReleaseAppends();
  const v1::Welcome welcome = newer->Read().welcome();
  const std::uint64_t one = NthBatch(0).last_seq(), two = NthBatch(1).last_seq();
  EXPECT_TRUE(welcome.durable_seq() == one || welcome.durable_seq() == two)
      << welcome.durable_seq();
}

TEST(CollectorStream, TwoHundredRanksWriteAtOnce) {
  constexpr std::uint32_t kRanks = 200, kThreads = 8, kBatches = 5;
  Harness h;
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (std::uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::unique_ptr<RawAgent>> agents;
      for (std::uint32_t rank = t; rank < kRanks; rank += kThreads) {
        agents.push_back(h.Agent(Harness::Session(rank, 1, kRanks)));
        agents.back()->WriteHello();
      }
      for (auto& agent : agents) failures += agent->Read().has_welcome() ? 0 : 1;
      for (std::uint32_t n = 0; n < kBatches; ++n) {
        for (auto& agent : agents)
          failures += agent->WriteBatch(NthBatch(n, agent->info().rank)) ? 0 : 1;
      }
      for (auto& agent : agents) agent->WriteGoodbye();
      for (auto& agent : agents) failures += agent->Finish().ok() ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  const auto attempts = h.store.Attempts("base").value();
  ASSERT_EQ(attempts.size(), 1u);
  const auto ranks = h.store.Ranks(attempts[0].id).value();
  ASSERT_EQ(ranks.size(), kRanks);
  const std::uint64_t records = NthBatch(kBatches - 1).last_seq();
  for (const auto& [rank, meta] : ranks) {
    EXPECT_TRUE(meta.finished);
    EXPECT_EQ(meta.records, records);
    EXPECT_EQ(meta.steps, kBatches);
    const auto batches = h.store.batches(attempts[0].id, rank);
    ASSERT_FALSE(batches.empty());
    EXPECT_TRUE(testing::operator==(batches[0].stats, NthBatch(0, rank).stats))
        << "rank " << rank << " has its own data";
  }
  const CollectorStatus status = h.collector->GetStatus();
  EXPECT_EQ(status.records_total, records * kRanks);
  EXPECT_EQ(status.streams_total, kRanks);
  EXPECT_EQ(status.streams_open, 0u);
}

TEST(CollectorStream, JumpsOfTheClockChangeTimesAndNothingElse) {
  Harness h;
  auto agent = h.Agent();
  agent->Open();
  using std::chrono::hours;
  std::uint64_t n = 0;
  for (const auto jump : {hours(-24 * 400), hours(24 * 900), hours(-24 * 20'000), hours(1)}) {
    h.clock.JumpWall(jump);
    ASSERT_TRUE(agent->WriteBatch(NthBatch(n)));
    ASSERT_TRUE(agent->AwaitAck(NthBatch(n).last_seq()));
    EXPECT_EQ(h.Stored().durable_seq, NthBatch(n).last_seq());
    EXPECT_EQ(h.Stored().last_write_unix_nanos, h.clock.UnixNanos());
    EXPECT_EQ(h.collector->GetStatus().state, "ready");
    EXPECT_EQ(h.collector->GetStatus().uptime_seconds, 0);
    // Another rank of the launch joins, and the same session resumes, whatever time it is.
    EXPECT_EQ(h.Agent(Harness::Session(1, 1))->Open().attempt(), 1u);
    auto again = h.Agent();
    EXPECT_EQ(again->Open(StandardLayouts()).durable_seq(), NthBatch(n).last_seq());
    agent = std::move(again);
    ++n;
  }
  EXPECT_EQ(h.store.batches(1, 0).size(), n);
}

TEST(CollectorStream, BackPressureHoldsStreamsUpAndLosesNothing) {
  Harness h({.queue_bytes_max = 4000});
  h.store.BlockAppends();
  std::vector<std::unique_ptr<RawAgent>> agents;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    agents.push_back(h.Agent(Harness::Session(rank, 1, 4)));
    agents.back()->Open();
    for (int n = 0; n < 8; ++n) ASSERT_TRUE(agents.back()->WriteBatch(NthBatch(n)));
  }
  h.store.AwaitBlockedAppend();
  EXPECT_LT(h.collector->GetStatus().batches_total, 32u) << "not all were read";
  h.store.ReleaseAppends();
  for (auto& agent : agents) EXPECT_TRUE(agent->AwaitAck(NthBatch(7).last_seq()));
  EXPECT_EQ(h.collector->GetStatus().records_total, 4 * NthBatch(7).last_seq());
}

TEST(CollectorStream, FencesTheOlderStreamOfARank) {
  Harness h;
  auto older = h.Agent();
  older->Open();
  auto other = h.Agent(Harness::Session(1, 3));
  other->Open();
  auto newer = h.Agent();
  newer->Open();
  const Status end = older->Finish();
  EXPECT_EQ(end.code(), Code::kUnavailable);
  EXPECT_THAT(end.message(), HasSubstr("fenced by"));
  for (auto* agent : {other.get(), newer.get()}) {
    agent->WriteBatch(NthBatch(0));
    EXPECT_TRUE(agent->AwaitAck(NthBatch(0).last_seq()));
  }
}

TEST(CollectorStream, RefusesATakenName) {
  Harness h;
  auto first = h.Agent();
  first->Open();
  SessionInfo other = Harness::Session(0, 9);
  other.launch = "M";
  auto refused = h.Agent(other);
  refused->WriteHello();
  const Status status = refused->Finish();
  EXPECT_EQ(status.code(), Code::kAlreadyExists);
  EXPECT_THAT(status.message(), HasSubstr("1 rank,"));
  first->WriteGoodbye();
  EXPECT_TRUE(first->Finish().ok());
}

TEST(CollectorStream, EndsAStreamWithoutAHello) {
  Harness h({.hello_timeout = std::chrono::milliseconds(100)});
  auto silent = h.Agent(), good = h.Agent();
  good->Open();
  std::atomic<bool> ended{false};
  Status end;
  std::thread reader([&] {
    end = silent->Finish();
    ended = true;
  });
  EXPECT_TRUE(Harness::Eventually([&] {
    h.clock.Advance(std::chrono::milliseconds(1));
    return ended.load();
  }));
  reader.join();
  EXPECT_EQ(end.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(end.message(), HasSubstr("no hello within 100 ms"));
  good->WriteBatch(NthBatch(0));
  EXPECT_TRUE(good->AwaitAck(NthBatch(0).last_seq()));
}

TEST(CollectorStream, StatusCountsWhatIsReceivedAndNotYetDurable) {
  Harness h;
  auto agent = h.Agent();
  agent->Open();
  h.store.BlockAppends();
  agent->WriteBatch(NthBatch(0));
  h.store.AwaitBlockedAppend();
  EXPECT_EQ(h.collector->GetStatus().backlog_records, NthBatch(0).records());
  h.store.ReleaseAppends();
  ASSERT_TRUE(agent->AwaitAck(NthBatch(0).last_seq()));
  EXPECT_EQ(h.collector->GetStatus().backlog_records, 0u);
}

TEST(CollectorStream, StatusTellsOfARunThatIsKeptAtOnceAlsoWithoutRetention) {
  Harness h;
  auto agent = h.Agent();
  agent->Open();
  EXPECT_TRUE(h.collector->GetStatus().retention.kept.empty());
  ASSERT_TRUE(h.collector->KeepRun("base", true).ok());
  EXPECT_EQ(h.collector->GetStatus().retention.kept, std::vector<std::string>{"base"});
  ASSERT_TRUE(h.collector->KeepRun("base", false).ok());
  EXPECT_TRUE(h.collector->GetStatus().retention.kept.empty());
}

TEST(CollectorStream, RefusesToRecordStepsThatHaveAllPassed) {
  Harness h;
  auto agent = h.Agent();
  agent->Open();
  const AttemptMeta attempt = h.store.Attempts("base")->at(0);
  RankMeta meta = h.store.Ranks(attempt.id)->at(Harness::Session().rank);
  meta.last_step = 17;
  ASSERT_TRUE(h.store.PutRank(attempt.id, Harness::Session().rank, meta).ok());
  const Status past = h.collector->RecordSteps("base", "3-16").status();
  EXPECT_EQ(past.code(), Code::kOutOfRange);
  EXPECT_THAT(past.message(), HasSubstr("all of them have passed (rank 0 is at step 17)"));
  EXPECT_TRUE(h.collector->RecordSteps("base", "3-17").ok()) << "the current one is not over";
  EXPECT_TRUE(h.collector->RecordSteps("base", "").ok());
}

TEST(CollectorStream, TellsOpenAndLaterStreamsWhatToCapture) {
  Harness h;
  auto agent = h.Agent();
  agent->Open();
  const CaptureSpec spec = *CaptureSpec::Parse("fc1@7:kind=grad_output,path=0");
  const auto asked = h.collector->RequestCapture("base", {}, spec);
  ASSERT_TRUE(asked.ok()) << asked.status().message();
  EXPECT_EQ(asked->told, 1u);
  const v1::CollectorMessage told = agent->Read();
  ASSERT_TRUE(told.has_directive());
  EXPECT_EQ(told.directive().kind(), "capture");
  EXPECT_EQ(told.directive().arguments().at("request"), "1");
  const std::map<std::string, std::string> arguments(told.directive().arguments().begin(),
                                                     told.directive().arguments().end());
  EXPECT_EQ(CaptureSpec::FromArguments(arguments)->ToText(), spec.ToText());
}

TEST(CollectorStream, TellsOpenAndLaterStreamsWhichStepsToRecord) {
  Harness h;
  EXPECT_EQ(h.collector->RecordSteps("base", "5-9").status().code(), Code::kNotFound);
  auto agent = h.Agent();
  agent->Open();
  EXPECT_EQ(h.collector->RecordSteps("base", "5-").value(), 1u);
  const v1::CollectorMessage told = agent->Read();
  ASSERT_TRUE(told.has_directive());
  EXPECT_EQ(told.directive().kind(), "steps");
  EXPECT_EQ(told.directive().arguments().at("steps"), "5-");
  const Status bad = h.collector->RecordSteps("base", "five").status();
  EXPECT_EQ(bad.code(), Code::kInvalidArgument);
  EXPECT_THAT(bad.message(), HasSubstr("five"));

  SessionInfo other_rank = Harness::Session();
  other_rank.rank = 1;
  other_rank.session[0] ^= 1;
  auto later = h.Agent(other_rank);
  later->Open();
  EXPECT_EQ(later->Read().directive().arguments().at("steps"), "5-")
      << "the same for a rank that connects later";
  agent->WriteBatch(NthBatch(0));
  EXPECT_TRUE(agent->AwaitAck(NthBatch(0).last_seq())) << "the stream goes on";
  for (auto* one : {agent.get(), later.get()}) {
    one->WriteGoodbye();
    while (one->Read().body_case() != v1::CollectorMessage::BODY_NOT_SET) {
    }
    EXPECT_TRUE(one->Finish().ok());
  }
  EXPECT_EQ(h.collector->RecordSteps("base", "1").status().code(), Code::kFailedPrecondition);
}

TEST(CollectorStream, DeleteRunRefusesWhileAStreamIsOpenUnlessForced) {
  Harness h;
  auto agent = h.Agent();
  agent->Open();
  agent->WriteBatch(NthBatch(0));
  ASSERT_TRUE(agent->AwaitAck(NthBatch(0).last_seq()));
  SessionInfo elsewhere = Harness::Session();
  elsewhere.run = "other";
  auto other = h.Agent(elsewhere);
  other->Open();

  EXPECT_EQ(h.collector->DeleteRun("base", false).status().code(), Code::kFailedPrecondition);
  const auto deleted = h.collector->DeleteRun("base", true);
  ASSERT_TRUE(deleted.ok());
  EXPECT_EQ(deleted->records, NthBatch(0).records());
  const Status end = agent->Finish();
  EXPECT_EQ(end.code(), Code::kAborted);
  EXPECT_THAT(end.message(), HasSubstr("deleted"));
  EXPECT_EQ(h.store.ListRuns().value(), std::vector<std::string>{"other"});
  other->WriteBatch(NthBatch(0));
  EXPECT_TRUE(other->AwaitAck(NthBatch(0).last_seq()));
}

TEST(CollectorStream, DeleteRunWithWritesUnderWayLeavesNothingBehind) {
  Harness h;
  for (int round = 0; round < 20; ++round) {
    auto agent = h.Agent(Harness::Session(0, static_cast<std::uint8_t>(round)));
    agent->Open();
    for (int n = 0; n < 6; ++n) agent->WriteBatch(NthBatch(n));
    ASSERT_TRUE(h.collector->DeleteRun("base", true).ok());
    EXPECT_EQ(agent->Finish().code(), Code::kAborted);
    EXPECT_TRUE(h.store.ListRuns().value().empty());
  }
}

TEST(CollectorStream, AFailedWriteIsNotAcknowledgedAndTurnsTheCollectorReadOnly) {
  Harness h;
  auto agent = h.Agent(), other = h.Agent(Harness::Session(1));
  agent->Open();
  other->Open();
  h.store.FailAppends(Status(Code::kInternal, "sync: input/output error"));
  agent->WriteBatch(NthBatch(0));
  EXPECT_EQ(agent->Finish().code(), Code::kUnavailable);
  EXPECT_EQ(agent->acked(), 0u);
  h.store.FailAppends(Status::Ok());
  other->WriteBatch(NthBatch(0));
  EXPECT_EQ(other->Finish().code(), Code::kUnavailable);
  EXPECT_EQ(other->acked(), 0u);
  const CollectorStatus status = h.collector->GetStatus();
  EXPECT_THAT(status.state, StartsWith("read_only: "));
  EXPECT_THAT(status.state, HasSubstr("input/output error"));
  EXPECT_EQ(status.records_total, 0u);
  auto late = h.Agent();
  late->WriteHello();
  EXPECT_EQ(late->Finish().code(), Code::kUnavailable);
}

TEST(CollectorStream, AFullDiskRefusesAndRecoversWithoutLoss) {
  Harness h;
  auto agent = h.Agent();
  agent->Open();
  agent->WriteBatch(NthBatch(0));
  ASSERT_TRUE(agent->AwaitAck(NthBatch(0).last_seq()));
  h.store.SetDiskFree(0);
  h.clock.Advance(std::chrono::seconds(2));
  agent->WriteBatch(NthBatch(1));
  const Status full = agent->Finish();
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("64 MiB"));
  EXPECT_THAT(h.collector->GetStatus().state, HasSubstr("disk nearly full"));
  auto refused = h.Agent();
  refused->WriteHello();
  EXPECT_EQ(refused->Finish().code(), Code::kResourceExhausted);

  h.store.SetDiskFree(std::uint64_t{1} << 40);
  h.clock.Advance(std::chrono::seconds(2));
  EXPECT_EQ(h.collector->GetStatus().state, "ready");
  auto again = h.Agent();
  EXPECT_EQ(again->Open(StandardLayouts()).durable_seq(), NthBatch(0).last_seq());
  again->WriteBatch(NthBatch(1));
  EXPECT_TRUE(again->AwaitAck(NthBatch(1).last_seq()));
}

TEST(CollectorStream, DrainAcknowledgesWhatItReceivedAndThenEndsTheStreams) {
  Harness h;
  auto agent = h.Agent(), idle = h.Agent(Harness::Session(1)),
       silent = h.Agent(Harness::Session(1, 7));
  agent->Open();
  idle->Open();
  h.store.BlockAppends();
  agent->WriteBatch(NthBatch(0));
  h.store.AwaitBlockedAppend();
  std::thread drain([&] { h.collector->Drain(); });
  ASSERT_TRUE(Harness::Eventually([&] { return h.collector->GetStatus().state == "draining"; }));
  h.store.ReleaseAppends();
  const Status end = agent->Finish();
  EXPECT_EQ(end.code(), Code::kUnavailable);
  EXPECT_THAT(end.message(), HasSubstr("shutting down"));
  EXPECT_EQ(agent->acked(), NthBatch(0).last_seq());
  EXPECT_EQ(h.Stored().durable_seq, NthBatch(0).last_seq());
  EXPECT_EQ(idle->Finish().code(), Code::kUnavailable);
  drain.join();
  auto late = h.Agent(Harness::Session(1, 8));
  late->WriteHello();
  EXPECT_EQ(late->Finish().code(), Code::kUnavailable);
}

TEST(CollectorStream, CancellingInAnyStateLeavesNoStreamBehind) {
  Harness h;
  for (std::uint8_t round = 0; round < 30; ++round) {
    SessionInfo info = Harness::Session(0, round);
    info.if_exists = IfExists::kReplace;
    auto agent = h.Agent(info);
    if (round % 6 >= 1) agent->WriteHello();
    if (round % 6 >= 2) agent->Read();
    if (round % 6 >= 3) agent->WriteBatch(NthBatch(0));
    if (round % 6 >= 4) agent->WriteBatch(NthBatch(1));
    if (round % 6 >= 5) agent->WriteGoodbye();
    agent->Cancel();
    (void)agent->Finish();
  }
  EXPECT_TRUE(Harness::Eventually([&] { return h.collector->GetStatus().streams_open == 0; }));
}

TEST(CollectorStream, ShuttingDownTheServerUnderLoadIsClean) {
  auto h = std::make_unique<Harness>();
  std::atomic<int> welcomed{0};
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::unique_ptr<RawAgent>> agents;
      for (std::uint32_t i = 0; i < 5; ++i)
        agents.push_back(h->Agent(Harness::Session(t * 5 + i, 1, 20)));
      for (auto& agent : agents) agent->Open();
      welcomed += 5;
      bool open = true;
      for (int n = 0; open && n < 10'000; ++n) {
        for (auto& agent : agents) open = agent->WriteBatch(NthBatch(n)) && open;
      }
      for (auto& agent : agents) EXPECT_EQ(agent->Finish().code(), Code::kUnavailable);
      for (auto& agent : agents)
        EXPECT_GE(h->Stored(agent->info().rank).durable_seq, agent->acked());
    });
  }
  EXPECT_TRUE(Harness::Eventually([&] { return welcomed == 20; }));
  h->collector->Drain();
  for (std::thread& thread : threads) thread.join();
  h.reset();
}

}  // namespace
}  // namespace statcollect
