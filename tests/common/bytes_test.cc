// utf8.h, endian.h and shape.h.
#include <array>
#include <string>

#include <gtest/gtest.h>

#include "common/endian.h"
#include "common/shape.h"
#include "common/utf8.h"

namespace statcollect {
namespace {

TEST(DecodeUtf8, ReadsOneCharacterOfEachLength) {
  const auto expect = [](std::string_view text, char32_t code_point, std::size_t bytes) {
    const Utf8Character character = DecodeUtf8(text);
    EXPECT_EQ(character.code_point, code_point) << text;
    EXPECT_EQ(character.bytes, bytes) << text;
  };
  expect("ab", U'a', 1);
  expect("\xc3\xa9x", U'\u00e9', 2);
  expect("\xe2\x82\xac", U'\u20ac', 3);
  expect("\xf0\x9f\x98\x80", U'\U0001f600', 4);
  expect(std::string_view("\0", 1), 0, 1);
}

TEST(DecodeUtf8, RefusesWhatIsNotStrictlyValid) {
  for (const std::string_view text :
       {"", "\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff",
        "\xc3(", "\xf8\x88\x80\x80\x80"}) {
    EXPECT_EQ(DecodeUtf8(text).bytes, 0u) << text;
  }
}

TEST(LittleEndian, PutsTheLowestByteFirst) {
  std::string bytes;
  AppendLittleEndian(&bytes, std::uint32_t{0x80a1b2c3});
  AppendLittleEndian(&bytes, std::uint8_t{7});
  EXPECT_EQ(bytes, "\xc3\xb2\xa1\x80\x07");
  EXPECT_EQ(LoadLittleEndian<std::uint32_t>(bytes.data()), 0x80a1b2c3u);
  EXPECT_EQ(LoadLittleEndian<std::uint16_t>(bytes.data() + 3), 0x0780u);
  std::array<char, 8> stored{};
  StoreLittleEndian(stored.data(), std::uint64_t{0xfedcba9876543210});
  EXPECT_EQ(static_cast<unsigned char>(stored[7]), 0xfe);
  EXPECT_EQ(LoadLittleEndian<std::uint64_t>(stored.data()), 0xfedcba9876543210u);
}

TEST(NumelOf, IsTheProductOfTheSizes) {
  EXPECT_EQ(NumelOf(std::array<std::int64_t, 3>{2, 3, 4}), 24u);
  EXPECT_EQ(NumelOf({}), 1u);
  EXPECT_EQ(NumelOf(std::array<std::int64_t, 2>{5, 0}), 0u);
  EXPECT_EQ(NumelOf(std::array<std::int64_t, 2>{std::int64_t{1} << 31, std::int64_t{1} << 31}),
            std::uint64_t{1} << 62);
}

}  // namespace
}  // namespace statcollect
