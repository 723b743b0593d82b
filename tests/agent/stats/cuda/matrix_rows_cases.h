// Random matrices, and what their rows' statistics on a device must be: those of the CPU engine.
#ifndef STATCOLLECT_TESTS_AGENT_STATS_CUDA_MATRIX_ROWS_CASES_H_
#define STATCOLLECT_TESTS_AGENT_STATS_CUDA_MATRIX_ROWS_CASES_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "agent/stats/cuda/matrix_rows.h"
#include "agent/stats/rows.h"
#include "tests/agent/stats/test_tensor.h"

namespace statcollect::stats::cuda {

enum class Layout { kPlain, kUnaligned, kPadded, kTransposed, kBackwards, kEverySecond, kRepeated };
inline constexpr Layout kLayouts[] = {Layout::kPlain,      Layout::kUnaligned, Layout::kPadded,
                                      Layout::kTransposed, Layout::kBackwards, Layout::kEverySecond,
                                      Layout::kRepeated};

// `fill`: RandomNumbers or RandomBits.
template <typename Fill>
TestTensor RandomMatrix(DType dtype, std::int64_t rows, std::int64_t columns, Layout layout,
                        const Fill& fill, std::mt19937_64& random) {
  TestTensor tensor = fill(dtype, {2 * (rows + 1) * (columns + 8)}, random);
  tensor.shape = {rows, columns};
  switch (layout) {
    case Layout::kPlain:
      break;
    case Layout::kUnaligned:
      tensor.origin = 1;
      break;
    case Layout::kPadded:
      tensor.strides = {(columns + 7) / 8 * 8 + 8, 1};
      break;
    case Layout::kTransposed:
      tensor.strides = {1, rows};
      break;
    case Layout::kBackwards:
      tensor.strides = {-columns, 1};
      tensor.origin = (rows > 0 ? rows - 1 : 0) * columns;
      break;
    case Layout::kEverySecond:
      tensor.strides = {2 * columns + 1, 2};
      break;
    case Layout::kRepeated:
      tensor.strides = {0, 1};
      break;
  }
  return tensor;
}

// Whether float64 adds a few thousand random numbers of the dtype without rounding.
inline bool AddsExactly(DType dtype) { return DTypeBytes(dtype) <= 2; }

inline void ExpectNear(float found, float expected, double scale) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(found)) << found;
  } else if (std::isinf(expected)) {
    EXPECT_EQ(found, expected);
  } else {
    EXPECT_NEAR(found, expected, 1e-6 * scale);
  }
}

// `index`: the rows that were asked for; empty: all.
inline void ExpectRowsOfTheCpu(std::span<const RowRecord> found, const TestTensor& matrix,
                               std::uint64_t first, std::span<const std::int64_t> index = {},
                               bool exact = false) {
  std::vector<RowStats> expected(found.size());
  ComputeRows(matrix.View(), first, expected, nullptr, index.empty() ? nullptr : index.data());
  for (std::size_t row = 0; row < found.size(); ++row) {
    SCOPED_TRACE(row);
    EXPECT_EQ(found[row].hash, expected[row].hash);
    ExpectNear(found[row].l2, expected[row].l2, std::abs(expected[row].l2));
    for (std::size_t i = 0; i < kRowSketch; ++i) {
      if (exact) {
        EXPECT_EQ(found[row].sketch[i], expected[row].sketch[i]) << i;
      } else {
        const double norm = std::isfinite(expected[row].l2) ? expected[row].l2 : 0;
        ExpectNear(found[row].sketch[i], expected[row].sketch[i],
                   std::abs(expected[row].sketch[i]) + norm);
      }
    }
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_TESTS_AGENT_STATS_CUDA_MATRIX_ROWS_CASES_H_
