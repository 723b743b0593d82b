// Steps at the ends of their type: every query ends, and finds what is there.
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
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
#include "server/query/answers/propose_map.h"
#include "server/query/answers/runs.h"
#include "server/query/answers/scalars.h"
#include "server/query/answers/series.h"
#include "server/query/answers/stat_map.h"
#include "server/query/answers/top.h"
#include "server/query/query.h"
#include "server/query/records/records_reader.h"
#include "server/store/newest_step.h"
#include "tests/server/query/ask.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using statcollect::testing::Ask;
using statcollect::testing::FakeStore;
using statcollect::testing::Key;
using statcollect::testing::RunWriter;
using statcollect::testing::StatsOf;
using statcollect::testing::Tensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kLast = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kLastOfAnAgent = std::numeric_limits<std::int64_t>::max();

const Tensor kTensor{.values = {1, 2, 3}};

// A tensor of four elements, of which each of two ranks has half.
void ObserveHalf(RunWriter& writer, std::uint32_t rank, std::uint64_t step) {
  const Tensor half{.values = {1.0 + rank, 2}};
  Layout layout{.dtype = DType::kF32, .shape = {2}};
  layout.placement = Placement{.global_shape = {4}, .boxes = {2 * std::int64_t{rank}, 2}};
  writer.Record(rank, step, Key("x"), layout, StatsOf(half), testing::SketchOf(half, 16));
}

struct EveryQuery {
  const char* name;
  std::function<Status(const QueryEngine&, const std::string& steps)> ask;
};

const std::vector<EveryQuery>& EveryQueryOfSteps() {
  static const std::vector<EveryQuery> all = {
      {"runs", [](auto& e, auto&) { return Ask(e, ListRuns, {}).status(); }},
      {"show", [](auto& e, auto&) { return Ask(e, GetRun, "a").status(); }},
      {"losses",
       [](auto& e, auto&) {
         return Ask(e, ListLosses, {.runs = {"a", "b"}}).status();
       }},
      {"scalars",
       [](auto& e, auto& steps) {
         return Ask(e, ListScalars, {.run = "a", .steps = steps}).status();
       }},
      {"grad_norm",
       [](auto& e, auto& steps) {
         return Ask(e, ListScalars, {.run = "a", .name = "grad_norm", .steps = steps}).status();
       }},
      {"memory",
       [](auto& e, auto& steps) {
         return Ask(e, ListMemory, {.run = "a", .steps = steps}).status();
       }},
      {"density",
       [](auto& e, auto& steps) {
         return Ask(e, ListDensity, {.run = "a", .steps = steps}).status();
       }},
      {"events",
       [](auto& e, auto&) {
         return Ask(e, ListEvents, {.run = "a", .since_step = kLast}).status();
       }},
      {"exponents",
       [](auto& e, auto& steps) {
         return Ask(e, ListExponents, {.of = {.run = "a", .steps = steps}}).status();
       }},
      {"captures",
       [](auto& e, auto& steps) {
         return Ask(e, ListCaptures, {.run = "a", .steps = steps}).status();
       }},
      {"series",
       [](auto& e, auto& steps) {
         return Ask(e, GetSeries, {.run = "a", .activation = "x", .steps = steps}).status();
       }},
      {"curves",
       [](auto& e, auto& steps) {
         return Ask(e, GetCurves, {.series = {.run = "a", .activation = "x", .steps = steps}})
             .status();
       }},
      {"top", [](auto& e, auto&) { return Ask(e, GetTop, {.run = "a"}).status(); }},
      {"top by rank",
       [](auto& e, auto&) { return Ask(e, GetTop, {.run = "a", .by_rank = true}).status(); }},
      {"map",
       [](auto& e, auto& steps) {
         return Ask(e, GetStatMap, {.run = "a", .steps = steps}).status();
       }},
      {"movements",
       [](auto& e, auto& steps) {
         return Ask(e, GetStatMap, {.run = "a", .by = TopBy::kUpdateRatio, .steps = steps})
             .status();
       }},
      {"diff",
       [](auto& e, auto& steps) {
         return e.Diff({.run_a = "a", .run_b = "b", .steps = steps, .heat_map_columns = 8})
             .status();
       }},
      {"diff by rank",
       [](auto& e, auto& steps) {
         return e.Diff({.run_a = "a", .run_b = "b", .steps = steps, .by_rank = true}).status();
       }},
      {"noise",
       [](auto& e, auto&) { return e.SaveNoise({.run = "a", .repeats = {"b"}}).status(); }},
      {"propose",
       [](auto& e, auto&) { return Ask(e, ProposeMap, {.run_a = "a", .run_b = "b"}).status(); }},
      {"config",
       [](auto& e, auto&) { return Ask(e, CompareConfig, {.run_a = "a", .run_b = "b"}).status(); }},
      {"ranks",
       [](auto& e, auto& steps) { return e.CheckRanks({.run = "a", .steps = steps}).status(); }},
      {"records",
       [](auto& e, auto& steps) {
         return e.Stream([&](const Context& in) {
           return ReadRecords(
               in.store, {.run = "a", .steps = steps, .whole = true},
               [](const RecordsPart&) { return Status::Ok(); }, in.stop);
         });
       }},
  };
  return all;
}

// Answers may say that there is nothing; what counts is that they come.
void ExpectAnswers(const FakeStore& store, const QueryEngine& engine) {
  for (const std::string steps :
       {"", "9223372036854775807", "18446744073709551615", "18446744073709551614-",
        "0-18446744073709551615", "9223372036854775807-9223372036854775808",
        "every=18446744073709551615"}) {
    for (const EveryQuery& query : EveryQueryOfSteps()) {
      const Status status = query.ask(engine, steps);
      EXPECT_TRUE(status.ok() || status.code() == Code::kNotFound)
          << query.name << " --steps " << steps << ": " << status.message();
    }
  }
  EXPECT_EQ(store.violation(), "");
}

class ExtremesTest : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  FakeStore store_;
};

TEST_P(ExtremesTest, AScalarFarBehindTheStatisticsHoldsNoQueryUp) {
  for (const std::string run : {"a", "b"}) {
    RunWriter writer(store_, run);
    for (const std::uint64_t step : {0, 1, 2}) writer.Observe(0, step, Key("x"), kTensor);
    writer.Scalar(0, GetParam(), "loss", 0.5).Commit();
  }
  const QueryEngine engine(store_);
  ExpectAnswers(store_, engine);
  const auto top = Ask(engine, GetTop, {.run = "a"});
  ASSERT_TRUE(top.ok()) << top.status().message();
  EXPECT_EQ(top->step(), 2u) << "the newest step with statistics";
  const auto scalars = Ask(engine, ListScalars, {.run = "a"});
  ASSERT_EQ(scalars->records_size(), 1);
  EXPECT_EQ(scalars->records(0).step(), GetParam());
}

TEST_P(ExtremesTest, NorInARunThatIsCutOverRanks) {
  for (const std::string run : {"a", "b"}) {
    RunWriter writer(store_, run, 2);
    for (const std::uint32_t rank : {0u, 1u}) {
      ObserveHalf(writer, rank, 0);
      ObserveHalf(writer, rank, 7);
      writer.Scalar(rank, GetParam(), "loss", 0.5);
    }
    writer.Commit();
  }
  const QueryEngine engine(store_);
  ExpectAnswers(store_, engine);
  const auto top = Ask(engine, GetTop, {.run = "a"});
  ASSERT_TRUE(top.ok()) << top.status().message();
  EXPECT_EQ(top->step(), 7u);
}

TEST_P(ExtremesTest, StatisticsOfTheLastStepsAreFound) {
  for (const std::string run : {"a", "b"}) {
    for (int launch = 0; launch < 2; ++launch) {
      RunWriter writer(store_, run);
      for (const std::uint64_t step : {GetParam() - 1, GetParam()}) {
        writer.Observe(0, step, Key("x"), kTensor)
            .Observe(0, step, Key("w", Kind::kWeight), kTensor)
            .Scalar(0, step, "loss", 0.5)
            .Memory(0, {.step = step, .phase = MemoryPhase::kPostForward})
            .Density(0, {.step = step, .input = "ids", .valid = 1, .total = 2})
            .Exponents(0, step, Key("x"), kTensor, 0, {3})
            .Event(0, step, "setting_changed", "",
                   {{"key", "optimizer.group0.lr"}, {"from", "1"}, {"to", "2"}});
      }
      writer.Commit();
    }
  }
  const QueryEngine engine(store_);
  ExpectAnswers(store_, engine);
  EXPECT_EQ(Ask(engine, GetTop, {.run = "a"})->step(), GetParam());
  const auto series = Ask(engine, GetSeries, {.run = "a", .activation = "x"});
  ASSERT_TRUE(series.ok()) << series.status().message();
  ASSERT_EQ(series->records_size(), 2);
  EXPECT_EQ(series->records(1).step(), GetParam());
  const auto diff = engine.Diff({.run_a = "a", .run_b = "b"});
  ASSERT_TRUE(diff.ok()) << diff.status().message();
  EXPECT_EQ(diff->verdict, Verdict::kIdentical);
  EXPECT_EQ(diff->compared.records, 6u);
}

INSTANTIATE_TEST_SUITE_P(Ends, ExtremesTest,
                         ::testing::Values(std::uint64_t{1} << 40, kLastOfAnAgent,
                                           kLastOfAnAgent + 1, kLast - 1, kLast));

// As a copied rank may have them, whose tallies are its sender's.
TEST(Extremes, TalliesThatClaimAllStepsAreCountedOnlyUntilTheClientHasLeft) {
  FakeStore store;
  for (const std::string run : {"a", "b"}) {
    RunWriter writer(store, run);
    writer.Observe(0, 0, Key("x"), kTensor);
    const AttemptId id = writer.Commit();
    RankMeta meta = store.Ranks(id)->at(0);
    meta.stat_records = meta.records = meta.steps = kLastOfAnAgent;
    meta.last_step = kLastOfAnAgent - 1;
    ASSERT_TRUE(store.PutRank(id, 0, meta).ok());
  }
  const QueryEngine engine(store);
  std::stop_source stop;
  std::jthread leaving([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    stop.request_stop();
  });
  const auto began = std::chrono::steady_clock::now();
  const Status status = engine.Diff({.run_a = "a", .run_b = "b"}, {}, stop.get_token()).status();
  EXPECT_EQ(status.code(), Code::kCancelled) << status.message();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  const auto few = Ask(engine, GetStatMap, {.run = "a", .steps = "every=4611686018427387904"});
  ASSERT_TRUE(few.ok()) << few.status().message();
  EXPECT_EQ(few->steps(), 2u) << "0 and 2^62: steps that are not asked for are not walked through";
}

TEST(NewestStep, IsFoundWithFewQuestionsWhereverItIs) {
  const std::vector<std::set<std::uint64_t>> worlds = {{},
                                                       {0},
                                                       {1},
                                                       {kLast},
                                                       {0, kLast},
                                                       {kLast - 1},
                                                       {0, 1, 2, 3, 1000},
                                                       {1 << 20},
                                                       {kLast / 2, 7},
                                                       {5, kLast / 2 + 1},
                                                       {kLastOfAnAgent}};
  for (const auto& steps : worlds) {
    for (const std::uint64_t last : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4},
                                     std::uint64_t{1000}, kLastOfAnAgent, kLast - 1, kLast}) {
      int asked = 0;
      const auto found =
          NewestStep(last, [&](StepBounds bounds) -> Result<std::optional<std::uint64_t>> {
            ++asked;
            EXPECT_LE(bounds.first, bounds.last);
            EXPECT_LE(bounds.last, last);
            const auto first = steps.lower_bound(bounds.first);
            return first != steps.end() && *first <= bounds.last ? std::optional(*first)
                                                                 : std::nullopt;
          });
      std::optional<std::uint64_t> expected;
      for (const std::uint64_t step : steps) {
        if (step <= last) expected = step;
      }
      ASSERT_TRUE(found.ok());
      EXPECT_EQ(*found, expected) << "up to " << last;
      EXPECT_LE(asked, 130);
      if (steps.contains(last)) {
        EXPECT_EQ(asked, 1);
      }
    }
  }
}

}  // namespace
}  // namespace statcollect::query
