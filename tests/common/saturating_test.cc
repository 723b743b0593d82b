#include "common/saturating.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace statcollect {
namespace {

constexpr std::uint64_t kMax = ~std::uint64_t{0};

TEST(Saturating, StopsAtTheEndsOfTheType) {
  EXPECT_EQ(SaturatingAdd(kMax - 1, 1), kMax);
  EXPECT_EQ(SaturatingAdd(kMax, 1), kMax);
  EXPECT_EQ(SaturatingAdd(std::uint64_t{1}, kMax), kMax);
  EXPECT_EQ(SaturatingSub(std::uint64_t{3}, 3), 0u);
  EXPECT_EQ(SaturatingSub(std::uint64_t{3}, 4), 0u);
  EXPECT_EQ(SaturatingSub(kMax, 1), kMax - 1);
  EXPECT_EQ(SaturatingMul(kMax / 4, 4), kMax - 3);
  EXPECT_EQ(SaturatingMul(kMax / 4 + 1, 4), kMax);
  EXPECT_EQ(SaturatingMul(kMax, 0), 0u);
  EXPECT_EQ(SaturatingMul(std::uint64_t{0}, kMax), 0u);
  EXPECT_EQ(SaturatingAdd(~std::uint32_t{0}, 1), ~std::uint32_t{0});
}

TEST(Saturating, AClosedRangeEndsBehindTheLastValueOfItsType) {
  const auto all = [](std::uint64_t first, std::uint64_t last) {
    std::vector<std::uint64_t> values;
    for (const std::uint64_t value : Closed(first, last)) values.push_back(value);
    return values;
  };
  EXPECT_EQ(all(kMax - 2, kMax), (std::vector<std::uint64_t>{kMax - 2, kMax - 1, kMax}));
  EXPECT_EQ(all(kMax, kMax), std::vector<std::uint64_t>{kMax});
  EXPECT_EQ(all(0, 0), std::vector<std::uint64_t>{0});
  EXPECT_TRUE(all(1, 0).empty());
  EXPECT_TRUE(all(kMax, 0).empty());
}

}  // namespace
}  // namespace statcollect
