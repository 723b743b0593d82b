#include "server/query/answers/top.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
using ::testing::IsEmpty;
using testing::Key;
using testing::RunWriter;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

class TopTest : public ::testing::Test {
 protected:
  TopTest() : engine_(store_) {
    RunWriter run(store_, "r", 2);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      const double scale = rank == 0 ? 1 : 2;
      run.Observe(rank, 3, Key("small"), {.values = {0.1 * scale, 0, 0, 0}});
      run.Observe(rank, 3, Key("spike"), {.values = {0, 0, 0, -9 * scale}});
      run.Observe(rank, 3, Key("wide"), {.values = std::vector<double>(100, scale)});
      run.Observe(rank, 3, Key("wide", Kind::kGradOutput),
                  {.values = std::vector<double>(100, 3 * scale)});
      run.Observe(rank, 3, Key("broken"), {.values = {kNan, kNan, kInf, -1}});
      run.Scalar(rank, 4, "loss", 1);  // a step without statistics is not the newest one with some
    }
    run.Observe(0, 2, Key("old"), {.values = {1e6}});
    run.Commit();
  }
  std::vector<std::string> Names(TopRequest request) {
    request.run = "r";
    auto report = Ask(engine_, GetTop, request);
    EXPECT_TRUE(report.ok()) << report.status().message();
    std::vector<std::string> names;
    for (const v1::TopRow& row : report->records())
      names.push_back(row.activation() + "@" + std::to_string(row.rank()));
    return names;
  }
  FakeStore store_;
  QueryEngine engine_;
};

TEST_F(TopTest, LeavesOutIntegersUnlessTheirKindIsNamed) {
  RunWriter run(store_, "gpt");
  run.Observe(0, 0, Key("input_ids", Kind::kBatch), {.values = {50'000, 1}, .dtype = DType::kI64});
  run.Observe(0, 0, Key("mask", Kind::kInput), {.values = {1, 1, 1, 1}, .dtype = DType::kBool});
  run.Observe(0, 0, Key("images", Kind::kBatch), {.values = {3, 4}});
  run.Observe(0, 0, Key("head"), {.values = {1}});
  run.Commit();
  const auto names = [&](const std::vector<Kind>& kinds) {
    std::vector<std::string> found;
    const auto top = Ask(engine_, GetTop, {.run = "gpt", .kinds = kinds});
    for (const v1::TopRow& row : top->records()) found.push_back(row.activation());
    return found;
  };
  EXPECT_THAT(names({}), ElementsAre("images", "head"));
  EXPECT_THAT(names({Kind::kBatch}), ElementsAre("input_ids", "images"));
  EXPECT_EQ(Ask(engine_, GetTop, {.run = "gpt"})->considered(), 2u);
  EXPECT_THAT(
      Ask(engine_, GetTop, {.run = "gpt"})->notes(),
      ElementsAre(HasSubstr("with --kinds input they"), HasSubstr("with --kinds batch they")));
}

TEST_F(TopTest, TakesTheNewestStepWithStatisticsAndTheLargestNorms) {
  auto report = Ask(engine_, GetTop, {.run = "r", .kinds = {Kind::kOutput}});
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->step(), 3u);
  EXPECT_EQ(report->by(), v1::TOP_BY_L2);
  EXPECT_EQ(report->considered(), 8u);
  EXPECT_THAT(Names({.kinds = {Kind::kOutput}, .count = 3}),
              ElementsAre("wide@1", "spike@1", "wide@0"));
  EXPECT_DOUBLE_EQ(report->records(0).value(), 20);
  EXPECT_EQ(report->records(0).class_name(), "Module");
}

TEST_F(TopTest, OrdersByEachNumberInItsOwnSense) {
  const std::vector<Kind> output = {Kind::kOutput};
  EXPECT_THAT(Names({.by = TopBy::kAbsMax, .kinds = output, .count = 2}),
              ElementsAre("spike@1", "spike@0"));
  EXPECT_THAT(Names({.by = TopBy::kMin, .kinds = output, .count = 3}),
              ElementsAre("spike@1", "spike@0", "broken@0"));
  EXPECT_THAT(Names({.by = TopBy::kMax, .kinds = output, .count = 1}), ElementsAre("wide@1"));
  EXPECT_THAT(Names({.by = TopBy::kMean, .kinds = output, .count = 1}), ElementsAre("spike@1"))
      << "-4.5: the largest in size";
  EXPECT_THAT(Names({.by = TopBy::kRms, .kinds = output, .count = 1}), ElementsAre("spike@1"));
  EXPECT_THAT(Names({.by = TopBy::kZeroFraction, .kinds = output}),
              ElementsAre("small@0", "spike@0", "small@1", "spike@1"));
  EXPECT_THAT(Names({.by = TopBy::kNumel, .ranks = {1}, .count = 2}),
              ElementsAre("wide@1", "wide@1"));
}

TEST_F(TopTest, ListsOnlyWhatHasNonfiniteElements) {
  EXPECT_THAT(Names({.by = TopBy::kNan}), ElementsAre("broken@0", "broken@1"));
  EXPECT_THAT(Names({.by = TopBy::kInf, .ranks = {1}}), ElementsAre("broken@1"));
  EXPECT_THAT(Names({.by = TopBy::kNan, .step = 2}), IsEmpty());
}

TEST_F(TopTest, RmsIsOverTheFiniteElements) {
  const auto report =
      Ask(engine_, GetTop, {.run = "r", .by = TopBy::kRms, .ranks = {0}, .kinds = {Kind::kOutput}});
  for (const v1::TopRow& row : report->records()) {
    if (row.activation() == "broken") {
      EXPECT_DOUBLE_EQ(row.value(), 1);
    }
    if (row.activation() == "spike") {
      EXPECT_DOUBLE_EQ(row.value(), 4.5);
    }
  }
}

TEST_F(TopTest, SaysWhichStepsThereAre) {
  const auto missing = Ask(engine_, GetTop, {.run = "r", .step = 77});
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("2..4"));
  EXPECT_EQ(Ask(engine_, GetTop, {.run = "r", .step = 4}).status().code(), Code::kNotFound);
  EXPECT_EQ(Ask(engine_, GetTop, {.run = "r", .count = 10'001}).status().code(),
            Code::kInvalidArgument);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(Ask(engine_, GetTop, {.run = "r"}, stop.get_token()).status().code(), Code::kCancelled);
}

}  // namespace
}  // namespace statcollect::query
