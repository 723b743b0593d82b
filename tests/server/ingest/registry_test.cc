#include "server/ingest/registry.h"

#include <atomic>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"
#include "tests/support/fake_store.h"
#include "tests/support/forwarding_store.h"

namespace statcollect {
namespace {

using testing::FakeClock;
using testing::FakeStore;
using ::testing::HasSubstr;

struct FakeStream final : OpenStream {
  void EndStream(const Status& why) override {
    ++ends;
    end = why;
  }
  void RecordSteps(const std::string&) override {}
  void Capture(const CaptureRequest& request) override { captures.push_back(request); }
  void RecordFull(const FullSteps& steps) override { full.push_back(steps); }
  std::vector<FullSteps> full;
  std::vector<CaptureRequest> captures;
  int ends = 0;
  Status end;
};

SessionId Session(std::uint8_t n) { return SessionId{n}; }

class SessionRegistryTest : public ::testing::Test {
 protected:
  static SessionInfo Hello(std::uint32_t rank, std::uint8_t session, const std::string& launch = "",
                           std::uint32_t world = 2, IfExists policy = IfExists::kError) {
    SessionInfo info;
    info.run = "base";
    info.rank = rank;
    info.session = Session(session);
    info.launch = launch;
    info.world_size = world;
    info.if_exists = policy;
    info.host = "node";
    info.pid = 4711;
    return info;
  }
  Result<Admission> Open(const SessionInfo& info,
                         std::shared_ptr<FakeStream> stream = std::make_shared<FakeStream>()) {
    return registry_.Open(info, stream);
  }
  // What its process left, from record `from` on.
  Result<Admission> OpenLate(const SessionInfo& info, std::uint64_t from) {
    return registry_.Open(info, std::make_shared<FakeStream>(), from);
  }
  // Stores the rank's state with changes.
  void Put(const Admission& admission, std::uint64_t records, bool finished) {
    RankMeta meta = admission.meta;
    meta.records = meta.durable_seq = records;
    meta.steps = records / 2;
    meta.finished = finished;
    meta.last_write_unix_nanos = clock_.UnixNanos();
    ASSERT_TRUE(store_.PutRank(admission.attempt.id, meta.info.rank, meta).ok());
  }
  std::size_t Attempts() { return store_.Attempts("base").value().size(); }

  FakeStore store_;
  FakeClock clock_;
  Committer committer_{store_, clock_, {}};
  SessionRegistry registry_{store_, clock_, committer_};
};

TEST_F(SessionRegistryTest, KeepsHowManyRanksOfTheLaunchRecord) {
  SessionInfo hello = Hello(0, 7, "L", 4);
  hello.ranks = "0,2-3";
  EXPECT_EQ(Open(hello)->meta.ranks_expected, 3u);
  EXPECT_EQ(Open(Hello(1, 8, "L", 4))->meta.ranks_expected, 0u);
}

TEST_F(SessionRegistryTest, RemovesARunInWhichNothingWasRecordedOnceAllRanksSaidSo) {
  auto one = std::make_shared<FakeStream>(), two = std::make_shared<FakeStream>();
  const auto first = Open(Hello(0, 7, "L"), one), second = Open(Hello(1, 8, "L"), two);
  ASSERT_TRUE(first.ok() && second.ok());
  const AttemptId id = first->attempt.id;
  Put(*first, 0, true);
  registry_.Close(id, 0, one.get());
  registry_.RemoveUnused(first->attempt);
  EXPECT_EQ(Attempts(), 1u) << "rank 1 is still there";
  registry_.Close(id, 1, two.get());
  registry_.RemoveUnused(first->attempt);
  EXPECT_EQ(Attempts(), 1u) << "rank 1 may come back";
  Put(*second, 0, true);
  registry_.RemoveUnused(first->attempt);
  EXPECT_EQ(Attempts(), 0u);
  EXPECT_TRUE(Open(Hello(0, 9, "M")).ok()) << "the name is free";
}

TEST_F(SessionRegistryTest, NeverRemovesARunThatHasARecordOrIsKept) {
  auto stream = std::make_shared<FakeStream>();
  const auto admission = Open(Hello(0, 7, "L", 1), stream);
  ASSERT_TRUE(admission.ok());
  Put(*admission, 1, true);
  registry_.Close(admission->attempt.id, 0, stream.get());
  registry_.RemoveUnused(admission->attempt);
  EXPECT_EQ(Attempts(), 1u);
  Put(*admission, 0, true);
  ASSERT_TRUE(registry_.KeepRun("base", true).ok());
  registry_.RemoveUnused(admission->attempt);
  EXPECT_EQ(Attempts(), 1u);
}

TEST_F(SessionRegistryTest, CreatesTheFirstAttempt) {
  const auto admission = Open(Hello(1, 7, "L"));
  ASSERT_TRUE(admission.ok());
  EXPECT_EQ(admission->attempt.number, 1u);
  EXPECT_EQ(admission->attempt.launch, "L");
  EXPECT_EQ(admission->attempt.world_size, 2u);
  EXPECT_FALSE(admission->resumed);
  EXPECT_EQ(store_.Ranks(admission->attempt.id).value().at(1).info.session, Session(7));
  EXPECT_TRUE(registry_.IsOpen(admission->attempt.id, 1));
  EXPECT_FALSE(registry_.IsOpen(admission->attempt.id, 0));
}

TEST_F(SessionRegistryTest, ResumesTheSameSessionAtItsWatermarkAndEndsItsOlderStream) {
  auto older = std::make_shared<FakeStream>();
  const auto first = Open(Hello(0, 1), older);
  Put(*first, 42, false);
  auto newer = std::make_shared<FakeStream>();
  const auto again = Open(Hello(0, 1), newer);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->resumed);
  EXPECT_EQ(again->attempt.id, first->attempt.id);
  EXPECT_EQ(again->meta.durable_seq, 42u);
  EXPECT_EQ(older->ends, 1);
  EXPECT_EQ(older->end.code(), Code::kUnavailable);
  EXPECT_THAT(older->end.message(), HasSubstr("fenced by"));
  EXPECT_EQ(newer->ends, 0);
  registry_.Close(first->attempt.id, 0, older.get());
  EXPECT_TRUE(registry_.IsOpen(first->attempt.id, 0))
      << "the older stream's end does not close the newer one";
}

TEST_F(SessionRegistryTest, ResumesAfterTheStreamWasClosed) {
  auto stream = std::make_shared<FakeStream>();
  const auto first = Open(Hello(0, 1, "L"), stream);
  registry_.Close(first->attempt.id, 0, stream.get());
  EXPECT_FALSE(registry_.IsOpen(first->attempt.id, 0));
  const auto again = Open(Hello(0, 1, "L"));
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->resumed);
  EXPECT_EQ(stream->ends, 0);
}

TEST_F(SessionRegistryTest, AnotherRankOfTheLaunchJoinsEvenIfTheOthersHaveFinished) {
  const auto first = Open(Hello(0, 1, "L"));
  Put(*first, 10, true);
  clock_.Advance(std::chrono::hours(1));
  const auto second = Open(Hello(1, 2, "L"));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->attempt.id, first->attempt.id);
  EXPECT_FALSE(second->resumed);
}

TEST_F(SessionRegistryTest, JoinsWithoutALaunchTextWhileTheAttemptIsNotFinished) {
  for (const auto& [older, newer] : {std::pair{"", "L"}, std::pair{"L", ""}, std::pair{"", ""}}) {
    auto a = std::make_shared<FakeStream>(), b = std::make_shared<FakeStream>();
    const auto first = Open(Hello(0, 1, older, 2, IfExists::kReplace), a);
    ASSERT_TRUE(first.ok()) << first.status().message();
    const auto second = Open(Hello(1, 2, newer), b);
    ASSERT_TRUE(second.ok()) << second.status().message();
    EXPECT_EQ(second->attempt.id, first->attempt.id);
    registry_.Close(first->attempt.id, 0, a.get());
    registry_.Close(first->attempt.id, 1, b.get());
  }
}

TEST_F(SessionRegistryTest, ALateRankOfAnUnknownLaunchJoinsForAWhileAfterTheOthersHaveFinished) {
  auto a = std::make_shared<FakeStream>(), b = std::make_shared<FakeStream>();
  const auto first = Open(Hello(0, 1, "", 3), a);
  Put(*first, 10, true);
  registry_.Close(first->attempt.id, 0, a.get());
  clock_.Advance(kLateRankGrace / 2);
  const auto second = Open(Hello(1, 2, "", 3), b);
  ASSERT_TRUE(second.ok());
  Put(*second, 10, true);
  registry_.Close(second->attempt.id, 1, b.get());
  clock_.Advance(kLateRankGrace);
  EXPECT_EQ(Open(Hello(2, 3, "", 3)).status().code(), Code::kAlreadyExists);
}

TEST_F(SessionRegistryTest, AJumpOfTheWallClockMakesARankNeitherLateNorEarly) {
  for (const auto jump : {std::chrono::hours(1), std::chrono::hours(-1)}) {
    auto a = std::make_shared<FakeStream>(), b = std::make_shared<FakeStream>();
    const auto first = Open(Hello(0, 1, "", 3, IfExists::kReplace), a);
    ASSERT_TRUE(first.ok()) << first.status().message();
    Put(*first, 10, true);
    registry_.Close(first->attempt.id, 0, a.get());
    clock_.Advance(kLateRankGrace / 2);
    clock_.JumpWall(jump);
    const auto second = Open(Hello(1, 2, "", 3), b);
    ASSERT_TRUE(second.ok()) << second.status().message();
    EXPECT_EQ(second->attempt.id, first->attempt.id);
    Put(*second, 10, true);
    registry_.Close(second->attempt.id, 1, b.get());
    clock_.Advance(kLateRankGrace);
    clock_.JumpWall(-jump);
    EXPECT_EQ(Open(Hello(2, 3, "", 3)).status().code(), Code::kAlreadyExists);
  }
}

TEST_F(SessionRegistryTest, OfAGoodbyeToAnotherCollectorTheWallClockSaysHowLongAgoItWas) {
  const auto first = Open(Hello(0, 1, "", 3));
  Put(*first, 10, true);
  SessionRegistry other(store_, clock_, committer_);
  clock_.Advance(kLateRankGrace - std::chrono::seconds(1));
  const auto joined = other.Open(Hello(1, 2, "", 3), std::make_shared<FakeStream>());
  ASSERT_TRUE(joined.ok()) << joined.status().message();
  EXPECT_EQ(joined->attempt.id, first->attempt.id);
  Put(*joined, 10, true);
  SessionRegistry later(store_, clock_, committer_);
  clock_.Advance(kLateRankGrace);
  EXPECT_EQ(later.Open(Hello(2, 3, "", 3), std::make_shared<FakeStream>()).status().code(),
            Code::kAlreadyExists);
}

TEST_F(SessionRegistryTest, AnotherLaunchOrWorldSizeDoesNotJoin) {
  ASSERT_TRUE(Open(Hello(0, 1, "L")).ok());
  EXPECT_EQ(Open(Hello(1, 2, "M")).status().code(), Code::kAlreadyExists);
  EXPECT_EQ(Open(Hello(1, 2, "L", 3)).status().code(), Code::kAlreadyExists);
  EXPECT_EQ(Open(Hello(1, 2, "", 3)).status().code(), Code::kAlreadyExists);
  EXPECT_EQ(Attempts(), 1u);
}

TEST_F(SessionRegistryTest, RefusesATakenNameWithWhatIsThereAndTheWaysOn) {
  auto stream = std::make_shared<FakeStream>();
  Put(*Open(Hello(0, 1, "L"), stream), 40, true);
  const Status one = Open(Hello(0, 9, "M")).status();
  EXPECT_EQ(one.code(), Code::kAlreadyExists);
  for (const char* part : {"'base'", "1970-01-01 00:16:40 UTC", "1 rank,", "20 steps", "40 records",
                           "a different name", "if_exists=\"replace\"", "if_exists=\"append\""}) {
    EXPECT_THAT(one.message(), HasSubstr(part));
  }
  Put(*Open(Hello(1, 2, "L")), 2, true);
  const Status two = Open(Hello(0, 9, "M")).status();
  EXPECT_THAT(two.message(), HasSubstr("2 ranks, 20 steps, 42 records"));
  EXPECT_EQ(stream->ends, 0) << "a refused hello fences nobody";
}

TEST_F(SessionRegistryTest, ReplaceDropsEveryAttempt) {
  auto first = std::make_shared<FakeStream>(), second = std::make_shared<FakeStream>();
  const auto older = Open(Hello(0, 1, "L"), first);
  Put(*older, 5, false);
  const auto newer = Open(Hello(0, 3, "M", 2, IfExists::kAppend), second);
  registry_.Close(newer->attempt.id, 0, second.get());
  const auto replaced = Open(Hello(0, 4, "N", 2, IfExists::kReplace));
  ASSERT_TRUE(replaced.ok()) << replaced.status().message();
  EXPECT_EQ(replaced->attempt.number, 1u);
  EXPECT_EQ(replaced->meta.durable_seq, 0u);
  EXPECT_EQ(Attempts(), 1u);
  EXPECT_EQ(first->ends, 1) << "fenced by the append";
  EXPECT_EQ(registry_.OpenStreams(), 1u);
  const auto other = Open(Hello(1, 5, "N", 2, IfExists::kReplace));
  EXPECT_EQ(other->attempt.id, replaced->attempt.id)
      << "the second rank of the launch joins instead of replacing again";
}

TEST_F(SessionRegistryTest, ReplaceRefusesARunThatIsBeingWrittenOrKept) {
  auto stream = std::make_shared<FakeStream>();
  const auto first = Open(Hello(0, 1, "L"), stream);
  Put(*first, 5, false);
  const Status writing = Open(Hello(0, 4, "N", 2, IfExists::kReplace)).status();
  EXPECT_EQ(writing.code(), Code::kAlreadyExists);
  EXPECT_THAT(writing.message(), HasSubstr("1 rank is still sending"));
  EXPECT_EQ(stream->ends, 0);
  registry_.Close(first->attempt.id, 0, stream.get());
  ASSERT_TRUE(store_.KeepRun("base", true).ok());
  const Status kept = Open(Hello(0, 4, "N", 2, IfExists::kReplace)).status();
  EXPECT_EQ(kept.code(), Code::kAlreadyExists);
  EXPECT_THAT(kept.message(), HasSubstr("statctl pin base --off"));
  EXPECT_EQ(store_.Ranks(first->attempt.id).value().at(0).records, 5u);
  ASSERT_TRUE(store_.KeepRun("base", false).ok());
  EXPECT_TRUE(Open(Hello(0, 4, "N", 2, IfExists::kReplace)).ok());
}

// The ranks of a program that closes its agents and starts them again do so at slightly different
// times.
TEST_F(SessionRegistryTest, ALaunchMayReplaceItsOwnRun) {
  auto other = std::make_shared<FakeStream>();
  const auto first = Open(Hello(1, 1, "L", 2, IfExists::kReplace), other);
  Put(*first, 5, false);
  EXPECT_TRUE(Open(Hello(0, 2, "L", 2, IfExists::kReplace)).ok());
  const auto again = Open(Hello(0, 3, "L", 2, IfExists::kReplace));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_NE(again->attempt.id, first->attempt.id);
  EXPECT_EQ(other->end.code(), Code::kAborted);
}

TEST_F(SessionRegistryTest, AfterARestartByTheLauncherReplaceAppends) {
  auto stream = std::make_shared<FakeStream>();
  const auto first = Open(Hello(0, 1, "torchrun:job:a#0:29500", 2, IfExists::kReplace), stream);
  Put(*first, 5, false);
  const auto restarted = Open(Hello(0, 2, "torchrun:job:a#1:31000", 2, IfExists::kReplace));
  ASSERT_TRUE(restarted.ok()) << restarted.status().message();
  EXPECT_EQ(restarted->attempt.number, 2u);
  EXPECT_EQ(Attempts(), 2u);
  EXPECT_EQ(stream->end.code(), Code::kAborted) << "what hangs of the crashed processes is fenced";
  const auto other = Open(Hello(1, 3, "torchrun:job:a#1:31000", 2, IfExists::kReplace));
  EXPECT_EQ(other->attempt.number, 2u);
  EXPECT_EQ(store_.Ranks(first->attempt.id).value().at(0).records, 5u);
}

TEST_F(SessionRegistryTest, OnlyALaterRestartOfTheSameLaunchCountsAsOne) {
  for (const char* text :
       {"torchrun:job:a#1:29500", "torchrun:job:a#0:29501", "torchrun:other:a#2:29500",
        "torchrun:job:a#x", "torchrun:job:a#", "torchrun:job:a", "#2"}) {
    auto stream = std::make_shared<FakeStream>();
    const auto first = Open(Hello(0, 1, "torchrun:job:a#1:29500", 2, IfExists::kReplace), stream);
    ASSERT_TRUE(first.ok()) << first.status().message();
    registry_.Close(first->attempt.id, 0, stream.get());
    auto second = std::make_shared<FakeStream>();
    const auto next = Open(Hello(0, 2, text, 2, IfExists::kReplace), second);
    ASSERT_TRUE(next.ok()) << next.status().message();
    EXPECT_EQ(next->attempt.number, 1u) << text;
    ASSERT_TRUE(registry_.DeleteRun("base", true).ok());
  }
}

// A collector that was restored from a checkpoint may have an older part of the run only.
TEST_F(SessionRegistryTest, AWelcomedSessionThatThisCollectorDoesNotKnowAppends) {
  const std::int64_t before = clock_.UnixNanos();
  ASSERT_TRUE(Open(Hello(0, 1, "L")).ok());
  clock_.Advance(std::chrono::hours(1));
  for (const IfExists policy : {IfExists::kError, IfExists::kReplace, IfExists::kAppend}) {
    clock_.Advance(std::chrono::hours(1));
    SessionInfo info = Hello(0, static_cast<std::uint8_t>(10 + static_cast<int>(policy)),
                             "M" + std::to_string(static_cast<int>(policy)), 2, policy);
    info.attempt_start_unix_nanos = clock_.UnixNanos();
    const std::size_t attempts = Attempts();
    const auto appended = Open(info);
    ASSERT_TRUE(appended.ok()) << appended.status().message();
    EXPECT_EQ(appended->attempt.number, attempts + 1);
    EXPECT_EQ(Attempts(), attempts + 1);
  }
  SessionInfo outdated = Hello(1, 9, "K", 2, IfExists::kReplace);
  outdated.attempt_start_unix_nanos = before;
  const Status fenced = Open(outdated).status();
  EXPECT_EQ(fenced.code(), Code::kAborted) << "the name belongs to a newer launch now";
  EXPECT_EQ(Attempts(), 4u);
}

TEST_F(SessionRegistryTest, AppendCreatesTheNextAttemptAndFencesTheRank) {
  auto older = std::make_shared<FakeStream>(), other = std::make_shared<FakeStream>();
  const auto first = Open(Hello(0, 1, "L"), older);
  ASSERT_TRUE(Open(Hello(1, 2, "L"), other).ok());
  const auto next = Open(Hello(0, 3, "M", 2, IfExists::kAppend));
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->attempt.number, 2u);
  EXPECT_EQ(Attempts(), 2u);
  EXPECT_EQ(older->ends, 1);
  EXPECT_EQ(older->end.code(), Code::kAborted);
  EXPECT_THAT(older->end.message(), HasSubstr("fenced by a newer session"));
  EXPECT_EQ(other->ends, 0);
  EXPECT_FALSE(registry_.IsOpen(first->attempt.id, 0));
}

TEST_F(SessionRegistryTest, ARankThatJoinsANewAttemptFencesItsOlderStreamToo) {
  auto older = std::make_shared<FakeStream>();
  const auto first = Open(Hello(1, 1, "L"), older);
  ASSERT_TRUE(Open(Hello(0, 2, "M", 2, IfExists::kAppend)).ok());
  EXPECT_EQ(older->ends, 0) << "its rank has no newer session yet";
  ASSERT_TRUE(Open(Hello(1, 3, "M", 2, IfExists::kAppend)).ok());
  EXPECT_EQ(older->ends, 1);
  EXPECT_EQ(older->end.code(), Code::kAborted);
  Status done;
  CommitItem item{
      .lane = first->lane, .attempt = first->attempt.id, .rank = 1, .meta = first->meta};
  item.done = [&](const Status& status) { done = status; };
  EXPECT_FALSE(committer_.Submit(std::move(item), [] {}));
  EXPECT_EQ(done.code(), Code::kAborted);
}

TEST_F(SessionRegistryTest,
       AnOlderAttemptsSessionIsFencedWhateverItsPolicyButMaySendLateWhatItLeft) {
  const auto first = Open(Hello(0, 1, "L"));
  Put(*first, 9, false);
  ASSERT_TRUE(Open(Hello(0, 2, "M", 2, IfExists::kAppend)).ok());
  for (const IfExists policy : {IfExists::kError, IfExists::kAppend, IfExists::kReplace}) {
    const auto refused = Open(Hello(0, 1, "L", 2, policy));
    EXPECT_EQ(refused.status().code(), Code::kAborted);
    EXPECT_THAT(refused.status().message(), HasSubstr("fenced by attempt 2"));
  }
  EXPECT_EQ(Attempts(), 2u);
  const auto resumed = OpenLate(Hello(0, 1, "L"), 10);
  ASSERT_TRUE(resumed.ok()) << resumed.status().message();
  EXPECT_EQ(resumed->attempt.id, first->attempt.id);
  EXPECT_EQ(resumed->meta.durable_seq, 9u);
}

// Hundreds of ranks connect at once; reading a launch of as many takes milliseconds.
TEST_F(SessionRegistryTest, RanksOfANewLaunchReadTheOlderOnesOnce) {
  const auto first = Open(Hello(0, 1, "L", 8));
  ASSERT_TRUE(Open(Hello(0, 10, "M", 8, IfExists::kAppend)).ok());
  const int before = store_.ranks_calls(first->attempt.id);
  for (std::uint8_t rank = 1; rank < 8; ++rank)
    ASSERT_TRUE(Open(Hello(rank, 10 + rank, "M", 8, IfExists::kAppend)).ok());
  EXPECT_LE(store_.ranks_calls(first->attempt.id), before + 1);
  EXPECT_EQ(Open(Hello(0, 1, "L", 8)).status().code(), Code::kAborted) << "still known as fenced";
}

TEST_F(SessionRegistryTest, TheRestOfAnUnknownSessionCreatesNothing) {
  EXPECT_EQ(OpenLate(Hello(0, 1, "L"), 10).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(Attempts(), 0u);
  ASSERT_TRUE(Open(Hello(1, 2, "L")).ok());
  EXPECT_EQ(OpenLate(Hello(0, 1, "L"), 10).status().code(), Code::kFailedPrecondition)
      << "also where its launch is known";
  EXPECT_TRUE(OpenLate(Hello(0, 1, "L"), 1).ok()) << "a whole session";
}

TEST_F(SessionRegistryTest, NothingOfAFencedStreamIsWrittenAnyMore) {
  const auto first = Open(Hello(0, 1, "L"));
  ASSERT_TRUE(Open(Hello(0, 2, "M", 2, IfExists::kAppend)).ok());
  Status done;
  CommitItem item{.lane = first->lane, .attempt = first->attempt.id, .meta = first->meta};
  item.done = [&](const Status& status) { done = status; };
  EXPECT_FALSE(committer_.Submit(std::move(item), [] {}));
  EXPECT_EQ(done.code(), Code::kAborted);
  EXPECT_EQ(store_.violation(), "");
}

TEST_F(SessionRegistryTest, WaitsForTheWriteUnderWayBeforeItResumes) {
  const auto first = Open(Hello(0, 1));
  store_.BlockAppends();
  CommitItem item{.lane = first->lane, .attempt = first->attempt.id, .meta = first->meta};
  item.meta.durable_seq = 5;
  item.done = [](const Status&) {};
  ASSERT_TRUE(committer_.Submit(std::move(item), [] {}));
  store_.AwaitBlockedAppend();
  std::uint64_t resumed_at = 0;
  std::thread reconnect([&] { resumed_at = Open(Hello(0, 1))->meta.durable_seq; });
  store_.ReleaseAppends();
  reconnect.join();
  EXPECT_EQ(resumed_at, 5u);
}

TEST_F(SessionRegistryTest, ManyRanksAtOnceShareOneAttempt) {
  constexpr std::uint32_t kWorld = 256;
  for (const std::string launch : {"", "L"}) {
    const auto policy = IfExists::kReplace;
    std::atomic<std::uint32_t> next{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&] {
        for (std::uint32_t rank; (rank = next++) < kWorld;) {
          SessionInfo info = Hello(rank, 0, launch, kWorld, policy);
          info.session = {static_cast<std::uint8_t>(rank),
                          static_cast<std::uint8_t>(launch.size() + 1)};
          EXPECT_TRUE(Open(info).ok());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(Attempts(), 1u);
    EXPECT_EQ(store_.Ranks(store_.Attempts("base").value()[0].id).value().size(), kWorld);
    EXPECT_EQ(registry_.OpenStreams(), kWorld);
    ASSERT_TRUE(registry_.DeleteRun("base", true).ok());
  }
}

TEST_F(SessionRegistryTest, DeletesARunThatNobodyWrites) {
  auto stream = std::make_shared<FakeStream>();
  const auto admission = Open(Hello(0, 1), stream);
  Put(*admission, 11, false);
  const auto refused = registry_.DeleteRun("base", false);
  EXPECT_EQ(refused.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("1 rank is"));
  registry_.Close(admission->attempt.id, 0, stream.get());
  const auto deleted = registry_.DeleteRun("base", false);
  ASSERT_TRUE(deleted.ok());
  EXPECT_EQ(deleted->records, 11u);
  EXPECT_EQ(deleted->attempts, 1u);
  EXPECT_EQ(Attempts(), 0u);
  EXPECT_EQ(registry_.DeleteRun("base", true).status().code(), Code::kNotFound);
}

// Retention decides on what it read before; the command line says what it removes.
TEST_F(SessionRegistryTest, ARunThatIsKeptMeanwhileIsNotRemovedByRetention) {
  auto stream = std::make_shared<FakeStream>();
  const auto admission = Open(Hello(0, 1), stream);
  Put(*admission, 11, true);
  registry_.Close(admission->attempt.id, 0, stream.get());
  const std::int64_t looked = clock_.UnixNanos();
  ASSERT_TRUE(store_.KeepRun("base", true).ok());
  const auto refused = registry_.DeleteRun("base", false, looked);
  EXPECT_EQ(refused.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("kept in the meantime"));
  EXPECT_EQ(Attempts(), 1u);
  ASSERT_TRUE(registry_.KeepRun("base", false).ok());
  ASSERT_TRUE(registry_.KeepRun("base", true).ok());
  EXPECT_FALSE(registry_.DeleteRun("base", false, looked).ok());
  EXPECT_TRUE(registry_.DeleteRun("base", false).ok());
}

TEST_F(SessionRegistryTest, ForceEndsTheStreamsOfADeletedRun) {
  auto stream = std::make_shared<FakeStream>();
  ASSERT_TRUE(Open(Hello(0, 1), stream).ok());
  EXPECT_TRUE(registry_.DeleteRun("base", true).ok());
  EXPECT_EQ(stream->end.code(), Code::kAborted);
  EXPECT_EQ(registry_.OpenStreams(), 0u);
}

TEST_F(SessionRegistryTest, ACaptureIsToldToOpenStreamsAndToThoseThatComeBack) {
  auto first = std::make_shared<FakeStream>(), second = std::make_shared<FakeStream>();
  const auto admission = Open(Hello(0, 1, "L"), first);
  ASSERT_TRUE(admission.ok());
  EXPECT_TRUE(admission->captures.empty());
  ASSERT_TRUE(Open(Hello(1, 2, "L"), second).ok());
  const CaptureSpec spec = *CaptureSpec::Parse("blocks.1.ln2@12");
  const auto asked = registry_.RequestCapture("base", {}, spec);
  ASSERT_TRUE(asked.ok()) << asked.status().message();
  EXPECT_EQ(asked->request, 1u);
  EXPECT_EQ(asked->ranks, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(asked->told, 2u);
  ASSERT_EQ(first->captures.size(), 1u);
  EXPECT_EQ(first->captures[0].spec.ToText(), "blocks.1.ln2@12");
  EXPECT_EQ(registry_.RequestCapture("base", {1}, spec)->request, 2u);
  EXPECT_EQ(first->captures.size(), 1u);
  EXPECT_EQ(second->captures.size(), 2u);

  // Another collector on the same store, as after a restart.
  SessionRegistry restarted(store_, clock_, committer_);
  const auto again = restarted.Open(Hello(0, 1, "L"), std::make_shared<FakeStream>());
  ASSERT_TRUE(again.ok());
  ASSERT_EQ(again->captures.size(), 1u);
  EXPECT_EQ(again->captures[0].id, 1u);
  EXPECT_EQ(again->captures[0].spec.ToText(), "blocks.1.ln2@12");
}

TEST_F(SessionRegistryTest, StepsInFullAreAnnouncedToAllRanksAndTheLastChoiceToLaterOnes) {
  auto first = std::make_shared<FakeStream>(), second = std::make_shared<FakeStream>();
  const auto admission = Open(Hello(0, 1, "L"), first);
  ASSERT_TRUE(admission.ok());
  EXPECT_FALSE(admission->full);
  ASSERT_TRUE(Open(Hello(1, 2, "L"), second).ok());
  const FullSteps choice{.first = 70, .every = 10}, window{.first = 95, .last = 98};
  registry_.AnnounceFull(admission->attempt.id, choice);
  registry_.AnnounceFull(admission->attempt.id, window);
  EXPECT_EQ(first->full, (std::vector<FullSteps>{choice, window}));
  EXPECT_EQ(second->full, first->full);
  const auto again = Open(Hello(1, 2, "L"), std::make_shared<FakeStream>());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->full, choice);
}

TEST_F(SessionRegistryTest, OnlyRank0IsAskedForStepsInFull) {
  auto first = std::make_shared<FakeStream>(), second = std::make_shared<FakeStream>();
  registry_.RequestFull("base", 41);  // there is no such run
  ASSERT_TRUE(Open(Hello(0, 1, "L"), first).ok());
  ASSERT_TRUE(Open(Hello(1, 2, "L"), second).ok());
  registry_.RequestFull("base", 41);
  EXPECT_EQ(first->full, (std::vector<FullSteps>{{.first = 41, .last = 41}}));
  EXPECT_TRUE(second->full.empty());
}

TEST_F(SessionRegistryTest, ACaptureWaitsForARankThatIsAwayForAMoment) {
  const auto stream = std::make_shared<FakeStream>();
  const auto admission = Open(Hello(0, 1, "L"), stream);
  registry_.Close(admission->attempt.id, 0, stream.get());
  const CaptureSpec spec = *CaptureSpec::Parse("blocks.1.ln2@12");
  const auto lost = registry_.RequestCapture("base", {}, spec);
  ASSERT_TRUE(lost.ok()) << lost.status().message();
  EXPECT_EQ(lost->told, 0u);
  EXPECT_EQ(Open(Hello(0, 1, "L"))->captures.size(), 1u) << "told when it comes back";

  SessionRegistry restarted(store_, clock_, committer_);  // the agent has not noticed yet
  EXPECT_TRUE(restarted.MayComeBack(admission->attempt.id, 0));
  EXPECT_TRUE(restarted.RequestCapture("base", {}, spec).ok());
  clock_.Advance(kAwayGrace);
  EXPECT_FALSE(restarted.MayComeBack(admission->attempt.id, 0));
  EXPECT_EQ(restarted.RequestCapture("base", {}, spec).status().code(), Code::kFailedPrecondition);

  SessionRegistry again(store_, clock_, committer_);
  Put(*admission, 9, /*finished=*/true);
  EXPECT_EQ(again.RequestCapture("base", {}, spec).status().code(), Code::kFailedPrecondition)
      << "it has said goodbye";
}

TEST_F(SessionRegistryTest, ACaptureThatCannotBeIsRefusedWithWhatToDo) {
  const CaptureSpec spec = *CaptureSpec::Parse("blocks.1.ln2@3");
  EXPECT_EQ(registry_.RequestCapture("base", {}, spec).status().code(), Code::kNotFound);
  auto stream = std::make_shared<FakeStream>();
  const auto admission = Open(Hello(0, 1), stream);
  const Status rank = registry_.RequestCapture("base", {0, 5}, spec).status();
  EXPECT_EQ(rank.code(), Code::kNotFound);
  EXPECT_THAT(rank.message(), HasSubstr("no rank 5"));

  RankMeta meta = admission->meta;
  meta.last_step = 17;
  ASSERT_TRUE(store_.PutRank(admission->attempt.id, 0, meta).ok());
  const Status past = registry_.RequestCapture("base", {}, spec).status();
  EXPECT_EQ(past.code(), Code::kOutOfRange);
  EXPECT_THAT(past.message(), HasSubstr("step 3 has passed (rank 0 is at step 17)"));
  EXPECT_THAT(past.message(), HasSubstr("STATAGENT_CAPTURES='blocks.1.ln2@3'"));

  registry_.Close(admission->attempt.id, 0, stream.get());
  clock_.Advance(kAwayGrace);
  const Status closed = registry_.RequestCapture("base", {}, *CaptureSpec::Parse("a@99")).status();
  EXPECT_EQ(closed.code(), Code::kFailedPrecondition);
  EXPECT_THAT(closed.message(), HasSubstr("none of its ranks is connected"));
  EXPECT_TRUE(stream->captures.empty());
}

TEST_F(SessionRegistryTest, OnlySoManyRequestsAreKeptAndNoStreamIsRefusedForThem) {
  ASSERT_TRUE(Open(Hello(0, 1, "L")).ok());
  for (std::size_t i = 0; i < kCaptureRequestsMax + 3; ++i)
    ASSERT_TRUE(registry_.RequestCapture("base", {}, *CaptureSpec::Parse("a@9")).ok());
  const auto kept = ReadCaptureRequests(store_, "base");
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(kept->size(), kCaptureRequestsMax);
  EXPECT_EQ(kept->back().id, kCaptureRequestsMax + 3);
  ASSERT_TRUE(store_.PutDocument("base", "captures", "no list").ok());
  EXPECT_FALSE(ReadCaptureRequests(store_, "base").ok());
  const auto admitted = Open(Hello(0, 1, "L"));
  ASSERT_TRUE(admitted.ok()) << "a damaged list keeps nobody out";
  EXPECT_TRUE(admitted->captures.empty());
}

// Holds up what is written of rank 0 until it is released: an engine that does not answer.
class StallingStore final : public testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  Status PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta) override {
    if (rank == 0) {
      ++stalled;
      released.wait();
    }
    return ForwardingStore::PutRank(attempt, rank, meta);
  }
  void Release() {
    if (!released_once.exchange(true)) release.set_value();
  }
  std::promise<void> release;
  std::shared_future<void> released = release.get_future();
  std::atomic<bool> released_once{false};
  std::atomic<int> stalled{0};
};

class StalledHelloTest : public SessionRegistryTest {
 protected:
  StalledHelloTest() {
    stalled_ = std::thread([this] { first_ = registry_.Open(Hello(0, 1, "L"), stream_); });
    while (store_.stalled == 0) std::this_thread::yield();
  }
  ~StalledHelloTest() override {
    if (stalled_.joinable()) Release();
  }
  void Release() {
    store_.Release();
    stalled_.join();
  }
  static bool IsDone(const std::future<Status>& call, std::chrono::milliseconds within) {
    return call.wait_for(within) == std::future_status::ready;
  }
  // While rank 0 is stalled. If the call waits for it, the test fails instead of hanging.
  template <typename Call>
  void ExpectNoWait(const char* what, const Call& call) {
    auto done = std::async(std::launch::async, [&] { return Status(call()); });
    const bool waited = !IsDone(done, std::chrono::seconds(10));
    if (waited) store_.Release();
    const Status status = done.get();
    EXPECT_TRUE(status.ok()) << what << ": " << status.message();
    ASSERT_FALSE(waited) << what << " waits for another rank's store";
  }
  Status OpenAs(const SessionInfo& info) {
    return registry_.Open(info, std::make_shared<FakeStream>()).status();
  }
  AttemptId Newest() { return kept_.Attempts("base").value().back().id; }

  FakeStore kept_;
  StallingStore store_{kept_};
  Committer committer_{store_, clock_, {}};
  SessionRegistry registry_{store_, clock_, committer_};
  std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
  Result<Admission> first_{Status(Code::kInternal, "not decided yet")};
  std::thread stalled_;
};

TEST_F(StalledHelloTest, NobodyElseWaits) {
  SessionInfo other = Hello(1, 3, "M");
  other.run = "other";
  ExpectNoWait("another rank", [&] { return OpenAs(Hello(1, 2, "L")); });
  ExpectNoWait("another run", [&] { return OpenAs(other); });
  ExpectNoWait("what streams ask", [&] {
    EXPECT_TRUE(registry_.IsOpen(Newest(), 1));
    EXPECT_FALSE(registry_.IsOpen(Newest(), 0));
    EXPECT_EQ(registry_.OpenStreams(), 2u);
    registry_.AnnounceFull(Newest(), {.first = 0});
    return Status::Ok();
  });
  ExpectNoWait("a choice of steps", [&] { return registry_.RecordSteps("base", "0-9").status(); });
  ExpectNoWait("keeping the run", [&] { return registry_.KeepRun("base", true); });
  ExpectNoWait("removing another run", [&] { return registry_.DeleteRun("other", true).status(); });
  Release();
  ASSERT_TRUE(first_.ok()) << first_.status().message();
  EXPECT_EQ(first_->attempt.id, Newest()) << "the attempt that it has made";
  EXPECT_EQ(first_->attempt.number, 1u);
  EXPECT_EQ(first_->steps, "0-9") << "what was asked while it arrived";
  EXPECT_TRUE(first_->full.has_value());
  EXPECT_EQ(registry_.OpenStreams(), 2u);
}

TEST_F(StalledHelloTest, ANewLaunchDoesNotWaitEither) {
  ExpectNoWait("another launch",
               [&] { return OpenAs(Hello(1, 2, "M", /*world=*/2, IfExists::kAppend)); });
  EXPECT_EQ(kept_.Attempts("base")->size(), 2u);
  Release();
  ASSERT_TRUE(first_.ok()) << first_.status().message();
  EXPECT_EQ(first_->attempt.number, 1u);
}

TEST_F(StalledHelloTest, ARankThatArrivesIsNotGone) {
  clock_.Advance(2 * kAwayGrace);  // the collector has run for longer than an agent may be away
  ExpectNoWait("asking for it", [&] {
    EXPECT_TRUE(registry_.MayComeBack(Newest(), 0)) << "its state may be stored already";
    EXPECT_FALSE(registry_.MayComeBack(Newest(), 1));
    return Status::Ok();
  });
}

TEST_F(StalledHelloTest, ItsOwnNextHelloWaitsForItAndTakesOver) {
  const auto next = std::make_shared<FakeStream>();
  auto again = std::async(std::launch::async,
                          [&] { return registry_.Open(Hello(0, 1, "L"), next).status(); });
  EXPECT_FALSE(IsDone(again, std::chrono::milliseconds(20)));
  Release();
  EXPECT_TRUE(again.get().ok());
  EXPECT_EQ(stream_->ends, 1);
  EXPECT_EQ(next->ends, 0);
  EXPECT_EQ(kept_.Attempts("base")->size(), 1u);
}

TEST_F(StalledHelloTest, ARemovalWaitsForItAndEndsIt) {
  auto removed =
      std::async(std::launch::async, [&] { return registry_.DeleteRun("base", true).status(); });
  EXPECT_FALSE(IsDone(removed, std::chrono::milliseconds(20)));
  Release();
  EXPECT_TRUE(removed.get().ok());
  EXPECT_EQ(stream_->ends, 1) << "nothing is written to an attempt that is gone";
  EXPECT_TRUE(kept_.ListRuns()->empty());
}

TEST_F(StalledHelloTest, ACaptureThatIsAskedForMeanwhileReachesIt) {
  Result<RequestedCapture> asked = Status(Code::kInternal, "not asked yet");
  ExpectNoWait("another rank", [&] { return OpenAs(Hello(1, 2, "L")); });
  RankMeta meta;
  meta.info = Hello(0, 1, "L");
  ASSERT_TRUE(kept_.PutRank(Newest(), 0, meta).ok());  // written down, and not answered yet
  ExpectNoWait("a capture", [&] {
    asked = registry_.RequestCapture("base", {}, *CaptureSpec::Parse("fc@9"));
    return asked.status();
  });
  Release();
  ASSERT_TRUE(asked.ok()) << asked.status().message();
  ASSERT_TRUE(first_.ok());
  ASSERT_EQ(first_->captures.size(), 1u);
  EXPECT_EQ(first_->captures[0].id, asked->request);
}

}  // namespace
}  // namespace statcollect
