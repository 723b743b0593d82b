#include "server/query/answers/stat_map.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/query/diff/stat_levels.h"
#include "tests/server/query/ask.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using testing::Ask;
using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::IsEmpty;
using testing::Key;
using testing::RunWriter;

std::vector<std::uint16_t> LevelsOf(const v1::GetStatMapResponse& map) {
  std::vector<std::uint16_t> levels;
  for (std::size_t i = 0; i + 1 < map.cells().size(); i += 2) {
    const auto high = static_cast<unsigned char>(map.cells()[i]),
               low = static_cast<unsigned char>(map.cells()[i + 1]);
    levels.push_back(static_cast<std::uint16_t>(high << 8 | low));
  }
  return levels;
}

std::vector<std::string> RowNames(const v1::GetStatMapResponse& map) {
  std::vector<std::string> names;
  for (const v1::HeatMapRow& row : map.rows()) names.push_back(row.activation());
  return names;
}

TEST(StatLevel, IsALogarithmThatKeepsTheOrder) {
  EXPECT_EQ(StatLevel(0), kStatZero);
  EXPECT_EQ(StatLevel(1), kStatLevelOne);
  EXPECT_EQ(StatLevel(10), kStatLevelOne + 512);
  EXPECT_EQ(StatLevel(0.01), kStatLevelOne - 1024);
  EXPECT_EQ(StatLevel(NAN), kStatNotFinite);
  EXPECT_EQ(StatLevel(INFINITY), kStatNotFinite);
  EXPECT_EQ(StatLevel(std::numeric_limits<double>::max()), kStatLevelMax);
  EXPECT_EQ(StatLevel(std::numeric_limits<double>::denorm_min()), kStatLevelMin);
}

class StatMapTest : public ::testing::Test {
 protected:
  v1::GetStatMapResponse Map(StatMapRequest request) {
    if (request.run.empty()) request.run = "r";
    auto map = Ask(store_, GetStatMap, request);
    EXPECT_TRUE(map.ok()) << map.status().message();
    return *std::move(map);
  }
  FakeStore store_;
};

TEST_F(StatMapTest, HasTheGreatestOfAllRanksInTheOrderOfExecution) {
  RunWriter run(store_, "r", 2);
  for (std::uint64_t step = 5; step < 8; ++step) {
    run.Observe(0, step, Key("z_first"), {.values = {3, 4}});
    run.Observe(0, step, Key("a_second"), {.values = {step == 6 ? 100.0 : 1.0}});
    run.Observe(1, step, Key("z_first"), {.values = {6, 8}});
  }
  run.Commit();
  const auto map = Map({});
  EXPECT_THAT(RowNames(map), ElementsAre("z_first", "a_second"));
  ASSERT_EQ(map.first_steps_size(), 3);
  EXPECT_EQ(map.first_steps(0), 5u);
  EXPECT_EQ(map.last_steps(2), 7u);
  const std::uint16_t ten = StatLevel(10);
  EXPECT_THAT(LevelsOf(map),
              ElementsAre(ten, ten, ten, StatLevel(1), StatLevel(100), StatLevel(1)));
  EXPECT_THAT(map.ranks(), ElementsAre(0, 1));
  EXPECT_THAT(LevelsOf(Map({.ranks = {0}, .steps = "6"})),
              ElementsAre(StatLevel(5), StatLevel(100)));
  EXPECT_THAT(LevelsOf(Map({.by = TopBy::kAbsMax, .ranks = {0}, .steps = "5"})),
              ElementsAre(StatLevel(4), StatLevel(1)));
}

TEST_F(StatMapTest, MarksWhatIsNotFiniteAndCountsIt) {
  RunWriter run(store_, "r");
  run.Observe(0, 0, Key("all_nan"), {.values = {NAN, NAN}});
  run.Observe(0, 0, Key("one_inf"), {.values = {1, -INFINITY}});
  run.Observe(0, 0, Key("zeros"), {.values = {0, 0}});
  run.Observe(0, 0, Key("empty"), {.values = {}, .shape = {0}});
  run.Commit();
  EXPECT_THAT(LevelsOf(Map({})), ElementsAre(kStatNotFinite, kStatNotFinite, kStatZero));
  EXPECT_THAT(LevelsOf(Map({.by = TopBy::kNan})),
              ElementsAre(StatLevel(2), kStatZero, kStatZero, kStatZero));
  EXPECT_THAT(LevelsOf(Map({.by = TopBy::kInf})),
              ElementsAre(kStatZero, StatLevel(1), kStatZero, kStatZero));
  EXPECT_THAT(LevelsOf(Map({.by = TopBy::kZeroFraction})),
              ElementsAre(kStatZero, kStatZero, kStatLevelOne, kStatZero));
}

TEST_F(StatMapTest, MergesToTheSizeThatWasAskedFor) {
  RunWriter run(store_, "r");
  for (std::uint64_t step = 0; step < 5; ++step) {
    for (const char* name : {"a", "b", "c"})
      run.Observe(0, step, Key(name), {.values = {step == 3 && *name == 'b' ? 50.0 : 1.0}});
  }
  run.Commit();
  const auto map = Map({.columns = 2, .rows = 2});
  EXPECT_EQ(map.tensors(), 3u);
  EXPECT_EQ(map.steps(), 5u);
  ASSERT_EQ(map.first_steps_size(), 2);
  EXPECT_EQ(map.last_steps(0), 2u);
  EXPECT_THAT(RowNames(map), ElementsAre("a", "c"));
  EXPECT_EQ(map.rows(0).tensors(), 2u);
  EXPECT_THAT(LevelsOf(map), ElementsAre(StatLevel(1), StatLevel(50), StatLevel(1), StatLevel(1)));
}

TEST_F(StatMapTest, LeavesOutIntegersUnlessTheirKindIsNamed) {
  RunWriter run(store_, "r");
  run.Observe(0, 0, Key("ids", Kind::kBatch), {.values = {50'000, 1}, .dtype = DType::kI64});
  run.Observe(0, 0, Key("head"), {.values = {1}});
  run.Commit();
  EXPECT_THAT(RowNames(Map({})), ElementsAre("head"));
  EXPECT_THAT(RowNames(Map({.kinds = {Kind::kBatch}})), ElementsAre("ids"));
}

// A pipeline of two stages, three ranks each, read by several threads in no order.
TEST_F(StatMapTest, IsTheSameWhoeverReadsWhat) {
  constexpr std::uint64_t kSteps = 40;
  RunWriter run(store_, "r", 6);
  std::map<std::pair<std::string, std::uint64_t>, double> greatest;
  for (std::uint32_t rank = 0; rank < 6; ++rank) {
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      for (const char* const layer : {"in", "hidden", "out"}) {
        const std::string name = std::string(rank % 2 == 0 ? "z." : "a.") + layer;
        const double value =
            1 + static_cast<double>((rank * 7919 + step * 104729 + name.back()) % 1000);
        run.Observe(rank, step, Key(name.c_str()), {.values = {value}});
        double& most = greatest[{name, step}];
        most = std::max(most, value);
      }
    }
  }
  run.Commit();
  const std::vector<std::string> names = {"z.in", "a.in", "z.hidden", "a.hidden", "z.out", "a.out"};
  std::vector<std::uint16_t> expected;
  for (const std::string& name : names) {
    for (std::uint64_t step = 0; step < kSteps; ++step)
      expected.push_back(StatLevel(greatest[{name, step}]));
  }
  for (int again = 0; again < 20; ++again) {
    const auto map = Map({});
    ASSERT_EQ(RowNames(map), names) << "by order, then by the rank that was first";
    ASSERT_EQ(LevelsOf(map), expected);
  }
  EXPECT_EQ(LevelsOf(Map({.ranks = {1, 3}, .steps = "7", .columns = 9})).size(), 3u);
}

TEST_F(StatMapTest, MovementsNeedTheStepBeforeWhereverTheMapBegins) {
  RunWriter run(store_, "r", 2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    for (std::uint64_t step = 0; step < 12; ++step) {
      std::vector<double> values(64, 10);
      values[step] += static_cast<double>(1 + step);  // moved by the root of two squares
      run.Observe(rank, step, Key("w", Kind::kWeight), {.values = values});
    }
  }
  run.Commit();
  const std::vector<std::uint16_t> all = LevelsOf(Map({.by = TopBy::kUpdateRatio}));
  ASSERT_EQ(all.size(), 12u);
  EXPECT_EQ(all[0], kStatNoData) << "nothing before it";
  for (std::size_t step = 1; step < all.size(); ++step) {
    EXPECT_GT(all[step], kStatZero);
    const std::vector<std::uint16_t> tail =
        LevelsOf(Map({.by = TopBy::kUpdateRatio, .steps = std::to_string(step) + "-"}));
    EXPECT_EQ(tail, std::vector<std::uint16_t>(all.begin() + static_cast<std::ptrdiff_t>(step),
                                               all.end()));
  }
}

TEST_F(StatMapTest, OfNothingIsEmpty) {
  RunWriter run(store_, "r");
  run.Scalar(0, 1, "loss", 2);
  run.Commit();
  EXPECT_THAT(Map({}).rows(), IsEmpty());
  EXPECT_THAT(Map({.steps = "77"}).first_steps(), IsEmpty());
  EXPECT_THAT(Map({.ranks = {9}}).rows(), IsEmpty());
  EXPECT_EQ(Ask(store_, GetStatMap, {.run = "nobody"}).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace statcollect::query
