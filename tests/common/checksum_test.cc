#include "common/checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace statcollect {
namespace {

// Bit by bit, straight from the definition.
std::uint32_t ReferenceCrc32c(std::string_view bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

std::string RandomBytes(std::size_t size, std::mt19937_64& random) {
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

TEST(Crc32c, GivesThePublishedCheckValues) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
  // RFC 3720, B.4
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string ascending, descending;
  for (int i = 0; i < 32; ++i) {
    ascending += static_cast<char>(i);
    descending += static_cast<char>(31 - i);
  }
  EXPECT_EQ(Crc32c(ascending), 0x46dd794eu);
  EXPECT_EQ(Crc32c(descending), 0x113fdb5cu);
}

TEST(Crc32c, EqualsTheBitwiseDefinitionAtEveryLengthAndAlignment) {
  std::mt19937_64 random(1);
  const std::string bytes =
      RandomBytes(1700, random);  // the fast forms take 256 and 768 bytes at a time
  for (std::size_t offset = 0; offset < 9; ++offset) {
    for (std::size_t size = 0; offset + size <= bytes.size(); ++size) {
      const std::string_view part = std::string_view(bytes).substr(offset, size);
      const std::uint32_t expected = ReferenceCrc32c(part);
      ASSERT_EQ(Crc32c(part), expected) << "offset " << offset << ", size " << size;
      ASSERT_EQ(Crc32cNarrow(part), expected) << "offset " << offset << ", size " << size;
      ASSERT_EQ(Crc32cPortable(part), expected) << "offset " << offset << ", size " << size;
    }
  }
}

TEST(Crc32c, ContinuesFromASeedAtAnySplit) {
  std::mt19937_64 random(2);
  const std::string bytes = RandomBytes(1000, random);
  for (std::size_t split = 0; split <= bytes.size(); ++split) {
    const std::string_view all = bytes;
    EXPECT_EQ(Crc32c(all.substr(split), Crc32c(all.substr(0, split))), Crc32c(all))
        << "split " << split;
  }
}

TEST(Crc32c, SeesEverySingleBitFlip) {
  std::mt19937_64 random(3);
  std::string bytes = RandomBytes(64, random);
  const std::uint32_t original = Crc32c(bytes);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(Crc32c(bytes), original) << "bit " << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  }
}

}  // namespace
}  // namespace statcollect
