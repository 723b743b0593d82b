// Differences that follow from something of which there is no record, such as batches that the
// model has computed.
#include <cmath>
#include <vector>

#include "server/query/verdict/explain.h"
#include "server/query/verdict/jumps.h"
#include "tests/server/query/verdict/step_of_pairs.h"
#include "tests/server/query/verdict/verdict_fixture.h"

namespace statcollect::query {
namespace {

// Sketches of B: a multiple of A's, or A's and something across.
std::vector<double> SumsOfB(const Step& step, double distance, bool is_factor) {
  std::vector<double> sums(step.pairs.back().a.sketch.begin(), step.pairs.back().a.sketch.end());
  for (std::size_t i = 0; i < sums.size(); ++i)
    sums[i] *= 1 + distance * (is_factor || i % 2 == 0 ? 1 : -1);
  return sums;
}

// --- batches

// Whether a batch is a jump in a step after which the weights differed by `of_weights`.
bool IsJump(double distance, double of_weights, DType dtype = DType::kF32, bool is_factor = false) {
  Explainer explainer;
  JumpFinder finder(0);
  Step before, now;
  before.Add(Key("fc.weight", Kind::kWeight), of_weights);
  finder.Find(explainer.Step(before.pairs));
  now.Add(Key("observations", Kind::kBatch), distance, {.dtype = dtype});
  const std::vector<double> sums = SumsOfB(now, distance, is_factor);
  now.pairs.back().b.sketch = sums;
  return !finder.Find(explainer.Step(now.pairs)).empty();
}

TEST(Batch, OfARolloutDiffersAsTheWeightsDo) {
  EXPECT_FALSE(IsJump(2e-5, 1e-5));
  EXPECT_TRUE(IsJump(2e-4, 1e-5));
  EXPECT_TRUE(IsJump(2e-5, 0));
}

TEST(Batch, MayBeRounded) {
  EXPECT_FALSE(IsJump(2e-7, 0));
  EXPECT_TRUE(IsJump(3e-7, 0));
}

TEST(Batch, OfWholeNumbersIsNotRounded) { EXPECT_TRUE(IsJump(1e-9, 1e-5, DType::kI64)); }

TEST(Batch, IsNotMultipliedByRounding) {
  EXPECT_TRUE(IsJump(2e-7, 1e-5, DType::kF32, /*is_factor=*/true));
}

class RolloutTest : public VerdictTest {
 protected:
  // Rounding, and batches of real numbers that differ by so much from step 1 on.
  DiffReport DiffWithBatches(double size) {
    options_.steps = 6;
    return DiffWith(Sum(RoundingOf(kRounding), [=](std::uint64_t step, const TensorKey& key) {
      return key.kind == Kind::kBatch && step > 0 ? size : 0.0;
    }));
  }
};

TEST_F(RolloutTest, RoundedBatchesAreRounding) {
  EXPECT_EQ(Say(DiffWithBatches(kRounding)), "none");
}

// The runs move apart evenly, until batches exceed their tolerance.
TEST_F(RolloutTest, BatchesThatFollowTheWeightsAreRounding) {
  options_.steps = 13;
  options_.update = 1;  // as large as the weight
  const DiffReport report = DiffWith([=](std::uint64_t step, const TensorKey& key) {
    if (IsInitial(key) || (step == 0 && key.kind != Kind::kWeight)) return 0.0;
    return 1e-7 * std::pow(2, step);
  });
  EXPECT_TRUE(std::any_of(report.diverged.begin(), report.diverged.end(),
                          [](const Divergence& row) { return row.stage == Stage::kBatch; }));
  ExpectExplained(report);
}

TEST_F(RolloutTest, OtherBatchesAreTheRoot) {
  EXPECT_EQ(Say(DiffWithBatches(1e-2)), "1 batch ids");
}

}  // namespace
}  // namespace statcollect::query
