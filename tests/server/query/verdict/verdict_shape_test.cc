// What the place of a difference tells: moved elements, masks and padding, multiples of a tensor.
#include "server/query/verdict/shape.h"

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "server/query/verdict/explain.h"
#include "server/query/verdict/jumps.h"
#include "tests/server/query/verdict/step_of_pairs.h"
#include "tests/server/query/verdict/verdict_fixture.h"

namespace statcollect::query {
namespace {

constexpr double kSmall = 1e-6;

// Sums of A that point in no particular direction, of norm 1.
std::vector<double> SumsOfA() {
  std::vector<double> sums;
  for (int i = 0; i < 16; ++i) sums.push_back((i % 2 == 0 ? 0.25 : -0.25));
  return sums;
}

// One gradient of an output behind a forward pass that rounds.
class Backward {
 public:
  // B's sums are A's plus `difference`.
  explicit Backward(const std::vector<double>& difference, double forward = kSmall)
      : sums_a_(SumsOfA()), sums_b_(sums_a_) {
    double squares = 0;
    for (std::size_t i = 0; i < 16; ++i) {
      sums_b_[i] += difference[i];
      squares += difference[i] * difference[i];
    }
    step_.Add(Key("pool"), forward);
    step_.Add(Key("fc"), forward);
    step_.Add(Key("head"), forward);
    step_.Add(GradOutput("head"), kSmall);
    step_.Add(GradOutput("fc"), kSmall);
    step_.Add(GradOutput("pool"), std::sqrt(squares), {.largest = 0.5});
    TensorPair& pair = step_.pairs.back();
    pair.a.sketch = sums_a_;
    pair.b.sketch = sums_b_;
  }
  const TensorPair& pair() const { return step_.pairs.back(); }
  // Of all elements, in A and B.
  Backward& Zeros(std::uint64_t a, std::uint64_t b) {
    stats_a_ = *step_.pairs.back().a.stats;
    stats_b_ = *step_.pairs.back().b.stats;
    stats_a_.zero = a;
    stats_b_.zero = b;
    step_.pairs.back().a.stats = &stats_a_;
    step_.pairs.back().b.stats = &stats_b_;
    return *this;
  }
  Explained Judge() { return Explainer().Step(step_.pairs).back(); }

 private:
  std::vector<double> sums_a_, sums_b_;
  TensorStats stats_a_, stats_b_;
  Step step_;
};

std::vector<double> InSums(int count, double size, double elsewhere) {
  std::vector<double> difference;
  for (int i = 0; i < 16; ++i)
    difference.push_back((i < count ? size : elsewhere) * (i % 3 == 0 ? 1 : -1));
  return difference;
}

TEST(MovedElements, AreNotCounted) {
  const Explained moved = Backward(InSums(2, 1e-3, 1e-7)).Judge();
  EXPECT_LT(moved.observed, 2 * kSmall);
  EXPECT_LT(RatioOf(moved), 1);
}

TEST(MovedElements, AreFew) {
  EXPECT_GT(Backward(InSums(5, 1e-3, 1e-7)).Judge().observed, 1e-3);
  EXPECT_GT(Backward(InSums(16, 1e-3, 0)).Judge().observed, 1e-3);
}

TEST(MovedElements, HideNothingElsewhere) {
  EXPECT_NEAR(Backward(InSums(2, 1e-3, 1e-5)).Judge().observed, 6.5e-5, 1e-5);
}

// 2048 elements, of which none is within 1e-9 of another choice.
TEST(MovedElements, NeedADifferenceThatMovesThem) {
  EXPECT_GT(Backward(InSums(2, 1e-3, 1e-7), /*forward=*/1e-8).Judge().observed, 1e-3);
}

TEST(Masks, ElementsThatAppearAreExpected) {
  EXPECT_GT(Backward(InSums(16, 1e-2, 0)).Zeros(1000, 1001).Judge().expected, 0.5);
}

TEST(Masks, PaddingIsNone) {
  EXPECT_LT(Backward(InSums(16, 1e-2, 0)).Zeros(1000, 1000).Judge().expected, 1e-5)
      << "as many zeros in both, and all other elements differ";
  EXPECT_GT(Backward(InSums(2, 1e-2, 0)).Zeros(1000, 1000).Judge().expected, 0.5)
      << "one may have appeared and another disappeared";
}

TEST(IsFactor, IsAMultipleOfTheTensor) {
  std::vector<double> factor = SumsOfA();
  for (double& sum : factor) sum *= 1e-5;
  EXPECT_TRUE(IsFactor(Backward(factor).pair()));
  EXPECT_FALSE(IsFactor(Backward(InSums(16, 1e-5, 0)).pair()));
}

// --- the first gradient, of which the loss's operations are not recorded

// Whether the first gradient is a jump if it differs so many times as much as the output.
bool JumpsIfEnlarged(double times, bool is_factor) {
  const std::vector<double> sums_a = SumsOfA();
  std::vector<double> sums_b = sums_a;
  for (std::size_t i = 0; i < sums_b.size(); ++i)
    sums_b[i] += times * kSmall * (is_factor ? sums_a[i] : (i % 3 == 0 ? 0.25 : -0.1));
  Step step;
  step.Add(Key("fc"), kSmall);
  step.Add(GradOutput("fc"), times * kSmall);
  step.pairs.back().a.sketch = sums_a;
  step.pairs.back().b.sketch = sums_b;
  for (const Jump& jump : JumpFinder(0).Find(Explainer().Step(step.pairs))) {
    if (jump.index == 1) return true;
  }
  return false;
}

TEST(FirstOfBackward, MayBeEnlargedByTheLoss) {
  EXPECT_FALSE(JumpsIfEnlarged(6, /*is_factor=*/false));
  EXPECT_TRUE(JumpsIfEnlarged(12, /*is_factor=*/false));
}

TEST(FirstOfBackward, IsNotMultipliedByRounding) {
  EXPECT_TRUE(JumpsIfEnlarged(6, /*is_factor=*/true));
}

}  // namespace
}  // namespace statcollect::query
