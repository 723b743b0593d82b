#include "common/step_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace statcollect {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

StepSet Parsed(std::string_view text) {
  Result<StepSet> set = StepSet::Parse(text);
  EXPECT_TRUE(set.ok()) << text << ": " << set.status().message();
  return set.ok() ? *set : StepSet();
}

std::vector<std::uint64_t> StepsBelow(std::uint64_t end, const StepSet& set) {
  std::vector<std::uint64_t> steps;
  for (std::uint64_t step = 0; step < end; ++step) {
    if (set.Contains(step)) steps.push_back(step);
  }
  return steps;
}

TEST(StepSet, HasEveryStepByDefaultAndForEmptyText) {
  for (const StepSet& set : {StepSet(), Parsed(""), Parsed(" \t\n")}) {
    EXPECT_TRUE(set.Contains(0));
    EXPECT_TRUE(set.Contains(StepSet::kLastStep));
    EXPECT_EQ(set.first(), 0u);
    EXPECT_EQ(set.last(), StepSet::kLastStep);
  }
}

TEST(StepSet, ReadsSinglesClosedAndOpenRanges) {
  const StepSet set = Parsed("0-2,5,9-");
  EXPECT_THAT(StepsBelow(12, set), ElementsAre(0, 1, 2, 5, 9, 10, 11));
  EXPECT_TRUE(set.Contains(StepSet::kLastStep));
}

TEST(StepSet, ReadsMindSporeForm) {
  const StepSet set = Parsed("0|5-8|100-120");
  EXPECT_THAT(StepsBelow(102, set), ElementsAre(0, 5, 6, 7, 8, 100, 101));
  EXPECT_EQ(set.last(), 120u);
  EXPECT_FALSE(set.Contains(121));
}

TEST(StepSet, ThinsAllStepsOrTheGivenRanges) {
  EXPECT_THAT(StepsBelow(10, Parsed("every=3")), ElementsAre(0, 3, 6, 9));
  EXPECT_THAT(StepsBelow(100, Parsed("10-35,every=10")), ElementsAre(10, 20, 30));
  EXPECT_THAT(StepsBelow(100, Parsed("every=10|10-35")), ElementsAre(10, 20, 30));
  EXPECT_THAT(StepsBelow(4, Parsed("every=1")), ElementsAre(0, 1, 2, 3));
}

TEST(StepSet, MergesOverlappingUnorderedAndAdjacentRanges) {
  const StepSet set = Parsed("7-9,0-3,2-5,8,6-6,20");
  EXPECT_THAT(StepsBelow(30, set), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 20));
  EXPECT_EQ(set.first(), 0u);
  EXPECT_EQ(set.last(), 20u);
  // The inner range must not shorten the outer one; a range without end swallows what follows it.
  EXPECT_THAT(StepsBelow(12, Parsed("0-9,2-3")), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(Parsed("5-,7-8,18446744073709551615").last(), StepSet::kLastStep);
}

TEST(StepSet, ToleratesSpaceAroundParts) {
  EXPECT_THAT(StepsBelow(10, Parsed("  1-2 ,\t4 | every=2 ")), ElementsAre(2, 4));
}

TEST(StepSet, EqualsAPlainListOfRangesOnRandomInput) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    std::string text;
    std::vector<bool> expected(64, false);
    for (int i = 0; i < 6; ++i) {
      const std::uint64_t first = random() % 60, last = first + random() % 4;
      text += (i == 0 ? "" : ",") + std::to_string(first) + "-" + std::to_string(last);
      for (std::uint64_t step = first; step <= last; ++step) expected[step] = true;
    }
    const StepSet set = Parsed(text);
    for (std::uint64_t step = 0; step < 64; ++step)
      ASSERT_EQ(set.Contains(step), expected[step]) << text << " @" << step;
  }
}

TEST(StepSet, AtOrAfterIsTheFirstStepThatItContains) {
  for (const char* const text :
       {"", "5", "0-9,20,30-", "every=7", "3-5,12-13,20-40,every=10", "60-,every=9"}) {
    const StepSet set = Parsed(text);
    for (std::uint64_t step = 0; step < 64; ++step) {
      std::uint64_t first = step;
      while (first < 200 && !set.Contains(first)) ++first;
      ASSERT_EQ(set.AtOrAfter(step), first == 200 ? std::nullopt : std::optional(first))
          << text << " @" << step;
    }
  }
}

TEST(StepSet, GoesToTheLastStepThereIs) {
  constexpr std::uint64_t kLast = StepSet::kLastStep, kMiddle = std::uint64_t{1} << 63;
  EXPECT_EQ(StepSet().AtOrAfter(kLast), kLast);
  EXPECT_EQ(Parsed("every=2").AtOrAfter(kLast), std::nullopt) << "the next multiple would be 2^64";
  EXPECT_EQ(Parsed("every=18446744073709551615").AtOrAfter(1), kLast);
  EXPECT_EQ(Parsed("every=9223372036854775808").AtOrAfter(1), kMiddle);
  EXPECT_EQ(Parsed("every=9223372036854775808").AtOrAfter(kMiddle + 1), std::nullopt);
  EXPECT_EQ(Parsed("0-18446744073709551615").AtOrAfter(kLast), kLast);
  const StepSet joined = Parsed("18446744073709551615,0-18446744073709551614");
  EXPECT_TRUE(joined.Contains(0));
  EXPECT_TRUE(joined.Contains(kLast));
  EXPECT_EQ(Parsed("5,18446744073709551615").AtOrAfter(6), kLast);
  EXPECT_FALSE(Parsed("5,18446744073709551615").Contains(kLast - 1));
}

TEST(StepSet, RefusesWhatDoesNotParseNamingThePartAndTheGrammar) {
  const std::pair<const char*, const char*> cases[] = {
      {"5-3", "part '5-3' ends before it begins"},
      {"1,abc", "part 'abc' is neither"},
      {"-5", "part '-5' is neither"},
      {"+5", "part '+5' is neither"},
      {"1-2-3", "part '1-2-3' is neither"},
      {"0x10", "part '0x10' is neither"},
      {"1.5", "part '1.5' is neither"},
      {"1 2", "part '1 2' is neither"},
      {"1,,2", "part '' is empty"},
      {"1,", "part '' is empty"},
      {",", "part '' is empty"},
      {"-", "part '-' is neither"},
      {"18446744073709551616", "part '18446744073709551616' is neither"},
      {"0-99999999999999999999", "part '0-99999999999999999999' is neither"},
      {"every=0", "part 'every=0' is not every=N"},
      {"every=", "part 'every=' is not every=N"},
      {"every=-1", "part 'every=-1' is not every=N"},
      {"every=2x", "part 'every=2x' is not every=N"},
      {"every=2,every=3", "part 'every=3' is a second every="},
      {"\x1b[0m", "part '\\x1b[0m' is neither"},
  };
  for (const auto& [text, message] : cases) {
    const Result<StepSet> set = StepSet::Parse(text);
    ASSERT_FALSE(set.ok()) << text;
    EXPECT_EQ(set.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(set.status().message(), HasSubstr(message));
    EXPECT_THAT(set.status().message(), HasSubstr("every=N (N >= 1), separated by ',' or '|'"));
  }
}

}  // namespace
}  // namespace statcollect
