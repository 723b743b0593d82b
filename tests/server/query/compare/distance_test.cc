#include "server/query/compare/distance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/server/query/run_writer.h"

namespace statcollect::query {
namespace {

using testing::SketchOf;
using testing::StatsOf;
using testing::Tensor;

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// An observation that owns what it points to.
struct Seen {
  explicit Seen(const Tensor& tensor, std::uint32_t k = 16)
      : layout{.id = 0, .dtype = tensor.dtype, .shape = tensor.Shape()},
        stats(StatsOf(tensor)),
        sums(SketchOf(tensor, k)) {}
  Observation observation() const {
    Observation o;
    o.layout = &layout;
    o.stats = &stats;
    o.sketch = sums;
    return o;
  }
  Layout layout;
  TensorStats stats;
  std::vector<double> sums;
};

Comparison CompareTensors(const Tensor& a, const Tensor& b, std::optional<double> tolerance = {},
                          bool exact = false, std::uint32_t k = 16) {
  const Seen sa(a, k), sb(b, k);
  return Compare(sa.observation(), sb.observation(), tolerance, exact);
}

Tensor Random(std::size_t n, std::uint64_t seed, DType dtype = DType::kF32) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  Tensor tensor{.dtype = dtype};
  for (std::size_t i = 0; i < n; ++i) tensor.values.push_back(normal(rng));
  return tensor;
}

Tensor Scaled(Tensor tensor, double factor) {
  for (double& x : tensor.values) x *= factor;
  return tensor;
}

double TrueDistance(const Tensor& a, const Tensor& b) {
  double difference = 0, na = 0, nb = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    difference += (a.values[i] - b.values[i]) * (a.values[i] - b.values[i]);
    na += a.values[i] * a.values[i];
    nb += b.values[i] * b.values[i];
  }
  return std::sqrt(difference / std::max(na, nb));
}

TEST(Distance, EqualContentIsIdentical) {
  const Comparison c = CompareTensors(Random(100, 1), Random(100, 1));
  EXPECT_EQ(c.agreement, Agreement::kIdentical);
  EXPECT_FALSE(c.distance);
}

// Values of any usual size take a shorter way than those near overflow.
TEST(Distance, OfStatisticsDoesNotDependOnTheScale) {
  std::mt19937_64 rng(7);
  std::uniform_real_distribution<double> apart(-1, 1);
  for (int round = 0; round < 2000; ++round) {
    const Tensor a = Random(1 + rng() % 20, rng(), DType::kF64);
    Tensor b = a;
    const double size = std::pow(10.0, -static_cast<double>(rng() % 12));
    for (double& x : b.values) x += size * apart(rng);
    if (round % 5 == 0) b.values.assign(b.values.size(), b.values[0]);
    const auto measured = [&](double scale) {
      Seen of_a(a, 0), of_b(b, 0);
      for (TensorStats* s : {&of_a.stats, &of_b.stats}) {
        for (double* value : {&s->min, &s->max, &s->mean, &s->std, &s->l1, &s->l2}) *value *= scale;
      }
      return Measure(of_a.observation(), of_b.observation()).value;
    };
    const double usual = measured(1);
    EXPECT_NEAR(measured(1e200), usual, 1e-13) << "round " << round;
    EXPECT_NEAR(measured(1e-200), usual, 1e-13) << "round " << round;
  }
}

TEST(Distance, SketchEstimatesTheNormOfTheDifferenceAndItsIntervalCoversIt) {
  int covered = 0;
  constexpr int kTrials = 400;
  double ratio_squares = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const Tensor a = Random(2048, 1000 + static_cast<std::uint64_t>(trial));
    Tensor b = a;
    const Tensor noise = Random(2048, 9000 + static_cast<std::uint64_t>(trial));
    for (std::size_t i = 0; i < b.values.size(); ++i) b.values[i] += 0.01 * noise.values[i];
    const Comparison c = CompareTensors(a, b);
    ASSERT_EQ(c.agreement, Agreement::kDiverged);
    ASSERT_EQ(c.distance->kind, DistanceKind::kSketch);
    const double truth = TrueDistance(a, b);
    ratio_squares += std::pow(c.distance->value / truth, 2);
    covered += c.distance->low <= truth && truth <= c.distance->high;
    EXPECT_LE(c.distance->low, c.distance->value);
    EXPECT_GE(c.distance->high, c.distance->value);
  }
  EXPECT_NEAR(ratio_squares / kTrials, 1.0, 0.06);  // unbiased square
  EXPECT_GE(covered, kTrials * 90 / 100);
  EXPECT_LT(covered, kTrials);  // an interval that always covers would prove nothing
}

TEST(Distance, SketchSeesAPermutationThatStatisticsCannotSee) {
  const Tensor a = Random(512, 3);
  Tensor b = a;
  std::reverse(b.values.begin(), b.values.end());
  const Comparison with = CompareTensors(a, b);
  EXPECT_EQ(with.agreement, Agreement::kDiverged);
  EXPECT_GT(with.distance->value, 0.5);
  const Comparison without = CompareTensors(a, b, {}, false, 0);
  EXPECT_EQ(without.agreement, Agreement::kWithinTolerance);
  EXPECT_NEAR(without.distance->value, 0.0, 1e-12);
  EXPECT_EQ(without.distance->kind, DistanceKind::kStatistics);
}

TEST(Distance, StatisticsTakeTheLargestRelativeDifference) {
  const Tensor a{.values = {1, 2, 3, 4}}, b{.values = {1, 2, 3, 5}};
  const Comparison c = CompareTensors(a, b, {}, false, 0);
  const TensorStats sa = StatsOf(a), sb = StatsOf(b);
  const double rms = sb.l2 / 2;
  const double expected = std::max({(sb.l2 - sa.l2) / sb.l2, (sb.mean - sa.mean) / rms,
                                    (sb.std - sa.std) / sb.std, (5 - 4) / 5.0});
  EXPECT_DOUBLE_EQ(c.distance->value, expected);
}

TEST(Distance, NeverDividesByAMeanNearZero) {
  // Means 1e-12 and -1e-12: infinitely far relative to each other, nothing relative to the values.
  const Tensor a{.values = {1, -1, 2, -2 + 4e-12}}, b{.values = {1, -1, 2, -2 - 4e-12}};
  const Comparison c = CompareTensors(a, b, {}, false, 0);
  EXPECT_EQ(c.agreement, Agreement::kWithinTolerance);
  EXPECT_LT(c.distance->value, 1e-11);
}

TEST(Distance, RoundingOfAConstantTensorIsNotADivergence) {
  // std is 0 on one side and one ulp's worth on the other: relative to each other infinitely far
  // apart.
  Tensor a{.values = std::vector<double>(64, 1.0)}, b = a;
  b.values[7] = std::nextafter(1.0f, 2.0f);
  const Comparison c = CompareTensors(a, b, {}, false, 0);
  EXPECT_EQ(c.agreement, Agreement::kWithinTolerance) << c.distance->value;
}

TEST(Distance, SignFlipOfASymmetricTensorDivergesWithASketch) {
  const Tensor a{.values = {1, -1, 2, -2, 3, -3, 0.5, -0.5}};
  const Comparison c = CompareTensors(a, Scaled(a, -1));
  EXPECT_EQ(c.reason, Reason::kNumeric);
  EXPECT_GT(c.distance->value, 0);
}

TEST(Distance, ZerosOfAnySignAreWithinToleranceButNotIdentical) {
  const Tensor a{.values = {0.0, 0.0}}, b{.values = {0.0, -0.0}};
  for (const std::uint32_t k : {0u, 16u}) {
    const Comparison c = CompareTensors(a, b, {}, false, k);
    EXPECT_EQ(c.agreement, Agreement::kWithinTolerance);
    EXPECT_EQ(c.distance->value, 0);
  }
}

TEST(Distance, ZeroAgainstNonzeroIsAsFarAsCanBe) {
  const Tensor a{.values = {0, 0, 0}}, b{.values = {1e-30, 0, 0}};
  EXPECT_DOUBLE_EQ(CompareTensors(a, b).distance->value, 1.0);
  EXPECT_GE(CompareTensors(a, b, {}, false, 0).distance->value, 1.0);
}

TEST(Distance, DifferentNonfiniteCountsAreInfinitelyFarWhateverTheTolerance) {
  const Tensor a{.values = {1, 2, 3}};
  for (const double bad : {kNan, kInfinite, -kInfinite}) {
    const Comparison c = CompareTensors(a, {.values = {1, 2, bad}}, 1e9);
    EXPECT_EQ(c.reason, Reason::kNonfinite);
    EXPECT_EQ(c.distance->value, kInfinite);
  }
  EXPECT_EQ(CompareTensors({.values = {kNan}}, {.values = {kInfinite}}).reason, Reason::kNonfinite);
}

TEST(Distance, AllNanOnBothSidesIsIdentical) {
  EXPECT_EQ(CompareTensors({.values = {kNan, kNan}}, {.values = {kNan, kNan}}).agreement,
            Agreement::kIdentical);
}

TEST(Distance, EqualNonfiniteCountsCompareTheFinitePart) {
  const Comparison c = CompareTensors({.values = {1, kNan, 3}}, {.values = {1, kNan, 3.3}});
  EXPECT_EQ(c.reason, Reason::kNumeric);
  EXPECT_TRUE(std::isfinite(c.distance->value));
}

TEST(Distance, ShapeComesBeforeEverythingAndHasNoDistance) {
  const Comparison c = CompareTensors({.values = {1, kNan}, .dtype = DType::kF32, .shape = {2, 1}},
                                      {.values = {1, 2}, .dtype = DType::kF64, .shape = {1, 2}});
  EXPECT_EQ(c.reason, Reason::kShape);
  EXPECT_FALSE(c.distance);
}

TEST(Distance, EmptyTensorsOfOneShapeAreIdentical) {
  EXPECT_EQ(
      CompareTensors({.values = {}, .shape = {0, 3}}, {.values = {}, .shape = {0, 3}}).agreement,
      Agreement::kIdentical);
  EXPECT_EQ(CompareTensors({.values = {}, .shape = {0, 3}}, {.values = {}, .shape = {3, 0}}).reason,
            Reason::kShape);
}

TEST(Distance, AnotherDTypeDivergesButTellsHowFarTheValuesAre) {
  const Tensor a = Random(64, 5);
  Tensor b = Scaled(a, 1.001);
  b.dtype = DType::kBf16;
  const Comparison c = CompareTensors(a, b);
  EXPECT_EQ(c.reason, Reason::kDType);
  EXPECT_NEAR(c.distance->value, 0.001, 0.0007);
}

TEST(Distance, WithATolerancePrecisionMayBeLoweredOnPurpose) {
  const Tensor a = Random(64, 5);
  Tensor b = Scaled(a, 1.001);
  b.dtype = DType::kBf16;
  EXPECT_EQ(CompareTensors(a, b, 0.1).agreement, Agreement::kWithinTolerance);
  EXPECT_EQ(CompareTensors(a, b, 1e-6).agreement, Agreement::kDiverged);
}

TEST(Distance, CastBackToTheSameDTypeIsNumeric) {
  const Tensor a = Random(64, 5);
  EXPECT_EQ(CompareTensors(a, Scaled(a, 1.004)).reason, Reason::kNumeric);
}

TEST(Distance, ToleranceIsTheCoarserDTypes) {
  EXPECT_EQ(DefaultTolerance(DType::kF64, DType::kF64), 1e-9);
  EXPECT_EQ(DefaultTolerance(DType::kF32, DType::kF64), 1e-4);
  EXPECT_EQ(DefaultTolerance(DType::kF32, DType::kBf16), 2e-2);
  EXPECT_EQ(DefaultTolerance(DType::kF16, DType::kF32), 5e-3);
  EXPECT_EQ(DefaultTolerance(DType::kF8E4M3, DType::kF16), 1e-1);
  EXPECT_EQ(DefaultTolerance(DType::kF8E5M2, DType::kF8E5M2), 1e-1);
  EXPECT_EQ(DefaultTolerance(DType::kC64, DType::kC64), 1e-4);
  EXPECT_EQ(DefaultTolerance(DType::kI64, DType::kI64), 0);
}

TEST(Distance, ToleranceDecidesByDTypeOrByTheUser) {
  const Tensor a = Random(256, 8);
  const Tensor near = Scaled(a, 1 + 2e-5), far = Scaled(a, 1 + 1e-3);
  EXPECT_EQ(CompareTensors(a, near).agreement, Agreement::kWithinTolerance);
  EXPECT_EQ(CompareTensors(a, far).agreement, Agreement::kDiverged);
  EXPECT_EQ(CompareTensors(a, near, 1e-6).agreement, Agreement::kDiverged);
  EXPECT_EQ(CompareTensors(a, far, 1e-2).agreement, Agreement::kWithinTolerance);
  EXPECT_EQ(CompareTensors(a, far, 1e-2).tolerance, 1e-2);
}

TEST(Distance, ExactCallsTheSmallestDifferenceBitwise) {
  const Tensor a = Random(256, 8);
  const Comparison c = CompareTensors(a, Scaled(a, 1 + 1e-9), {}, true);
  EXPECT_EQ(c.agreement, Agreement::kDiverged);
  EXPECT_EQ(c.reason, Reason::kBitwise);
  EXPECT_EQ(CompareTensors(a, Scaled(a, 1.1), {}, true).reason, Reason::kNumeric);
}

TEST(Distance, IntegersAreNeverRounded) {
  Tensor a{.values = std::vector<double>(1000, 5), .dtype = DType::kI64}, b = a;
  for (std::size_t i = 0; i < a.values.size(); ++i)
    a.values[i] = b.values[i] = 50'000 + static_cast<double>(i);
  b.values[3] += 1;  // one token id of a thousand: 1e-8 relative
  const Comparison c = CompareTensors(a, b);
  EXPECT_EQ(c.agreement, Agreement::kDiverged);
  EXPECT_EQ(c.reason, Reason::kNumeric);
  EXPECT_EQ(CompareTensors(a, b, 1e-3).agreement, Agreement::kWithinTolerance);
}

TEST(Distance, SketchOnOneSideOrOfAnotherWidthFallsBackToStatistics) {
  const Tensor a = Random(64, 2);
  const Seen none(a, 0), k16(a, 16), k32(a, 32);
  EXPECT_EQ(Measure(none.observation(), k16.observation()).kind, DistanceKind::kStatistics);
  EXPECT_EQ(Measure(k32.observation(), k16.observation()).kind, DistanceKind::kStatistics);
  EXPECT_EQ(Measure(k16.observation(), k16.observation()).kind, DistanceKind::kSketch);
}

TEST(Distance, SketchThatOverflowedItsFloat32FallsBackToStatistics) {
  const Tensor a = Scaled(Random(64, 2), 1e38), b = Scaled(a, 0.5);
  Seen sa(a), sb(b);
  sa.sums[0] = sb.sums[0] = kInfinite;
  const Comparison c = Compare(sa.observation(), sb.observation(), {}, false);
  EXPECT_EQ(c.agreement, Agreement::kDiverged);
  EXPECT_EQ(c.distance->kind, DistanceKind::kStatistics);
  EXPECT_NEAR(c.distance->value, 0.5, 1e-9);
}

TEST(Distance, SketchesOfNothingButOverflowTellNothing) {
  const double c = 3e38, root = std::sqrt(2.0);
  Seen a({.values = {c, c, -c, -c}}),
      b({.values = {root * c, -root * c, 0, 0}});  // of one norm and mean
  a.sums.assign(16, kInfinite);
  b.sums.assign(16, kInfinite);
  const Comparison compared = Compare(a.observation(), b.observation(), {}, false);
  EXPECT_EQ(compared.agreement, Agreement::kDiverged);
  EXPECT_EQ(compared.distance->kind, DistanceKind::kStatistics);
  EXPECT_NEAR(compared.distance->value, 1 - 1 / root, 1e-9);
}

TEST(Distance, NoCombinationOfExtremesIsNotANumber) {
  const std::vector<double> extremes = {0, 1e-308, 1, 1e308, 1.7e308, -1e308};
  for (const double x : extremes) {
    for (const double y : extremes) {
      for (const std::uint32_t k : {0u, 16u}) {
        const Comparison c =
            CompareTensors({.values = {x, y, x}, .dtype = DType::kF64},
                           {.values = {y, x, y}, .dtype = DType::kF64}, {}, false, k);
        EXPECT_FALSE(c.distance && std::isnan(c.distance->value)) << x << " " << y << " k " << k;
        if (std::abs(x) + std::abs(y) > 2 * std::min(std::abs(x), std::abs(y)) &&
            std::abs(x) != std::abs(y) && k == 0) {
          EXPECT_EQ(c.agreement, Agreement::kDiverged) << x << " " << y;
        }
      }
    }
  }
}

TEST(Distance, SmallTensorWhoseSignedSumsCancelIsJudgedByItsStatisticsToo) {
  // All 16 elements share one sum: +1 and +1 on elements of opposite sign cancel in it, but not in
  // norm and mean.
  Tensor a{.values = std::vector<double>(16, 1.0)};
  std::size_t plus = 16, minus = 16;
  for (std::size_t i = 0; i < 16; ++i) {
    Tensor unit{.values = std::vector<double>(16, 0.0)};
    unit.values[i] = 1;
    double sum = 0;
    for (const double x : SketchOf(unit, 16)) sum += x;
    (sum > 0 ? plus : minus) = i;
  }
  ASSERT_LT(plus, 16u);
  ASSERT_LT(minus, 16u);
  Tensor b = a;
  b.values[plus] += 1;
  b.values[minus] += 1;
  const Comparison c = CompareTensors(a, b);
  EXPECT_EQ(c.agreement, Agreement::kDiverged) << c.distance->value;
}

// As an importer would store it: without these statistics.
Seen Without(const Tensor& tensor, std::initializer_list<Statistic> absent) {
  Seen seen(tensor, 0);
  for (const Statistic statistic : absent) seen.layout.absent |= BitOf(statistic);
  return seen;
}

TEST(Distance, ComparesOnlyWhatBothSidesHaveAndTrust) {
  const Tensor a = Random(64, 2);
  Seen x = Without(a, {Statistic::kHash, Statistic::kL2}), y = x;
  y.stats.std *= 4.3;
  const auto compare = [&] { return Compare(x.observation(), y.observation(), {}, false); };
  EXPECT_EQ(compare().agreement, Agreement::kDiverged);
  y.layout.untrusted = BitOf(Statistic::kStd);
  EXPECT_EQ(compare().agreement, Agreement::kIdentical);
  EXPECT_TRUE(compare().without_hash);
  y.stats.max *= 1.1;
  EXPECT_EQ(compare().agreement, Agreement::kDiverged);
  EXPECT_GT(compare().distance->value, 0.01);
  y.stats.max = x.stats.max;
  ++y.stats.neg;
  EXPECT_EQ(compare().agreement, Agreement::kWithinTolerance);
}

TEST(Distance, HashesOfAnotherKindTellNothing) {
  const Tensor a = Random(64, 2);
  const std::initializer_list<Statistic> values = {Statistic::kMin,  Statistic::kMax,
                                                   Statistic::kMean, Statistic::kStd,
                                                   Statistic::kL1,   Statistic::kL2};
  Seen x = Without(a, values), y = x;
  x.layout.hash_kind = y.layout.hash_kind = HashKind::kCrc32;
  const auto compare = [&] { return Compare(x.observation(), y.observation(), {}, false); };
  EXPECT_EQ(compare().agreement, Agreement::kIdentical);
  ++y.stats.hash;
  EXPECT_EQ(compare().reason, Reason::kBitwise);
  EXPECT_FALSE(compare().distance);
  y.layout.hash_kind = HashKind::kMd5;
  EXPECT_EQ(compare().agreement, Agreement::kIncomparable);
}

// As after a change of stats::kDefinition: the same tensor has another hash and another sketch.
TEST(Distance, SketchesOfAnotherDefinitionTellNothing) {
  Seen x(Random(64, 2)), y = x;
  ++y.stats.hash;
  for (double& sum : y.sums) sum = -sum;
  const auto compare = [&] { return Compare(x.observation(), y.observation(), {}, false); };
  EXPECT_EQ(compare().distance->kind, DistanceKind::kSketch);
  EXPECT_EQ(compare().agreement, Agreement::kDiverged);
  y.layout.hash_kind = HashKind::kXor64;
  EXPECT_EQ(compare().agreement, Agreement::kIdentical);
  EXPECT_TRUE(compare().without_hash);
  y.stats.l2 *= 1.01;
  EXPECT_EQ(compare().distance->kind, DistanceKind::kStatistics);
  EXPECT_EQ(compare().agreement, Agreement::kDiverged);
}

TEST(Distance, TensorsOfNothingButNanAreEqualAsFarAsCounted) {
  const Tensor nans{.values = {kNan, kNan}};
  const Seen x = Without(nans, {Statistic::kHash, Statistic::kMin, Statistic::kMax,
                                Statistic::kMean, Statistic::kStd, Statistic::kL1, Statistic::kL2});
  const Comparison c = Compare(x.observation(), x.observation(), {}, false);
  EXPECT_EQ(c.agreement, Agreement::kIdentical);
  EXPECT_TRUE(c.without_hash);
}

TEST(Distance, InfinitiesCountedTogetherAreComparedTogether) {
  const Seen x({.values = {1, kInfinite, -kInfinite, 2}}, 0);
  Seen y = x;
  y.layout.absent = BitOf(Statistic::kInfSign) | BitOf(Statistic::kHash);
  y.stats.pos_inf = 2;
  y.stats.neg_inf = 0;
  EXPECT_EQ(Compare(x.observation(), y.observation(), {}, false).agreement, Agreement::kIdentical);
  y.stats.pos_inf = 3;
  EXPECT_EQ(Compare(x.observation(), y.observation(), {}, false).reason, Reason::kNonfinite);
}

TEST(Distance, OfNonfiniteElementsThatNobodyCountedOnlyTheirPresenceIsCompared) {
  const Seen some({.values = {1, kNan, kNan, 2}}, 0), none({.values = {1, 3, 4, 2}}, 0);
  Seen told = some;
  told.layout.absent = BitOf(Statistic::kHash);
  told.layout.untrusted = BitOf(Statistic::kNan) | BitOf(Statistic::kInf);
  told.stats.nan = 1;  // "there were some"
  const auto compare = [&](const Seen& other) {
    return Compare(other.observation(), told.observation(), {}, false);
  };
  EXPECT_EQ(compare(some).agreement, Agreement::kIdentical);
  EXPECT_EQ(compare(none).reason, Reason::kNonfinite);
  told.stats.pos_inf = 1;
  EXPECT_EQ(compare(some).reason, Reason::kNonfinite);
  told.layout.absent |=
      BitOf(Statistic::kNan) | BitOf(Statistic::kInf) | BitOf(Statistic::kInfSign);
  told.layout.untrusted = 0;
  EXPECT_NE(compare(some).reason, Reason::kNonfinite) << "nothing is known of them";
}

TEST(Distance, RelativeDifferenceOfScalars) {
  EXPECT_EQ(RelativeDifference(kNan, kNan), 0);
  EXPECT_EQ(RelativeDifference(kInfinite, kInfinite), 0);
  EXPECT_EQ(RelativeDifference(kInfinite, -kInfinite), kInfinite);
  EXPECT_EQ(RelativeDifference(1, kNan), kInfinite);
  EXPECT_DOUBLE_EQ(RelativeDifference(2, 1), 0.5);
  EXPECT_DOUBLE_EQ(RelativeDifference(-1, 1), 2);
  EXPECT_DOUBLE_EQ(RelativeDifference(1.7e308, -1.7e308), 2);
  EXPECT_EQ(RelativeDifference(0.0, -0.0), 0);
}

}  // namespace
}  // namespace statcollect::query
