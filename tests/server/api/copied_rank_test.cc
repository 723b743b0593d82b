#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/convert.h"
#include "server/api/convert/transfer.h"

namespace statcollect::api {
namespace {

v1::CopiedRank Copied(std::uint64_t stat_records, std::uint64_t steps) {
  v1::CopiedRank rank;
  SessionInfo info;
  info.run = "a";
  info.world_size = 1;
  *rank.mutable_hello() = ToWire(info, 1);
  rank.set_records(stat_records);
  rank.set_stat_records(stat_records);
  rank.set_steps(steps);
  return rank;
}

TEST(CopiedRank, HasNoMoreStepsThanRecordsOfStatistics) {
  const auto taken = FromWire(Copied(3, 3));
  ASSERT_TRUE(taken.ok()) << taken.status().message();
  EXPECT_EQ(taken->steps, 3u);
  const Status refused = FromWire(Copied(3, std::uint64_t{1} << 63)).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.message(),
              ::testing::HasSubstr("rank: steps is 9223372036854775808; expected at most 3"));
}

}  // namespace
}  // namespace statcollect::api
