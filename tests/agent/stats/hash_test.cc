#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <unordered_set>

#include "tests/agent/stats/test_tensor.h"

namespace statcollect::stats {
namespace {

std::vector<float> Ramp(std::size_t size) {
  std::vector<float> values(size);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

// The stored format: these numbers must never change.
TEST(Hash, HasItsGoldenValues) {
  EXPECT_EQ(HashOf(TensorOf(std::vector<float>{})), 0u);
  EXPECT_EQ(HashOf(TensorOf(std::vector<float>{0})), 0u);
  EXPECT_EQ(HashOf(TensorOf(std::vector<float>{1})), 0x1d9146f9df800000u);
  EXPECT_EQ(HashOf(TensorOf(Ramp(40))), 0x563245291b780000u);
  EXPECT_EQ(HashOf(TensorOf(Ramp(5000))), 0x1216ffe0347e9000u);
  EXPECT_EQ(HashOf(TensorOf(std::vector<double>{1, -2, 3})), 0xcacfa8a7d2780000u);
  EXPECT_EQ(HashOf(TensorOf(DType::kU8, std::vector<std::uint8_t>{1, 2, 3, 4, 5})),
            0x705b6ab81c6585f4u);
  EXPECT_EQ(HashOf(TensorOf(DType::kF16, std::vector<std::uint16_t>(100, 0x3c00))),
            0x23591170bb0f5000u);
  EXPECT_EQ(HashOf(TensorOf(DType::kBool, std::vector<std::uint8_t>{1, 0, 7})),
            0xd69588461e696cc1u);
}

// Hash of a whole tensor from shards, cut anywhere.
TEST(Hash, AddsUpOverShards) {
  std::mt19937_64 random(41);
  for (const DType dtype : kAllDTypes) {
    const TestTensor tensor = RandomBits(dtype, {40000}, random);
    const std::uint64_t components = ComponentCount(tensor.View()), whole = HashOf(tensor);
    for (int round = 0; round < 5; ++round) {
      std::uint64_t sum = 0;
      for (std::uint64_t begin = 0; begin < components;) {
        const std::uint64_t count =
            std::min<std::uint64_t>(2 * (1 + random() % 12000), components - begin);
        // As a range of the tensor, and as a tensor of its own at an offset in the whole.
        Partial range, shard;
        Accumulate(tensor.View(), {begin, count, 0}, 16, BestKernels(), range);
        const std::uint64_t parts = IsComplex(dtype) ? 2 : 1;
        const std::int64_t shape[] = {static_cast<std::int64_t>(count / parts)};
        const auto* data = static_cast<const unsigned char*>(tensor.View().data) +
                           begin / parts * DTypeBytes(dtype);
        Accumulate({data, dtype, shape, {}}, {0, count, begin}, 16, BestKernels(), shard);
        ASSERT_EQ(range.hash, shard.hash) << Name(dtype);
        sum += shard.hash;
        begin += count;
      }
      ASSERT_EQ(sum, whole) << Name(dtype);
    }
  }
}

TEST(Hash, IsIndependentOfLayout) {
  std::mt19937_64 random(42);
  TestTensor rows = RandomBits(DType::kBf16, {48, 40}, random);
  TestTensor columns = rows;
  columns.strides = {1, 48};  // column-major
  auto* to = reinterpret_cast<std::uint16_t*>(columns.storage.data());
  const auto* from = reinterpret_cast<const std::uint16_t*>(rows.storage.data());
  for (int i = 0; i < 48; ++i) {
    for (int j = 0; j < 40; ++j) to[j * 48 + i] = from[i * 40 + j];
  }
  EXPECT_EQ(HashOf(rows), HashOf(columns));
  columns.strides = {};
  EXPECT_NE(HashOf(rows), HashOf(columns));
}

TEST(Hash, SeesZeroSignsNaNPayloadsAndSignFlips) {
  EXPECT_NE(HashOf(TensorOf(std::vector<float>{0.0f})),
            HashOf(TensorOf(std::vector<float>{-0.0f})));
  const auto nan = [](std::uint32_t bits) {
    return HashOf(TensorOf(DType::kF32, std::vector<std::uint32_t>{1, bits}));
  };
  EXPECT_NE(nan(0x7fc00000), nan(0x7fc00001));
  EXPECT_NE(nan(0x7fc00000), nan(0xffc00000));
  const std::vector<float> values = Ramp(1000);
  std::unordered_set<std::uint64_t> seen = {HashOf(TensorOf(values))};
  std::vector<float> negated = values;
  for (float& v : negated) v = -v;
  EXPECT_TRUE(seen.insert(HashOf(TensorOf(negated))).second);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::vector<float> flipped = values;
    flipped[i] = -flipped[i];
    ASSERT_TRUE(seen.insert(HashOf(TensorOf(flipped))).second) << i;
  }
}

TEST(Hash, SeesSwapsOfElementsGroupsAndRowsAndReversal) {
  std::vector<float> values = Ramp(64 * 16);
  std::unordered_set<std::uint64_t> seen = {HashOf(TensorOf(values))};
  for (std::size_t i = 0; i < 200; ++i) {
    for (std::size_t j = i + 1; j < 200; ++j) {
      std::swap(values[i], values[j]);
      ASSERT_TRUE(seen.insert(HashOf(TensorOf(values))).second) << i << " " << j;
      std::swap(values[i], values[j]);
    }
  }
  for (const std::size_t row : {16u, 64u}) {
    for (std::size_t i = 0; i < values.size() / row; ++i) {
      for (std::size_t j = i + 1; j < values.size() / row; ++j) {
        std::vector<float> swapped = values;
        std::swap_ranges(swapped.begin() + static_cast<std::ptrdiff_t>(i * row),
                         swapped.begin() + static_cast<std::ptrdiff_t>((i + 1) * row),
                         swapped.begin() + static_cast<std::ptrdiff_t>(j * row));
        ASSERT_TRUE(seen.insert(HashOf(TensorOf(swapped))).second) << row << ": " << i << " " << j;
      }
    }
  }
  std::reverse(values.begin(), values.end());
  EXPECT_TRUE(seen.insert(HashOf(TensorOf(values))).second);
}

// The same two lanes exchanged in different groups: the words change equally, so only the keys
// distinguish them. Every pair of lanes, so that no two keys of a group differ by something that
// many groups share.
TEST(Hash, TellsTheSameExchangeInDifferentGroupsApart) {
  constexpr std::size_t kGroups = 256;
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    std::vector<float> f32(kGroups * 16);
    std::vector<double> f64(kGroups * 16);
    for (std::size_t i = 0; i < f32.size(); ++i) f64[i] = f32[i] = static_cast<float>(1 + i % 16);
    for (std::size_t a = 0; a < 16; ++a) {
      for (std::size_t b = a + 1; b < 16; ++b) {
        std::unordered_set<std::uint64_t> seen;
        for (std::size_t group = 0; group < kGroups; ++group) {
          const std::size_t i = group * 16 + a, j = group * 16 + b;
          std::swap(f32[i], f32[j]);
          std::swap(f64[i], f64[j]);
          const std::uint64_t hash =
              dtype == DType::kF32 ? HashOf(TensorOf(f32)) : HashOf(TensorOf(f64));
          ASSERT_TRUE(seen.insert(hash).second)
              << Name(dtype) << " lanes " << a << ", " << b << " group " << group;
          std::swap(f32[i], f32[j]);
          std::swap(f64[i], f64[j]);
        }
      }
    }
  }
}

TEST(Hash, SeesEverySingleBit) {
  std::mt19937_64 random(43);
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::kBool) continue;
    TestTensor tensor = RandomBits(dtype, {70}, random);
    std::unordered_set<std::uint64_t> seen = {HashOf(tensor)};
    for (std::size_t bit = 0; bit < 70 * DTypeBytes(dtype) * 8; ++bit) {
      tensor.storage[bit / 64] ^= 1ull << (bit % 64);
      ASSERT_TRUE(seen.insert(HashOf(tensor)).second) << Name(dtype) << " bit " << bit;
      tensor.storage[bit / 64] ^= 1ull << (bit % 64);
    }
  }
}

// The definition promises it for any contents: the words' keys are odd, so is the factor of their
// block.
TEST(Hash, OfABlockChangesWithAnySingleWordForCertain) {
  std::vector<std::uint32_t> words(3 * 512, 0);
  const std::uint64_t of_zeros = HashOf(TensorOf(DType::kU32, words));
  EXPECT_EQ(of_zeros, 0u);
  for (std::size_t place = 0; place < words.size(); ++place) {
    std::unordered_set<std::uint64_t> seen = {of_zeros};
    for (const std::uint32_t word :
         {1u, 2u, 0x7fffffffu, 0x80000000u, 0x80000001u, 0xfffffffeu, 0xffffffffu}) {
      words[place] = word;
      ASSERT_TRUE(seen.insert(HashOf(TensorOf(DType::kU32, words))).second)
          << word << " at " << place;
    }
    words[place] = 0;
  }
}

// Any two places of a block have different keys, so that words exchanged between them always show.
TEST(Hash, HasDifferentOddKeysForThePlacesOfABlock) {
  std::unordered_set<std::uint32_t> keys;
  for (int place = 0; place < kHashWords; ++place) {
    EXPECT_EQ(HashKey(place) % 2, 1u) << place;
    EXPECT_TRUE(keys.insert(HashKey(place)).second) << place;
    EXPECT_EQ(kHashKeys.words[place], HashKey(place));
  }
}

// The weakest change that there is: a sign bit, exchanged between two blocks at one place.
TEST(Hash, SeesASignBitMoveFromAnyBlockToAnyOther) {
  constexpr std::size_t kBlocks = 300, kWords = 512, kPlace = 77;
  std::vector<std::uint32_t> words(kBlocks * kWords, 0);
  std::unordered_set<std::uint64_t> seen;
  for (std::size_t block = 0; block < kBlocks; ++block) {
    words[block * kWords + kPlace] = 0x80000000u;
    ASSERT_TRUE(seen.insert(HashOf(TensorOf(DType::kU32, words))).second) << block;
    words[block * kWords + kPlace] = 0;
  }
}

// Tensors of few values are where a weak hash collides: contents differ only in order.
TEST(Hash, TellsPermutationsOfFewValuesApart) {
  const std::uint64_t seed = 45;
  RecordProperty("seed", static_cast<int>(seed));
  std::mt19937_64 random(seed);
  for (const int distinct : {2, 3}) {
    for (const DType dtype : {DType::kBool, DType::kU8, DType::kI64, DType::kF32, DType::kBf16}) {
      if (dtype == DType::kBool && distinct == 3) continue;
      const std::size_t size = 16 * 40 + 5;
      std::vector<int> values(size);
      for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<int>(i) % distinct;
      const auto hash = [&] {
        switch (DTypeBytes(dtype)) {
          case 1:
            return HashOf(TensorOf(dtype, std::vector<std::uint8_t>(values.begin(), values.end())));
          case 2: {
            std::vector<std::uint16_t> bits(size);
            for (std::size_t i = 0; i < size; ++i)
              bits[i] = static_cast<std::uint16_t>(values[i] * 0x3f80);
            return HashOf(TensorOf(dtype, bits));
          }
          case 4:
            return HashOf(TensorOf(dtype, std::vector<float>(values.begin(), values.end())));
          default:
            return HashOf(TensorOf(dtype, std::vector<std::int64_t>(values.begin(), values.end())));
        }
      };
      std::unordered_set<std::uint64_t> seen;
      std::unordered_set<std::string> contents;
      for (int round = 0; round < 10000; ++round) {
        std::shuffle(values.begin(), values.end(), random);
        if (!contents.insert(std::string(values.begin(), values.end())).second) continue;
        ASSERT_TRUE(seen.insert(hash()).second)
            << Name(dtype) << " seed " << seed << " round " << round;
      }
    }
  }
}

TEST(Hash, TellsSmallChangesOfBoolTensorsApart) {
  // Every pair of places swapped in a half-true mask, and every single place flipped.
  std::vector<std::uint8_t> mask(300);
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 2 == 0;
  std::unordered_set<std::uint64_t> seen = {HashOf(TensorOf(DType::kBool, mask))};
  for (std::size_t i = 0; i < mask.size(); ++i) {
    mask[i] ^= 1;
    ASSERT_TRUE(seen.insert(HashOf(TensorOf(DType::kBool, mask))).second) << i;
    for (std::size_t j = i + 1; j < mask.size(); ++j) {
      mask[j] ^= 1;
      ASSERT_TRUE(seen.insert(HashOf(TensorOf(DType::kBool, mask))).second) << i << " " << j;
      mask[j] ^= 1;
    }
    mask[i] ^= 1;
  }
}

}  // namespace
}  // namespace statcollect::stats
