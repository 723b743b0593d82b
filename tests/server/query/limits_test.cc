// Queries that are cancelled, that read too much, or that have too many rows: they end while they
// read.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/query/answers/captures.h"
#include "server/query/answers/config.h"
#include "server/query/answers/curves.h"
#include "server/query/answers/density.h"
#include "server/query/answers/events.h"
#include "server/query/answers/exponents.h"
#include "server/query/answers/losses.h"
#include "server/query/answers/memory.h"
#include "server/query/answers/noise.h"
#include "server/query/answers/propose_map.h"
#include "server/query/answers/runs.h"
#include "server/query/answers/scalars.h"
#include "server/query/answers/series.h"
#include "server/query/answers/stat_map.h"
#include "server/query/answers/top.h"
#include "server/query/captures/captures.h"
#include "server/query/query.h"
#include "server/query/records/records_reader.h"
#include "tests/server/query/ask.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/append_batch.h"
#include "tests/support/fake_store.h"
#include "tests/support/forwarding_store.h"

namespace statcollect::query {
namespace {

using statcollect::testing::Ask;
using statcollect::testing::FakeStore;
using statcollect::testing::Key;
using statcollect::testing::RunWriter;
using statcollect::testing::Tensor;
using ::testing::HasSubstr;

constexpr std::uint64_t kSteps = 400;
constexpr std::uint64_t kReadsWhenStopped = 50;

struct Query {
  friend void PrintTo(const Query& query, std::ostream* out) { *out << query.name; }
  std::string name;
  std::function<Status(const QueryEngine&, const std::stop_token&)> ask;
};

const std::vector<Query>& Queries() {
  static const std::vector<Query> all = {
      {"Scalars",
       [](auto& e, auto& stop) { return Ask(e, ListScalars, {.run = "a"}, stop).status(); }},
      {"Memory",
       [](auto& e, auto& stop) { return Ask(e, ListMemory, {.run = "a"}, stop).status(); }},
      {"Density",
       [](auto& e, auto& stop) { return Ask(e, ListDensity, {.run = "a"}, stop).status(); }},
      {"Events",
       [](auto& e, auto& stop) { return Ask(e, ListEvents, {.run = "a"}, stop).status(); }},
      {"Exponents",
       [](auto& e, auto& stop) {
         return Ask(e, ListExponents, {.of = {.run = "a"}}, stop).status();
       }},
      {"Show", [](auto& e, auto& stop) { return Ask(e, GetRun, "a", stop).status(); }},
      {"Series",
       [](auto& e, auto& stop) {
         return Ask(e, GetSeries, {.run = "a", .activation = "x"}, stop).status();
       }},
      {"Top", [](auto& e,
                 auto& stop) { return Ask(e, GetTop, {.run = "wide", .step = 0}, stop).status(); }},
      {"Ranks", [](auto& e, auto& stop) { return e.CheckRanks({.run = "a"}, {}, stop).status(); }},
      {"Diff",
       [](auto& e, auto& stop) { return e.Diff({.run_a = "a", .run_b = "b"}, {}, stop).status(); }},
      {"Noise",
       [](auto& e, auto& stop) {
         return e.SaveNoise({.run = "a", .repeats = {"b"}}, {}, stop).status();
       }},
      {"ProposeMap",
       [](auto& e, auto& stop) {
         return Ask(e, ProposeMap, {.run_a = "wide", .run_b = "wide too"}, stop).status();
       }},
      {"Curves",
       [](auto& e, auto& stop) {
         return Ask(e, GetCurves, {.series = {.run = "a", .activation = "x"}}, stop).status();
       }},
      {"StatMap",
       [](auto& e, auto& stop) { return Ask(e, GetStatMap, {.run = "a"}, stop).status(); }},
      {"LossMap",
       [](auto& e, auto& stop) {
         return Ask(e, GetStatMap, {.run = "a", .by = TopBy::kExponentLoss}, stop).status();
       }},
      {"Records",
       [](auto& e, auto& stop) {
         const auto take = [](const RecordsPart&) { return Status::Ok(); };
         return e.Stream(
             [&](const Context& in) { return ReadRecords(in.store, {.run = "a"}, take, in.stop); },
             stop);
       }},
  };
  return all;
}

// These read little, whatever the run's length.
const std::vector<Query>& ShortQueries() {
  static const std::vector<Query> all = {
      {"Projects", [](auto& e, auto& stop) { return e.ListProjects(stop).status(); }},
      {"Runs", [](auto& e, auto& stop) { return Ask(e, ListRuns, {}, stop).status(); }},
      {"Summary", [](auto& e, auto& stop) { return e.Summary("a", stop).status(); }},
      {"Losses",
       [](auto& e, auto& stop) { return Ask(e, ListLosses, {.runs = {"a"}}, stop).status(); }},
      {"Captures",
       [](auto& e, auto& stop) { return Ask(e, ListCaptures, {.run = "a"}, stop).status(); }},
      {"Capture",
       [](auto& e, auto& stop) {
         const auto take = [](const auto&) { return Status::Ok(); };
         return e.Stream(
             [&](const Context& in) {
               return ReadCapture(in.store, {.run = "a", .activation = "x"}, take, take, in.stop);
             },
             stop);
       }},
      {"CanBeCaptured",
       [](auto& e, auto& stop) {
         return e.Stream(
             [](const Context& in) {
               return CheckCanBeCaptured(in.store, "a", *CaptureSpec::Parse("x@3"));
             },
             stop);
       }},
      {"GetNoise", [](auto& e, auto& stop) { return Ask(e, GetNoise, "a", stop).status(); }},
      {"DeleteNoise", [](auto& e, auto& stop) { return Ask(e, DeleteNoise, "a", stop).status(); }},
      {"Config",
       [](auto& e, auto& stop) { return Ask(e, CompareConfig, {.run_a = "a"}, stop).status(); }},
  };
  return all;
}

// Counts every call that a query may make.
class CountingStore final : public testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  int calls() const { return calls_; }

  Result<std::vector<std::string>> ListRuns() override { return Count().ListRuns(); }
  Result<std::vector<AttemptMeta>> Attempts(const std::string& run) override {
    return Count().Attempts(run);
  }
  Result<std::map<std::uint32_t, RankMeta>> Ranks(AttemptId attempt) override {
    return Count().Ranks(attempt);
  }
  Result<SharedDefinitions> Definitions(AttemptId attempt, std::uint32_t rank) override {
    return Count().Definitions(attempt, rank);
  }
  Result<std::optional<std::string>> Document(const std::string& run,
                                              const std::string& name) override {
    return Count().Document(run, name);
  }

 private:
  Store& Count() {
    ++calls_;
    return store_;
  }
  int calls_ = 0;
};

class LimitsTest : public ::testing::TestWithParam<Query> {
 protected:
  LimitsTest() {
    for (const std::string run : {"a", "b"}) {
      RunWriter writer(store_, run);
      for (std::uint64_t step = 0; step < kSteps; ++step) {
        const Tensor tensor{.values = {1, 2, static_cast<double>(step)}};
        writer.Observe(0, step, Key("x"), tensor)
            .Scalar(0, step, "loss", 0.5)
            .Memory(0, {.step = step, .phase = MemoryPhase::kPostForward})
            .Density(0, {.step = step, .input = "ids", .valid = 4, .total = 8})
            .Exponents(0, step, Key("x"), tensor, 0, {3})
            .Event(0, step, "note");
      }
      writer.Commit();
    }
    for (const std::string run : {"wide", "wide too"}) {
      RunWriter wide(store_, run);
      for (std::uint64_t i = 0; i < kSteps; ++i)
        wide.Observe(0, 0, Key("x" + std::to_string(i)),
                     Tensor{.values = {1, static_cast<double>(i)}});
      wide.Commit();
    }
  }

  FakeStore store_;
};

TEST_P(LimitsTest, ACancelledQueryReadsNoFurther) {
  std::stop_source stop;
  store_.OnRead([&](std::uint64_t reads) {
    if (reads == kReadsWhenStopped) stop.request_stop();
  });
  const Status status = GetParam().ask(QueryEngine(store_), stop.get_token());
  EXPECT_EQ(status.code(), Code::kCancelled) << status.message();
  EXPECT_LE(store_.reads(), kReadsWhenStopped + 2 * 4)
      << "each of its threads: what it was reading";
}

TEST_P(LimitsTest, AQueryThatIsNotCancelledReadsOn) {
  const Status status = GetParam().ask(QueryEngine(store_), {});
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_GT(store_.reads(), kReadsWhenStopped + 2 * 4) << "the test above would show nothing";
}

TEST_P(LimitsTest, AQueryThatReadsTooMuchEndsAndSaysWhatToDo) {
  const QueryEngine engine(store_, {}, {}, /*read_bytes_max=*/1000);
  const Status status = GetParam().ask(engine, {});
  if (GetParam().name == "Records") {
    EXPECT_TRUE(status.ok()) << "it streams, as fast as its reader reads: " << status.message();
    return;
  }
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.message();
  EXPECT_THAT(status.message(),
              HasSubstr("of records to read; expected no more than that for one query; "
                        "narrow it with --steps or --rank"));
  EXPECT_LT(store_.reads(), 200u);
}

INSTANTIATE_TEST_SUITE_P(All, LimitsTest, ::testing::ValuesIn(Queries()),
                         [](const auto& info) { return info.param.name; });

using StoppedBeforeTest = LimitsTest;

TEST_P(StoppedBeforeTest, AQueryWhoseClientHasLeftAsksTheStoreNothing) {
  std::stop_source stop;
  stop.request_stop();
  CountingStore counting(store_);
  const Status status = GetParam().ask(QueryEngine(counting), stop.get_token());
  EXPECT_EQ(status.code(), Code::kCancelled) << status.message();
  EXPECT_EQ(counting.calls(), 0);
  EXPECT_EQ(store_.reads(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Long, StoppedBeforeTest, ::testing::ValuesIn(Queries()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Short, StoppedBeforeTest, ::testing::ValuesIn(ShortQueries()),
                         [](const auto& info) { return info.param.name; });

TEST(RowLimits, RowsAreCountedWhileTheyAreRead) {
  FakeStore store;
  const AttemptId id = store.CreateAttempt({.run = "a", .world_size = 1})->id;
  RecordBatch batch;
  batch.first_seq = 1;
  for (std::uint64_t step = 0; step < kRowsMax + 300'000; ++step)
    batch.scalars.push_back({.name = step % 2 == 0 ? "loss" : "lr", .step = step, .value = 1});
  RankMeta meta;
  meta.durable_seq = meta.records = batch.last_seq();
  ASSERT_TRUE(AppendBatch(store, id, 0, batch, meta).ok());
  const QueryEngine engine(store);
  const Status all = Ask(engine, ListScalars, {.run = "a"}).status();
  EXPECT_EQ(all.code(), Code::kResourceExhausted);
  EXPECT_THAT(all.message(), HasSubstr("list scalars: more than 1000000 rows"));
  EXPECT_EQ(store.reads(), kRowsMax + 1) << "the first row too many is the last";
  const auto some = Ask(engine, ListScalars, {.run = "a", .name = "loss"});
  ASSERT_TRUE(some.ok()) << some.status().message();
  EXPECT_EQ(static_cast<std::uint64_t>(some->records_size()), (kRowsMax + 300'000) / 2)
      << "what is not asked for does not count";
}

// A step's rows are those of the newest launch that has records of the kind, whether or not they
// are asked for.
TEST(RowLimits, StepsOfSeveralLaunchesComeInOrderAndFromTheNewest) {
  FakeStore store;
  RunWriter first(store, "a"), second(store, "a");
  for (const std::uint64_t step : {1, 2, 3})
    first.Memory(0, {.step = step, .phase = MemoryPhase::kPostForward, .module = ""});
  first.Density(0, {.step = 2, .input = "ids", .valid = 1, .total = 1});
  first.Density(0, {.step = 5, .input = "ids", .valid = 1, .total = 2});
  second.Memory(0, {.step = 2, .phase = MemoryPhase::kPostForward, .module = "other"});
  second.Density(0, {.step = 5, .input = "mask", .valid = 1, .total = 3});
  first.Commit();
  second.Commit();
  const QueryEngine engine(store);
  const auto memory = Ask(engine, ListMemory, {.run = "a"});
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  ASSERT_EQ(memory->records_size(), 2);
  EXPECT_EQ(memory->records(0).step(), 1u);
  EXPECT_EQ(memory->records(1).step(), 3u)
      << "step 2 is the second launch's, which has only modules";
  const auto density = Ask(engine, ListDensity, {.run = "a"});
  ASSERT_EQ(density->records_size(), 2);
  EXPECT_EQ(density->records(0).step(), 2u);
  EXPECT_EQ(density->records(1).total(), 3u);
}

}  // namespace
}  // namespace statcollect::query
