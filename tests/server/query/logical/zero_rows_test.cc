// Sets of rows with and without padding, compared.
#include "server/query/compare/zero_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/query/compare/distance.h"
#include "tests/server/query/logical/cut_tensor.h"

namespace statcollect::query {
namespace {

using namespace statcollect::testing;  // NOLINT: the helpers

Whole Padded(Whole rows, std::int64_t zero_rows) {
  rows.shape[0] += zero_rows;
  rows.values.resize(static_cast<std::size_t>(rows.shape[0] * rows.shape[1]));
  return rows;
}

Computed SetOf(const Whole& whole) {
  return SomeRows(whole, Numbered(whole.shape[0]), 0, whole.shape[1], 0, 1);
}

Comparison CompareSets(const Whole& a, const Whole& b) {
  const Computed x = SetOf(a), y = SetOf(b);
  Observation seen_a, seen_b;
  seen_a.layout = &x.layout;
  seen_a.stats = &x.stats;
  seen_a.sketch = x.sketch;
  seen_b.layout = &y.layout;
  seen_b.stats = &y.stats;
  seen_b.sketch = y.sketch;
  return Compare(seen_a, seen_b, std::nullopt, /*exact=*/false);
}

TEST(ZeroRows, ArePaddingIfTheRestIsTheSame) {
  Random random(5);
  const Whole rows = RandomTensor(random, {7, 20});
  EXPECT_EQ(CompareSets(rows, Padded(rows, 5)).agreement, Agreement::kIdentical);
  EXPECT_EQ(CompareSets(Padded(rows, 2), Padded(rows, 9)).agreement, Agreement::kIdentical);
}

TEST(ZeroRows, LeaveTheDistanceOfTheOthersAsItIs) {
  Random random(6);
  const Whole rows = RandomTensor(random, {9, 20});
  Whole rounded = rows, wrong = rows;
  for (float& value : rounded.values) value *= 1 + 1e-6F;
  for (std::size_t i = 20; i < 40; ++i) wrong.values[i] *= 1.1F;
  for (const Whole* other : {&rounded, &wrong}) {
    const Comparison plain = CompareSets(rows, *other),
                     padded = CompareSets(rows, Padded(*other, 4));
    EXPECT_EQ(plain.agreement, padded.agreement);
    ASSERT_TRUE(plain.distance && padded.distance);
    EXPECT_NEAR(plain.distance->value, padded.distance->value, 1e-3 * plain.distance->value + 1e-9);
  }
  EXPECT_EQ(CompareSets(rows, Padded(wrong, 4)).agreement, Agreement::kDiverged);
}

TEST(ZeroRows, ARowThatIsMissingIsNotPadding) {
  Random random(7);
  const Whole rows = RandomTensor(random, {9, 20});
  Whole fewer = rows;
  fewer.shape[0] = 8;
  fewer.values.resize(8 * 20);
  EXPECT_EQ(CompareSets(rows, fewer).reason, Reason::kShape);
  EXPECT_EQ(CompareSets(rows, Padded(fewer, 4)).reason, Reason::kShape);
  EXPECT_NE(CompareSets(rows, Padded(fewer, 1)).agreement, Agreement::kIdentical);
}

}  // namespace
}  // namespace statcollect::query
