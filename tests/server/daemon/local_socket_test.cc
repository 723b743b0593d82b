#include "server/daemon/local_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace statcollect {
namespace {

using ::testing::HasSubstr;

class LocalSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/socketXXXXXX";  // short: a path of a socket has at most 107 bytes
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    path_ = folder_ + "/grpc.sock";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string ErrorOf(const LocalSocketOptions& options) {
    const auto socket = LocalSocket::Open(options);
    EXPECT_FALSE(socket.ok());
    return socket.ok() ? "" : socket.status().message();
  }
  // What a collector leaves that was killed.
  void LeaveSocket() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path_.c_str());
    const int descriptor = socket(AF_UNIX, SOCK_STREAM, 0);
    ASSERT_EQ(bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    close(descriptor);
  }
  unsigned ModeOf(const std::string& path) {
    struct stat found {};
    EXPECT_EQ(lstat(path.c_str(), &found), 0);
    return found.st_mode & 07777;
  }

  std::string folder_, path_;
};

TEST_F(LocalSocketTest, HasItsModeAndGoesWithItsOwner) {
  {
    const auto socket = LocalSocket::Open({.path = path_});
    ASSERT_TRUE(socket.ok()) << socket.status().message();
    EXPECT_EQ(ModeOf(path_), 0600U);
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  const auto shared =
      LocalSocket::Open({.path = path_, .mode = 0660, .group = std::to_string(getgid())});
  ASSERT_TRUE(shared.ok()) << shared.status().message();
  EXPECT_EQ(ModeOf(path_), 0660U);
}

TEST_F(LocalSocketTest, TakesThePlaceOfOneThatNobodyServes) {
  LeaveSocket();
  ASSERT_TRUE(LocalSocket::Open({.path = path_}).ok());
}

TEST_F(LocalSocketTest, LeavesOneThatIsServedAlone) {
  const auto first = LocalSocket::Open({.path = path_});
  ASSERT_TRUE(first.ok());
  EXPECT_THAT(ErrorOf({.path = path_}), HasSubstr("another process listens there"));
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(LocalSocketTest, LeavesOtherFilesAlone) {
  std::ofstream(path_) << "notes";
  EXPECT_THAT(ErrorOf({.path = path_}), HasSubstr("not a socket"));
  EXPECT_EQ(std::filesystem::file_size(path_), 5U);
  std::filesystem::remove(path_);
  std::filesystem::create_symlink(folder_ + "/elsewhere", path_);
  EXPECT_THAT(ErrorOf({.path = path_}), HasSubstr("not a socket"));
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
}

TEST_F(LocalSocketTest, DoesNotRemoveTheSocketOfASuccessor) {
  auto first = LocalSocket::Open({.path = path_});
  ASSERT_TRUE(first.ok());
  std::filesystem::rename(path_, path_ + ".old");
  const auto second = LocalSocket::Open({.path = path_});
  ASSERT_TRUE(second.ok());
  first->reset();
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(LocalSocketTest, SaysWhatIsMissing) {
  EXPECT_THAT(ErrorOf({.path = folder_ + "/none/grpc.sock"}),
              HasSubstr("expected a path in a folder that exists"));
  EXPECT_THAT(ErrorOf({.path = path_, .group = "no-such-group"}),
              HasSubstr("--socket-group: no group 'no-such-group'"));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace statcollect
