#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/agent/stats/test_tensor.h"

namespace statcollect::stats {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
alignas(16) const unsigned char kData[64] = {};

Status Check(DType dtype, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides,
             const void* data = kData) {
  return Validate({data, dtype, shape, strides});
}

void ExpectRefused(const Status& status, const std::string& part) {
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << part;
  EXPECT_THAT(status.message(), HasSubstr(part));
  EXPECT_THAT(status.message(), HasSubstr("; expected "));
}

TEST(Validate, AcceptsEmptyScalarExpandedAndReversedViews) {
  EXPECT_TRUE(Check(DType::kF32, {}, {}).ok());
  EXPECT_TRUE(Check(DType::kF32, {0}, {}, nullptr).ok());
  EXPECT_TRUE(Check(DType::kF32, {0, kHuge}, {kHuge, kHuge}, nullptr).ok());
  EXPECT_TRUE(Check(DType::kF32, {kHuge, 0, kHuge}, {}, nullptr).ok());
  EXPECT_TRUE(Check(DType::kF32, {std::int64_t{1} << 31, std::int64_t{1} << 31}, {0, 0}).ok());
  EXPECT_TRUE(Check(DType::kF64, {3}, {-1}).ok());
  EXPECT_TRUE(Check(DType::kF64, {1}, {std::numeric_limits<std::int64_t>::min()}).ok());
  EXPECT_TRUE(Check(DType::kC128, {2}, {}, kData + 8).ok());
}

TEST(Validate, RefusesWhatCannotBeRead) {
  ExpectRefused(Check(DType::kUnspecified, {1}, {}), "dtype number 0 is unknown");
  ExpectRefused(Check(static_cast<DType>(99), {1}, {}), "dtype number 99 is unknown");
  ExpectRefused(Check(DType::kF32, {3, -1}, {}), "shape [3, -1] has a negative size");
  ExpectRefused(Check(DType::kF32, {0, -1}, {}), "negative size");
  ExpectRefused(Check(DType::kF32, {2, 3}, {1}), "1 strides for 2 dimensions");
  ExpectRefused(Check(DType::kF32, {}, {1}), "1 strides for 0 dimensions");
  ExpectRefused(Check(DType::kF32, {1}, {}, nullptr), "no data for 1 elements");
  ExpectRefused(Check(DType::kF32, {1}, {}, kData + 2), "not divisible by 4");
  ExpectRefused(Check(DType::kC128, {1}, {}, kData + 4), "not divisible by 8");
  ExpectRefused(Check(DType::kF16, {1}, {}, kData + 1), "not divisible by 2");
  ExpectRefused(Check(DType::kF32, std::vector<std::int64_t>(65, 1), {}), "65 dimensions");
}

TEST(Validate, RefusesSizesAndStridesThatOverflow) {
  ExpectRefused(Check(DType::kI8, {std::int64_t{1} << 31, std::int64_t{1} << 31, 2}, {0, 0, 0}),
                "more than 2^62");
  ExpectRefused(Check(DType::kI8, {kHuge, kHuge}, {}), "more than 2^62");
  ExpectRefused(Check(DType::kF32, {3}, {kHuge}), "reach beyond 2^62 bytes");
  ExpectRefused(Check(DType::kF32, {3}, {std::numeric_limits<std::int64_t>::min()}),
                "reach beyond");
  ExpectRefused(Check(DType::kF64, {2, 2}, {std::int64_t{1} << 58, -(std::int64_t{1} << 59)}),
                "reach beyond");
}

}  // namespace
}  // namespace statcollect::stats
