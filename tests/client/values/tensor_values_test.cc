#include "client/values/tensor_values.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/commands/value_diff.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
TensorValues Make(DType dtype, const std::vector<std::int64_t>& shape, const std::vector<T>& values,
                  std::uint64_t numel = 0) {
  v1::CaptureRow row;
  row.set_dtype(std::string(Name(dtype)));
  row.mutable_shape()->Assign(shape.begin(), shape.end());
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  row.set_elements(bytes.size() / DTypeBytes(dtype));
  row.set_numel(numel == 0 ? row.elements() : numel);
  auto made = MakeTensorValues(std::move(row), std::move(bytes));
  EXPECT_TRUE(made.ok()) << made.status().message();
  return *std::move(made);
}

TEST(TensorValues, NpyHasTheShapeAndTheBytes) {
  const TensorValues values = Make<float>(DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6});
  const std::string npy = ToNpy(values, false);
  EXPECT_EQ(npy.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  EXPECT_THAT(npy, HasSubstr("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"));
  EXPECT_EQ((npy.size() - values.bytes.size()) % 64, 0u);
  EXPECT_EQ(npy.substr(npy.size() - 24), values.bytes);
  EXPECT_THAT(ToNpy(Make<double>(DType::kF64, {}, {7}), false), HasSubstr("'shape': (), "));
  EXPECT_THAT(ToNpy(Make<std::int8_t>(DType::kI8, {3}, {7, 8, 9}), false),
              HasSubstr("'|i1', 'fortran_order': False, 'shape': (3,), "));
  EXPECT_THAT(ToNpy(Make<float>(DType::kC64, {1}, {7, 8}), false), HasSubstr("'<c8'"));
  const std::string wide = ToNpy(Make<std::uint16_t>(DType::kBf16, {2}, {0x3f80, 0xc049}), false);
  const float expected[] = {1.0f, -3.140625f};
  EXPECT_THAT(wide, HasSubstr("'<f4'"));
  EXPECT_EQ(std::memcmp(wide.data() + wide.size() - 8, expected, 8), 0);
  const std::string raw = ToNpy(Make<std::uint16_t>(DType::kBf16, {2}, {0x3f80, 0xc049}), true);
  EXPECT_THAT(raw, HasSubstr("'<u2'"));
}

TEST(TensorValues, OfAPartTheRowsAreTheShape) {
  EXPECT_THAT(Make<float>(DType::kF32, {4, 3}, {1, 2, 3, 4, 5, 6}, 12).shape, ElementsAre(2, 3));
  EXPECT_THAT(Make<float>(DType::kF32, {4, 3}, {1, 2}, 12).shape, ElementsAre(2));
  EXPECT_THAT(Make<float>(DType::kF32, {0, 3}, {}).shape, ElementsAre(0, 3));
  v1::CaptureRow row;
  row.set_dtype("f32");
  row.set_elements(3);
  EXPECT_EQ(MakeTensorValues(row, std::string(11, 'x')).status().code(), Code::kDataLoss);
  row.set_dtype("f7");
  EXPECT_EQ(MakeTensorValues(row, std::string(12, 'x')).status().code(), Code::kDataLoss);
}

TEST(ValueDiff, SaysHowManyDifferWhereAndHowMuch) {
  const TensorValues a = Make<float>(DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6});
  const TensorValues b = Make<float>(DType::kF32, {2, 3}, {1, 2.5f, 3, 4, 5.25f, 6});
  const ValueDiff diff = CompareValues(a, b);
  EXPECT_EQ(diff.elements, 6u);
  EXPECT_EQ(diff.differ, 2u);
  EXPECT_THAT(diff.low, ElementsAre(0, 1));
  EXPECT_THAT(diff.high, ElementsAre(1, 1)) << "column 1 alone";
  EXPECT_THAT(diff.largest->index, ElementsAre(0, 1));
  EXPECT_EQ(diff.largest->absolute, 0.5);
  EXPECT_EQ(diff.largest->a, 2);
  EXPECT_EQ(diff.largest->b, 2.5);
  EXPECT_DOUBLE_EQ(diff.largest_relative->relative, 0.2);
  EXPECT_THAT(diff.first->index, ElementsAre(0, 1));
  EXPECT_DOUBLE_EQ(diff.mean_absolute, 0.75 / 6);
  EXPECT_DOUBLE_EQ(diff.distance, std::sqrt(0.3125) / std::sqrt(1 + 6.25 + 9 + 16 + 27.5625 + 36));
  EXPECT_EQ(diff.buckets[static_cast<std::size_t>(-1 - ValueDiff::kLowest)], 2u) << "0.1..1";
  EXPECT_TRUE(CompareValues(a, a).same());
  EXPECT_FALSE(diff.same());
}

TEST(ValueDiff, NanInfinitiesAndSignedZeros) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              inf = std::numeric_limits<float>::infinity();
  const ValueDiff diff =
      CompareValues(Make<float>(DType::kF32, {6}, {nan, nan, 1, inf, 0.0f, inf}),
                    Make<float>(DType::kF32, {6}, {nan, 1, nan, -inf, -0.0f, inf}));
  EXPECT_EQ(diff.differ, 4u);
  EXPECT_EQ(diff.nan_only_a, 1u);
  EXPECT_EQ(diff.nan_only_b, 1u);
  EXPECT_EQ(diff.infinite, 1u);
  EXPECT_EQ(diff.equal_value, 1u) << "0 and -0";
  EXPECT_FALSE(diff.largest) << "no finite difference";
  EXPECT_THAT(diff.first->index, ElementsAre(1));
}

TEST(ValueDiff, LargeIntegersDifferByOne) {
  const std::int64_t large = (std::int64_t{1} << 62) + 1;
  const ValueDiff diff = CompareValues(Make<std::int64_t>(DType::kI64, {1}, {large}),
                                       Make<std::int64_t>(DType::kI64, {1}, {large + 1}));
  EXPECT_EQ(diff.largest->absolute, 1);
}

TEST(ValueDiff, WhatCannotBeComparedIsSaid) {
  const TensorValues a = Make<float>(DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(CompareValues(a, Make<float>(DType::kF32, {3, 2}, {1, 2, 3, 4, 5, 6})).incomparable,
              HasSubstr("shape is 2x3 in A and 3x2 in B"));
  EXPECT_THAT(CompareValues(a, Make<double>(DType::kF64, {2, 3}, {1, 2, 3, 4, 5, 6})).incomparable,
              HasSubstr("dtype is f32 in A and f64 in B"));
  const ValueDiff part = CompareValues(a, Make<float>(DType::kF32, {2, 3}, {1, 2, 4}, 6));
  EXPECT_EQ(part.elements, 3u) << "what both kept";
  EXPECT_EQ(part.differ, 1u);
}

}  // namespace
}  // namespace statcollect::client
