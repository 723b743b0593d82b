#include "server/api/checkpoint_target.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace statcollect::api {
namespace {

using ::testing::HasSubstr;

class CheckpointTargetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "rootXXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string root_;
};

TEST_F(CheckpointTargetTest, WithoutARootAPathIsAPathWhereThatIsAllowed) {
  EXPECT_EQ(CheckpointTarget("/backup/monday", "", true).value(), "/backup/monday");
  const auto refused = CheckpointTarget("/backup/monday", "", false);
  EXPECT_EQ(refused.status().code(), Code::kPermissionDenied);
  EXPECT_THAT(refused.status().message(), HasSubstr("--checkpoint-root"));
  EXPECT_EQ(CheckpointTarget("", "", true).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(CheckpointTarget(std::string(5000, 'p'), "", true).status().code(),
            Code::kInvalidArgument);
}

TEST_F(CheckpointTargetTest, BelowTheRootOnlyNamesAreTaken) {
  EXPECT_EQ(CheckpointTarget("monday", root_, true).value(), root_ + "/monday");
  for (const char* asked : {"/etc", "../up", "..", ".", "", "a/b", "a\nb", "-x"}) {
    const auto refused = CheckpointTarget(asked, root_, true);
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument) << asked;
  }
  std::filesystem::create_directory(root_ + "/tuesday");
  EXPECT_TRUE(CheckpointTarget("tuesday", root_, true).ok())
      << "whether it is empty is the store's question";
}

TEST_F(CheckpointTargetTest, LinksAndFilesAreNotFollowed) {
  std::filesystem::create_directory_symlink("/tmp", root_ + "/link");
  std::ofstream(root_ + "/file") << "mine";
  std::filesystem::create_symlink(root_ + "/nowhere", root_ + "/dangling");
  for (const char* asked : {"link", "file", "dangling"}) {
    const auto refused = CheckpointTarget(asked, root_, true);
    EXPECT_EQ(refused.status().code(), Code::kFailedPrecondition) << asked;
    EXPECT_THAT(refused.status().message(), HasSubstr("is a link or a file"));
  }
}

TEST_F(CheckpointTargetTest, ARootThatOthersMayChangeIsNotUsed) {
  ASSERT_EQ(chmod(root_.c_str(), 0770), 0);
  const auto refused = CheckpointTarget("monday", root_, true);
  EXPECT_EQ(refused.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("others may change it"));
  EXPECT_EQ(CheckpointTarget("monday", root_ + "/none", true).status().code(),
            Code::kFailedPrecondition);
}

}  // namespace
}  // namespace statcollect::api
