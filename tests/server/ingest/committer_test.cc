#include "server/ingest/committer.h"

#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"
#include "tests/support/fake_store.h"

namespace statcollect {
namespace {

using ::testing::ElementsAre;
using testing::FakeClock;
using testing::FakeStore;
using ::testing::HasSubstr;

// One lane with numbered items, and what became of them.
struct Writer {
  std::shared_ptr<CommitLane> lane = std::make_shared<CommitLane>();
  std::uint32_t rank = 0;
  std::uint64_t seq = 0;
};

class CommitterTest : public ::testing::Test {
 protected:
  explicit CommitterTest(CommitterOptions options = {.queue_bytes_max = 1000,
                                                     .disk_free_bytes_min = 1 << 20}) {
    attempt_ = store_.CreateAttempt({.run = "r", .world_size = 8}).value().id;
    committer_ = std::make_unique<Committer>(store_, clock_, options);
  }
  ~CommitterTest() override {
    store_.ReleaseAppends();
    committer_->Drain();
    EXPECT_EQ(store_.violation(), "");
  }

  // The writer's next record.
  CommitItem NextOf(Writer& writer, std::size_t bytes) {
    RecordBatch batch;
    batch.first_seq = ++writer.seq;
    batch.scalars = {{"loss", writer.seq, 0, 1.0}};
    CommitItem item{.lane = writer.lane, .attempt = attempt_, .rank = writer.rank};
    item.prepared = store_.NewWriter(attempt_, writer.rank)->Prepare(batch);
    item.meta.durable_seq = writer.seq;
    item.bytes = bytes;
    item.records = batch.records();
    return item;
  }
  // A future of what `done` receives.
  std::future<Status> Submit(
      Writer& writer, std::size_t bytes = 10, std::function<void()> accepted = [] {}) {
    auto told = std::make_shared<std::promise<Status>>();
    CommitItem item = NextOf(writer, bytes);
    item.done = [told](const Status& status) { told->set_value(status); };
    taken_ = committer_->Submit(std::move(item), std::move(accepted));
    return told->get_future();
  }
  std::uint64_t Durable(const Writer& writer) {
    return store_.Ranks(attempt_).value()[writer.rank].durable_seq;
  }

  FakeStore store_;
  FakeClock clock_;
  AttemptId attempt_ = 0;
  std::unique_ptr<Committer> committer_;
  bool taken_ = false;
};

TEST_F(CommitterTest, WritesWhatGatheredDuringAWriteAsOneGroup) {
  Writer a{.rank = 0}, b{.rank = 1};
  store_.BlockAppends();
  auto first = Submit(a);
  store_.AwaitBlockedAppend();
  auto second = Submit(a), third = Submit(b), fourth = Submit(b);
  store_.ReleaseAppends();
  for (auto* told : {&first, &second, &third, &fourth}) EXPECT_TRUE(told->get().ok());
  EXPECT_THAT(store_.appends(), ElementsAre(1, 3));
  EXPECT_EQ(committer_->commits(), 2u);
  EXPECT_EQ(Durable(a), 2u);
}

TEST_F(CommitterTest, BacklogCountsWhatIsBeingWrittenQueuedAndWaitingAndTheAgeOfTheOldest) {
  Writer a{.rank = 0}, b{.rank = 1}, c{.rank = 2};
  EXPECT_EQ(committer_->Backlog().records, 0u);
  store_.BlockAppends();
  auto writing = Submit(a, 100);
  store_.AwaitBlockedAppend();
  clock_.Advance(std::chrono::milliseconds(250));
  auto queued = Submit(b, 200);
  auto waiting = Submit(c, 900);  // finds no room
  ASSERT_FALSE(taken_);
  clock_.Advance(std::chrono::milliseconds(50));
  const CommitBacklog backlog = committer_->Backlog();
  EXPECT_EQ(backlog.records, 3u);
  EXPECT_EQ(backlog.bytes, 1200u);
  EXPECT_EQ(backlog.oldest, std::chrono::milliseconds(300));
  store_.ReleaseAppends();
  for (auto* told : {&writing, &queued, &waiting}) EXPECT_TRUE(told->get().ok());
  EXPECT_EQ(committer_->Backlog().records, 0u);
  EXPECT_EQ(committer_->Backlog().bytes, 0u);
  EXPECT_EQ(committer_->Backlog().oldest.count(), 0);
}

TEST_F(CommitterTest, BacklogForgetsWhatWasRefused) {
  Writer a{.rank = 0};
  store_.SetDiskFree(1);
  auto refused = Submit(a, 100);
  EXPECT_FALSE(refused.get().ok());
  EXPECT_EQ(committer_->Backlog().records, 0u);
  EXPECT_EQ(committer_->Backlog().bytes, 0u);
}

TEST_F(CommitterTest, TellsNothingBeforeTheAppendReturned) {
  Writer a;
  store_.BlockAppends();
  auto told = Submit(a);
  store_.AwaitBlockedAppend();
  EXPECT_EQ(told.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  EXPECT_EQ(Durable(a), 0u);
  store_.ReleaseAppends();
  EXPECT_TRUE(told.get().ok());
  EXPECT_EQ(Durable(a), 1u);
}

TEST_F(CommitterTest, MakesStreamsWaitWhenTheQueueIsFullAndLetsThemInInTurn) {
  Writer a{.rank = 0}, b{.rank = 1}, c{.rank = 2};
  std::vector<char> order;
  store_.BlockAppends();
  auto first = Submit(a, 900);
  store_.AwaitBlockedAppend();
  EXPECT_TRUE(taken_);
  auto big = Submit(b, 200, [&] { order.push_back('b'); });
  EXPECT_FALSE(taken_) << "over the limit, although it is only being written";
  auto small = Submit(c, 1, [&] { order.push_back('c'); });
  EXPECT_FALSE(taken_) << "does not overtake who waits";
  store_.ReleaseAppends();
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(big.get().ok());
  EXPECT_TRUE(small.get().ok());
  committer_->Drain();
  EXPECT_THAT(order, ElementsAre('b', 'c'));
}

TEST_F(CommitterTest, TakesASingleItemLargerThanTheQueue) {
  Writer a;
  EXPECT_TRUE(Submit(a, 5000).get().ok());
}

TEST_F(CommitterTest, AFailedWriteFailsEverythingAndIsNeverTriedAgain) {
  Writer a{.rank = 0}, b{.rank = 1};
  store_.FailAppends(Status(Code::kInternal, "sync: input/output error"));
  store_.BlockAppends();
  auto written = Submit(a);
  store_.AwaitBlockedAppend();
  auto queued = Submit(b), waiting = Submit(b, 5000);
  EXPECT_FALSE(taken_);
  store_.ReleaseAppends();
  for (auto* told : {&written, &queued, &waiting}) {
    const Status status = told->get();
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("input/output error"));
  }
  store_.FailAppends(Status::Ok());
  Writer c{.rank = 2};
  EXPECT_EQ(Submit(c).get().code(), Code::kUnavailable);
  EXPECT_EQ(committer_->Admission().code(), Code::kUnavailable);
  EXPECT_THAT(store_.appends(), ElementsAre(1));
  EXPECT_EQ(committer_->commits(), 0u);
}

TEST_F(CommitterTest,
       AWriteThatFoundNoSpaceFailsItsLanesAndLaterOnesAreTakenOnceTheStoreHasRecovered) {
  Writer lost{.rank = 0}, bystander{.rank = 1}, other{.rank = 2}, later{.rank = 3};
  ASSERT_TRUE(Submit(bystander).get().ok());
  store_.FailAppends(Status(Code::kResourceExhausted, "no space left"));
  const Status failed = Submit(lost).get();
  EXPECT_EQ(failed.code(), Code::kResourceExhausted) << "agents try again";
  EXPECT_THAT(failed.message(), HasSubstr("no space left"));
  EXPECT_EQ(committer_->Admission().code(), Code::kResourceExhausted);
  EXPECT_EQ(Submit(other).get().code(), Code::kResourceExhausted);
  EXPECT_THAT(store_.appends(), ElementsAre(1, 1))
      << "nothing is written before the store has recovered";
  store_.FailAppends(Status::Ok());
  EXPECT_TRUE(committer_->Admission().ok());
  EXPECT_EQ(Submit(lost).get().code(), Code::kResourceExhausted) << "its stream has to begin again";
  EXPECT_TRUE(Submit(bystander).get().ok()) << "it has lost nothing";
  EXPECT_TRUE(Submit(later).get().ok());
}

TEST_F(CommitterTest, RefusesWhileTheDiskIsNearlyFullAndRecoversByItself) {
  Writer a{.rank = 0}, b{.rank = 1};
  store_.SetDiskFree(1000);
  const Status full = Submit(a).get();
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("0 MiB free; at least 1 MiB"));
  EXPECT_EQ(committer_->Admission().code(), Code::kResourceExhausted);
  EXPECT_TRUE(store_.appends().empty());
  store_.SetDiskFree(1 << 30);
  clock_.Advance(std::chrono::milliseconds(999));
  EXPECT_EQ(committer_->Admission().code(), Code::kResourceExhausted);
  EXPECT_EQ(store_.usage_calls(), 1) << "at most once a second";
  clock_.Advance(std::chrono::milliseconds(2));
  EXPECT_TRUE(committer_->Admission().ok());
  EXPECT_EQ(Submit(a).get().code(), Code::kResourceExhausted)
      << "a lane that lost an item takes no later one";
  EXPECT_TRUE(Submit(b).get().ok());
}

TEST_F(CommitterTest, AnAbandonedLaneIsNotWrittenAndOthersAre) {
  Writer a{.rank = 0}, b{.rank = 1}, c{.rank = 2};
  store_.BlockAppends();
  auto first = Submit(c);
  store_.AwaitBlockedAppend();
  auto gone = Submit(a), stays = Submit(b);
  committer_->Abandon(a.lane, Status(Code::kAborted, "fenced"));
  store_.ReleaseAppends();
  EXPECT_EQ(gone.get().code(), Code::kAborted);
  EXPECT_TRUE(stays.get().ok());
  EXPECT_TRUE(first.get().ok());
  EXPECT_EQ(Submit(a).get().code(), Code::kAborted);
  EXPECT_EQ(Durable(a), 0u);
}

TEST_F(CommitterTest, DrainWritesWhatIsQueuedAndWaitingAndRefusesTheRest) {
  Writer a{.rank = 0}, b{.rank = 1};
  store_.BlockAppends();
  auto first = Submit(a, 900);
  store_.AwaitBlockedAppend();
  auto queued = Submit(a, 50), waiting = Submit(b, 400);
  std::thread drain([&] { committer_->Drain(); });
  store_.ReleaseAppends();
  drain.join();
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(queued.get().ok());
  EXPECT_TRUE(waiting.get().ok());
  EXPECT_EQ(Submit(a).get().code(), Code::kUnavailable);
  committer_->Drain();
}

TEST_F(CommitterTest, WritesEachLaneInOrderUnderManyThreads) {
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      Writer writer{.rank = rank};
      for (int i = 0; i < 300; ++i) {
        std::promise<void> accepted;
        auto told = std::make_shared<std::promise<void>>();
        CommitItem item = NextOf(writer, 200);
        item.done = [&failed](const Status& status) { failed += status.ok() ? 0 : 1; };
        if (!committer_->Submit(std::move(item), [&] { accepted.set_value(); }))
          accepted.get_future().wait();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  committer_->Drain();
  EXPECT_EQ(failed, 0);
  for (std::uint32_t rank = 0; rank < 4; ++rank) EXPECT_EQ(Durable({.rank = rank}), 300u);
}

}  // namespace
}  // namespace statcollect
