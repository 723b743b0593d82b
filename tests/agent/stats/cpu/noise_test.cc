// The noise against its definition in noise.h, element by element, for every instruction set, type
// and layout.
#include "agent/stats/cpu/noise.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "agent/stats/cpu/kernels.h"
#include "common/mix_bits.h"
#include "common/narrow_float.h"

namespace statcollect::stats {
namespace {

constexpr Noise kNoise{.key = 0x123456789abcdef1u, .step = 5, .ulps = 3};

std::uint64_t Mixed() { return MixBits(kNoise.key + kNoise.step * 0x9e3779b97f4a7c15u); }

// n of noise.h.
double Number(std::uint32_t index, std::uint32_t bits) {
  const auto lower = static_cast<std::uint32_t>(Mixed()),
             upper = static_cast<std::uint32_t>(Mixed() >> 32);
  std::uint32_t x = (index * 0x9e3779b1u ^ lower) + bits;
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x ^= upper;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return static_cast<double>((static_cast<std::int32_t>(x) >> 7) | 1) / 0x1p24;
}

float Expected(float value, std::uint32_t index) {
  const float n = static_cast<float>(Number(index, std::bit_cast<std::uint32_t>(value)));
  const float sum = value + value * (n * 3 * 0x1p-23f);
  return std::isfinite(sum) ? sum : value;
}

double Expected(double value, std::uint32_t index) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const double n =
      Number(index, static_cast<std::uint32_t>(bits) ^ static_cast<std::uint32_t>(bits >> 32));
  const double sum = value + value * (n * 3 * 0x1p-52);
  return std::isfinite(sum) ? sum : value;
}

template <typename T>
std::vector<T> Values(std::size_t count) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(normal(random) * std::exp(4 * normal(random)));
  const T special[] = {T{0},
                       -T{0},
                       std::numeric_limits<T>::infinity(),
                       -std::numeric_limits<T>::infinity(),
                       std::numeric_limits<T>::max(),
                       std::numeric_limits<T>::lowest(),
                       std::numeric_limits<T>::denorm_min()};
  std::copy(std::begin(special), std::end(special), values.begin());
  return values;
}

NoiseLayout Flat(DType dtype, const std::int64_t& count) {
  static constexpr std::int64_t kOne = 1;
  return {.dtype = dtype,
          .shape = {&count, 1},
          .from_strides = {&kOne, 1},
          .to_strides = {&kOne, 1},
          .index_strides = {&kOne, 1},
          .first_index = 11};
}

template <typename T>
void ExpectDefinition(DType dtype, NoiseFunctions CpuKernels::*functions) {
  const std::vector<T> values = Values<T>(1003);
  const NoiseWords words{
      .first = static_cast<std::uint32_t>(Mixed()),
      .second = static_cast<std::uint32_t>(Mixed() >> 32),
      .scale = 3.0 * static_cast<double>(std::numeric_limits<T>::epsilon()) * 0x1p-24};
  for (const InstructionSet set :
       {InstructionSet::kBaseline, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    const CpuKernels* kernels = KernelsFor(set);
    if (kernels == nullptr) continue;
    std::vector<T> made(values.size()), differences(values.size());
    (kernels->*functions).values(values.data(), made.data(), values.size(), 11, 3, words);
    (kernels->*functions)
        .differences(values.data(), differences.data(), values.size(), 11, 3, words);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T expected = Expected(values[i], 11 + 3 * static_cast<std::uint32_t>(i));
      EXPECT_EQ(made[i], expected) << static_cast<int>(set) << ": " << values[i];
      EXPECT_EQ(values[i] + differences[i], expected) << static_cast<int>(set) << ": " << values[i];
    }
  }
  std::vector<T> whole(values.size());
  const auto count = static_cast<std::int64_t>(values.size());
  AddNoise(Flat(dtype, count), values.data(), whole.data(), kNoise, false);
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(whole[i], Expected(values[i], 11 + static_cast<std::uint32_t>(i)));
}

TEST(Noise, IsItsDefinitionInEveryInstructionSet) {
  ExpectDefinition<float>(DType::kF32, &CpuKernels::noise_f32);
  ExpectDefinition<double>(DType::kF64, &CpuKernels::noise_f64);
}

// Every value of a 16-bit type: what is added is exact, and no further from the value than the
// noise and half a unit.
template <typename ToFloat>
void ExpectHalves(DType dtype, double epsilon, const ToFloat& value_of) {
  std::vector<std::uint16_t> values(65536), made(values.size()), differences(values.size());
  std::iota(values.begin(), values.end(), std::uint16_t{0});
  const auto count = static_cast<std::int64_t>(values.size());
  AddNoise(Flat(dtype, count), values.data(), made.data(), kNoise, false);
  AddNoise(Flat(dtype, count), values.data(), differences.data(), kNoise, true);
  std::size_t moved = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float before = value_of(values[i]), after = value_of(made[i]);
    if (!std::isfinite(before)) {
      EXPECT_EQ(made[i], values[i]);
      continue;
    }
    ASSERT_TRUE(std::isfinite(after)) << before;
    moved += made[i] != values[i];
    EXPECT_EQ(before + value_of(differences[i]), after) << before;
    EXPECT_LE(std::abs(after - before), 3.5 * epsilon * std::abs(before) + 0x1p-25) << before;
  }
  EXPECT_GT(moved, values.size() / 2);
}

TEST(Noise, OfSixteenBitsIsRoundedOnce) {
  ExpectHalves(DType::kBf16, 0x1p-7, [](std::uint32_t bits) { return FloatOfBf16<float>(bits); });
  ExpectHalves(DType::kF16, 0x1p-10, [](std::uint32_t bits) { return FloatOfF16<float>(bits); });
}

TEST(Noise, NeverExceedsAQuarterOfAValue) {
  std::vector<float> values(1000, 1.0f), made(values.size());
  const auto count = static_cast<std::int64_t>(values.size());
  AddNoise(Flat(DType::kF32, count), values.data(), made.data(), {.key = 1, .ulps = 1e12}, false);
  for (const float value : made) EXPECT_NEAR(value, 1.0f, 0.25f);
}

TEST(Noise, FollowsTheIndexInTheLogicalTensorWhateverTheStrides) {
  constexpr std::int64_t kRows = 12, kColumns = 10;
  const std::vector<float> values = Values<float>(kRows * kColumns);
  std::vector<float> whole(values.size());
  const std::int64_t shape[] = {kRows, kColumns}, rows_first[] = {kColumns, 1};
  const NoiseLayout layout{.dtype = DType::kF32,
                           .shape = shape,
                           .from_strides = rows_first,
                           .to_strides = rows_first,
                           .index_strides = rows_first};
  AddNoise(layout, values.data(), whole.data(), kNoise, false);

  std::vector<float> turned(values.size()), of_turned(values.size());
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c)
      turned[static_cast<std::size_t>(c * kRows + r)] =
          values[static_cast<std::size_t>(r * kColumns + c)];
  }
  const std::int64_t columns_first[] = {1, kRows};
  NoiseLayout other = layout;
  other.from_strides = other.to_strides = columns_first;
  AddNoise(other, turned.data(), of_turned.data(), kNoise, false);
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      EXPECT_EQ(of_turned[static_cast<std::size_t>(c * kRows + r)],
                whole[static_cast<std::size_t>(r * kColumns + c)]);
    }
  }

  std::vector<float> part(3 * 4);
  const std::int64_t part_shape[] = {3, 4}, part_strides[] = {4, 1};
  const NoiseLayout of_part{.dtype = DType::kF32,
                            .shape = part_shape,
                            .from_strides = rows_first,
                            .to_strides = part_strides,
                            .index_strides = rows_first,
                            .first_index = 5 * kColumns + 2};
  AddNoise(of_part, values.data() + 5 * kColumns + 2, part.data(), kNoise, false);
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 4; ++c)
      EXPECT_EQ(part[static_cast<std::size_t>(4 * r + c)],
                whole[static_cast<std::size_t>((5 + r) * kColumns + 2 + c)]);
  }
}

TEST(Noise, RefusesWhatItCannotRead) {
  const std::int64_t three = 3, negative = -1;
  EXPECT_TRUE(Validate(Flat(DType::kF32, three)).ok());
  EXPECT_FALSE(Validate(Flat(DType::kI32, three)).ok());
  EXPECT_FALSE(Validate(Flat(DType::kF32, negative)).ok());
  NoiseLayout uneven = Flat(DType::kF32, three);
  uneven.index_strides = {};
  EXPECT_FALSE(Validate(uneven).ok());
}

}  // namespace
}  // namespace statcollect::stats
