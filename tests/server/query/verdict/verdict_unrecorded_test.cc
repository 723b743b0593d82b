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

// --- models that no recorded optimizer updates

// In a step after an update made the weights differ by `of_weights`: what explains a difference in
// what `ema` has computed or keeps, a model whose weights have no updates. `trains`: it runs as one
// that is trained.
double ExpectedOf(const TensorKey& key, double of_weights, bool trains = false) {
  Explainer explainer;
  Step loaded, before, now;
  for (const char* const name : {"net.fc.weight", "ema.fc.weight"}) {
    TensorKey weight = Key(name, Kind::kWeight);
    weight.mode = Mode::kInit;
    loaded.Add(weight, 0);
  }
  explainer.Step(loaded.pairs);
  before.Add(Gradient("net.fc.weight"), of_weights);
  before.Add(Key("net.fc.weight", Kind::kWeight), of_weights);
  before.Add(Key("net.fc"), 0);
  before.Add(Key("net.fc.running_mean", Kind::kBuffer), of_weights);
  explainer.Step(before.pairs);
  if (trains) now.Add(Key("ema.fc"), 0);
  now.Add(key, 1e-4);
  return explainer.Step(now.pairs).back().expected;
}

TensorKey Evaluated(const std::string& name) {
  TensorKey key = Key(name);
  key.mode = Mode::kEval;
  return key;
}

TEST(Follower, DiffersAsTheWeightsDoThatItFollows) {
  EXPECT_GE(ExpectedOf(Evaluated("ema.fc"), 1e-4), 1e-4);
  EXPECT_LT(ExpectedOf(Evaluated("ema.fc"), 0), 1e-6);
}

TEST(Follower, IsNoneThatIsTrained) {
  EXPECT_LT(ExpectedOf(Key("ema.fc"), 1e-4), 1e-6) << "no evaluation";
}

TEST(Follower, KeepsBuffersThatDifferAsThoseOfOthers) {
  const TensorKey buffer = Key("ema.fc.running_mean", Kind::kBuffer);
  EXPECT_GE(ExpectedOf(buffer, 1e-4), 1e-4);
  EXPECT_LT(ExpectedOf(buffer, 0), 1e-6);
  EXPECT_LT(ExpectedOf(buffer, 1e-4, /*trains=*/true), 1e-6);
}

// --- rows that the data choose

class OtherRowsTest : public VerdictTest {};

TEST_F(OtherRowsTest, MayBeRoundingsChoiceSoTheyAreAPossibleRoot) {
  base_ = RowsOfExperts("");
  const DiffReport report = DiffWith(RoundingOf(kRounding), RowsOfExperts("blocks.1.ln"));
  EXPECT_EQ(Say(report), "0 forward blocks.1.ln");
  EXPECT_EQ(report.root->confidence, Confidence::kPossible);
  EXPECT_THAT(report.root->because,
              ::testing::Contains(::testing::HasSubstr("its rows depend on the data")));
}

TEST_F(OtherRowsTest, AfterEqualBitsAreNoChoice) {
  base_ = RowsOfExperts("");
  const DiffReport report = DiffWith(Nothing(), RowsOfExperts("blocks.1.ln"));
  EXPECT_EQ(Say(report), "0 forward blocks.1.ln");
  EXPECT_EQ(report.root->confidence, Confidence::kCertain);
}

TEST_F(OtherRowsTest, AreNoReasonToDoubtADifferenceInSize) {
  base_ = RowsOfExperts("");
  const DiffReport report =
      DiffWith(Sum(RoundingOf(kRounding), BugAt("blocks.1.ln", 1e-4)), RowsOfExperts(""));
  EXPECT_EQ(Say(report), "0 forward blocks.1.ln");
  EXPECT_EQ(report.root->confidence, Confidence::kLikely);
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

// A model that is called twice in a step: what the second call is given may come from the first.
class CarriedTest : public VerdictTest {
 protected:
  CarriedTest() { options_.carries = true; }
  // Of the state, and of the second call of each module.
  static Level Carried(double size) {
    return
        [size](std::uint64_t /*step*/, const TensorKey& key) { return key.call > 0 ? size : 0.0; };
  }
};

TEST_F(CarriedTest, AStateDiffersBecauseOfWhatComputedIt) {
  const DiffReport report = DiffWith(Sum(BugAt("blocks.1.fc", 1e-2), Carried(1e-2)));
  EXPECT_EQ(Say(report), "0 forward blocks.1.fc");
  for (const Divergence& row : report.diverged)
    EXPECT_EQ(row.origin, row.activation == "blocks.1.fc" && row.call == 0 && row.step == 0 &&
                              row.stage == Stage::kForward)
        << row.activation << " " << row.call;
}

TEST_F(CarriedTest, AStateRoundsAsCoarselyAsWhatComputedIt) {
  options_.dtype = DType::kBf16;  // but the state is of f32
  ExpectExplained(DiffWith(Sum(RoundingOf(2e-3), Carried(2e-3))));
}

TEST_F(CarriedTest, ASecondBatchThatWasPreparedDifferentlyIsTheRoot) {
  const DiffReport report = DiffWith(Sum(RoundingOf(kRounding), Carried(1e-2)));
  EXPECT_EQ(Say(report), "0 batch state");
  EXPECT_EQ(report.root->at.call, 1u);
}

TEST_F(CarriedTest, ASecondBatchIsAnInputWhereNothingBeforeItDiffers) {
  const DiffReport report = DiffWith(Carried(1e-2));
  EXPECT_EQ(Say(report), "0 batch state");
  EXPECT_EQ(report.root->confidence, Confidence::kCertain);
  EXPECT_TRUE(report.root->at.origin);
}

TEST_F(CarriedTest, TwinsMeasureTheRoundingOfAState) {
  const auto noise = [](double size) { return Sum(RoundingOf(size), Carried(size)); };
  Write(noise(4e-4));
  for (const int seed : {1, 2}) WriteTwin(1, seed, noise(2e-4));
  const DiffReport report = Ask();
  ExpectExplained(report);
  EXPECT_EQ(report.noise->runs.size(), 2u);
}

TEST_F(CarriedTest, TwinsShowThatASecondBatchWasPreparedDifferently) {
  Write(Sum(RoundingOf(kRounding), Carried(1e-2)));
  WriteTwins(
      [](double ulps) { return Sum(RoundingOf(kRounding * ulps), Carried(kRounding * ulps)); });
  EXPECT_EQ(Say(Ask()), "0 batch state");
}

}  // namespace
}  // namespace statcollect::query
