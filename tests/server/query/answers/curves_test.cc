#include "server/query/answers/curves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "server/query/query.h"
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

class CurvesTest : public ::testing::Test {
 protected:
  CurvesTest() : engine_(store_) {}
  v1::GetCurvesResponse CurvesOfX(const CurvesRequest& more = {}) {
    CurvesRequest request = more;
    request.series.run = "r";
    request.series.activation = "x";
    auto curves = Ask(engine_, GetCurves, request);
    EXPECT_TRUE(curves.ok()) << curves.status().message();
    return *std::move(curves);
  }
  static const v1::Curve& Of(const v1::GetCurvesResponse& curves, std::string_view stat) {
    const auto found = std::find_if(curves.curves().begin(), curves.curves().end(),
                                    [&](const v1::Curve& curve) { return curve.stat() == stat; });
    EXPECT_NE(found, curves.curves().end()) << stat;
    return *found;
  }
  static v1::GetCurvesResponse CurvesOf(const v1::GetSeriesResponse& series,
                                        const CurvesRequest& request) {
    v1::GetCurvesResponse curves;
    query::CurvesOf(series, request, curves);
    return curves;
  }
  FakeStore store_;
  QueryEngine engine_;
};

TEST_F(CurvesTest, HasEveryStepOfAShortRunAsTheSeriesHasIt) {
  RunWriter run(store_, "r");
  for (std::uint64_t step = 0; step < 20; ++step)
    run.Observe(0, 3 * step, Key("x"), {.values = {static_cast<double>(step), -1.0, 0.0}});
  run.Commit();
  const v1::GetCurvesResponse curves = CurvesOfX({.points = 10});
  EXPECT_EQ(curves.steps(), 20u);
  ASSERT_TRUE(curves.has_first());
  EXPECT_EQ(curves.first().step(), 0u);
  EXPECT_THAT(curves.first().stats().shape(), ElementsAre(3));
  const auto series = Ask(engine_, GetSeries, {.run = "r", .activation = "x"});
  for (const char* stat :
       {"l2", "mean", "std", "min", "max", "l1", "nan", "pos_inf", "neg_inf", "zero"})
    ASSERT_EQ(Of(curves, stat).steps_size(), 20) << stat;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Of(curves, "max").steps(i), 3u * static_cast<unsigned>(i));
    EXPECT_EQ(Of(curves, "max").values(i), series->records(i).stats().max());
    EXPECT_EQ(Of(curves, "l1").values(i), series->records(i).stats().l1());
    EXPECT_EQ(Of(curves, "zero").values(i), static_cast<double>(series->records(i).stats().zero()));
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
  const v1::GetCurvesResponse curves = CurvesOfX({.points = 10});
  EXPECT_EQ(curves.steps(), 1000u);
  const v1::Curve& mean = Of(curves, "mean");
  EXPECT_LE(mean.steps_size(), 22);
  EXPECT_EQ(mean.steps(0), 0u);
  EXPECT_EQ(*mean.steps().rbegin(), 999u);
  EXPECT_TRUE(std::is_sorted(mean.steps().begin(), mean.steps().end()));
  const auto series = Ask(engine_, GetSeries, {.run = "r", .activation = "x"});
  for (int i = 0; i < mean.steps_size(); ++i)
    EXPECT_EQ(mean.values(i),
              series->records(static_cast<int>(mean.steps(i)))
                  .stats()
                  .mean());  // real values at their steps
  for (std::uint64_t span = 0; span < 10; ++span) {
    double low = std::numeric_limits<double>::infinity(), high = -low, kept_low = low,
           kept_high = high;
    for (std::uint64_t step = 100 * span; step < 100 * (span + 1); ++step) {
      low = std::min(low, series->records(static_cast<int>(step)).stats().mean());
      high = std::max(high, series->records(static_cast<int>(step)).stats().mean());
    }
    for (int i = 0; i < mean.steps_size(); ++i) {
      if (mean.steps(i) / 100 != span) continue;
      kept_low = std::min(kept_low, mean.values(i));
      kept_high = std::max(kept_high, mean.values(i));
    }
    EXPECT_EQ(kept_low, low) << span;
    EXPECT_EQ(kept_high, high) << span;
  }
  EXPECT_THAT(Of(curves, "nan").values(),
              ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));  // one of each span, and the ends
}

TEST_F(CurvesTest, KeepsWhatIsNotFiniteInAMergedSpan) {
  RunWriter run(store_, "r");
  const double infinite = std::numeric_limits<double>::infinity();
  v1::GetSeriesResponse points;
  for (std::uint64_t i = 0; i < 100; ++i) {
    v1::SeriesPoint& point = *points.add_records();
    point.set_step(i);
    point.set_mode("train");
    point.mutable_stats()->set_l2(i == 55 || i == 56 ? infinite : 1.0);
  }
  const v1::GetCurvesResponse curves = CurvesOf(points, {.points = 10});
  const v1::Curve& l2 = Of(curves, "l2");
  const auto at = std::find(l2.values().begin(), l2.values().end(), infinite);
  ASSERT_NE(at, l2.values().end());
  EXPECT_EQ(l2.steps(static_cast<int>(at - l2.values().begin())), 55u);
  EXPECT_EQ(std::count(l2.values().begin(), l2.values().end(), infinite), 1);
}

TEST_F(CurvesTest, TakesTheFirstPlaceOfEachStepOrTheOneThatIsAskedFor) {
  RunWriter run(store_, "r", 2);
  for (std::uint64_t step = 0; step < 4; ++step) {
    if (step != 2) run.Observe(0, step, Key("x"), {.values = {1.0 + static_cast<double>(step)}});
    run.Observe(1, step, Key("x"), {.values = {10.0 + static_cast<double>(step)}});
  }
  run.Commit();
  v1::GetCurvesResponse curves = CurvesOfX();
  EXPECT_THAT(Of(curves, "max").values(), ElementsAre(1, 2, 12, 4));
  EXPECT_THAT(curves.ranks(), ElementsAre(0, 1));
  ASSERT_EQ(curves.places_size(), 2);
  EXPECT_EQ(curves.places(1).rank(), 1u);
  curves = CurvesOfX({.place = CurvePlace{.rank = 1}});
  EXPECT_THAT(Of(curves, "max").values(), ElementsAre(10, 11, 12, 13));
  EXPECT_EQ(curves.places_size(), 2);
  curves = CurvesOfX({.place = CurvePlace{.rank = 7}});
  EXPECT_THAT(curves.curves(), IsEmpty());
  EXPECT_FALSE(curves.has_first());
  EXPECT_EQ(curves.places_size(), 2);
}

TEST_F(CurvesTest, LeavesOutAnotherModeAndStatisticsThatWereNotRecorded) {
  v1::GetSeriesResponse points;
  for (std::uint64_t i = 0; i < 4; ++i) {
    v1::SeriesPoint& point = *points.add_records();
    point.set_step(i);
    point.set_mode(i < 2 ? "train" : "eval");
    point.mutable_stats()->set_max(static_cast<double>(i));
  }
  const v1::GetCurvesResponse curves = CurvesOf(points, {.mode = "eval"});
  ASSERT_EQ(curves.curves_size(), 1);
  EXPECT_EQ(curves.curves(0).stat(), "max");
  EXPECT_THAT(curves.curves(0).steps(), ElementsAre(2, 3));
  EXPECT_EQ(curves.steps(), 2u);
}

TEST_F(CurvesTest, HoldsStepsUpToTheHighest) {
  v1::GetSeriesResponse points;
  for (std::uint64_t i = 0; i < 50; ++i) {
    v1::SeriesPoint& point = *points.add_records();
    point.set_step(i == 0 ? 0 : ~std::uint64_t{0} - 49 + i);
    point.mutable_stats()->set_max(1);
  }
  const v1::GetCurvesResponse curves = CurvesOf(points, {.points = 1});
  EXPECT_EQ(Of(curves, "max").steps(0), 0u);
  EXPECT_EQ(*Of(curves, "max").steps().rbegin(), ~std::uint64_t{0});
}

TEST_F(CurvesTest, FailsAsTheSeriesDoes) {
  CurvesRequest request;
  request.series = {.run = "nobody", .activation = "x"};
  EXPECT_EQ(Ask(engine_, GetCurves, request).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace statcollect::query
