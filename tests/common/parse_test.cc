#include "common/parse.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace statcollect {
namespace {

using ::testing::HasSubstr;

TEST(ParseNumber, ReadsTheWholeTextOrNothing) {
  EXPECT_EQ(ParseNumber<std::uint64_t>("18446744073709551615"),
            std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(ParseNumber<std::int32_t>("-12"), -12);
  EXPECT_EQ(ParseNumber<std::uint32_t>("007"), 7u);
  for (const char* text :
       {"", " 1", "1 ", "+1", "-1", "1x", "x", "0x1", "1.0", "18446744073709551616"}) {
    EXPECT_EQ(ParseNumber<std::uint64_t>(text), std::nullopt) << text;
  }
  EXPECT_EQ(ParseNumber<std::uint8_t>("256"), std::nullopt);
}

TEST(ParseNumber, ReadsOtherBases) {
  EXPECT_EQ(ParseNumber<std::uint64_t>("00ffA0", 16), 0xffa0u);
  EXPECT_EQ(ParseNumber<std::uint64_t>("0xff", 16), std::nullopt);
  EXPECT_EQ(ParseNumber<std::uint64_t>("fg", 16), std::nullopt);
}

TEST(ParseNumber, ReadsRealNumbersExactly) {
  EXPECT_EQ(ParseNumber<double>("0.1"), 0.1);
  EXPECT_EQ(ParseNumber<double>("-1e-320"), -1e-320);
  EXPECT_EQ(ParseNumber<double>("inf"), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(ParseNumber<double>("nan").value()));
  for (const char* text : {"", "1e", "1,5", " 1", "1e999", "one"}) {
    EXPECT_EQ(ParseNumber<double>(text), std::nullopt) << text;
  }
}

TEST(ParseLeadingNumber, LeavesWhatFollows) {
  const auto size = ParseLeadingNumber<std::uint64_t>("200GiB");
  ASSERT_TRUE(size.has_value());
  EXPECT_EQ(size->number, 200u);
  EXPECT_EQ(size->rest, "GiB");
  EXPECT_FALSE(ParseLeadingNumber<std::uint64_t>("GiB").has_value());
  EXPECT_FALSE(ParseLeadingNumber<std::uint8_t>("300s").has_value()) << "out of range";
}

TEST(ParseNumberIn, SaysWhatWasExpectedAndFound) {
  EXPECT_EQ(ParseNumberIn<int>("9", 0, 9).value(), 9);
  EXPECT_EQ(ParseNumberIn<int>("x\n", 0, 9).status().message(),
            "expected a whole number from 0 to 9, found 'x\\x0a'");
  EXPECT_THAT(ParseNumberIn<int>("10", 0, 9).status().message(), HasSubstr("found '10'"));
  EXPECT_EQ(ParseNumberIn<int>("-1", 0, 9).status().code(), Code::kInvalidArgument);
}

TEST(ParseHostPort, TakesNamesAndAddresses) {
  const auto expect = [](const char* text, const char* host, int port) {
    const auto parsed = ParseHostPort(text);
    ASSERT_TRUE(parsed.has_value()) << text;
    EXPECT_EQ(parsed->host, host) << text;
    EXPECT_EQ(parsed->port, port) << text;
  };
  expect("127.0.0.1:7433", "127.0.0.1", 7433);
  expect("[::1]:0", "::1", 0);
  expect("node-7.example:65535", "node-7.example", 65535);
}

TEST(ParseHostPort, RefusesEverythingElse) {
  for (const char* text : {"", ":", "host", "host:", ":1", "::1:80", "[::1]", "[::1]80",
                           "host:65536", "host:-1", "host:1x", "host: 1", "a:b:1"}) {
    EXPECT_FALSE(ParseHostPort(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace statcollect
