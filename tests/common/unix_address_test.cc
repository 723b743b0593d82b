#include "common/unix_address.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace statcollect {
namespace {

using ::testing::HasSubstr;

TEST(UnixAddress, IsAnAbsolutePathWithItsScheme) {
  EXPECT_TRUE(IsUnixAddress("unix:/run/a.sock"));
  EXPECT_FALSE(IsUnixAddress("unix"));
  EXPECT_FALSE(IsUnixAddress("127.0.0.1:7433"));
  EXPECT_EQ(SocketPath("--listen", "unix:/run/a b.sock").value(), "/run/a b.sock");
  EXPECT_EQ(SocketPath("--listen", "unix:/" + std::string(106, 'a')).value().size(), 107U);
}

TEST(UnixAddress, SaysWhatIsWrongWithOthers) {
  for (const char* wrong : {"unix:", "unix:a.sock", "unix:@abstract", "unix:./a", "unix:/",
                            "unix:/run/", "unix:/a\nb", "unix:/\xff"}) {
    const auto path = SocketPath("--listen", wrong);
    ASSERT_FALSE(path.ok()) << wrong;
    EXPECT_THAT(path.status().message(), HasSubstr("--listen: found 'unix:"));
    EXPECT_THAT(path.status().message(), HasSubstr("expected unix: and the absolute path"))
        << wrong;
  }
  EXPECT_THAT(SocketPath("--listen", "unix:/" + std::string(107, 'a')).status().message(),
              HasSubstr("a path of 108 bytes; expected at most 107"));
}

TEST(UnixAddress, TargetsOfGrpcAreUris) {
  EXPECT_EQ(UnixTarget("unix:/run/a-b_c.sock"), "unix:/run/a-b_c.sock");
  EXPECT_EQ(UnixTarget("unix:/a b?c#d%e"), "unix:/a%20b%3Fc%23d%25e");
}

}  // namespace
}  // namespace statcollect
