// Which steps of which ranks are judged, and that a bug deep in a run is found by them.
#include "server/query/compare/steps_to_judge.h"

#include "tests/server/query/verdict/verdict_fixture.h"

namespace statcollect::query {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::IsEmpty;
using ::testing::Lt;
using ::testing::Pair;
using ::testing::SizeIs;

StepRise Differing(float rise = 1) { return {.differs = true, .rise = rise}; }

// --- LargestRise, DistanceFollower

TEST(LargestRise, IsTheLargestFactor) {
  EXPECT_FLOAT_EQ(LargestRise({1e-6F, 2e-6F}, {3e-6F, 2e-6F}), 3);
  EXPECT_FLOAT_EQ(LargestRise({1e-6F, 2e-6F}, {1e-7F, 0}), 1) << "nothing rose";
}

TEST(LargestRise, CountsFromRoundingSize) {
  EXPECT_FLOAT_EQ(LargestRise({0}, {1e-7F}), 1);
  EXPECT_FLOAT_EQ(LargestRise({1e-12F}, {1e-6F}), 10);
}

TEST(LargestRise, TakesWhatIsNewAsRisenFromNothing) {
  EXPECT_FLOAT_EQ(LargestRise({}, {5e-7F}), 5);
  EXPECT_FLOAT_EQ(LargestRise({5e-7F, 1}, {5e-7F}), 1);
}

TEST(DistanceFollower, FollowsEachTensor) {
  DistanceFollower follower;
  follower.BeginStep(2);
  EXPECT_FALSE(follower.differs());
  follower.Note(0, 1e-6F);
  follower.Note(1, 5e-6F);
  EXPECT_TRUE(follower.differs());
  EXPECT_FLOAT_EQ(follower.Rise(), 1) << "the first step";
  follower.BeginStep(2);
  follower.Note(0, 4e-6F);
  follower.Note(1, 5e-6F);
  EXPECT_FLOAT_EQ(follower.Rise(), 4);
}

TEST(DistanceFollower, ForgetsWhatIsTwoStepsAgo) {
  DistanceFollower follower;
  for (const float distance : {1e-3F, 0.0F, 1e-6F}) {
    follower.BeginStep(1);
    if (distance > 0) follower.Note(0, distance);
  }
  EXPECT_FLOAT_EQ(follower.Rise(), 10) << "from equal bits in the step before";
  follower.BeginStep(1);
  EXPECT_FALSE(follower.differs());
  EXPECT_THAT(follower.now(), ElementsAre(0));
  EXPECT_FLOAT_EQ(follower.Rise(), 1);
}

TEST(DistanceFollower, Grows) {
  DistanceFollower follower;
  follower.BeginStep(1);
  follower.Note(0, 1e-6F);
  follower.BeginStep(3);
  follower.Note(2, 1e-6F);
  EXPECT_FLOAT_EQ(follower.Rise(), 10);
  EXPECT_THAT(follower.now(), ElementsAre(0, 0, 1e-6F));
}

// --- StepsToJudge

TEST(StepsToJudge, ChoosesTheFirstThatDiffer) {
  StepsToJudge steps;
  EXPECT_TRUE(steps.empty());
  for (std::uint64_t step = 0; step < 10; ++step)
    steps.Take(step, 0, step < 3 ? StepRise() : Differing());
  EXPECT_FALSE(steps.empty());
  EXPECT_THAT(steps.Chosen(), ElementsAre(Pair(0u, ElementsAre(3, 4, 5, 6))));
}

TEST(StepsToJudge, CountsTheRecordsBeforeTheFirstDifference) {
  StepsToJudge steps;
  for (std::uint64_t step = 0; step < 6; ++step)
    steps.Take(step, 1, {.differs = step == 3, .records = 10 + step});
  EXPECT_EQ(steps.AgreeingBefore(1), 10u + 11 + 12);
  EXPECT_EQ(steps.AgreeingBefore(0), 0u);
}

TEST(StepsToJudge, ChoosesRises) {
  StepsToJudge steps;
  for (std::uint64_t step = 0; step < 20; ++step)
    steps.Take(step, 0, Differing(step == 15 ? 3.0F : step == 10 ? 2.0F : 1.0F));
  EXPECT_THAT(steps.Chosen(), ElementsAre(Pair(0u, ElementsAre(0, 1, 2, 3, 15))));
}

TEST(StepsToJudge, KeepsTheLargestRises) {
  StepsToJudge steps;
  for (std::uint64_t step = 0; step < 100; ++step)
    steps.Take(step, 0, Differing(static_cast<float>(step)));
  const auto chosen = steps.Chosen();
  ASSERT_THAT(chosen, SizeIs(1));
  EXPECT_THAT(chosen.at(0), SizeIs(StepsToJudge::kFirstSteps + StepsToJudge::kRisesMax));
  EXPECT_EQ(*chosen.at(0).rbegin(), 99u);
  EXPECT_TRUE(chosen.at(0).contains(88));
  EXPECT_FALSE(chosen.at(0).contains(87));
}

TEST(StepsToJudge, JoinsTheUnitsOfAScan) {
  const auto small = std::make_shared<const Distances>(Distances{1e-6F});
  const auto large = std::make_shared<const Distances>(Distances{1e-4F});
  StepsToJudge steps;
  for (std::uint64_t step = 0; step < 8; ++step)
    steps.Take(step, 0, {.differs = true, .first = small, .last = small, .ends = true});
  steps.Take(8, 0, {.differs = true, .first = large, .last = large, .ends = true});
  steps.Take(9, 0, {.differs = true, .first = large, .last = large, .ends = true});
  EXPECT_THAT(steps.Chosen().at(0), ElementsAre(0, 1, 2, 3, 8));
}

TEST(StepsToJudge, AnEqualUnitStartsAgainFromNothing) {
  const auto large = std::make_shared<const Distances>(Distances{1e-4F});
  StepsToJudge steps;
  for (std::uint64_t step = 0; step < 6; ++step)
    steps.Take(step, 0, {.differs = true, .first = large, .last = large, .ends = true});
  steps.Take(6, 0, {.ends = true});
  steps.Take(7, 0, {.differs = true, .first = large, .last = large, .ends = true});
  EXPECT_THAT(steps.Chosen().at(0), ElementsAre(0, 1, 2, 3, 7));
}

TEST(StepsToJudge, ChoosesTheRanksThatDifferFirst) {
  StepsToJudge steps;
  for (std::uint64_t step = 0; step < 5; ++step) {
    for (std::size_t place = 0; place < 20; ++place)
      steps.Take(step, place, step == 0 && place < 18 ? StepRise() : Differing());
  }
  EXPECT_THAT(steps.Chosen(), ElementsAre(::testing::Key(18u), ::testing::Key(19u)));
}

TEST(StepsToJudge, ChoosesFewRanks) {
  StepsToJudge steps;
  for (std::uint64_t step = 0; step < 5; ++step) {
    for (std::size_t place = 0; place < 20; ++place)
      steps.Take(step, place, Differing(step == 4 ? static_cast<float>(10 + place) : 1));
  }
  const auto chosen = steps.Chosen();
  EXPECT_THAT(chosen, SizeIs(AllOf(Gt(4u), ::testing::Le(StepsToJudge::kPlacesMax))));
  EXPECT_TRUE(chosen.contains(19)) << "the one that rose most";
  EXPECT_TRUE(chosen.at(19).contains(4));
  EXPECT_TRUE(chosen.at(19).contains(0)) << "its first steps, too";
}

// --- through Diff

class StepsTest : public VerdictTest {};

TEST_F(StepsTest, ABugOfOneRankDeepInARun) {
  options_.steps = 40;
  options_.ranks = 4;
  options_.elements = 512;
  const auto write = [&](const std::string& name, bool bug) {
    RunWriter run(*store_, name, options_.ranks);
    run.NarrowSketches();
    for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
      const auto level = Sum(name == "b" ? RoundingOf(kRounding) : Nothing(),
                             bug && rank == 3 ? BugAt("blocks.1.ln", 1e-4, 5) : Nothing());
      WriteRank(run, rank, level);
    }
    run.Commit();
  };
  write("a", false);
  write("b", true);
  DiffReport report = Ask();
  EXPECT_EQ(Say(report), "5 forward blocks.1.ln");
  EXPECT_EQ(report.root->at.rank, 3u);
  EXPECT_THAT(report.root->confidence, ::testing::AnyOf(Confidence::kCertain, Confidence::kLikely));

  store_ = std::make_unique<FakeStore>();
  write("a", false);
  write("b", false);
  ExpectExplained(Ask());
}

TEST_F(StepsTest, ABugAtTheEndOfARun) {
  options_.steps = 40;
  options_.elements = 512;
  const DiffReport report = DiffWith(Sum(RoundingOf(kRounding), BugAt("blocks.2.fc", 1e-4, 37)));
  EXPECT_EQ(Say(report), "37 forward blocks.2.fc");
}

TEST_F(StepsTest, FirstOnlyDoesNotLookFurther) {
  options_.steps = 12;
  Write(Sum(BugAt("blocks.2.fc", 1e-2, 9), BugAt("blocks.0.ln", 1e-3, 4)));
  const DiffReport report = Ask({.first_only = true});
  EXPECT_EQ(Say(report), "4 forward blocks.0.ln");
}

}  // namespace
}  // namespace statcollect::query
