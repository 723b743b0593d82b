#include "server/query/compare/column_distances.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "server/query/compare/distance.h"

namespace statcollect::query {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Records and the same as columns.
struct Block {
  std::vector<TensorStats> stats;
  std::vector<double> sketch;
  std::array<std::vector<std::uint64_t>, 17> numbers;
  NumberColumns columns;

  void Add(const TensorStats& s) {
    stats.push_back(s);
    const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
    const auto sign = [&](double value, Flag flag) {
      return bits(value) > kMagnitude ? flag : Flag{0};
    };
    const std::uint64_t flags = std::uint64_t{sign(s.mean, kNegativeMean)} |
                                sign(s.min, kNegativeMin) | sign(s.max, kNegativeMax) |
                                sign(s.std, kNegativeStd) | sign(s.l2, kNegativeL2) |
                                (s.has_finite ? kHasFinite : Flag{0});
    const std::uint64_t record[] = {0,
                                    0,
                                    0,
                                    flags,
                                    s.numel,
                                    s.nan,
                                    s.pos_inf,
                                    s.neg_inf,
                                    s.zero,
                                    s.neg,
                                    s.pos,
                                    bits(s.mean) & kMagnitude,
                                    bits(s.std) & kMagnitude,
                                    bits(s.l2) & kMagnitude,
                                    bits(s.min) & kMagnitude,
                                    bits(s.max) & kMagnitude,
                                    s.hash};
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i].push_back(record[i]);
  }
  void Point(std::uint32_t width) {
    columns.size = stats.size();
    columns.sketch_width = width;
    columns.sketch = sketch.data();
    std::size_t i = 0;
    for (const std::uint64_t** to :
         {&columns.activation, &columns.layout, &columns.order, &columns.flags, &columns.numel,
          &columns.nan, &columns.pos_inf, &columns.neg_inf, &columns.zero, &columns.neg,
          &columns.pos, &columns.mean, &columns.std, &columns.l2, &columns.min, &columns.max,
          &columns.hash})
      *to = numbers[i++].data();
  }
};

class ColumnDistancesTest : public ::testing::Test {
 protected:
  // Mostly of a usual size.
  double Value(double odds_of_odd) {
    static constexpr std::array kOdd = {0.0,    -0.0,  kNan,  kInfinite, -kInfinite, 1e-160,
                                        1e-310, 1e160, 1e250, -1e200,    1e-170,     -3e-155};
    if (unit_(rng_) < odds_of_odd) return kOdd[rng_() % kOdd.size()];
    return normal_(rng_) * std::pow(10.0, static_cast<double>(rng_() % 9) - 4);
  }
  TensorStats Record(double odd) {
    return {.numel = 1 + rng_() % 1000,
            .nan = unit_(rng_) < odd ? rng_() % 3 : 0,
            .pos_inf = unit_(rng_) < odd ? rng_() % 2 : 0,
            .neg_inf = unit_(rng_) < odd ? rng_() % 2 : 0,
            .zero = 0,
            .has_finite = unit_(rng_) >= odd,
            .min = Value(odd),
            .max = Value(odd),
            .mean = Value(odd),
            .std = unit_(rng_) < odd ? Value(odd) : std::abs(Value(odd)),
            .l2 = unit_(rng_) < odd ? Value(odd) : std::abs(Value(odd)),
            .hash = rng_() % 3};
  }
  TensorStats Near(TensorStats s, double odd) {
    if (rng_() % 3 == 0) return Record(odd);
    s.mean *= 1 + 1e-6 * normal_(rng_);
    s.std *= 1 + 1e-6 * normal_(rng_);
    s.l2 *= 1 + 1e-7 * normal_(rng_);
    s.max *= 1 + 1e-5 * normal_(rng_);
    s.hash = rng_() % 3;
    return s;
  }

  std::mt19937_64 rng_{5};
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> unit_;
};

TEST_F(ColumnDistancesTest, AreTheBitsThatMeasureFinds) {
  std::size_t usual = 0, all = 0;
  for (int round = 0; round < 600; ++round) {
    const double odd = std::array{0.0, 0.05, 0.4}[rng_() % 3];
    const std::uint32_t width = std::array{0u, 5u, 16u, 32u, 64u}[rng_() % 5];
    const std::size_t size = 1 + rng_() % 40;
    const Layout layout{.dtype = rng_() % 2 == 0 ? DType::kF32 : DType::kC64};
    Block a, b;
    for (std::size_t i = 0; i < size; ++i) {
      a.Add(Record(odd));
      b.Add(Near(a.stats.back(), odd));
      for (std::uint32_t j = 0; j < width; ++j) {
        a.sketch.push_back(Value(odd / 8));
        b.sketch.push_back(rng_() % 4 == 0 ? Value(odd / 8)
                                           : a.sketch.back() * (1 + 1e-6 * normal_(rng_)));
      }
    }
    a.Point(width);
    b.Point(width);
    PairColumns found;
    MeasureColumns(a.columns, b.columns,
                   std::vector<double>(size, layout.dtype == DType::kC64 ? 2.0 : 1.0), found);
    for (std::size_t i = 0; i < size; ++i) {
      SCOPED_TRACE(::testing::Message()
                   << "round " << round << ", record " << i << ", width " << width);
      const TensorStats &x = a.stats[i], &y = b.stats[i];
      EXPECT_EQ(found.same[i] != 0, x.hash == y.hash);
      all += odd == 0 ? 1 : 0;
      if (found.usual[i] == 0) continue;
      usual += odd == 0 ? 1 : 0;
      EXPECT_TRUE(x.nan == y.nan && x.pos_inf == y.pos_inf && x.neg_inf == y.neg_inf);
      EXPECT_TRUE(x.has_finite && y.has_finite);
      const auto observation = [&](const Block& block, const TensorStats& stats) {
        return Observation{.layout = &layout, .stats = &stats, .sketch = block.columns.SketchOf(i)};
      };
      const Distance expected = Measure(observation(a, x), observation(b, y));
      EXPECT_EQ(std::bit_cast<std::uint64_t>(found.distance[i]),
                std::bit_cast<std::uint64_t>(expected.value))
          << found.distance[i] << " instead of " << expected.value;
      EXPECT_EQ(expected.kind == DistanceKind::kSketch, width > 0);
    }
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(usual, all / 2);  // the others take the long way
}

}  // namespace
}  // namespace statcollect::query
