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
    after_.Add(Key("fc.weight", Kind::kOptimizerState, state_), kGradientDistance, {.shape = shape_});
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

// A step after an element of the gradient has moved.
TEST(Optimizers, AMomentumCarriesOnWhatAnEarlierGradientDiffered) {
  for (const double carried : {0.0, 4e-3}) {
    Step before, after;
    before.Add(Key("fc.weight", Kind::kWeight), 0);
    before.Add(Key("fc.weight", Kind::kOptimizerState, "momentum_buffer"), carried);
    after.Add(Gradient("fc.weight"), kGradientDistance);
    after.Add(Key("fc.weight", Kind::kWeight), 1e-4, {.l2 = 2});
    Explainer explainer;
    explainer.Step(before.pairs);
    EXPECT_NEAR(explainer.Step(after.pairs)[1].expected, carried, 5e-6) << carried;
  }
}

// Also where the newest gradient agrees, as that of a row of an embedding that no token used.
TEST(Optimizers, AFirstMomentCarriesOnWhatAnEarlierGradientDiffered) {
  for (const char* state : {"exp_avg", "exp_avg_sq"}) {
    Explainer explainer;
    Step before, now;
    before.Add(Key("fc.weight", Kind::kWeight), 0, {.l2 = 1});
    before.Add(Key("fc.weight", Kind::kOptimizerState, state), 1e-4);
    explainer.Step(before.pairs);
    now.Add(Gradient("fc.weight"), 0);
    now.Add(Key("fc.weight", Kind::kWeight), 1e-4, {.l2 = 2});
    const Explained update = explainer.Step(now.pairs).back();
    const bool carries = std::string(state) == "exp_avg";
    EXPECT_NEAR(update.expected, carries ? 0.12 : 0, 1e-2) << state;
    EXPECT_EQ(update.fresh, !carries);
  }
}

TEST(Optimizers, ASecondMomentOrASignLetsSignsFlip) {
  for (const char* state : {"exp_avg_sq", "exp_inf", "square_avg", "sum", "row_var", "variance", "state2",
                            "exp_avg_sq_row", "exp_avg_slow", "exp_avg", "step_size"})
    EXPECT_NEAR(Update(state).ExpectedOfWeight(), 12e-3, 1e-4) << state;
}

TEST(Optimizers, SquaresMayDifferTwiceAsMuch) {
  EXPECT_NEAR(Update("square_avg").ExpectedOfState(), 2 * kGradientDistance, 2e-7);
  EXPECT_NEAR(Update("grad_avg").ExpectedOfState(), kGradientDistance, 2e-7);
}

TEST(Optimizers, AnOrthogonalUpdateOfALowRankIsNoise) {
  EXPECT_NEAR(Update("momentum_buffer").Methods({.orthogonal_updates = true}).ExpectedOfWeight(), 0.7, 0.01);
  EXPECT_LT(Update("momentum_buffer", {2048}).Methods({.orthogonal_updates = true}).ExpectedOfWeight(), 5e-6)
      << "a bias is not made orthogonal";
  EXPECT_LT(Update("exp_avg_sq").Methods({.orthogonal_updates = true}).ExpectedOfWeight(), 0.1)
      << "Adam, beside Muon, for embeddings";
}

TEST(Optimizers, MuonIsKnownByItsClass) {
  const Config muon = {{"optimizer.class", "Muon"}}, second = {{"optimizer.1.class", "\"SingleDeviceMuon\""}};
  const Config adam = {{"optimizer.class", "AdamW"}, {"model.class", "Muon"}};
  EXPECT_TRUE(UpdatesAreOrthogonal(muon, muon));
  EXPECT_TRUE(UpdatesAreOrthogonal(muon, second));
  EXPECT_FALSE(UpdatesAreOrthogonal(muon, adam));
  EXPECT_FALSE(UpdatesAreOrthogonal(adam, adam));
}

// --- The first gradient

double ExpectedOfFirstGradient(double loss, DType dtype = DType::kF32) {
  const std::string name = "loss";
  Step step;
  step.Add(Key("fc"), dtype == DType::kF64 ? 0 : 1e-7, {.dtype = dtype});
  step.Add(GradOutput("model"), 0, {.dtype = dtype});
  step.Add(GradOutput("fc"), 3e-6, {.dtype = dtype});
  step.pairs.push_back({.distance = 1e-7, .loss = &name, .loss_a = loss, .loss_b = loss});
  return Explainer().Step(step.pairs)[2].expected;
}

TEST(FirstGradient, RoundsAtLeastLikeASumOverTheBatch) {
  EXPECT_GE(ExpectedOfFirstGradient(0.5), 4 * 0x1p-24);
}

// --- FindScale

TEST(FindScale, ClippingSpreadsOneOverTheOthers) {
  Step step;
  // All are scaled to a norm of 1: nine are smaller because one is larger.
  const double others = 0.3, clipped = others * (1 - 1e-3);
  const auto largest = [](double each) { return std::sqrt(1 - 9 * each * each); };
  step.Add(Gradient("head.weight"), 0.01, {.l2 = largest(others), .l2_b = largest(clipped)});
  for (int i = 0; i < 9; ++i)
    step.Add(Gradient("fc" + std::to_string(i) + ".weight"), 1e-3, {.l2 = others, .l2_b = clipped});
  EXPECT_FALSE(FindScale(Explainer().Step(step.pairs)));
}

}  // namespace
}  // namespace statcollect::query
