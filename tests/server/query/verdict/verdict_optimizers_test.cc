// What is expected of updates, by what the optimizer keeps and by its class.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "server/query/verdict/explain.h"
#include "server/query/verdict/jumps.h"
#include "server/query/verdict/optimizers.h"
#include "tests/server/query/verdict/step_of_pairs.h"
#include "tests/server/query/verdict/verdict_fixture.h"

namespace statcollect::query {
namespace {

constexpr double kGradientDistance = 1e-6;

// A weight's update after a gradient that differs by 1e-6, with the given state.
class Update {
 public:
  explicit Update(const std::string& state, std::vector<std::int64_t> shape = {32, 64})
      : state_(state), shape_(std::move(shape)) {}
  Update& Methods(const RecordedMethods& methods) {
    methods_ = methods;
    return *this;
  }

  double ExpectedOfWeight() { return Judge().back().expected; }
  double ExpectedOfState() { return Judge()[1].expected; }

 private:
  std::vector<Explained> Judge() {
    Explainer explainer(methods_);
    before_.Add(Key("fc.weight", Kind::kWeight), 0, {.l2 = 1, .shape = shape_});
    explainer.Step(before_.pairs);
    after_.Add(Gradient("fc.weight"), kGradientDistance, {.shape = shape_});
    after_.Add(Key("fc.weight", Kind::kOptimizerState, state_), kGradientDistance,
               {.shape = shape_});
    after_.Add(Key("fc.weight", Kind::kWeight), 1e-7, {.l2 = 2, .shape = shape_});
    return explainer.Step(after_.pairs);
  }

  const std::string state_;
  const std::vector<std::int64_t> shape_;
  RecordedMethods methods_;
  Step before_, after_;
};

TEST(Optimizers, AMomentumKeepsAGradientsDifference) {
  EXPECT_LT(Update("momentum_buffer").ExpectedOfWeight(), 5e-6);
}

TEST(Optimizers, ASecondMomentOrASignLetsSignsFlip) {
  for (const char* state : {"exp_avg_sq", "exp_inf", "square_avg", "sum", "row_var", "variance",
                            "state2", "exp_avg_sq_row", "exp_avg_slow", "exp_avg", "step_size"})
    EXPECT_NEAR(Update(state).ExpectedOfWeight(), 12e-3, 1e-4) << state;
}

TEST(Optimizers, SquaresMayDifferTwiceAsMuch) {
  EXPECT_NEAR(Update("square_avg").ExpectedOfState(), 2 * kGradientDistance, 2e-7);
  EXPECT_NEAR(Update("grad_avg").ExpectedOfState(), kGradientDistance, 2e-7);
}

TEST(Optimizers, AnOrthogonalUpdateOfALowRankIsNoise) {
  EXPECT_NEAR(Update("momentum_buffer").Methods({.orthogonal_updates = true}).ExpectedOfWeight(),
              0.7, 0.01);
  EXPECT_LT(
      Update("momentum_buffer", {2048}).Methods({.orthogonal_updates = true}).ExpectedOfWeight(),
      5e-6)
      << "a bias is not made orthogonal";
  EXPECT_LT(Update("exp_avg_sq").Methods({.orthogonal_updates = true}).ExpectedOfWeight(), 0.1)
      << "Adam, beside Muon, for embeddings";
}

TEST(Optimizers, MuonIsKnownByItsClass) {
  const Config muon = {{"optimizer.class", "Muon"}},
               second = {{"optimizer.1.class", "\"SingleDeviceMuon\""}};
  const Config adam = {{"optimizer.class", "AdamW"}, {"model.class", "Muon"}};
  EXPECT_TRUE(UpdatesAreOrthogonal(muon, muon));
  EXPECT_TRUE(UpdatesAreOrthogonal(muon, second));
  EXPECT_FALSE(UpdatesAreOrthogonal(muon, adam));
  EXPECT_FALSE(UpdatesAreOrthogonal(adam, adam));
}

}  // namespace
}  // namespace statcollect::query
