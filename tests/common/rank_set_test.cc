#include "common/rank_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace statcollect {
namespace {

using ::testing::HasSubstr;

TEST(RankSet, NamesRanksAndRangesOfAWorld) {
  const auto some = RankSet::Parse("0,8-15", 16);
  ASSERT_TRUE(some.ok());
  EXPECT_EQ(some->count(), 9u);
  EXPECT_TRUE(some->Contains(0));
  EXPECT_FALSE(some->Contains(1));
  EXPECT_FALSE(some->Contains(7));
  EXPECT_TRUE(some->Contains(8));
  EXPECT_TRUE(some->Contains(15));
  EXPECT_EQ(some->CountBelow(0), 0u);
  EXPECT_EQ(some->CountBelow(8), 1u);
  EXPECT_EQ(some->CountBelow(15), 8u);
}

TEST(RankSet, WritesEqualSetsAlikeAndAllRanksAsNothing) {
  EXPECT_EQ(RankSet::Parse(" 3 , 1-2,2, 0 ,8-8", 16)->Text(), "0-3,8");
  EXPECT_EQ(RankSet::Parse("0-7,8-15", 16)->Text(), "");
  const auto all = RankSet::Parse("", 4);
  EXPECT_EQ(all->Text(), "");
  EXPECT_EQ(all->count(), 4u);
  EXPECT_EQ(RankSet::Parse("0", 1)->Text(), "");
}

TEST(RankSet, AddsAnother) {
  RankSet both = *RankSet::Parse("0,5", 8);
  both.Add(*RankSet::Parse("1-3", 8));
  EXPECT_EQ(both.Text(), "0-3,5");
  RankSet none;
  none.Add(both);
  EXPECT_EQ(none.count(), 5u);
  EXPECT_EQ(none.Text(), "0-3,5");
  EXPECT_EQ(RankSet().count(), 0u);
}

TEST(RankSet, RefusesWhatIsNoRankOfTheWorldAndSaysWhatIs) {
  for (const auto& [text, part] : {std::pair("x", "part 'x' is neither a rank nor a closed range"),
                                   {"0,", "part '' is empty"},
                                   {",0", "part '' is empty"},
                                   {" ", "part '' is empty"},
                                   {"0-", "is neither"},
                                   {"-1", "is neither"},
                                   {"1--2", "is neither"},
                                   {"1.5", "is neither"},
                                   {"+1", "is neither"},
                                   {"0 1", "is neither"},
                                   {"3-1", "ends before it begins"},
                                   {"4", "is beyond the last rank, 3 of a world of 4"},
                                   {"0-4", "is beyond the last rank"},
                                   {"99999999999", "is neither"},
                                   {"every=2", "is neither"}}) {
    const auto refused = RankSet::Parse(text, 4);
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(refused.status().message(), HasSubstr(part)) << text;
    EXPECT_THAT(refused.status().message(), HasSubstr("write for example 0,8-15"));
  }
}

}  // namespace
}  // namespace statcollect
