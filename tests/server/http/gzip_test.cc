#include "server/http/gzip.h"

#include <zlib.h>

#include <random>

#include <gtest/gtest.h>

namespace statcollect {
namespace {

std::string Unpacked(const std::string& packed, std::size_t room) {
  std::string text(room + 1, '\0');
  z_stream stream{};
  EXPECT_EQ(inflateInit2(&stream, 15 + 16), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  text.resize(stream.total_out);
  inflateEnd(&stream);
  return text;
}

TEST(GzipTest, UnpacksToTheSame) {
  std::string noise(300'000, '\0');
  std::minstd_rand random(7);
  for (char& c : noise) c = static_cast<char>(random());
  for (const std::string& text :
       {std::string(), std::string("x"), std::string(1'000'000, 'a'), noise}) {
    for (const int level : {1, 9}) EXPECT_EQ(Unpacked(Gzip(text, level), text.size()), text);
  }
  EXPECT_LT(Gzip(std::string(1'000'000, 'a'), 1).size(), 10'000u);
}

TEST(GzipTest, OnlyForClientsThatTakeIt) {
  for (const char* takes :
       {"gzip", "GZIP", "deflate, gzip;q=0.5, br", "br , gzip", "*", "gzip;q=1.0"})
    EXPECT_TRUE(AcceptsGzip(takes)) << takes;
  for (const char* refuses :
       {"", "identity", "br", "gzip;q=0", "gzip; q=0.000", "xgzip", "gzipx", ";", ",,"})
    EXPECT_FALSE(AcceptsGzip(refuses)) << refuses;
}

}  // namespace
}  // namespace statcollect
