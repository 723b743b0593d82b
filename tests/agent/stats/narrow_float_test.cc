#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>

#include "tests/agent/stats/test_tensor.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace statcollect::stats {
namespace {

// Every bit pattern as a tensor of its own kind, read back as samples.
void ExpectEveryPatternExact(DType dtype, std::size_t patterns) {
  TestTensor tensor;
  if (DTypeBytes(dtype) == 1) {
    std::vector<std::uint8_t> all(patterns);
    for (std::size_t i = 0; i < patterns; ++i) all[i] = static_cast<std::uint8_t>(i);
    tensor = TensorOf(dtype, all);
  } else {
    std::vector<std::uint16_t> all(patterns);
    for (std::size_t i = 0; i < patterns; ++i) all[i] = static_cast<std::uint16_t>(i);
    tensor = TensorOf(dtype, all);
  }
  const ReferenceComponents expected = ComponentsOf(tensor.View());
  const Computed computed = Compute(tensor, 0, patterns);
  ASSERT_EQ(computed.samples.size(), patterns);
  for (std::size_t i = 0; i < patterns; ++i) {
    if (std::isnan(expected.values[i])) {
      EXPECT_TRUE(std::isnan(computed.samples[i])) << Name(dtype) << " " << i;
    } else {
      EXPECT_EQ(static_cast<long double>(computed.samples[i]), expected.values[i])
          << Name(dtype) << " " << i;
      EXPECT_EQ(std::signbit(computed.samples[i]), std::signbit(expected.values[i]))
          << Name(dtype) << " " << i;
    }
  }
}

TEST(NarrowFloat, DecodesEveryBitPatternExactly) {
  ExpectEveryPatternExact(DType::kF16, 65536);
  ExpectEveryPatternExact(DType::kBf16, 65536);
  ExpectEveryPatternExact(DType::kF8E4M3, 256);
  ExpectEveryPatternExact(DType::kF8E5M2, 256);
}

// The engine decodes in vectors, samples one by one: each pattern as a tensor of 16 equal
// components shows the vector's value.
TEST(NarrowFloat, DecodesEveryBitPatternExactlyInTheEngineToo) {
  for (const DType dtype : {DType::kF16, DType::kBf16, DType::kF8E4M3, DType::kF8E5M2}) {
    const std::uint32_t patterns = DTypeBytes(dtype) == 1 ? 256 : 65536;
    for (std::uint32_t pattern = 0; pattern < patterns; ++pattern) {
      const TestTensor tensor =
          DTypeBytes(dtype) == 1
              ? TensorOf(dtype, std::vector<std::uint8_t>(16, static_cast<std::uint8_t>(pattern)))
              : TensorOf(dtype,
                         std::vector<std::uint16_t>(16, static_cast<std::uint16_t>(pattern)));
      const TensorStats stats = Compute(tensor, 0).stats;
      const long double value =
          ReferenceValue(dtype, reinterpret_cast<const unsigned char*>(tensor.storage.data()));
      ASSERT_EQ(stats.nan, std::isnan(value) ? 16u : 0u) << Name(dtype) << " " << pattern;
      ASSERT_EQ(stats.pos_inf + stats.neg_inf, std::isinf(value) ? 16u : 0u)
          << Name(dtype) << " " << pattern;
      if (!std::isfinite(value)) continue;
      ASSERT_EQ(static_cast<long double>(stats.min), value) << Name(dtype) << " " << pattern;
      ASSERT_EQ(static_cast<long double>(stats.mean), value) << Name(dtype) << " " << pattern;
      ASSERT_EQ(stats.std, 0) << Name(dtype) << " " << pattern;
    }
  }
}

TEST(FloatEnvironment, OfTheTrainerNeitherChangesResultsNorIsChanged) {
  std::mt19937_64 random(11);
  std::vector<float> values(1000);
  for (float& v : values) v = std::ldexp(static_cast<float>(random() % 1000), -149);  // subnormal
  std::vector<std::uint16_t> halves(1000);
  for (std::uint16_t& h : halves) h = static_cast<std::uint16_t>(random() % 0x400);
  const Computed expected_f32 = Compute(TensorOf(values)),
                 expected_f16 = Compute(TensorOf(DType::kF16, halves));
  ASSERT_GT(expected_f32.stats.pos, 900u);

  std::fenv_t before;
  std::fegetenv(&before);
  std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);  // flush to zero, subnormals are zero
  const unsigned control = _mm_getcsr();
#endif
  const Computed f32 = Compute(TensorOf(values)), f16 = Compute(TensorOf(DType::kF16, halves));
  const int rounding = std::fegetround();
#if defined(__x86_64__)
  const unsigned control_after = _mm_getcsr();
#endif
  std::fesetenv(&before);
  EXPECT_EQ(f32.stats, expected_f32.stats);
  EXPECT_EQ(f16.stats, expected_f16.stats);
  EXPECT_EQ(f32.sketch, expected_f32.sketch);
  EXPECT_EQ(rounding, FE_UPWARD);
#if defined(__x86_64__)
  EXPECT_EQ(control_after, control);
#endif
}

}  // namespace
}  // namespace statcollect::stats
