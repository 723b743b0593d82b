#include "server/control/authorities.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace statcollect {
namespace {

TEST(Authorities, TakesTheFirstFileThatExists) {
  const std::string file = ::testing::TempDir() + "authorities.pem";
  std::ofstream(file) << "PEM";
  EXPECT_EQ(FirstFile(std::vector<std::string>{"", "/nonexistent", ::testing::TempDir(), file,
                                               "/etc/passwd"}),
            file);
  EXPECT_EQ(FirstFile(std::vector<std::string>{"", "/nonexistent"}), "");
  std::filesystem::remove(file);
}

TEST(Authorities, TheVariableWinsEvenIfItsFileIsMissing) {
  ::setenv("SSL_CERT_FILE", "/nonexistent/authorities.pem", 1);
  EXPECT_EQ(SystemAuthorities(), "/nonexistent/authorities.pem");
  ::setenv("SSL_CERT_FILE", "", 1);
  EXPECT_NE(SystemAuthorities(), "/nonexistent/authorities.pem");
  ::unsetenv("SSL_CERT_FILE");
}

}  // namespace
}  // namespace statcollect
