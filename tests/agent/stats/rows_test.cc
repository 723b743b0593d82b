#include "agent/stats/rows.h"

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/stats/cpu/workers.h"

namespace statcollect::stats {
namespace {

using ::testing::HasSubstr;

std::vector<float> Values(std::size_t count) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(rng);
  return values;
}

std::vector<RowStats> Of(const std::vector<float>& values, std::int64_t rows, std::int64_t columns,
                         CpuWorkers* workers = nullptr) {
  const std::array<std::int64_t, 2> shape{rows, columns};
  const CpuTensor tensor{values.data(), DType::kF32, shape, {}};
  EXPECT_TRUE(ValidateRows(tensor, 0).ok());
  std::vector<RowStats> found(static_cast<std::size_t>(rows));
  ComputeRows(tensor, 0, found, workers);
  return found;
}

TEST(Rows, ThreadsShareThemAndChangeNothing) {
  const std::vector<float> values = Values(std::size_t{2000} * 700);
  CpuWorkers workers(4);
  EXPECT_EQ(Of(values, 2000, 700, &workers), Of(values, 2000, 700));
}

TEST(Rows, HashAndNormAreThoseOfATensorWithOneDimension) {
  const std::vector<float> values = Values(3 * 1000);
  const std::vector<RowStats> rows = Of(values, 3, 1000);
  for (std::size_t row = 0; row < 3; ++row) {
    const std::array<std::int64_t, 1> shape{1000};
    std::uint32_t samples = 0;
    const TensorStats whole =
        ComputeCpu({values.data() + 1000 * row, DType::kF32, shape, {}}, {}, {}, &samples);
    EXPECT_EQ(rows[row].hash, whole.hash);
    EXPECT_EQ(rows[row].l2, static_cast<float>(whole.l2));
  }
}

TEST(Rows, TheSketchEstimatesDistances) {
  const std::vector<float> values = Values(400 * 512);
  std::vector<float> moved = values;
  std::mt19937 rng(2);
  std::normal_distribution<float> normal(0, 0.01f);
  for (float& value : moved) value += normal(rng);
  const auto a = Of(values, 400, 512), b = Of(moved, 400, 512);
  double estimated = 0;
  for (std::size_t row = 0; row < a.size(); ++row) {
    for (std::size_t sum = 0; sum < kRowSketch; ++sum)
      estimated += std::pow(static_cast<double>(a[row].sketch[sum] - b[row].sketch[sum]), 2);
  }
  EXPECT_NEAR(std::sqrt(estimated / (400 * 512)), 0.01, 0.001);
}

TEST(Rows, TheSignsOfColumnsAreEven) {
  EXPECT_FALSE(RowMinus(0));
  int minus = 0;
  for (std::uint64_t column = 0; column < 4096; ++column) minus += RowMinus(column) ? 1 : 0;
  EXPECT_NEAR(minus, 2048, 130);
}

TEST(Rows, OnlyAMatrixOfUpTo32BitsOfColumnsHasRows) {
  const std::vector<float> values(8);
  const auto refused = [&](std::vector<std::int64_t> shape, std::uint64_t first, DType dtype) {
    return std::string(ValidateRows({values.data(), dtype, shape, {}}, first).message());
  };
  EXPECT_THAT(refused({8}, 0, DType::kF32), HasSubstr("1 dimensions"));
  EXPECT_THAT(refused({2, 2, 2}, 0, DType::kF32), HasSubstr("3 dimensions"));
  EXPECT_THAT(refused({1, 4}, 0xfffffffd, DType::kF32), HasSubstr("4 columns"));
  EXPECT_THAT(refused({1, 4}, 1, DType::kC64), HasSubstr("8 columns from 1"));
  EXPECT_EQ(refused({1, 4}, 0xfffffffb, DType::kF32), "");
}

TEST(TokenKey, DependsOnAllIdsBefore) {
  const std::uint64_t first = TokenKey(kTokenKeyStart, 5);
  EXPECT_EQ(first, TokenKey(kTokenKeyStart, 5));
  EXPECT_NE(first, TokenKey(kTokenKeyStart, 6));
  EXPECT_NE(TokenKey(first, 6), TokenKey(TokenKey(kTokenKeyStart, 6), 5));
}

}  // namespace
}  // namespace statcollect::stats
