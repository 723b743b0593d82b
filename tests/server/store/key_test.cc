#include "server/store/key.h"

#include <random>

#include <gtest/gtest.h>

namespace statcollect {
namespace {

TEST(StatKey, BytesAreBigEndianFields) {
  EXPECT_EQ(EncodeStatKey({.attempt = 1, .rank = 2, .step = 0x0102, .activation = 0xff}),
            std::string("\0\0\0\1\0\0\0\2\0\0\0\0\0\0\1\2\0\0\0\xff", 20));
}

TEST(StatKey, ByteOrderIsFieldOrder) {
  const unsigned seed = 20261121;
  std::mt19937_64 random(seed);
  const auto small = [&] {
    return static_cast<std::uint32_t>(random() % 3 == 0 ? random() : random() % 300);
  };
  for (int i = 0; i < 2000; ++i) {
    const StatKey a{small() % 3, small() % 3, small(), small()},
        b{small() % 3, small() % 3, small(), small()};
    EXPECT_EQ(a < b, EncodeStatKey(a) < EncodeStatKey(b))
        << Describe(a) << " / " << Describe(b) << ", seed " << seed;
    EXPECT_EQ(DecodeStatKey(EncodeStatKey(a)), a);
  }
}

TEST(StatKey, RefusesAnotherLength) {
  EXPECT_FALSE(DecodeStatKey(""));
  EXPECT_FALSE(DecodeStatKey(std::string(19, 'x')));
  EXPECT_FALSE(DecodeStatKey(std::string(21, 'x')));
}

TEST(PrefixEnd, IsAboveEveryKeyWithThePrefixAndBelowTheNext) {
  EXPECT_EQ(PrefixEnd("ab"), "ac");
  EXPECT_EQ(PrefixEnd(std::string("a\xff\xff")), "b");
  EXPECT_EQ(PrefixEnd("\xff\xff"), "");
}

}  // namespace
}  // namespace statcollect
