// What a router's near tie excuses: rows of other tokens, in the module that has its experts.
#include "server/query/verdict/noise_jumps.h"

#include <cmath>
#include <limits>

#include "tests/server/query/verdict/step_of_pairs.h"
#include "tests/server/query/verdict/verdict_fixture.h"

namespace statcollect::query {
namespace {

constexpr std::uint64_t kStep = 3;

// A step with a router, its experts and what follows, and a tie that sent a part of the tokens
// elsewhere.
class NearTieTest : public ::testing::Test {
 protected:
  NearTieTest() {
    Add(Key("moe.before"), 0.1);
    Add(Key("moe.router", Kind::kOutput, "0"), 0.1);
    Add(Key("moe.router", Kind::kOutput, "1"), 0.9, {.dtype = DType::kI64, .numel = 64});
    Add(Key("moe.experts.0"), 0.1);
    Add(Key("moe2.experts.0"), 0.1);
    step_.pairs.push_back({.distance = 0.1, .loss = &loss_});
  }
  void Add(const TensorKey& key, double distance, const Step::Given& given = {}) {
    step_.Add(key, distance, given);
  }
  // The pairs whose jumps are left; all have one.
  std::vector<std::size_t> Left(const NearTies& ties, JumpKind kind = JumpKind::kExcess) {
    std::vector<Explained> explained;
    std::vector<Jump> jumps;
    for (const TensorPair& pair : step_.pairs) {
      jumps.push_back({.index = explained.size(), .kind = kind});
      explained.push_back({.pair = &pair, .observed = pair.distance});
    }
    LeaveOutNearTies(ties, kStep, explained, jumps);
    std::vector<std::size_t> left;
    for (const Jump& jump : jumps) left.push_back(jump.index);
    return left;
  }
  static NearTies Tie(double share, std::uint64_t step = kStep) {
    return {{step, {{.router = "moe.router", .within = "moe", .share = share, .choices = 64}}}};
  }

  const std::string loss_ = "loss";
  Step step_;
};

using ::testing::ElementsAre;

TEST_F(NearTieTest, ExcusesTheExpertsBehindItsRouterAndTheChoicesThemselves) {
  EXPECT_THAT(Left(Tie(0.01)), ElementsAre(0, 1, 4, 5))
      << "not what ran before it, other modules or the loss";
}

TEST_F(NearTieTest, ExcusesAsMuchAsItsShareOfOtherRowsMakes) {
  EXPECT_THAT(Left(Tie(0.0004)), ElementsAre(0, 1, 3, 4, 5)) << "3 sqrt(share) is 0.06";
  step_.pairs[3].distance = std::numeric_limits<double>::infinity();
  EXPECT_THAT(Left(Tie(0.0004)), ElementsAre(0, 1, 4, 5)) << "another number of rows";
}

TEST_F(NearTieTest, ExcusesNoSettingAndNoOtherStep) {
  EXPECT_THAT(Left(Tie(0.01), JumpKind::kSetting), ElementsAre(0, 1, 3, 4, 5));
  EXPECT_THAT(Left(Tie(0.01, kStep + 1)), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_F(NearTieTest, WithoutTokensElsewhereOrAKnownModuleExcusesOnlyTheOrderOfChoices) {
  EXPECT_THAT(Left(Tie(0)), ElementsAre(0, 1, 3, 4, 5));
  NearTies unknown = Tie(0.01);
  unknown[kStep][0].within.clear();
  EXPECT_THAT(Left(unknown), ElementsAre(0, 1, 3, 4, 5));
  unknown[kStep][0].router = "gone";
  EXPECT_THAT(Left(unknown), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_F(NearTieTest, OtherWholeNumbersOfTheRouterAreNoChoices) {
  NearTies few = Tie(0);
  few[kStep][0].choices = 63;
  EXPECT_THAT(Left(few), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(NearTies, AreAnywhereIfTokensWentElsewhereInSomeStep) {
  EXPECT_FALSE(AnyElsewhere({}));
  EXPECT_FALSE(AnyElsewhere({{0, {{.router = "r", .within = "m", .share = 0}}}}));
  EXPECT_TRUE(AnyElsewhere({{0, {{.router = "r"}}}, {1, {{.router = "r", .share = 0.1}}}}));
}

TEST(NoiseOfStep, IsOfTensorsThatItKnows) {
  const NoiseOfStep noise{.by_id = {0, 0.5, std::numeric_limits<double>::infinity()}};
  Step step;
  for (std::uint32_t id = 0; id < 4; ++id) step.Add(Key("t" + std::to_string(id)), 1);
  const std::string name = "loss";
  EXPECT_EQ(noise.Of({.distance = 1, .loss = &name}), 0);
  std::vector<std::optional<double>> times;
  TensorDef def;
  for (std::uint32_t id = 0; id < 4; ++id) {
    TensorPair pair = step.pairs[id];
    def = *pair.a.def;
    def.id = id;
    pair.a.def = &def;
    times.push_back(noise.TimesOf(pair));
  }
  EXPECT_THAT(times, ElementsAre(std::nullopt, 2.0, std::nullopt, std::nullopt));
}

}  // namespace
}  // namespace statcollect::query
