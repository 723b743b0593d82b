#include "common/text.h"

#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace statcollect {
namespace {

using ::testing::ElementsAre;

TEST(RanksText, JoinsNeighbours) {
  EXPECT_EQ(RanksText(std::vector<std::uint32_t>()), "none");
  EXPECT_EQ(RanksText(std::vector<std::uint32_t>{0, 1, 2, 3, 7}), "0-3, 7");
  EXPECT_EQ(RanksText(std::vector<std::uint32_t>{0, 1}), "0, 1");
}

TEST(RanksText, IsShortForAThousandRanks) {
  std::vector<std::uint32_t> even;
  for (std::uint32_t rank = 0; rank < 1000; rank += 2) even.push_back(rank);
  EXPECT_EQ(RanksText(even), "0, 2, 4, 6, 8, 10, 12, 14 and others");
}

TEST(StepsNamed, SaysTheLastOfMany) {
  EXPECT_EQ(StepsNamed({}), "steps none");
  EXPECT_EQ(StepsNamed({3}), "step 3");
  EXPECT_EQ(StepsNamed({0, 1, 2, 7}), "steps 0-2, 7");
  std::set<std::uint64_t> hundreds;
  for (std::uint64_t step = 0; step < 10'000; step += 100) hundreds.insert(step);
  EXPECT_EQ(StepsNamed(hundreds),
            "steps 0, 100, 200, 300, 400, 500, 600, 700 and others up to 9900");
}

TEST(RanksNamed, AgreesInNumber) {
  EXPECT_EQ(RanksNamed("rank", {3}), "rank 3");
  EXPECT_EQ(RanksNamed("rank", {3, 4, 5}), "ranks 3-5");
}

TEST(AllPartsOf, KeepsBlankOnes) {
  EXPECT_THAT(AllPartsOf("a; ; b", "; "), ElementsAre("a", "", "b"));
  EXPECT_THAT(AllPartsOf("", "; "), ElementsAre(""));
}

TEST(Joined, WritesNumbersAndTexts) {
  EXPECT_EQ(Joined(std::vector<std::string>{"a", "b"}), "a, b");
  EXPECT_EQ(Joined(std::set<std::uint32_t>{7, 3}, "; "), "3; 7");
  EXPECT_EQ(Joined(std::vector<std::string>()), "");
}

TEST(HexOf, HasEveryDigit) {
  EXPECT_EQ(HexOf(std::array<std::uint8_t, 3>{0x00, 0x1f, 0xa0}), "001fa0");
  EXPECT_EQ(HexOf(std::uint64_t{0x1f}), "0x000000000000001f");
}

}  // namespace
}  // namespace statcollect
