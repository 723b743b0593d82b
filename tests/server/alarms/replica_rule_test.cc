#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/alarms/replica_rule.h"

namespace statcollect::alarms {
namespace {

StepDigest Digest(std::uint64_t step, std::uint64_t weights, std::uint64_t gradients = 0,
                  std::uint64_t records = 5) {
  return {.step = step,
          .weights = {weights, records},
          .gradients = {gradients, gradients == 0 ? 0 : records}};
}

query::ReplicaLayout Groups(std::vector<query::Ranks> groups) {
  query::ReplicaLayout layout;
  layout.groups = std::move(groups);
  return layout;
}

TEST(ReplicaRule, NamesTheRankThatPartsFromTheOthersOnceUntilTheyAgreeAgain) {
  ReplicaRule rule(Groups({{0, 1, 2}}));
  for (std::uint32_t rank = 0; rank < 3; ++rank) EXPECT_TRUE(rule.Add(rank, Digest(0, 7)).empty());
  EXPECT_TRUE(rule.Add(0, Digest(1, 8)).empty());
  EXPECT_TRUE(rule.Add(1, Digest(1, 9)).empty());
  const auto told = rule.Add(2, Digest(1, 8));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].rank, 1u);
  EXPECT_EQ(told[0].finding.step, 1u);
  EXPECT_EQ(told[0].finding.fields.at("ranks"), "1");
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    EXPECT_TRUE(rule.Add(rank, Digest(2, rank)).empty()) << "once";
  rule.Add(0, Digest(3, 1));
  rule.Add(1, Digest(3, 1));
  const auto cleared = rule.Add(2, Digest(3, 1));
  ASSERT_EQ(cleared.size(), 1u);
  EXPECT_EQ(cleared[0].finding.sort, Finding::Sort::kCleared);
  EXPECT_EQ(cleared[0].rank, 1u);
}

TEST(ReplicaRule, RanksThatWereNeverEqualAreNoReplicas) {
  ReplicaRule rule(Groups({{0, 1}}));
  for (std::uint64_t step = 0; step < 10; ++step) {
    for (std::uint32_t rank = 0; rank < 2; ++rank)
      EXPECT_TRUE(rule.Add(rank, Digest(step, 100 * rank + step)).empty());
  }
}

TEST(ReplicaRule, SaysNothingWhereRecordsAreMissing) {
  ReplicaRule rule(Groups({{0, 1}}));
  rule.Add(0, Digest(0, 1));
  rule.Add(1, Digest(0, 1));
  rule.Add(0, Digest(1, 1));
  EXPECT_TRUE(rule.Add(1, Digest(1, 2, 0, /*records=*/4)).empty());
}

TEST(ReplicaRule, ComparesWithinAGroupOnly) {
  ReplicaRule rule(Groups({{0, 2}, {1, 3}}));
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (std::uint32_t rank = 0; rank < 4; ++rank)
      EXPECT_TRUE(rule.Add(rank, Digest(step, rank % 2)).empty());
  }
  rule.Add(1, Digest(3, 5));
  EXPECT_EQ(rule.Add(3, Digest(3, 6)).size(), 1u);
}

TEST(ReplicaRule, ARankMayBeManyStepsBehind) {
  ReplicaRule rule(Groups({{0, 1}}));
  for (std::uint64_t step = 0; step < 1000; ++step) rule.Add(0, Digest(step, step));
  std::vector<ReplicaRule::Told> told;
  for (std::uint64_t step = 0; step < 1000 && told.empty(); ++step)
    told = rule.Add(1, Digest(step, step < 3 ? step : step + 1));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].finding.step, 3u);
}

TEST(ReplicaRule, LeavesAloneWhatIsSharded) {
  query::ReplicaLayout layout = Groups({{0, 1}});
  layout.weights_sharded = true;
  ReplicaRule rule(layout);
  rule.Add(0, Digest(0, 1, 1));
  rule.Add(1, Digest(0, 1, 1));
  rule.Add(0, Digest(1, 1, 2));
  const auto told = rule.Add(1, Digest(1, 2, 3));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].finding.fields.at("what"), "gradients");
}

}  // namespace
}  // namespace statcollect::alarms
