#include "server/query/curves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "server/query/query.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::IsEmpty;
using testing::Key;
using testing::RunWriter;

class CurvesTest : public ::testing::Test {
 protected:
  CurvesTest() : engine_(store_) {}
  Curves CurvesOfX(const CurvesRequest& more = {}) {
    CurvesRequest request = more;
    request.series.run = "r";
    request.series.activation = "x";
    auto curves = engine_.GetCurves(request);
    EXPECT_TRUE(curves.ok()) << curves.status().message();
    return *std::move(curves);
  }
  static const Curve& Of(const Curves& curves, std::string_view stat) {
    const auto found = std::find_if(curves.curves.begin(), curves.curves.end(),
                                    [&](const Curve& curve) { return curve.stat == stat; });
    EXPECT_NE(found, curves.curves.end()) << stat;
    return *found;
  }
  FakeStore store_;
  QueryEngine engine_;
};

TEST_F(CurvesTest, HasEveryStepOfAShortRunAsTheSeriesHasIt) {
  RunWriter run(store_, "r");
  for (std::uint64_t step = 0; step < 20; ++step)
    run.Observe(0, 3 * step, Key("x"), {.values = {static_cast<double>(step), -1.0, 0.0}});
  run.Commit();
  const Curves curves = CurvesOfX({.points = 10});
  EXPECT_EQ(curves.steps, 20u);
  ASSERT_TRUE(curves.first);
  EXPECT_EQ(curves.first->step, 0u);
  EXPECT_THAT(curves.first->stats.shape, ElementsAre(3));
  const auto series = engine_.GetSeries({.run = "r", .activation = "x"});
  for (const char* stat : {"l2", "mean", "std", "min", "max", "l1", "nan", "pos_inf", "neg_inf", "zero"})
    ASSERT_EQ(Of(curves, stat).steps.size(), 20u) << stat;
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(Of(curves, "max").steps[i], 3 * i);
    EXPECT_EQ(Of(curves, "max").values[i], *(*series)[i].stats.max);
    EXPECT_EQ(Of(curves, "l1").values[i], *(*series)[i].stats.l1);
    EXPECT_EQ(Of(curves, "zero").values[i], static_cast<double>(*(*series)[i].stats.zero));
  }
}

TEST_F(CurvesTest, KeepsTheExtremesOfEachSpanAndBothEndsOfALongRun) {
  RunWriter run(store_, "r");
  for (std::uint64_t step = 0; step < 1000; ++step) {
    // One peak up and one down in a wave; both would be lost if only some steps were taken.
    const double x = step == 333 ? 1e6 : step == 777 ? -1e6 : std::sin(static_cast<double>(step));
    run.Observe(0, step, Key("x"), {.values = {x}});
  }
  run.Commit();
  const Curves curves = CurvesOfX({.points = 10});
  EXPECT_EQ(curves.steps, 1000u);
  const Curve& mean = Of(curves, "mean");
  EXPECT_LE(mean.steps.size(), 22u);
  EXPECT_EQ(mean.steps.front(), 0u);
  EXPECT_EQ(mean.steps.back(), 999u);
  EXPECT_TRUE(std::is_sorted(mean.steps.begin(), mean.steps.end()));
  const auto series = engine_.GetSeries({.run = "r", .activation = "x"});
  for (std::size_t i = 0; i < mean.steps.size(); ++i)
    EXPECT_EQ(mean.values[i], *(*series)[mean.steps[i]].stats.mean);  // real values at their steps
  for (std::uint64_t span = 0; span < 10; ++span) {
    double low = std::numeric_limits<double>::infinity(), high = -low, kept_low = low, kept_high = high;
    for (std::uint64_t step = 100 * span; step < 100 * (span + 1); ++step) {
      low = std::min(low, *(*series)[step].stats.mean);
      high = std::max(high, *(*series)[step].stats.mean);
    }
    for (std::size_t i = 0; i < mean.steps.size(); ++i) {
      if (mean.steps[i] / 100 != span) continue;
      kept_low = std::min(kept_low, mean.values[i]);
      kept_high = std::max(kept_high, mean.values[i]);
    }
    EXPECT_EQ(kept_low, low) << span;
    EXPECT_EQ(kept_high, high) << span;
  }
  EXPECT_THAT(Of(curves, "nan").values,
              ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));  // one of each span, and the ends
}

TEST_F(CurvesTest, KeepsWhatIsNotFiniteInAMergedSpan) {
  RunWriter run(store_, "r");
  const double infinite = std::numeric_limits<double>::infinity();
  std::vector<SeriesPoint> points(100);
  for (std::size_t i = 0; i < points.size(); ++i) {
    points[i].step = i;
    points[i].mode = "train";
    points[i].stats.l2 = i == 55 || i == 56 ? infinite : 1.0;
  }
  const Curves curves = CurvesOf(points, {.points = 10});
  const Curve& l2 = Of(curves, "l2");
  const auto at = std::find(l2.values.begin(), l2.values.end(), infinite);
  ASSERT_NE(at, l2.values.end());
  EXPECT_EQ(l2.steps[static_cast<std::size_t>(at - l2.values.begin())], 55u);
  EXPECT_EQ(std::count(l2.values.begin(), l2.values.end(), infinite), 1);
}

TEST_F(CurvesTest, TakesTheFirstPlaceOfEachStepOrTheOneThatIsAskedFor) {
  RunWriter run(store_, "r", 2);
  for (std::uint64_t step = 0; step < 4; ++step) {
    if (step != 2) run.Observe(0, step, Key("x"), {.values = {1.0 + static_cast<double>(step)}});
    run.Observe(1, step, Key("x"), {.values = {10.0 + static_cast<double>(step)}});
  }
  run.Commit();
  Curves curves = CurvesOfX();
  EXPECT_THAT(Of(curves, "max").values, ElementsAre(1, 2, 12, 4));
  EXPECT_THAT(curves.ranks, ElementsAre(0, 1));
  ASSERT_EQ(curves.places.size(), 2u);
  EXPECT_EQ(curves.places[1].at, (CurvePlace{.rank = 1}));
  curves = CurvesOfX({.place = CurvePlace{.rank = 1}});
  EXPECT_THAT(Of(curves, "max").values, ElementsAre(10, 11, 12, 13));
  EXPECT_EQ(curves.places.size(), 2u);
  curves = CurvesOfX({.place = CurvePlace{.rank = 7}});
  EXPECT_THAT(curves.curves, IsEmpty());
  EXPECT_FALSE(curves.first);
  EXPECT_EQ(curves.places.size(), 2u);
}

TEST_F(CurvesTest, LeavesOutAnotherModeAndStatisticsThatWereNotRecorded) {
  std::vector<SeriesPoint> points(4);
  for (std::size_t i = 0; i < points.size(); ++i) {
    points[i].step = i;
    points[i].mode = i < 2 ? "train" : "eval";
    points[i].stats.max = static_cast<double>(i);
  }
  const Curves curves = CurvesOf(points, {.mode = "eval"});
  ASSERT_EQ(curves.curves.size(), 1u);
  EXPECT_EQ(curves.curves[0].stat, "max");
  EXPECT_THAT(curves.curves[0].steps, ElementsAre(2, 3));
  EXPECT_EQ(curves.steps, 2u);
}

TEST_F(CurvesTest, HoldsStepsUpToTheHighest) {
  std::vector<SeriesPoint> points(50);
  for (std::size_t i = 0; i < points.size(); ++i) {
    points[i].step = ~std::uint64_t{0} - 49 + i;
    points[i].stats.max = 1;
  }
  points[0].step = 0;
  const Curves curves = CurvesOf(points, {.points = 1});
  EXPECT_EQ(Of(curves, "max").steps.front(), 0u);
  EXPECT_EQ(Of(curves, "max").steps.back(), ~std::uint64_t{0});
}

TEST_F(CurvesTest, FailsAsTheSeriesDoes) {
  CurvesRequest request;
  request.series = {.run = "nobody", .activation = "x"};
  EXPECT_EQ(engine_.GetCurves(request).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace statcollect::query
