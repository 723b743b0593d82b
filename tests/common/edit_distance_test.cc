#include "common/edit_distance.h"

#include <gtest/gtest.h>

namespace statcollect {
namespace {

TEST(NearestName, IsTheOneThatWasProbablyMeant) {
  const std::vector<std::string> names = {"ranks", "rm", "runs", "scalars", "noise"};
  EXPECT_EQ(NearestName("run", names), "runs") << "its beginning";
  EXPECT_EQ(NearestName("rusn", names), "runs");
  EXPECT_EQ(NearestName("scalers", names), "scalars");
  EXPECT_EQ(NearestName("frobnicate", names), "");
  EXPECT_EQ(NearestName("xy", names), "") << "two edits make anything of two letters";
  EXPECT_EQ(NearestName("", names), "");
}

}  // namespace
}  // namespace statcollect
