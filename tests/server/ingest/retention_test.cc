#include "server/ingest/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"
#include "tests/support/fake_store.h"
#include "tests/support/silent_stream.h"

namespace statcollect {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::ElementsAre;
using testing::FakeClock;
using testing::FakeStore;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr hours kDay{24};

class RetentionTest : public ::testing::Test {
 protected:
  Retention& Make(const RetentionOptions& options) {
    retention_ =
        std::make_unique<Retention>(store_, clock_, registry_, options,
                                    [this](const std::string& line) { lines_.push_back(line); });
    return *retention_;
  }
  // A run whose last write is now. Time then goes on by a day.
  AttemptId Add(const std::string& name, std::uint64_t bytes = 0, bool finished = true) {
    const AttemptId id = store_.CreateAttempt({.run = name, .world_size = 1})->id;
    RankMeta meta;
    meta.records = 7;
    meta.finished = finished;
    meta.last_write_unix_nanos = clock_.UnixNanos();
    EXPECT_TRUE(store_.PutRank(id, 0, meta).ok());
    store_.SetBytes(id, bytes);
    clock_.Advance(kDay);
    return id;
  }
  std::shared_ptr<testing::SilentStream> OpenStreamOf(const std::string& name) {
    SessionInfo info;
    info.run = name;
    info.if_exists = IfExists::kAppend;
    auto stream = std::make_shared<testing::SilentStream>();
    EXPECT_TRUE(registry_.Open(info, stream).ok());
    return stream;
  }
  void TickAfter(std::chrono::nanoseconds wait) {
    clock_.Advance(wait);
    retention_->Tick();
  }
  std::vector<std::string> Runs() { return store_.ListRuns().value(); }

  FakeStore store_;
  FakeClock clock_;
  Committer committer_{store_, clock_, {}};
  // The collector has a thread for that.
  SessionRegistry registry_{store_, clock_, committer_,
                            [this] { (void)store_.PurgeRetired([] { return true; }); }};
  std::vector<std::string> lines_;
  std::unique_ptr<Retention> retention_;
};

TEST_F(RetentionTest, RemovesRunsPastTheirAgeAndSaysWhichAndWhy) {
  Add("old");
  Add("young");
  Make({.age_max = 2 * kDay}).Tick();
  EXPECT_THAT(Runs(), ElementsAre("old", "young")) << "two days old is not older than two days";
  TickAfter(minutes(2));
  EXPECT_THAT(Runs(), ElementsAre("young"));
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_THAT(lines_[0], HasSubstr("removed run 'old': last written 2 d 0 h ago, limit 2 d 0 h"));
  EXPECT_EQ(retention_->status().runs_removed, 1u);
  TickAfter(kDay);
  EXPECT_THAT(Runs(), IsEmpty());
}

TEST_F(RetentionTest, LooksOnceAMinute) {
  Add("old");
  Make({.age_max = kDay}).Tick();
  TickAfter(seconds(59));
  EXPECT_THAT(Runs(), ElementsAre("old"));
  TickAfter(seconds(1));
  EXPECT_THAT(Runs(), IsEmpty());
}

TEST_F(RetentionTest, NeverTouchesARunThatIsKeptOrHasAnOpenStream) {
  Add("kept");
  Add("streaming");
  Add("old");
  Add("young");
  ASSERT_TRUE(store_.KeepRun("kept", true).ok());
  OpenStreamOf("streaming");
  Make({.age_max = kDay + hours(1), .disk_bytes_max = 1}).Tick();
  EXPECT_THAT(Runs(), UnorderedElementsAre("kept", "streaming", "young"));
  EXPECT_THAT(retention_->status().kept, ElementsAre("kept"));
  ASSERT_TRUE(store_.KeepRun("kept", false).ok());
  TickAfter(minutes(1));
  EXPECT_THAT(Runs(), UnorderedElementsAre("streaming", "young"));
}

TEST_F(RetentionTest, WaitsForAnHourOfSilenceOfAnUnfinishedRun) {
  Add("interrupted", 2 * kGiB, /*finished=*/false);
  clock_.Advance(-kDay);
  Make({.disk_bytes_max = kGiB}).Tick();
  TickAfter(minutes(59));
  EXPECT_THAT(Runs(), ElementsAre("interrupted")) << "its agent may come back";
  EXPECT_THAT(retention_->status().note, HasSubstr("unfinished and recent"));
  TickAfter(minutes(2));
  EXPECT_THAT(Runs(), IsEmpty());
  EXPECT_THAT(retention_->status().note, "");
}

TEST_F(RetentionTest, RemovesTheOldestUntilTheRunsFit) {
  Add("a", 4 * kGiB);
  Add("b", 4 * kGiB);
  Add("c", 4 * kGiB);
  Add("d", 4 * kGiB);
  Make({.disk_bytes_max = 9 * kGiB}).Tick();
  EXPECT_THAT(Runs(), ElementsAre("c", "d"));
  EXPECT_EQ(retention_->status().runs_removed, 2u);
  EXPECT_EQ(retention_->status().bytes_removed, 8 * kGiB);
  EXPECT_THAT(lines_[0], HasSubstr("removed run 'a': runs hold 16384 MiB, limit 9216 MiB"));
}

TEST_F(RetentionTest, APercentageIsOfTheDisksCapacity) {
  store_.SetCapacity(10 * kGiB + 1000);
  Add("a", 4 * kGiB);
  Add("b", 4 * kGiB);
  Make({.disk_percent_max = 80}).Tick();
  EXPECT_THAT(Runs(), ElementsAre("a", "b")) << "8 of 10 GiB, rounded";
  EXPECT_NEAR(static_cast<double>(retention_->status().disk_bytes_max), 8.0 * kGiB, 1000);
  Add("c", kGiB);
  TickAfter(minutes(1));
  EXPECT_THAT(Runs(), ElementsAre("b", "c"));
}

TEST_F(RetentionTest, DoesNotRemoveMoreBecauseSpaceComesBackSlowly) {
  store_.SetFreedAtOnce(0);
  for (const char* name : {"a", "b", "c", "d"}) Add(name, 4 * kGiB);
  Make({.disk_bytes_max = 12 * kGiB}).Tick();
  EXPECT_THAT(Runs(), ElementsAre("b", "c", "d")) << "the files are still 16 GiB";
  TickAfter(minutes(5));
  EXPECT_THAT(Runs(), ElementsAre("b", "c", "d"));
  TickAfter(
      minutes(5));  // settled, and the files are still too large: one more, and no more than one
  TickAfter(minutes(1));
  EXPECT_THAT(Runs(), ElementsAre("c", "d"));
  TickAfter(minutes(1));
  EXPECT_THAT(Runs(), ElementsAre("c", "d"));
}

TEST_F(RetentionTest, DoesNotRemoveMoreWhileDataIsBeingDeleted) {
  Add("a", 4 * kGiB);
  Add("b", 4 * kGiB);
  Add("c", 4 * kGiB);
  store_.BlockPurges();
  Make({.disk_bytes_max = 9 * kGiB}).Tick();
  EXPECT_THAT(Runs(), ElementsAre("b", "c"));
  TickAfter(Retention::kSettle + minutes(1));
  TickAfter(Retention::kSettle + minutes(1));
  EXPECT_THAT(Runs(), ElementsAre("b", "c")) << "the space of what was removed is still to come";
  store_.ReleasePurges();
  ASSERT_TRUE(store_.PurgeRetired([] { return false; }).ok());
  TickAfter(Retention::kSettle + minutes(1));
  EXPECT_THAT(Runs(), ElementsAre("b", "c"));
}

TEST_F(RetentionTest, SaysSoOnceWhenNothingMayBeRemoved) {
  Add("kept", 4 * kGiB);
  ASSERT_TRUE(store_.KeepRun("kept", true).ok());
  Make({.disk_bytes_max = kGiB}).Tick();
  TickAfter(minutes(1));
  TickAfter(minutes(1));
  EXPECT_THAT(Runs(), ElementsAre("kept"));
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_THAT(lines_[0], HasSubstr("larger than 1024 MiB"));
}

TEST_F(RetentionTest, ClockThatJumpsAheadByYearsRemovesNothingForADay) {
  Add("a");
  Add("b");
  Make({.age_max = 30 * kDay}).Tick();
  clock_.JumpWall(10 * 365 * kDay);
  TickAfter(minutes(1));
  EXPECT_THAT(Runs(), ElementsAre("a", "b"));
  EXPECT_THAT(retention_->status().note, HasSubstr("the wall clock moved forward by 3650 d"));
  TickAfter(hours(23));
  clock_.JumpWall(-10 * 365 * kDay);  // repaired
  TickAfter(minutes(1));
  TickAfter(2 * kDay);
  EXPECT_THAT(Runs(), ElementsAre("a", "b"));
  EXPECT_EQ(retention_->status().note, "");
  EXPECT_EQ(lines_.size(), 1u) << "one line, not one a minute";
}

TEST_F(RetentionTest, ClockThatIsYearsAheadAtTheStartRemovesNothingForADay) {
  Add("a");
  clock_.JumpWall(10 * 365 * kDay);
  Make({.age_max = 30 * kDay}).Tick();
  EXPECT_THAT(Runs(), ElementsAre("a"));
  EXPECT_THAT(retention_->status().note, HasSubstr("the newest write is 3651 d 0 h old"));
  const auto next = retention_->status().next;
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].due_unix_nanos, clock_.UnixNanos() + std::chrono::nanoseconds(kDay).count());
  TickAfter(hours(25));  // nobody repaired it: it is believed
  EXPECT_THAT(Runs(), IsEmpty());
}

TEST_F(RetentionTest, ClockThatJumpsBackRemovesNothing) {
  Add("a");
  Make({.age_max = 30 * kDay}).Tick();
  clock_.JumpWall(-5 * 365 * kDay);
  TickAfter(minutes(1));
  TickAfter(31 * kDay);
  EXPECT_THAT(Runs(), ElementsAre("a"));
}

TEST_F(RetentionTest, TellsWhatGoesNextAndWhen) {
  Add("a", kGiB);
  Add("b", kGiB);
  Add("kept", kGiB);
  Add("streaming", kGiB);
  ASSERT_TRUE(store_.KeepRun("kept", true).ok());
  OpenStreamOf("streaming");
  Make({.age_max = 30 * kDay, .next_max = 1}).Tick();
  const RetentionStatus status = retention_->status();
  EXPECT_EQ(status.age_seconds_max, std::chrono::seconds(30 * kDay).count());
  ASSERT_EQ(status.next.size(), 1u);
  EXPECT_EQ(status.next[0].run, "a");
  EXPECT_EQ(status.next[0].bytes, kGiB);
  EXPECT_EQ(status.next[0].due_unix_nanos,
            status.next[0].last_write_unix_nanos + std::chrono::nanoseconds(30 * kDay).count());
  Make({.disk_bytes_max = 100 * kGiB}).Tick();
  EXPECT_EQ(retention_->status().next.size(), 2u);
  EXPECT_EQ(retention_->status().next[1].due_unix_nanos, 0);
}

TEST_F(RetentionTest, LeavesARunThatWasWrittenSinceTheLook) {
  const AttemptId id = Add("a");
  const std::int64_t seen = store_.Ranks(id)->at(0).last_write_unix_nanos;
  RankMeta meta = store_.Ranks(id)->at(0);
  meta.last_write_unix_nanos = seen + 1;
  ASSERT_TRUE(store_.PutRank(id, 0, meta).ok());
  EXPECT_EQ(registry_.DeleteRun("a", false, seen).status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(Runs(), ElementsAre("a"));
  EXPECT_TRUE(registry_.DeleteRun("a", false, seen + 1).ok());
}

}  // namespace
}  // namespace statcollect
