#include "client/commands/update_ratio.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace statcollect::client {
namespace {

// Statistics and a sketch as the data model says; the generator stands for both hashes.
WeightRecord Record(const std::vector<double>& values, std::uint64_t hash, std::size_t k = 16) {
  WeightRecord record{.stats = {.numel = values.size(), .has_finite = true, .hash = hash},
                      .sketch = std::vector<double>(k)};
  std::mt19937_64 random(7);
  double squares = 0;
  std::size_t sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % 16 == 0) sum = random() % k;
    record.sketch[sum] += (random() & 1) != 0 ? values[i] : -values[i];
    squares += values[i] * values[i];
  }
  record.stats.l2 = std::sqrt(squares);
  return record;
}

TEST(EstimateUpdateRatio, IsNearTheTruthOnAverageAndMostlyInItsInterval) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  double sum = 0;
  int inside = 0;
  constexpr int kTrials = 200;
  constexpr double kTrue = 1e-3;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> before(4096), after;
    for (double& x : before) x = normal(random);
    after = before;
    double moved = 0, size = 0;
    std::vector<double> change(before.size());
    for (std::size_t i = 0; i < change.size(); ++i) {
      change[i] = normal(random);
      moved += change[i] * change[i];
      size += before[i] * before[i];
    }
    for (std::size_t i = 0; i < change.size(); ++i)
      after[i] += change[i] * kTrue * std::sqrt(size / moved);
    const auto ratio = EstimateUpdateRatio(Record(before, 1), Record(after, 2));
    ASSERT_TRUE(ratio);
    sum += ratio->value;
    inside += ratio->low <= kTrue && kTrue <= ratio->high ? 1 : 0;
  }
  EXPECT_NEAR(sum / kTrials, kTrue, 0.05 * kTrue);
  EXPECT_GT(inside, kTrials * 9 / 10);
}

TEST(EstimateUpdateRatio, IsZeroForEqualBitsAndAbsentWhereItCannotBeKnown) {
  const std::vector<double> values(64, 1.0);
  EXPECT_EQ(EstimateUpdateRatio(Record(values, 1), Record(values, 1))->value, 0);
  WeightRecord other = Record(values, 2);
  other.stats.nan = 1;
  EXPECT_FALSE(EstimateUpdateRatio(Record(values, 1), other));
  EXPECT_FALSE(EstimateUpdateRatio(Record(values, 1), Record(values, 2, 32))) << "other sketches";
  EXPECT_FALSE(EstimateUpdateRatio(Record(values, 1), Record({1.0}, 2))) << "another size";
}

class UpdateRatiosTest : public ::testing::Test {
 protected:
  void Write(std::uint64_t step, double value, Mode mode = Mode::kTrain) {
    def_.key = {.name = "w", .kind = Kind::kWeight, .mode = mode};
    const WeightRecord record = Record(std::vector<double>(64, value), std::hash<double>()(value));
    Observation observation;
    observation.step = step;
    observation.def = &def_;
    observation.layout = &layout_;
    observation.stats = &record.stats;
    observation.sketch = record.sketch;
    ASSERT_TRUE(ratios_.Write(observation).ok());
  }
  std::vector<std::uint64_t> Steps() {
    std::vector<std::uint64_t> steps;
    for (const auto& [place, ratio] : ratios_.ratios()) steps.push_back(place.second);
    return steps;
  }
  TensorDef def_;
  Layout layout_;
  UpdateRatios ratios_{"w"};
};

TEST_F(UpdateRatiosTest, FirstStepIsMeasuredAgainstTheWeightAsLoaded) {
  Write(0, 1.0, Mode::kInit);
  Write(0, 1.1);
  Write(1, 1.2);
  EXPECT_EQ(Steps(), (std::vector<std::uint64_t>{0, 1}));
}

TEST_F(UpdateRatiosTest, AfterAStepThatWasNotRecordedThereIsNone) {
  Write(0, 1.0);
  Write(2, 1.1);
  Write(3, 1.2);
  EXPECT_EQ(Steps(), (std::vector<std::uint64_t>{3}));
}

TEST_F(UpdateRatiosTest, AResumedRunIsMeasuredAgainstWhatItLoaded) {
  Write(4, 1.0);
  Write(5, 3.0, Mode::kInit);
  Write(5, 3.3);
  ASSERT_EQ(Steps(), (std::vector<std::uint64_t>{5}));
  EXPECT_LT(ratios_.ratios().begin()->second.value, 0.5);
}

}  // namespace
}  // namespace statcollect::client
