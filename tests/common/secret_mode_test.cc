#include "common/secret_mode.h"

#include <gtest/gtest.h>

namespace statcollect {
namespace {

bool IsClosed(mode_t mode, uid_t owner) {
  struct stat file {};
  file.st_mode = S_IFREG | mode;
  file.st_uid = owner;
  return IsClosedToOthers(file);
}

TEST(SecretModeTest, AFileOfItsOwnerAlone) {
  for (const mode_t mode : {0600U, 0400U, 0700U}) {
    EXPECT_TRUE(IsClosed(mode, 1000)) << std::oct << mode;
    EXPECT_TRUE(IsClosed(mode, 0)) << std::oct << mode;
  }
}

TEST(SecretModeTest, AGroupMayReadWhatRootGivesIt) {
  for (const mode_t mode : {0640U, 0440U}) {
    EXPECT_TRUE(IsClosed(mode, 0)) << std::oct << mode;
    EXPECT_FALSE(IsClosed(mode, 1000)) << std::oct << mode;
  }
}

TEST(SecretModeTest, NobodyElseMayReadOrChangeIt) {
  for (const mode_t mode : {0644U, 0444U, 0604U, 0602U, 0601U, 0660U, 0620U, 0650U, 0777U}) {
    EXPECT_FALSE(IsClosed(mode, 0)) << std::oct << mode;
    EXPECT_FALSE(IsClosed(mode, 1000)) << std::oct << mode;
  }
}

}  // namespace
}  // namespace statcollect
