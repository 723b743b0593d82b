#include "client/commands/selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/rpc/collector.h"

namespace statcollect::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Selection, ReadsRanksAndRanges) {
  EXPECT_THAT(*ParseRanks(""), IsEmpty());
  EXPECT_THAT(*ParseRanks("3"), ElementsAre(3));
  EXPECT_THAT(*ParseRanks("7,0,4-6,5"), ElementsAre(0, 4, 5, 6, 7));
}

TEST(Selection, RefusesWhatIsNoRank) {
  for (const char* text :
       {"x", "1,", ",1", "-1", "3-1", "1-", "1--2", "0x10", "99999999999", "0-4294967295", "1 2"}) {
    const auto ranks = ParseRanks(text);
    ASSERT_FALSE(ranks.ok()) << text;
    EXPECT_THAT(ranks.status().message(), HasSubstr("expected numbers such as 0,1,4-7")) << text;
  }
}

TEST(Selection, ReadsKindsAndNamesThoseThereAre) {
  EXPECT_THAT(*ParseKinds("output,grad_output"),
              ElementsAre(v1::KIND_OUTPUT, v1::KIND_GRAD_OUTPUT));
  const auto wrong = ParseKinds("output,ouptut");
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.status().message(), HasSubstr("'ouptut'"));
  EXPECT_THAT(wrong.status().message(), HasSubstr("weight_grad"));
}

TEST(Selection, ChecksStepsBeforeTheyAreSent) {
  EXPECT_TRUE(CheckSteps("0-9,every=2").ok());
  EXPECT_THAT(CheckSteps("nine").message(), HasSubstr("--step: "));
}

TEST(Address, IsHostAndPort) {
  for (const char* good : {"127.0.0.1:7433", "localhost:1", "[::1]:65535", "node-1.cluster:7433"}) {
    EXPECT_TRUE(ValidateAddress(good).ok()) << good;
  }
  for (const char* bad :
       {"", "host", ":7433", "host:", "host:0", "host:65536", "host:-1", "::1:7433",
        "http://host:7433", "host:7433/path", "a b:7433", "host:7433x", "u@host:7433"}) {
    EXPECT_FALSE(ValidateAddress(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace statcollect::client
