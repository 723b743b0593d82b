#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "tests/agent/stats/expect_like_reference.h"

namespace statcollect::stats {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
std::string Describe(DType dtype, const std::string& pattern) {
  return std::string(Name(dtype)) + " " + pattern;
}

TEST(Statistics, EqualTheReferenceForEveryDTypeAndShape) {
  std::mt19937_64 random(21);
  const std::vector<std::vector<std::int64_t>> shapes = {
      {},     {0},       {3, 0, 5}, {1},       {2},        {15},         {16},
      {17},   {1, 1, 1}, {7, 9},    {2, 3, 5}, {4, 8, 16}, {2047},       {2048},
      {2049}, {16383},   {16384},   {16385},   {33000},    {1, 5000, 1}, {129, 257}};
  for (const DType dtype : kAllDTypes) {
    for (const auto& shape : shapes) {
      const std::string what = Describe(
          dtype, "of " + std::to_string(std::accumulate(shape.begin(), shape.end(), std::int64_t{1},
                                                        std::multiplies<>())));
      ExpectLikeReference(RandomNumbers(dtype, shape, random).View(), what);
    }
  }
}

TEST(Statistics, EqualTheReferenceForArbitraryBits) {
  std::mt19937_64 random(22);
  for (const DType dtype : kAllDTypes) {
    for (const std::int64_t size : {1, 5, 16, 100, 2050, 40000}) {
      ExpectLikeReference(RandomBits(dtype, {size}, random).View(), Describe(dtype, "random bits"));
    }
  }
}

struct Layout {
  const char* name;
  std::vector<std::int64_t> shape, strides;
  std::int64_t origin;
};

TEST(Statistics, EqualTheReferenceForEveryStridePattern) {
  std::mt19937_64 random(23);
  // All inside a storage of 64 x 300 elements.
  const Layout layouts[] = {
      {"transposed", {300, 64}, {1, 300}, 0},
      {"sliced columns", {64, 100}, {300, 1}, 7},
      {"every third", {64, 100}, {300, 3}, 1},
      {"flattenable", {8, 8, 300}, {2400, 300, 1}, 0},
      {"negative", {64, 300}, {-300, -1}, 64 * 300 - 1},
      {"negative outer", {64, 300}, {-300, 1}, 63 * 300},
      {"broadcast rows", {50, 300}, {0, 1}, 5},
      {"broadcast columns", {64, 40}, {300, 0}, 3},
      {"broadcast everything", {5, 6, 7}, {0, 0, 0}, 11},
      {"overlapping windows", {290, 11}, {1, 1}, 2},
      {"overlapping backwards", {200, 20}, {2, -1}, 30},
      {"sizes of one", {1, 64, 1, 300, 1}, {9999, 300, -5, 1, 77}, 0},
      {"permuted", {10, 6, 300}, {1800, 300, 1}, 0},
      {"permuted 3d", {300, 10, 6}, {1, 1800, 300}, 0},
      {"0-d", {}, {}, 13},
      {"column", {64, 1}, {300, 1}, 4},
      {"empty", {0, 5}, {1, 0}, 0},
  };
  for (const DType dtype : kAllDTypes) {
    TestTensor tensor = RandomNumbers(dtype, {64 * 300}, random);
    for (const Layout& layout : layouts) {
      tensor.shape = layout.shape;
      tensor.strides = layout.strides;
      tensor.origin = layout.origin;
      ExpectLikeReference(tensor.View(), Describe(dtype, layout.name));
    }
  }
}

TEST(Statistics, AreTheSameBitsForAViewAndItsContiguousCopy) {
  std::mt19937_64 random(24);
  for (const DType dtype : kAllDTypes) {
    TestTensor view = RandomBits(dtype, {300, 170}, random);
    view.strides = {1, 300};
    const ReferenceComponents components = ComponentsOf(view.View());
    const TestTensor copy{dtype, {300, 170}, {}, 0, [&] {
                            std::vector<std::uint64_t> words(components.bytes.size() / 8 + 2);
                            std::memcpy(words.data(), components.bytes.data(),
                                        components.bytes.size());
                            return words;
                          }()};
    const Computed a = Compute(view), b = Compute(copy);
    EXPECT_EQ(a.stats, b.stats) << Name(dtype);
    EXPECT_EQ(a.sketch, b.sketch) << Name(dtype);
  }
}

TEST(Statistics, HaveNoFiniteValuesWhereThereAreNone) {
  for (const std::vector<double>& values : {std::vector<double>{}, std::vector<double>(20000, kNaN),
                                            std::vector<double>{kInf, -kInf, kNaN}}) {
    const TensorStats s = Compute(TensorOf(values)).stats;
    EXPECT_FALSE(s.has_finite);
    EXPECT_EQ(s.min, 0);
    EXPECT_EQ(s.max, 0);
    EXPECT_EQ(s.std, 0);
    EXPECT_EQ(s.nan + s.pos_inf + s.neg_inf, values.size());
    ExpectLikeReference(TensorOf(values).View(), "nothing finite");
  }
}

TEST(Statistics, SkipNaNAndInfinitiesWhereverTheyAre) {
  std::mt19937_64 random(25);
  std::normal_distribution<double> normal(3, 2);
  for (const std::size_t size : {17u, 2048u, 20000u, 50001u}) {
    for (const int one_in : {1, 2, 3, 100, 5000}) {
      std::vector<double> f64(size);
      std::vector<float> f32(size);
      for (std::size_t i = 0; i < size; ++i) {
        f64[i] = normal(random);
        if (random() % static_cast<unsigned>(one_in) == 0)
          f64[i] = std::vector<double>{kNaN, kInf, -kInf, -kNaN}[random() % 4];
        f32[i] = static_cast<float>(f64[i]);
      }
      ExpectLikeReference(TensorOf(f64).View(), "f64, one in " + std::to_string(one_in));
      ExpectLikeReference(TensorOf(f32).View(), "f32, one in " + std::to_string(one_in));
    }
  }
  std::vector<double> late(40000, kNaN);
  late[39999] = -2.5;
  ExpectLikeReference(TensorOf(late).View(), "only the last is finite");
  EXPECT_EQ(Compute(TensorOf(late)).stats.mean, -2.5);
}

TEST(Statistics, KeepStdWhereTheMeanIsMuchLarger) {
  std::mt19937_64 random(26);
  std::normal_distribution<double> normal;
  for (const double mean : {1e3, -1e6, 1e8, 1e11, 1e13}) {
    std::vector<double> values(100000);
    for (double& v : values) v = mean + normal(random);
    ExpectLikeReference(TensorOf(values).View(), "mean " + std::to_string(mean));
    EXPECT_NEAR(Compute(TensorOf(values)).stats.std, 1, 0.05);
  }
  // An outlier in front, from which everything is shifted.
  std::vector<double> values(16384);
  for (double& v : values) v = normal(random);
  values[0] = 1e9;
  ExpectLikeReference(TensorOf(values).View(), "outlier first");
  ExpectLikeReference(TensorOf(std::vector<float>(100000, 16777216.0f)).View(), "constant");
  EXPECT_EQ(Compute(TensorOf(std::vector<float>(100000, 0.1f))).stats.std, 0);
  EXPECT_EQ(Compute(TensorOf(std::vector<float>(100000, 0.1f))).stats.mean,
            static_cast<double>(0.1f));
}

TEST(Statistics, SurviveSquaresBeyondFloat64) {
  std::mt19937_64 random(27);
  std::normal_distribution<double> normal;
  for (const double magnitude : {1e300, 1e160, 1e130, 1e-130, 1e-160, 1e-300, 5e-324, 3e-310}) {
    for (const std::size_t size : {5u, 3000u, 40000u}) {
      std::vector<double> values(size);
      for (double& v : values) v = normal(random) * magnitude;
      ExpectLikeReference(TensorOf(values).View(),
                          "magnitude " + std::to_string(std::log10(magnitude)));
    }
  }
  const double largest = std::numeric_limits<double>::max();
  ExpectLikeReference(TensorOf(std::vector<double>{largest, largest, largest}).View(), "largest");
  ExpectLikeReference(TensorOf(std::vector<double>{largest, -largest}).View(),
                      "largest and its opposite");
  ExpectLikeReference(TensorOf(std::vector<double>{kNaN, 1e300, -kInf, 1e299}).View(),
                      "huge among infinities");
  EXPECT_TRUE(std::isfinite(Compute(TensorOf(std::vector<double>(1000, 1e300))).stats.l2));
}

TEST(Statistics, CombineChunksOfVeryDifferentMagnitude) {
  std::mt19937_64 random(28);
  std::normal_distribution<double> normal;
  // The last four lie close to where the engine begins to scale.
  const double magnitudes[] = {1e-300, 1,       1e300,   0,        1e-200,
                               1e200,  0x1p397, 0x1p401, 0x1p-401, 0x1p-397};
  for (int round = 0; round < 60; ++round) {
    std::vector<double> values;
    std::string what = "chunks";
    for (int chunk = 0; chunk < 4; ++chunk) {
      const double magnitude = magnitudes[random() % 10];
      what += " " + std::to_string(std::log10(magnitude));
      for (int i = 0; i < 16384; ++i) values.push_back(normal(random) * magnitude);
    }
    ExpectLikeReference(TensorOf(values).View(), what);
  }
}

TEST(Statistics, HandleExtremesOfEveryType) {
  ExpectLikeReference(TensorOf(DType::kF16, std::vector<std::uint16_t>(70000, 0x7bff)).View(),
                      "f16 65504");
  ExpectLikeReference(TensorOf(std::vector<float>(70000, 3.4e38f)).View(), "f32 near its largest");
  ExpectLikeReference(TensorOf(std::vector<float>(70000, 1e-45f)).View(), "f32 smallest");
  ExpectLikeReference(
      TensorOf(DType::kI64, std::vector<std::int64_t>{INT64_MIN, INT64_MAX, 0, -1, 1}).View(),
      "i64");
  ExpectLikeReference(TensorOf(DType::kU64, std::vector<std::uint64_t>(40, UINT64_MAX)).View(),
                      "u64");
  ExpectLikeReference(
      TensorOf(DType::kU64, std::vector<std::uint64_t>{UINT64_MAX, 0, 1, 1ull << 63}).View(),
      "u64");
  ExpectLikeReference(TensorOf(DType::kI8, std::vector<std::int8_t>(1000, -128)).View(), "i8");
}

TEST(Statistics, CountNegativeZeroAsZeroAndNeverReportIt) {
  const TensorStats s = Compute(TensorOf(std::vector<float>{-0.0f, -0.0f})).stats;
  EXPECT_EQ(s.zero, 2u);
  EXPECT_EQ(s.neg, 0u);
  for (const double v : {s.min, s.max, s.mean, s.std, s.l1, s.l2}) EXPECT_FALSE(std::signbit(v));
}

TEST(Statistics, TakeComplexNumbersAsPairs) {
  const Computed pairs = Compute(TensorOf(DType::kC64, std::vector<float>{3, -4, 0, 1}), 16, 10);
  EXPECT_EQ(pairs.stats.numel, 2u);
  EXPECT_EQ(pairs.stats.neg, 1u);
  EXPECT_EQ(pairs.stats.zero, 1u);
  EXPECT_EQ(pairs.stats.mean, 0);
  EXPECT_EQ(pairs.samples, (std::vector<double>{3, -4, 0, 1}));
  EXPECT_EQ(pairs.stats.hash, HashOf(TensorOf(std::vector<float>{3, -4, 0, 1})));
}

TEST(Statistics, TakeAnyNonZeroByteAsTrue) {
  const TestTensor ones = TensorOf(DType::kBool, std::vector<std::uint8_t>{1, 0, 1, 1, 0});
  const TestTensor others = TensorOf(DType::kBool, std::vector<std::uint8_t>{2, 0, 255, 128, 0});
  EXPECT_EQ(Compute(ones).stats, Compute(others).stats);
  EXPECT_EQ(Compute(ones).sketch, Compute(others).sketch);
  EXPECT_EQ(Compute(others, 16, 5).samples, (std::vector<double>{1, 0, 1, 1, 0}));
}

TEST(Statistics, OfARangeBeyondTwoToThe32UseItsOwnIndices) {
  const float one = 1;
  const std::int64_t shape[] = {std::int64_t{1} << 20, std::int64_t{1} << 20}, strides[] = {0, 0};
  const CpuTensor expanded{&one, DType::kF32, shape, strides};
  ASSERT_TRUE(Validate(expanded).ok());
  EXPECT_EQ(ComponentCount(expanded), std::uint64_t{1} << 40);
  const std::uint64_t begin = (std::uint64_t{1} << 40) - 48;
  Partial partial;
  Accumulate(expanded, {begin, 48, 0}, 16, BestKernels(), partial);
  const ReferenceComponents ones = ComponentsOf(TensorOf(std::vector<float>(48, 1.0f)).View());
  EXPECT_EQ(partial.hash, ReferenceHash(ones, begin));
  std::vector<double> sketch(16);
  const TensorStats stats = Finished(partial, 48, sketch);
  EXPECT_EQ(stats.pos, 48u);
  const std::vector<long double> expected = ReferenceSketch(ones, 16, begin);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(sketch[i], expected[i]);
}

}  // namespace
}  // namespace statcollect::stats
