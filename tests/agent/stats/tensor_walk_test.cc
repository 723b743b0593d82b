#include "agent/stats/tensor_walk.h"

#include <gtest/gtest.h>

#include "tests/agent/stats/test_tensor.h"

namespace statcollect::stats {
namespace {

TEST(TensorWalk, SeesContiguousLayoutsAsSuch) {
  const float data[1] = {};
  const auto contiguous = [&](std::vector<std::int64_t> shape, std::vector<std::int64_t> strides) {
    return TensorWalk({data, DType::kF32, shape, strides}).contiguous();
  };
  EXPECT_TRUE(contiguous({}, {}));
  EXPECT_TRUE(contiguous({4, 5, 6}, {}));
  EXPECT_TRUE(contiguous({4, 5, 6}, {30, 6, 1}));
  EXPECT_TRUE(contiguous({4, 1, 6}, {6, 999, 1}));
  EXPECT_TRUE(contiguous({1, 1}, {7, 9}));
  EXPECT_FALSE(contiguous({4, 5, 6}, {30, 7, 1}));
  EXPECT_FALSE(contiguous({6}, {2}));
  EXPECT_FALSE(contiguous({6}, {-1}));
  EXPECT_FALSE(contiguous({5, 6}, {0, 1}));
}

TEST(TensorWalk, SeeksAndCopiesAnyRunOfElements) {
  std::mt19937_64 random(31);
  for (int round = 0; round < 500; ++round) {
    TestTensor tensor{DType::kI32, {}, {}, 0, {}};
    tensor.storage.resize(5000);
    for (std::uint64_t& word : tensor.storage) word = random();
    const std::size_t dims = random() % 5;
    std::int64_t elements = 1;
    tensor.origin = 5000;
    for (std::size_t d = 0; d < dims; ++d) {
      tensor.shape.push_back(1 + static_cast<std::int64_t>(random() % 7));
      tensor.strides.push_back(static_cast<std::int64_t>(random() % 300) - 150);
      elements *= tensor.shape.back();
    }
    const ReferenceComponents expected = ComponentsOf(tensor.View());
    TensorWalk walk(tensor.View());
    ASSERT_EQ(walk.size(), static_cast<std::uint64_t>(elements));
    const std::uint64_t begin = random() % walk.size();
    walk.Seek(begin);
    for (std::uint64_t at = begin; at < walk.size();) {
      const std::uint64_t count = std::min<std::uint64_t>(1 + random() % 40, walk.size() - at);
      std::vector<std::int32_t> copied(count);
      walk.Copy(count, copied.data());
      ASSERT_EQ(std::memcmp(copied.data(), expected.bytes.data() + at * 4, count * 4), 0)
          << "round " << round;
      at += count;
    }
  }
}

TEST(TensorWalk, CalculatesOffsetsBeyondTwoToThe31) {
  const float data[1] = {};
  const std::int64_t shape[] = {70000, 70000}, strides[] = {1, 70001};
  TensorWalk walk({data, DType::kF32, shape, strides});
  EXPECT_EQ(walk.size(), 4900000000u);
  walk.Seek(4899999999u);
  EXPECT_EQ(walk.offset(), 69999 + std::int64_t{69999} * 70001);
  walk.Seek(std::uint64_t{1} << 32);
  const std::int64_t row = (std::int64_t{1} << 32) / 70000,
                     column = (std::int64_t{1} << 32) % 70000;
  EXPECT_EQ(walk.offset(), row + column * 70001);
}

}  // namespace
}  // namespace statcollect::stats
