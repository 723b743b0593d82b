// One tensor's statistics against the slow reference of test_tensor.h.
#ifndef STATCOLLECT_TESTS_AGENT_STATS_EXPECT_LIKE_REFERENCE_H_
#define STATCOLLECT_TESTS_AGENT_STATS_EXPECT_LIKE_REFERENCE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/agent/stats/test_tensor.h"

namespace statcollect::stats {

inline constexpr long double kTolerance = 1e-6L;  // of data-model.md

inline void ExpectNear(long double found, long double expected, long double scale,
                       const std::string& what) {
  if (std::isinf(static_cast<double>(expected))) {
    EXPECT_EQ(found, static_cast<double>(expected)) << what;  // beyond float64
  } else {
    // One part in 10^6 of the scale, or what float64's subnormals can resolve.
    EXPECT_LE(std::fabs(found - expected), kTolerance * scale + 0x1p-1074L)
        << what << ": " << found << " for " << expected;
  }
}

// Everything against the reference, and the identities of the data model.
inline void ExpectLikeReference(const CpuTensor& tensor, const std::string& what) {
  ASSERT_TRUE(Validate(tensor).ok()) << what << ": " << Validate(tensor).message();
  const ReferenceComponents components = ComponentsOf(tensor);
  const ReferenceStats expected = StatsOf(components);
  const Computed found = Compute(tensor, 16, 40);
  const TensorStats& s = found.stats;
  const std::size_t count = components.values.size();
  EXPECT_EQ(s.numel * (IsComplex(tensor.dtype) ? 2 : 1), count) << what;
  EXPECT_EQ(s.nan, expected.nan) << what;
  EXPECT_EQ(s.pos_inf, expected.pos_inf) << what;
  EXPECT_EQ(s.neg_inf, expected.neg_inf) << what;
  EXPECT_EQ(s.zero, expected.zero) << what;
  EXPECT_EQ(s.neg, expected.neg) << what;
  EXPECT_EQ(s.pos, expected.pos) << what;
  EXPECT_EQ(s.nan + s.pos_inf + s.neg_inf + s.zero + s.neg + s.pos, count) << what;
  EXPECT_EQ(s.hash, ReferenceHash(components)) << what;
  ASSERT_EQ(s.has_finite, expected.finite != 0) << what;
  EXPECT_EQ(s.min, static_cast<double>(expected.min)) << what;
  EXPECT_EQ(s.max, static_cast<double>(expected.max)) << what;
  ExpectNear(s.mean, expected.mean, expected.rms, what + " mean");
  ExpectNear(s.std, expected.std, expected.std, what + " std");
  ExpectNear(s.l1, expected.l1, expected.l1, what + " l1");
  ExpectNear(s.l2, expected.l2, expected.l2, what + " l2");
  if (s.has_finite) {
    EXPECT_LE(s.min, s.mean) << what;
    EXPECT_LE(s.mean, s.max) << what;
    EXPECT_GE(s.std, 0) << what;
  }
  const std::vector<long double> sketch = ReferenceSketch(components, 16);
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_TRUE(std::isfinite(found.sketch[i])) << what;
    if (std::fabs(sketch[i]) < std::numeric_limits<double>::max()) {
      ExpectNear(found.sketch[i], sketch[i], expected.l2, what + " sketch");
    }
  }
  ASSERT_EQ(found.samples.size(), std::min<std::size_t>(40, count)) << what;
  for (std::size_t i = 0; i < found.samples.size(); ++i) {
    const auto sample = static_cast<double>(components.values[i]);
    EXPECT_TRUE(found.samples[i] == sample || (std::isnan(sample) && std::isnan(found.samples[i])))
        << what;
  }
}

}  // namespace statcollect::stats

#endif  // STATCOLLECT_TESTS_AGENT_STATS_EXPECT_LIKE_REFERENCE_H_
