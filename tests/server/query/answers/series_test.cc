#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/query/answers/density.h"
#include "server/query/answers/events.h"
#include "server/query/answers/memory.h"
#include "server/query/answers/scalars.h"
#include "server/query/answers/series.h"
#include "server/query/query.h"
#include "tests/server/query/ask.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using testing::Ask;
using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::HasSubstr;
using testing::Key;
using testing::RunWriter;
using testing::Tensor;

Tensor Value(double x) { return {.values = {x, -x}}; }

class SeriesTest : public ::testing::Test {
 protected:
  SeriesTest() : engine_(store_) {
    RunWriter old(store_, "r", 2), now(store_, "r", 2);
    for (std::uint64_t step = 0; step < 4; ++step) Write(old, step, 100);
    for (std::uint64_t step = 2; step < 6; ++step) Write(now, step, 1);
    old.Commit();
    now.Commit();
  }
  static void Write(RunWriter& run, std::uint64_t step, double scale) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      const double x = scale * static_cast<double>(1 + step + 10 * rank);
      run.Observe(rank, step, Key("h.0"), Value(x))
          .Observe(rank, step, Key("h.0", Kind::kGradOutput), Value(x / 2));
      run.Observe(rank, step, Key("h.1", Kind::kOutput, "1"), Value(x))
          .Observe(rank, step, Key("h.1", Kind::kOutput, "0"), Value(x));
      run.Scalar(rank, step, "loss", x).Scalar(rank, step, "lr", 0.1).Event(rank, step, "k", "t");
    }
  }
  std::vector<double> Maxima(const SeriesRequest& request) {
    auto points = Ask(engine_, GetSeries, request);
    EXPECT_TRUE(points.ok()) << points.status().message();
    std::vector<double> maxima;
    for (const v1::SeriesPoint& point : points->records()) maxima.push_back(point.stats().max());
    return maxima;
  }
  FakeStore store_;
  QueryEngine engine_;
};

TEST_F(SeriesTest, TakesEachStepFromTheNewestAttemptThatHasIt) {
  EXPECT_THAT(Maxima({.run = "r", .activation = "h.0", .kind = Kind::kOutput, .ranks = {0}}),
              ElementsAre(100, 200, 3, 4, 5, 6));
}

TEST_F(SeriesTest, IsOrderedByKindPathRankAndStep) {
  EXPECT_THAT(Maxima({.run = "r", .activation = "h.0", .steps = "4-5"}),
              ElementsAre(5, 6, 15, 16, 2.5, 3, 7.5, 8));
  auto points =
      Ask(engine_, GetSeries, {.run = "r", .activation = "h.1", .ranks = {1}, .steps = "5"});
  ASSERT_EQ(points->records_size(), 2);
  EXPECT_EQ(points->records(0).output_path(), "0");
  EXPECT_EQ(points->records(1).output_path(), "1");
  EXPECT_EQ(points->records(0).rank(), 1u);
  EXPECT_EQ(points->records(0).mode(), "train");
  EXPECT_EQ(points->records(0).stats().dtype(), "f32");
}

TEST_F(SeriesTest, OutputPathCanBeChosen) {
  EXPECT_THAT(
      Maxima({.run = "r", .activation = "h.1", .ranks = {0}, .steps = "5", .output_path = "1"}),
      ElementsAre(6));
}

// Long ones are read in parts.
TEST_F(SeriesTest, EachStepOfALongOneIsThereOnce) {
  const std::vector<std::uint64_t> steps = {
      0, 1, 16'383, 16'384, 16'385, 32'767, 32'768, 200'000, 262'144, std::uint64_t{1} << 40};
  RunWriter run(store_, "long", 2);
  for (const std::uint64_t step : steps) Write(run, step, 1);
  run.Commit();
  const auto steps_of = [&](const std::string& wanted) {
    auto points = Ask(
        engine_, GetSeries,
        {.run = "long", .activation = "h.0", .kind = Kind::kOutput, .ranks = {1}, .steps = wanted});
    std::vector<std::uint64_t> found;
    for (const v1::SeriesPoint& point : points->records()) found.push_back(point.step());
    return found;
  };
  EXPECT_EQ(steps_of(""), steps);
  EXPECT_THAT(steps_of("16384-262143"), ElementsAre(16'384, 16'385, 32'767, 32'768, 200'000));
  EXPECT_THAT(steps_of("5"), ElementsAre());
  EXPECT_THAT(steps_of("1099511627777"), ElementsAre());
}

TEST_F(SeriesTest, UnknownActivationIsNotFoundWithTheClosestNames) {
  const Status s = Ask(engine_, GetSeries, {.run = "r", .activation = "h0"}).status();
  EXPECT_EQ(s.code(), Code::kNotFound);
  EXPECT_THAT(s.message(), HasSubstr("closest of the 2 there are: h.0, h.1"));
}

TEST_F(SeriesTest, KnownActivationWithAnotherKindSaysSo) {
  const Status s =
      Ask(engine_, GetSeries, {.run = "r", .activation = "h.0", .kind = Kind::kWeight}).status();
  EXPECT_EQ(s.code(), Code::kNotFound);
  EXPECT_THAT(s.message(), HasSubstr("has records, but none of this kind"));
}

TEST_F(SeriesTest, StepsWithoutTheActivationGiveAnEmptySeries) {
  auto points = Ask(engine_, GetSeries, {.run = "r", .activation = "h.0", .steps = "50-"});
  ASSERT_TRUE(points.ok());
  EXPECT_TRUE(points->records().empty());
}

TEST_F(SeriesTest, ErrorsOfEveryQuery) {
  EXPECT_EQ(Ask(engine_, GetSeries, {.run = "q", .activation = "h.0"}).status().code(),
            Code::kNotFound);
  EXPECT_EQ(Ask(engine_, ListScalars, {.run = "q"}).status().code(), Code::kNotFound);
  EXPECT_EQ(Ask(engine_, ListEvents, {.run = "q"}).status().code(), Code::kNotFound);
  EXPECT_EQ(
      Ask(engine_, GetSeries, {.run = "r", .activation = "h.0", .steps = "x"}).status().code(),
      Code::kInvalidArgument);
  EXPECT_EQ(Ask(engine_, ListScalars, {.run = "r", .steps = "x"}).status().code(),
            Code::kInvalidArgument);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(
      Ask(engine_, GetSeries, {.run = "r", .activation = "h.0"}, stop.get_token()).status().code(),
      Code::kCancelled);
  EXPECT_EQ(Ask(engine_, ListScalars, {.run = "r"}, stop.get_token()).status().code(),
            Code::kCancelled);
  EXPECT_EQ(Ask(engine_, ListEvents, {.run = "r"}, stop.get_token()).status().code(),
            Code::kCancelled);
}

TEST_F(SeriesTest, ScalarsAreByNameRankAndStepOfTheNewestAttempt) {
  auto rows = Ask(engine_, ListScalars, {.run = "r", .name = "loss", .ranks = {1}, .steps = "1-3"});
  ASSERT_TRUE(rows.ok());
  std::vector<double> values;
  for (const v1::ScalarRow& row : rows->records()) values.push_back(row.value());
  EXPECT_THAT(values, ElementsAre(1200, 13, 14));
  rows = Ask(engine_, ListScalars, {.run = "r"});
  ASSERT_EQ(rows->records_size(), 2 * 2 * 6);
  EXPECT_EQ(rows->records(0).name(), "loss");
  EXPECT_EQ(rows->records(23).name(), "lr");
  EXPECT_EQ(rows->records(23).rank(), 1u);
}

TEST_F(SeriesTest, UnknownScalarIsNotFoundWithTheClosestNames) {
  const Status s = Ask(engine_, ListScalars, {.run = "r", .name = "los"}).status();
  EXPECT_EQ(s.code(), Code::kNotFound);
  EXPECT_THAT(s.message(), HasSubstr("loss, lr"));
}

TEST_F(SeriesTest, MemoryAndDensityAreByRankAndStepOfTheNewestAttempt) {
  RunWriter old(store_, "m", 2), now(store_, "m", 2);
  const auto write = [](RunWriter& run, std::uint64_t first, std::uint64_t last,
                        std::uint64_t valid) {
    for (std::uint32_t rank : {1u, 0u}) {
      for (std::uint64_t step = first; step <= last; ++step) {
        run.Scalar(rank, step, "loss", 1);
        run.Memory(rank, {.step = step, .phase = MemoryPhase::kPreForward});
        run.Memory(rank, {.step = step, .phase = MemoryPhase::kPostForward, .module = "h.0"});
        run.Memory(rank, {.step = step, .phase = MemoryPhase::kPostForward});
        run.Density(rank, {.step = step,
                           .input = "ids",
                           .type = DensityType::kEmbed,
                           .valid = valid,
                           .total = 9});
      }
    }
    run.Commit();
  };
  write(old, 0, 2, 1);
  write(now, 2, 3, 2);
  auto memory = Ask(engine_, ListMemory, {.run = "m", .ranks = {}, .steps = "1-"});
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  std::vector<std::string> found;
  for (const v1::MemoryRow& row : memory->records())
    found.push_back(std::to_string(row.rank()) + "/" + std::to_string(row.step()) + row.phase());
  EXPECT_THAT(
      found, ElementsAre("0/1pre_forward", "0/1post_forward", "0/2pre_forward", "0/2post_forward",
                         "0/3pre_forward", "0/3post_forward", "1/1pre_forward", "1/1post_forward",
                         "1/2pre_forward", "1/2post_forward", "1/3pre_forward", "1/3post_forward"));
  EXPECT_EQ(Ask(engine_, ListMemory, {.run = "m", .ranks = {1}, .modules = true})->records_size(),
            4);
  auto density = Ask(engine_, ListDensity, {.run = "m", .ranks = {1}, .input = "ids"});
  ASSERT_EQ(density->records_size(), 4);
  EXPECT_EQ(density->records(1).valid(), 1u);
  EXPECT_EQ(density->records(2).valid(), 2u) << "step 2 is the second launch's";
  // Steps in which there is nothing else, and an older launch that went further.
  RunWriter first(store_, "only", 1), second(store_, "only", 1);
  for (const std::uint64_t step : {0u, 4u, 9u})
    first.Memory(0, {.step = step, .phase = MemoryPhase::kPreForward});
  second.Memory(0, {.step = 4, .phase = MemoryPhase::kPostForward});
  first.Commit();
  second.Commit();
  found.clear();
  memory = Ask(engine_, ListMemory, {.run = "only", .ranks = {}});
  ASSERT_TRUE(memory.ok());
  for (const v1::MemoryRow& row : memory->records())
    found.push_back(std::to_string(row.step()) + row.phase());
  EXPECT_THAT(found, ElementsAre("0pre_forward", "4post_forward", "9pre_forward"));
  const Status unknown = Ask(engine_, ListDensity, {.run = "m", .input = "idz"}).status();
  EXPECT_EQ(unknown.code(), Code::kNotFound);
  EXPECT_THAT(unknown.message(), HasSubstr("closest: ids"));
  EXPECT_EQ(Ask(engine_, ListMemory, {.run = "none"}).status().code(), Code::kNotFound);
  EXPECT_EQ(Ask(engine_, ListMemory, {.run = "m", .steps = "x"}).status().code(),
            Code::kInvalidArgument);
}

TEST_F(SeriesTest, EventsOfEveryAttemptAreKept) {
  auto rows = Ask(engine_, ListEvents, {.run = "r", .ranks = {0}});
  ASSERT_EQ(rows->records_size(), 8);
  EXPECT_EQ(rows->records(0).kind(), "k");
  EXPECT_EQ(rows->records(0).text(), "t");
}

}  // namespace
}  // namespace statcollect::query
