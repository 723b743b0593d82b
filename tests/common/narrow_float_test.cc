// Values of the narrow float types.
#include "common/narrow_float.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace statcollect {
namespace {

float Bf16(std::uint32_t bits) { return FloatOfBf16<float>(bits); }
float F16(std::uint32_t bits) { return FloatOfF16<float>(bits); }
float F8E4M3(std::uint32_t bits) { return FloatOfF8E4M3<float>(bits); }
float F8E5M2(std::uint32_t bits) { return FloatOfF8E5M2<float>(bits); }

TEST(NarrowFloat, WidensExactly) {
  EXPECT_EQ(Bf16(0x3f80), 1.0f);
  EXPECT_EQ(Bf16(0xc049), -3.140625f);
  EXPECT_EQ(F16(0x3c00), 1.0f);
  EXPECT_EQ(F16(0x7bff), 65504.0f);
  EXPECT_EQ(F16(0x0001), 5.9604644775390625e-8f);
  EXPECT_EQ(F16(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(F16(0x7e00)));
  EXPECT_EQ(F8E4M3(0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(F8E4M3(0x7f)));
  EXPECT_TRUE(std::isnan(F8E4M3(0xff)));
  EXPECT_EQ(F8E4M3(0x01), 0.001953125f);
  EXPECT_EQ(F8E5M2(0x7b), 57344.0f);
  EXPECT_EQ(F8E5M2(0x7c), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(F8E5M2(0x7d)));
  EXPECT_TRUE(std::signbit(F8E5M2(0x80)));
}

}  // namespace
}  // namespace statcollect
