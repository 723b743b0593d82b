// Bit for bit: every instruction set against a plain scalar reduction written from the definition in
// accumulate.h.
#include "agent/stats/cpu_kernels.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/agent/stats/test_tensor.h"

namespace statcollect::stats {
namespace {

struct InstructionSetCase {
  InstructionSet set;
  const char* name;
};
constexpr InstructionSetCase kSets[] = {{InstructionSet::kBaseline, "baseline"},
                                        {InstructionSet::kAvx2, "avx2"},
                                        {InstructionSet::kAvx512, "avx512"}};

struct ScalarResult {
  double mean = 0, std = 0, l1 = 0, l2 = 0;
  std::vector<double> sketch;
};

// No vectors, no blocks, no scaling: values must be of ordinary magnitude.
ScalarResult ReduceScalar(const std::vector<double>& x, std::uint32_t width) {
  double origin = 0, offset = 0, deviations = 0, magnitudes = 0, squares = 0;
  std::uint64_t count = 0;
  ScalarResult result;
  result.sketch.assign(width, 0.0);
  for (std::size_t begin = 0; begin < x.size(); begin += 16384) {
    const std::size_t end = std::min<std::size_t>(x.size(), begin + 16384);
    double lanes[4][16] = {};
    std::vector<std::array<double, 16>> sums(width, std::array<double, 16>{});
    std::optional<double> shift;
    std::uint64_t chunk_count = 0;
    for (std::size_t i = begin; i < end; ++i) {
      if (!std::isfinite(x[i])) continue;
      if (!shift) shift = x[i];
      ++chunk_count;
      const double shifted = x[i] - *shift;
      lanes[0][i % 16] += shifted;
      lanes[1][i % 16] += shifted * shifted;
      lanes[2][i % 16] += std::fabs(x[i]);
      lanes[3][i % 16] += x[i] * x[i];
      const std::uint64_t mix = ReferenceMix(i / 16);
      sums[(mix >> 16) % width][i % 16] += ((mix >> (i % 16)) & 1) != 0 ? -x[i] : x[i];
    }
    if (chunk_count == 0) continue;
    double total[4] = {};
    for (int q = 0; q < 4; ++q) {
      for (int lane = 0; lane < 16; ++lane) total[q] += lanes[q][lane];
    }
    for (std::uint32_t s = 0; s < width; ++s) {
      double sum = 0;
      for (const double lane : sums[s]) sum += lane;
      result.sketch[s] += sum;
    }
    const double chunk_offset = total[0] / static_cast<double>(chunk_count);
    const double chunk_deviations = std::max(0.0, total[1] - total[0] * chunk_offset);
    if (count == 0) {
      origin = *shift, offset = chunk_offset, deviations = chunk_deviations;
    } else {
      const double delta = (*shift - origin) + (chunk_offset - offset);
      const double share = static_cast<double>(chunk_count) / static_cast<double>(count + chunk_count);
      offset += delta * share;
      deviations += chunk_deviations + delta * delta * (static_cast<double>(count) * share);
    }
    count += chunk_count;
    magnitudes += total[2];
    squares += total[3];
  }
  if (count == 0) return result;
  result.mean = origin + offset;
  result.std = std::sqrt(deviations / static_cast<double>(count));
  result.l1 = magnitudes;
  result.l2 = std::sqrt(squares);
  return result;
}

TEST(Kernels, ExistForAtLeastTheBaseline) {
  ASSERT_NE(KernelsFor(InstructionSet::kBaseline), nullptr);
  for (const InstructionSetCase& set : kSets) {
    const CpuKernels* kernels = KernelsFor(set.set);
    std::printf("instruction set %s: %s\n", set.name,
                kernels != nullptr ? "tested" : "not on this processor");
    if (kernels == nullptr) continue;
    for (const DType dtype : kAllDTypes)
      EXPECT_NE(kernels->add[static_cast<int>(dtype)], nullptr) << Name(dtype);
  }
}

TEST(Kernels, GiveTheBitsOfThePlainScalarReductionOnEveryInstructionSet) {
  std::mt19937_64 random(61);
  for (const DType dtype : kAllDTypes) {
    for (const std::int64_t size : {1, 15, 16, 31, 2048, 2049, 16384, 16400, 70001}) {
      for (const bool any_bits : {false, true}) {
        // Arbitrary float64 bits have squares beyond float64: compared between the sets in the next test.
        if (any_bits && DTypeBytes(dtype) >= 8 && dtype != DType::kI64 && dtype != DType::kU64 &&
            dtype != DType::kC64)
          continue;
        const TestTensor tensor =
            any_bits ? RandomBits(dtype, {size}, random) : RandomNumbers(dtype, {size}, random);
        const ReferenceComponents components = ComponentsOf(tensor.View());
        const ScalarResult scalar = ReduceScalar({components.values.begin(), components.values.end()}, 32);
        for (const InstructionSetCase& set : kSets) {
          const CpuKernels* kernels = KernelsFor(set.set);
          if (kernels == nullptr) continue;
          Partial partial;
          Accumulate(tensor.View(), {0, components.values.size(), 0}, 32, *kernels, partial);
          std::vector<double> sketch(32);
          const TensorStats stats = Finished(partial, static_cast<std::uint64_t>(size), sketch);
          const std::string what =
              std::string(set.name) + " " + std::string(Name(dtype)) + " " + std::to_string(size);
          ASSERT_EQ(stats.mean, scalar.mean) << what;
          ASSERT_EQ(stats.std, scalar.std) << what;
          ASSERT_EQ(stats.l1, scalar.l1) << what;
          ASSERT_EQ(stats.l2, scalar.l2) << what;
          ASSERT_EQ(sketch, scalar.sketch) << what;
          ASSERT_EQ(stats.hash, ReferenceHash(components)) << what;
        }
      }
    }
  }
}

TEST(Kernels, GiveTheSameBitsForArbitraryFloat64OnEveryInstructionSet) {
  std::mt19937_64 random(62);
  for (const DType dtype : {DType::kF64, DType::kC128}) {
    for (const std::int64_t size : {3, 100, 5000, 40000}) {
      const TestTensor tensor = RandomBits(dtype, {size}, random);
      std::optional<TensorStats> first;
      std::vector<double> first_sketch;
      for (const InstructionSetCase& set : kSets) {
        const CpuKernels* kernels = KernelsFor(set.set);
        if (kernels == nullptr) continue;
        Partial partial;
        Accumulate(tensor.View(), {0, ComponentCount(tensor.View()), 0}, 16, *kernels, partial);
        std::vector<double> sketch(16);
        const TensorStats stats = Finished(partial, static_cast<std::uint64_t>(size), sketch);
        if (!first) first = stats, first_sketch = sketch;
        EXPECT_EQ(stats, *first) << set.name;
        EXPECT_EQ(sketch, first_sketch) << set.name;
      }
    }
  }
}

// Ranges at chunk boundaries, appended in order, are one call over everything.
TEST(Accumulate, OverRangesAtChunkBoundariesGivesTheSameBits) {
  std::mt19937_64 random(63);
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kC64}) {
    TestTensor tensor = RandomNumbers(dtype, {200, 500}, random);
    tensor.strides = {1, 200};
    const std::uint64_t components = ComponentCount(tensor.View());
    Partial whole, parts;
    Accumulate(tensor.View(), {0, components, 0}, 16, BestKernels(), whole);
    for (std::uint64_t begin = 0; begin < components; begin += 2 * kChunkComponents) {
      const std::uint64_t count = std::min<std::uint64_t>(2 * kChunkComponents, components - begin);
      Accumulate(tensor.View(), {begin, count, 0}, 16, BestKernels(), parts);
    }
    std::vector<double> whole_sketch(16), parts_sketch(16);
    EXPECT_EQ(Finished(whole, 100000, whole_sketch), Finished(parts, 100000, parts_sketch)) << Name(dtype);
    EXPECT_EQ(whole_sketch, parts_sketch) << Name(dtype);
  }
}

}  // namespace
}  // namespace statcollect::stats
