// Collectors whose clocks are hours apart, over one ClickHouse: leases, fencing and retention as
// with right clocks.
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/ingest/retention.h"
#include "server/store/clickhouse/clickhouse_store.h"
#include "server/store/shared_clock.h"
#include "tests/server/store/step_batch.h"
#include "tests/server/store/store_contents.h"
#include "tests/support/append_batch.h"
#include "tests/support/clickhouse_server.h"

namespace statcollect {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Right, but for so much.
class ShiftedClock final : public Clock {
 public:
  explicit ShiftedClock(std::chrono::nanoseconds by) : by_(by) {}
  std::chrono::steady_clock::time_point Now() const override { return real_.Now(); }
  std::int64_t UnixNanos() const override { return real_.UnixNanos() + by_.count(); }
  void Shift(std::chrono::nanoseconds by) { by_ = by; }

 private:
  const SystemClock real_;
  std::chrono::nanoseconds by_;
};

std::chrono::nanoseconds ErrorOf(const Clock& clock) {
  return std::chrono::nanoseconds(std::abs(clock.UnixNanos() - SystemClock().UnixNanos()));
}

struct SilentStream final : OpenStream {
  void EndStream(const Status& why) override { end = why; }
  void RecordSteps(const std::string&) override {}
  void Capture(const CaptureRequest&) override {}
  void RecordFull(const FullSteps&) override {}
  Status end;
};

// The parts of a collector that know the time.
struct SkewedCollector {
  SkewedCollector(const std::string& dsn, std::chrono::nanoseconds skew)
      : store(*OpenClickHouseStore(dsn)),
        own(skew),
        clock(*store, own, [this](const std::string& line) { lines.push_back(line); }),
        committer(*store, clock, {}),
        registry(*store, clock, committer) {}

  Result<Admission> Hello(const std::string& run, std::uint8_t session, const std::string& launch) {
    SessionInfo info;
    info.run = run;
    info.session = SessionId{session};
    info.launch = launch;
    info.world_size = 1;
    info.if_exists = IfExists::kAppend;
    return registry.Open(info, std::make_shared<SilentStream>());
  }
  // One batch, as ingest writes it.
  Status Write(const Admission& admission, const RecordBatch& batch, bool finished = false) {
    RankMeta meta = admission.meta;
    meta.durable_seq = batch.last_seq();
    meta.last_write_unix_nanos = clock.UnixNanos();
    meta.finished = finished;
    const Status appended = AppendBatch(*store, admission.attempt.id, 0, batch, meta);
    (void)store->Recover();
    return appended;
  }
  // The runs that are left after retention has looked, with a limit of four hours.
  std::vector<std::string> Retained(const Clock& by) {
    Retention retention(*store, by, registry, {.age_max = hours(4)}, [](const std::string&) {});
    retention.Tick();
    return *store->ListRuns();
  }

  std::vector<std::string> lines;
  std::unique_ptr<Store> store;
  ShiftedClock own;
  SharedClock clock;
  Committer committer;
  SessionRegistry registry;
};

class ClockSkew : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::ClickHouseServer::Program().empty())
      GTEST_SKIP() << "clickhouse-server is not installed; scripts/setup.sh installs it";
    ASSERT_TRUE(server_.Start()) << "see " << server_.log_path();
  }

  testing::ClickHouseServer server_{CLICKHOUSE_CONFIG};
};

TEST_F(ClockSkew, TheEnginesClockCounts) {
  const auto store = *OpenClickHouseStore(server_.Dsn("clock"));
  std::vector<std::string> lines;
  const auto log = [&](const std::string& line) { lines.push_back(line); };
  {
    const ShiftedClock right(std::chrono::milliseconds(300));
    const SharedClock clock(*store, right, log);
    EXPECT_NEAR(double(clock.UnixNanos()), double(right.UnixNanos()), 1e8)
        << "finer than the engine's";
    EXPECT_THAT(lines, IsEmpty());
  }
  for (const hours skew : {hours(5), hours(-7)}) {
    lines.clear();
    ShiftedClock own(skew);
    const SharedClock clock(*store, own, log);
    EXPECT_LT(ErrorOf(clock), seconds(3));
    EXPECT_THAT(lines, ElementsAre(AllOf(HasSubstr(skew > hours(0) ? "ahead of" : "behind"),
                                         HasSubstr("set this clock"))));
    own.Shift(3 * skew);
    EXPECT_LT(ErrorOf(clock), seconds(3)) << "a step of the own clock changes nothing";
  }
  server_.Kill();
  const ShiftedClock own(hours(1));
  const SharedClock alone(*store, own, log);
  EXPECT_NEAR(double(alone.UnixNanos()), double(own.UnixNanos()), 1e9)
      << "while the engine does not answer";
}

TEST_F(ClockSkew, RetentionTakesNoFreshRunForAnOldOne) {
  SkewedCollector behind(server_.Dsn("kept"), hours(-6)), ahead(server_.Dsn("kept"), hours(6));
  const auto run = behind.Hello("fresh", 1, "a");
  ASSERT_TRUE(run.ok()) << run.status().message();
  ASSERT_TRUE(behind.Write(*run, MakeBatch(1, 0, 0, 3), /*finished=*/true).ok());
  EXPECT_THAT(ahead.Retained(ahead.clock), ElementsAre("fresh"));
  EXPECT_THAT(behind.Retained(behind.clock), ElementsAre("fresh"));
  EXPECT_THAT(ahead.Retained(ahead.own), IsEmpty()) << "by its own clock it would have been";
}

TEST_F(ClockSkew, AStreamThatMovesIsFencedAndContinuedWhateverTheClocksSay) {
  for (const hours skew : {hours(9), hours(-9)}) {
    const std::string dsn = server_.Dsn("fence" + std::to_string(skew.count() + 9));
    SkewedCollector first(dsn, skew), second(dsn, -skew);
    const auto began = first.Hello("base", 1, "a");
    ASSERT_TRUE(began.ok()) << began.status().message();
    ASSERT_TRUE(first.Write(*began, MakeBatch(1, 0, 0, 3)).ok());
    const auto moved = second.Hello("base", 1, "a");
    ASSERT_TRUE(moved.ok()) << moved.status().message();
    EXPECT_TRUE(moved->resumed);
    EXPECT_EQ(moved->meta.durable_seq, 6u);
    EXPECT_EQ(first.Write(*began, MakeBatch(7, 1, 0, 3)).code(), Code::kAborted)
        << "it was taken over";
    ASSERT_TRUE(second.Write(*moved, MakeBatch(7, 1, 0, 3)).ok());
    EXPECT_EQ(Scan(*first.store, began->attempt.id, 0).size(), 6u);
    // Later launches come later.
    const auto next = second.Hello("base", 2, "b"), last = first.Hello("base", 3, "c");
    ASSERT_TRUE(next.ok() && last.ok());
    EXPECT_EQ(next->attempt.number, 2u);
    EXPECT_EQ(last->attempt.number, 3u);
    EXPECT_EQ(second.store->Attempts("base")->back().launch, "c");
    EXPECT_FALSE(second.Hello("base", 1, "a").ok()) << "fenced by the newer launches";
    EXPECT_LT(std::abs(last->attempt.start_unix_nanos - next->attempt.start_unix_nanos),
              5'000'000'000);
  }
}

}  // namespace
}  // namespace statcollect
