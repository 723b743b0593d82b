// Pickles and zip files that are not what they claim to be. What torch writes is in golden/sglang.
#include "client/formats/torch_file.h"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/formats/pickle.h"
#include "client/formats/zip.h"

namespace statcollect::client::formats {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::string_literals;

TEST(Pickle, WhatItWouldCallStaysAName) {
  // os.system("x"), in a list beside 1 and -2
  const auto read = Pickle::Read(
      "\x80\2](K\1J\xfe\xff\xff\xff"
      "cos\nsystem\nX\1\0\0\0x\x85Re."s);
  ASSERT_TRUE(read.ok()) << read.status().message();
  const Pickle::Value& list = read->root();
  ASSERT_EQ(list.items.size(), 3u);
  EXPECT_EQ((*read)[list.items[0]].integer, 1);
  EXPECT_EQ((*read)[list.items[1]].integer, -2);
  EXPECT_EQ((*read)[list.items[2]].type, Pickle::Type::kCall);
  EXPECT_EQ(read->NameOf((*read)[list.items[2]]), "os.system");
}

TEST(Pickle, IntegersAreThoseOfPython) {
  for (const auto& [bytes, expected] :
       {std::pair("\x8a\0."s, 0L),
        {"\x8a\1\xff."s, -1L},
        {"\x8a\2\xff\0."s, 255L},
        {"\x8b\1\0\0\0\x80."s, -128L},
        {"M\xff\xff."s, 65535L},
        {"\x8a\x08\0\0\0\0\0\0\0\x80."s, std::numeric_limits<std::int64_t>::min()}}) {
    const auto read = Pickle::Read("\x80\2" + bytes);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->root().integer, expected);
  }
  EXPECT_EQ(Pickle::Read("\x80\2\x8a\x09\0\0\0\0\0\0\0\0\1."s)->root().type, Pickle::Type::kOther);
}

TEST(Pickle, OneThatIsWrongSaysWhatAndWhere) {
  for (const auto& [bytes, found] :
       {std::pair(""s, "its end missing at byte 0"),
        {"\x80\1N."s, "a protocol before 2 at byte 2"},
        {"\x80\2"s, "its end missing at byte 2"},
        {"\x80\2."s, "an end without one value"},
        {"\x80\2NN."s, "an end without one value"},
        {"\x80\2X\xff\xff\xff\x7fx."s, "its end missing"},
        {"\x80\2h\7."s, "a value that it never memorised"},
        {"\x80\2t."s, "a mark missing"},
        {"\x80\2(R."s, "a value missing"},
        {"\x80\2}(Nu."s, "a key without a value"},
        {"\x80\2\xff."s, "the operation 255"},
        {"\x80\2i."s, "the operation 105"},
        {"\x80\2c"s + std::string(2000, 'm') + "\nn\n.", "a name that is too long"},
        {"\x80\2" + std::string(5000, '('), "too deep a nesting"},
        {"\x80\2" + std::string((1 << 21) + 1, 'N'), "too many values"}}) {
    const auto read = Pickle::Read(bytes);
    ASSERT_FALSE(read.ok()) << found;
    EXPECT_THAT(read.status().message(), AllOf(HasSubstr("a pickle with "), HasSubstr(found)));
  }
}

TEST(Zip, NumbersBeyondTheFileAreAnError) {
  const std::string end = "PK\5\6"s + std::string(6, '\0') + "\1\0"s;
  for (const auto& [bytes, found] :
       {std::pair("x"s, "no zip directory at the end"),
        {end + "\x2e\0\0\0\xff\xff\xff\x7f\0\0"s, "the end of the file in the middle"},
        {end + "\0\0\0\0\0\0\0\0\0\0"s, "a zip directory that cannot be read"},
        {end + "\xff\xff\xff\x7f\0\0\0\0\0\0"s, "a zip file of 1 members"}}) {
    MemorySource source("f", bytes);
    const auto read = ReadZipDirectory(source);
    ASSERT_FALSE(read.ok()) << found;
    EXPECT_THAT(read.status().message(), HasSubstr(found));
  }
}

}  // namespace
}  // namespace statcollect::client::formats
