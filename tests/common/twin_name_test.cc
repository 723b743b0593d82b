#include "common/twin_name.h"

#include <gtest/gtest.h>

namespace statcollect {
namespace {

TEST(TwinName, NamesTheBaseTheSizeAndTheSeed) {
  EXPECT_EQ(TwinName("night.3", 32768, 2), "night.3.twin-32768-2");
  EXPECT_EQ(BaseOfTwin("night.3.twin-32768-2"), "night.3");
}

TEST(TwinName, OtherNamesAreNoTwins) {
  for (const char* name :
       {"base", "twin-1-1", ".twin-1-1", "base.twin-1", "base.twin-1-", "base.twin--1",
        "base.twin-1-1x", "base.twin-1-1-1", "base-twin-1-1", "base.twin-a-1", ""}) {
    EXPECT_EQ(BaseOfTwin(name), "") << name;
  }
}

}  // namespace
}  // namespace statcollect
