#include "agent/stats/cpu/stream_copy.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "agent/stats/stats.h"

namespace statcollect::stats {
namespace {

TEST(StreamCopy, CopiesEveryByteAndNoOther) {
  std::vector<unsigned char> from(700), to(700);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i % 251 + 1);
  for (std::size_t begin = 0; begin < 70; ++begin) {
    for (const std::size_t source : {0, 1, 24}) {
      for (const std::size_t bytes : {0, 1, 63, 64, 65, 127, 128, 500}) {
        to.assign(to.size(), 0);
        StreamCopy(to.data() + begin, from.data() + source, bytes);
        for (std::size_t i = 0; i < to.size(); ++i) {
          const bool copied = i >= begin && i < begin + bytes;
          ASSERT_EQ(to[i], copied ? from[source + i - begin] : 0) << begin << ' ' << bytes;
        }
      }
    }
  }
}

TEST(StreamCopy, TheFirstElementsOfATensor) {
  std::vector<std::int32_t> values(6);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(i);
  const std::int64_t shape[] = {2, 3}, turned[] = {3, 2}, strides[] = {1, 3};
  std::vector<std::int32_t> kept(4, -1);
  CopyElements({values.data(), DType::kI32, shape, {}}, 3, kept.data());
  EXPECT_EQ(kept, (std::vector<std::int32_t>{0, 1, 2, -1}));
  CopyElements({values.data(), DType::kI32, turned, strides}, 3, kept.data());
  EXPECT_EQ(kept, (std::vector<std::int32_t>{0, 3, 1, -1}));
  CopyElements({values.data(), DType::kI32, shape, {}}, 0, kept.data());
  EXPECT_EQ(kept[0], 0);
}

}  // namespace
}  // namespace statcollect::stats
