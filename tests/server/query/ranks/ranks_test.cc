#include "server/query/ranks/ranks.h"

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/query/query.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Key;
using testing::RunWriter;
using testing::Tensor;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor Random(std::uint64_t seed, std::size_t size = 64, double scale = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Tensor tensor;
  for (std::size_t i = 0; i < size; ++i) tensor.values.push_back(scale * normal(random));
  return tensor;
}

// A training of replicas: what a test changes before it is written.
struct Training {
  std::uint32_t ranks = 2;
  std::uint64_t steps = 6;
  // The seed of a tensor of a rank and step: equal seeds, equal contents.
  std::function<std::uint64_t(std::uint32_t rank, std::uint64_t step, const std::string& name,
                              Kind kind)>
      seed = [](std::uint32_t rank, std::uint64_t step, const std::string& name, Kind kind) {
        const bool own = kind == Kind::kOutput || kind == Kind::kGradOutput || kind == Kind::kBatch;
        return std::hash<std::string>()(name) + 1000 * step +
               17 * static_cast<std::uint64_t>(kind) + (own ? 100'000 * (rank + 1) : 0);
      };
  std::function<double(std::uint32_t rank, std::uint64_t step, const std::string& name, Kind kind)>
      scale = [](std::uint32_t, std::uint64_t, const std::string&, Kind) { return 1.0; };
  std::function<bool(std::uint32_t rank, std::uint64_t step, const std::string& name)> recorded =
      [](std::uint32_t, std::uint64_t, const std::string&) { return true; };
  std::function<double(std::uint32_t rank, std::uint64_t step)> loss = [](std::uint32_t rank,
                                                                          std::uint64_t step) {
    return 1.0 / (1.0 + static_cast<double>(step)) + 0.01 * rank;
  };
  std::map<std::string, std::string> config;
  std::function<std::map<std::string, std::string>(std::uint32_t rank)> own_config;
  bool state = true;
  std::uint64_t loaded =
      999'000;  // what the weights as loaded are apart from those of step 0; 0: equal

  void Write(Store& store, const std::string& run = "r") const {
    RunWriter writer(store, run, ranks);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      auto settings = config;
      if (own_config) settings.merge(own_config(rank));
      writer.Config(rank, settings);
      for (const char* name : {"a.weight", "b.weight"})
        Put(writer, rank, 0, name, Kind::kWeight, Mode::kInit, loaded);
      for (std::uint64_t step = 0; step < steps; ++step) WriteStep(writer, rank, step);
    }
    writer.Commit();
  }

 private:
  void WriteStep(RunWriter& writer, std::uint32_t rank, std::uint64_t step) const {
    Put(writer, rank, step, "tokens", Kind::kBatch);
    for (const char* name : {"a", "b"}) Put(writer, rank, step, name, Kind::kOutput);
    writer.Scalar(rank, step, "loss", loss(rank, step));
    for (const char* name : {"b", "a"}) Put(writer, rank, step, name, Kind::kGradOutput);
    for (const char* name : {"a.weight", "b.weight"})
      Put(writer, rank, step, name, Kind::kWeightGrad);
    for (const char* name : {"a.weight", "b.weight"}) {
      Put(writer, rank, step, name, Kind::kWeight);
      if (state) Put(writer, rank, step, name, Kind::kOptimizerState);
    }
  }
  void Put(RunWriter& writer, std::uint32_t rank, std::uint64_t step, const std::string& name,
           Kind kind, Mode mode = Mode::kTrain, std::uint64_t more = 0) const {
    if (!recorded(rank, step, name)) return;
    writer.Observe(rank, step, Key(name, kind, "", 0, 0, mode),
                   Random(seed(rank, step, name, kind) + more, 64, scale(rank, step, name, kind)));
  }
};

class RanksTest : public ::testing::Test {
 protected:
  RanksTest() : engine_(store_) {}
  RanksReport Check(const Training& training, RanksRequest request = {}) {
    training.Write(store_, "r");
    request.run = "r";
    auto report = engine_.CheckRanks(request);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return *std::move(report);
  }
  static std::vector<std::string> Reasons(const RanksReport& report) {
    std::vector<std::string> reasons;
    for (const RankFinding& f : report.findings)
      reasons.push_back(std::string(Name(f.reason)) + "@" + std::to_string(f.step));
    return reasons;
  }
  FakeStore store_;
  QueryEngine engine_;
};

TEST_F(RanksTest, CleanReplicasWithDataOfTheirOwnAreConsistent) {
  for (const std::uint32_t ranks : {2u, 3u, 8u}) {
    FakeStore store;
    Training training{.ranks = ranks};
    training.Write(store);
    const auto report = QueryEngine(store).CheckRanks({.run = "r"});
    EXPECT_EQ(report->verdict, RanksVerdict::kConsistent) << ranks;
    EXPECT_THAT(Reasons(*report), IsEmpty());
    EXPECT_EQ(report->compared.records, (ranks - 1) * (2 + 6 * 6));
    EXPECT_EQ(report->compared.identical, report->compared.records);
    EXPECT_THAT(report->notes, IsEmpty());
  }
}

TEST_F(RanksTest, StaleWeightIsFoundAtItsStepAndRankAlsoOfTwo) {
  for (const std::uint32_t ranks : {2u, 4u}) {
    FakeStore store;
    Training training{.ranks = ranks};
    // Rank 1 does not update b.weight in step 3, and stays behind from then on.
    training.seed = [base = training.seed](auto rank, auto step, const auto& name, auto kind) {
      const bool stale = rank == 1 && step >= 3 && name == "b.weight" && kind == Kind::kWeight;
      return base(rank, step, name, kind) - (stale ? step == 3 ? 1000 : 500 : 0);
    };
    training.Write(store);
    const auto report = QueryEngine(store).CheckRanks({.run = "r"});
    EXPECT_EQ(report->verdict, RanksVerdict::kInconsistent);
    ASSERT_THAT(Reasons(*report), ElementsAre("weights_differ@3")) << ranks;
    const RankFinding& first = report->findings[0];
    EXPECT_THAT(first.ranks, ElementsAre(1));
    EXPECT_EQ(first.outvoted, ranks > 2);
    EXPECT_EQ(first.stage, Stage::kOptimizer);
    EXPECT_EQ(first.activation, "b.weight");
    EXPECT_EQ(first.steps, 3u);
    EXPECT_EQ(first.last_step, 5u);
    EXPECT_NEAR(first.distance.value(), std::sqrt(2), 0.7);
    EXPECT_FALSE(first.propagated);
    EXPECT_THAT(first.text,
                HasSubstr(ranks > 2 ? "does not have the b.weight" : "kept the old b.weight"));
  }
}

TEST_F(RanksTest, DifferenceFarBelowTheDtypesToleranceCountsWhereReplicasWereEqualInBits) {
  Training training{.ranks = 4};
  training.scale = [](auto rank, auto step, const auto& name, auto kind) {
    return rank == 2 && step == 4 && name == "a.weight" && kind == Kind::kWeight ? 1 + 1e-9 : 1.0;
  };
  const RanksReport report = Check(training);
  ASSERT_THAT(Reasons(report), ElementsAre("weights_differ@4"));
  EXPECT_THAT(report.findings[0].ranks, ElementsAre(2));
  EXPECT_EQ(report.findings[0].tolerance, 0);
  EXPECT_EQ(engine_.CheckRanks({.run = "r", .tolerance = 1e-6})->verdict,
            RanksVerdict::kConsistent);
  EXPECT_EQ(engine_.CheckRanks({.run = "r", .tolerance = 1e-12})->verdict,
            RanksVerdict::kInconsistent);
}

TEST_F(RanksTest, ReplicasThatNeverAgreedInBitsAreJudgedByTheDtypesTolerance) {
  Training training;
  training.config = {{"dp", "2"}};
  training.scale = [](auto rank, auto, const auto&, auto kind) {
    const bool replicated =
        kind == Kind::kWeight || kind == Kind::kWeightGrad || kind == Kind::kOptimizerState;
    return rank == 1 && replicated ? 1 + 1e-8 : 1.0;
  };
  const RanksReport report = Check(training);
  EXPECT_EQ(report.verdict, RanksVerdict::kConsistent);
  EXPECT_GT(report.compared.within_tolerance, 0u);
  EXPECT_THAT(report.notes, ::testing::Contains(HasSubstr("within the tolerance")));
}

TEST_F(RanksTest, SkippedReductionIsAFindingAboutGradientsAndWhatFollowsIsPropagated) {
  Training training;
  training.seed = [base = training.seed](auto rank, auto step, const auto& name, auto kind) {
    const bool own = step >= 2 && (kind == Kind::kWeightGrad || kind == Kind::kWeight ||
                                   kind == Kind::kOptimizerState);
    return base(rank, step, name, kind) + (own ? 7777 * rank : 0);
  };
  const RanksReport report = Check(training);
  ASSERT_THAT(Reasons(report),
              ElementsAre("gradients_differ@2", "weights_differ@2", "state_differs@2"));
  EXPECT_THAT(report.findings[0].ranks, ElementsAre(0, 1));
  EXPECT_EQ(report.findings[0].activation, "a.weight");
  EXPECT_EQ(report.findings[0].stage, Stage::kGrad);
  EXPECT_EQ(report.findings[0].activations, 2u);
  EXPECT_THAT(report.findings[0].text, HasSubstr("was the reduction over the ranks skipped?"));
  EXPECT_FALSE(report.findings[0].propagated);
  EXPECT_TRUE(report.findings[1].propagated);
}

TEST_F(RanksTest, AnUpdateIsFoundBeforeWhatIsComputedWithItInTheSameStep) {
  RunWriter writer(store_, "r", 3);
  constexpr std::uint64_t kSteps = 5, kWrong = 4;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const bool wrong = rank == 1 && step == kWrong;
      const auto put = [&](const std::string& name, Kind kind, bool propagated = false) {
        writer.Observe(rank, step, Key(name, kind),
                       Random(std::hash<std::string>()(name) + 100 * step +
                              static_cast<std::uint64_t>(kind) + (propagated && wrong ? 77 : 0)));
      };
      put("dis.0", Kind::kOutput);
      put("dis.weight", Kind::kWeightGrad);
      put("dis.weight", Kind::kWeight, /*propagated=*/true);
      put("gen.0", Kind::kOutput);
      put("gen.weight", Kind::kWeightGrad, /*propagated=*/true);
      put("gen.weight", Kind::kWeight, /*propagated=*/true);
      writer.Scalar(rank, step, "gen/loss", wrong ? 2 : 1);
    }
  }
  writer.Commit();
  const auto report = engine_.CheckRanks({.run = "r"});
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(Reasons(*report),
              ElementsAre("weights_differ@4", "loss_differs@4", "gradients_differ@4"));
  EXPECT_EQ(report->findings.front().activation, "dis.weight");
  EXPECT_FALSE(report->findings.front().propagated);
  EXPECT_TRUE(report->findings.back().propagated);
}

TEST_F(RanksTest, GradientsReducedInsideTheOptimizerAreNoFinding) {
  Training training;
  training.seed = [base = training.seed](auto rank, auto step, const auto& name, auto kind) {
    return base(rank, step, name, kind) + (kind == Kind::kWeightGrad ? 7777 * rank : 0);
  };
  const RanksReport report = Check(training);
  EXPECT_EQ(report.verdict, RanksVerdict::kConsistent);
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("reduced inside the optimizer")));
}

TEST_F(RanksTest, DifferentWeightsAsLoadedAreFoundBeforeAnyStep) {
  Training training{.ranks = 3};
  training.seed = [base = training.seed](auto rank, auto step, const auto& name, auto kind) {
    return base(rank, step, name, kind) + (rank == 0 && kind == Kind::kWeight ? 7777 : 0);
  };
  const RanksReport report = Check(training);
  ASSERT_FALSE(report.findings.empty());
  EXPECT_EQ(report.findings[0].mode, "init");
  EXPECT_EQ(report.findings[0].stage, Stage::kWeights);
  EXPECT_THAT(report.findings[0].ranks, ElementsAre(0))
      << "outvoted by 1 and 2, although it is the lowest";
  EXPECT_THAT(report.findings[0].others, ElementsAre(1, 2));
}

TEST_F(RanksTest, SameDataOnTwoRanksIsFound) {
  Training training{.ranks = 4};
  training.seed = [base = training.seed](auto rank, auto step, const auto& name, auto kind) {
    return base(kind == Kind::kBatch && rank == 3 && step >= 2 ? 1 : rank, step, name, kind);
  };
  const RanksReport report = Check(training);
  ASSERT_THAT(Reasons(report), ElementsAre("same_batch@2"));
  EXPECT_THAT(report.findings[0].ranks, ElementsAre(1, 3));
  EXPECT_EQ(report.findings[0].steps, 4u);
}

TEST_F(RanksTest, OneCoincidenceOfBatchesIsARemarkOnly) {
  Training training;
  training.seed = [base = training.seed](auto rank, auto step, const auto& name, auto kind) {
    return base(kind == Kind::kBatch && step == 5 ? 0 : rank, step, name, kind);
  };
  const RanksReport report = Check(training);
  EXPECT_EQ(report.verdict, RanksVerdict::kConsistent);
  EXPECT_THAT(report.notes, ElementsAre(HasSubstr("same data once, in step 5")));
}

TEST_F(RanksTest, FrozenWeightWithAGradientIsFoundOnAllRanks) {
  Training training;
  training.seed = [base = training.seed](auto rank, auto step, const auto& name, auto kind) {
    // As loaded, in every step.
    return kind == Kind::kWeight && name == "a.weight" ? base(0, 0, name, kind)
                                                       : base(rank, step, name, kind);
  };
  training.loaded = 0;
  const RanksReport report = Check(training);
  ASSERT_THAT(Reasons(report), ElementsAre("frozen_weight@0"));
  EXPECT_THAT(report.findings[0].ranks, ElementsAre(0, 1));
  EXPECT_EQ(report.findings[0].activation, "a.weight");
  EXPECT_THAT(report.findings[0].text, HasSubstr("never changed"));
}

TEST_F(RanksTest, FrozenWeightWithoutAGradientIsFine) {
  Training training;
  training.loaded = 0;
  training.seed = [base = training.seed](auto rank, auto step, const auto& name, auto kind) {
    return kind == Kind::kWeight && name == "a.weight" ? base(0, 0, name, kind)
                                                       : base(rank, step, name, kind);
  };
  training.scale = [](auto, auto, const auto& name, auto kind) {
    return kind == Kind::kWeightGrad && name == "a.weight" ? 0.0 : 1.0;
  };
  EXPECT_EQ(Check(training).verdict, RanksVerdict::kConsistent);
}

TEST_F(RanksTest, LossThatStopsBeingEqualIsFoundButLossesOfTheirOwnAreNot) {
  Training training{.ranks = 3};
  training.loss = [](auto rank, auto step) {
    return 1.0 / (1.0 + static_cast<double>(step)) + (step >= 4 && rank == 2 ? 0.1 : 0);
  };
  const RanksReport report = Check(training);
  ASSERT_THAT(Reasons(report), ElementsAre("loss_differs@4"));
  EXPECT_THAT(report.findings[0].ranks, ElementsAre(2));
  EXPECT_NEAR(report.findings[0].value.value(), 0.3, 1e-9);
  EXPECT_NEAR(report.findings[0].expected.value(), 0.2, 1e-9);
}

TEST_F(RanksTest, SentencesPrintSmallNumbersWithAShortExponent) {
  Training training{.ranks = 3};
  training.loss = [](auto rank, auto step) {
    return 1e-6 / (1.0 + static_cast<double>(step)) + (step >= 4 && rank == 2 ? 1e-7 : 0);
  };
  const RanksReport report = Check(training);
  ASSERT_THAT(Reasons(report), ElementsAre("loss_differs@4"));
  EXPECT_THAT(report.findings[0].text, HasSubstr(": 3e-7 on rank 2, 2e-7 on rank"));
}

TEST_F(RanksTest, LossEqualByChanceIsNotTakenForReduced) {
  Training training;
  training.loss = [](auto rank, auto step) { return step < 2 ? 1.0 : 1.0 + rank; };
  EXPECT_EQ(Check(training).verdict, RanksVerdict::kConsistent);
}

TEST_F(RanksTest, NanOnOneRankIsFoundWhereItBegan) {
  Training training{.ranks = 4};
  training.scale = [](auto rank, auto step, const auto& name, auto kind) {
    const bool broken = rank == 3 && step == 2 &&
                        ((kind == Kind::kOutput && name == "b") || kind == Kind::kGradOutput);
    return broken ? kNan : 1.0;
  };
  const RanksReport report = Check(training);
  ASSERT_THAT(Reasons(report), ElementsAre("nonfinite@2"));
  EXPECT_THAT(report.findings[0].ranks, ElementsAre(3));
  EXPECT_EQ(report.findings[0].activation, "b");
  EXPECT_EQ(report.findings[0].kind, Kind::kOutput);
  EXPECT_EQ(report.findings[0].activations, 3u);
}

TEST_F(RanksTest, RankWithNormsFarFromTheMedianIsAnOutlierIfThatLasts) {
  Training training{.ranks = 8};
  training.scale = [](auto rank, auto step, const auto& name, auto kind) {
    const double own = 1 + 0.1 * rank;  // ranks differ
    return own * (rank == 5 && step >= 2 && kind == Kind::kOutput && name == "b" ? 100 : 1) *
           (kind == Kind::kWeight || kind == Kind::kWeightGrad || kind == Kind::kOptimizerState
                ? 1 / own
                : 1);
  };
  const RanksReport report = Check(training);
  ASSERT_THAT(Reasons(report), ElementsAre("outlier@2"));
  EXPECT_THAT(report.findings[0].ranks, ElementsAre(5));
  EXPECT_EQ(report.findings[0].activation, "b");
  EXPECT_EQ(report.findings[0].steps, 4u);
  EXPECT_NEAR(report.findings[0].value.value() / report.findings[0].expected.value(), 110, 30);
}

TEST_F(RanksTest, OneSpikeOfOneRankIsNoOutlier) {
  Training training{.ranks = 8};
  training.scale = [](auto rank, auto step, const auto&, auto kind) {
    return rank == 5 && step == 2 && kind == Kind::kOutput ? 100.0 : 1.0;
  };
  EXPECT_EQ(Check(training).verdict, RanksVerdict::kConsistent);
}

TEST_F(RanksTest, MissingRankStepAndWeightAreFindings) {
  Training training{.ranks = 4};
  training.config = {{"dp", "4"}};
  training.recorded = [](auto rank, auto step, const auto& name) {
    return !(rank == 1 && step == 3) && !(rank == 2 && step >= 4 && name == "a.weight");
  };
  RanksReport report = Check(training);
  EXPECT_THAT(Reasons(report), ElementsAre("missing_step@3", "missing_activation@4"));
  EXPECT_THAT(report.findings[0].ranks, ElementsAre(1));
  EXPECT_THAT(report.findings[1].ranks, ElementsAre(2));
  RunWriter small(store_, "small", 3);
  small.Observe(0, 0, Key("w", Kind::kWeight), {.values = {1, 2}});
  small.Observe(2, 0, Key("w", Kind::kWeight), {.values = {1, 2}}).Commit();
  const auto alone = engine_.CheckRanks({.run = "small"});
  ASSERT_THAT(Reasons(*alone), ElementsAre("missing_rank@0"));
  EXPECT_THAT(alone->findings[0].ranks, ElementsAre(1));
}

TEST_F(RanksTest, RanksThatWereNotMeantToRecordAreNotMissing) {
  RunWriter writer(store_, "some", 4);
  writer.Observe(0, 0, Key("w", Kind::kWeight), {.values = {1, 2}});
  const AttemptId id = writer.Observe(2, 0, Key("w", Kind::kWeight), {.values = {1, 2}}).Commit();
  const auto ranks = *store_.Ranks(id);
  for (const auto& [rank, known] : ranks) {
    RankMeta meta = known;
    meta.info.ranks = "0,2";
    ASSERT_TRUE(store_.PutRank(id, rank, meta).ok());
  }
  const auto report = engine_.CheckRanks({.run = "some"});
  EXPECT_EQ(report->verdict, RanksVerdict::kConsistent);
  EXPECT_THAT(Reasons(*report), ElementsAre());
  EXPECT_THAT(
      report->notes,
      ::testing::Contains(
          "of a world of 4 only these ranks record: 0,2 (init(ranks=) or STATAGENT_RANKS)"));
}

TEST_F(RanksTest, RankThatEndedEarlyIsAFinding) {
  Training training{.ranks = 3};
  training.recorded = [](auto rank, auto step, const auto&) { return rank != 2 || step < 4; };
  training.loss = [](auto, auto) { return 1.0; };
  training.Write(store_, "whole");
  // The scalars would go on: a run whose rank 2 has nothing at all after step 3.
  RunWriter writer(store_, "r", 3);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    for (std::uint64_t step = 0; step < (rank == 2 ? 4u : 6u); ++step)
      writer.Observe(rank, step, Key("w", Kind::kWeight), Random(step));
  }
  writer.Commit();
  const auto report = engine_.CheckRanks({.run = "r"});
  ASSERT_THAT(Reasons(*report), ElementsAre("ended_early@4"));
  EXPECT_THAT(report->findings[0].text, HasSubstr("Rank 2 has nothing after step 3"));
}

TEST_F(RanksTest, ShardsAreNeverCalledReplicasThatParted) {
  Training training{.ranks = 4};
  training.seed = [base = training.seed](auto rank, auto step, const auto& name, auto kind) {
    return base(rank, step, name, kind) + 7777 * (rank + 1);
  };
  RanksReport unsure = Check(training);
  EXPECT_EQ(unsure.verdict, RanksVerdict::kIncomparable);
  EXPECT_THAT(unsure.message, AllOf(HasSubstr("shards"), HasSubstr("config={\"dp\": 4}")));

  training.config = {{"strategy", "FSDP"}};
  training.Write(store_, "fsdp");
  const auto sharded = engine_.CheckRanks({.run = "fsdp"});
  EXPECT_EQ(sharded->verdict, RanksVerdict::kIncomparable);
  EXPECT_THAT(sharded->notes, ::testing::Contains(HasSubstr("sharded over the ranks")));

  training.config = {{"parallel.dp", "4"}};
  training.Write(store_, "stated");
  EXPECT_EQ(engine_.CheckRanks({.run = "stated"})->verdict, RanksVerdict::kInconsistent);
}

TEST_F(RanksTest, ComparesReplicasOnlyWithinTheirGroup) {
  Training training{.ranks = 4};
  // Tensor parallel over neighbours: 0 and 2 are replicas, 1 and 3.
  const auto sharded = [base = training.seed](auto rank, auto step, const auto& name, auto kind) {
    return base(rank, step, name, kind) + 7777 * (rank % 2);
  };
  training.seed = sharded;
  training.config = {{"tp", "2"}, {"dp", "2"}};
  RanksReport report = Check(training);
  EXPECT_EQ(report.verdict, RanksVerdict::kConsistent);
  EXPECT_THAT(report.groups, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  training.seed = [sharded](auto rank, auto step, const auto& name, auto kind) {
    return sharded(rank, step, name, kind) +
           (rank == 3 && step == 4 && kind == Kind::kWeight ? 55 : 0);
  };
  training.Write(store_, "broken");
  const auto broken = engine_.CheckRanks({.run = "broken"});
  ASSERT_THAT(Reasons(*broken), ElementsAre("weights_differ@4"));
  EXPECT_THAT(broken->findings[0].ranks, ElementsAre(1, 3)) << "two replicas: nobody is outvoted";
}

TEST_F(RanksTest, HonoursItsSelectionAndStops) {
  Training training{.ranks = 3};
  training.seed = [base = training.seed](auto rank, auto step, const auto& name, auto kind) {
    return base(rank, step, name, kind) +
           (rank == 2 && step == 3 && kind == Kind::kWeight ? 7777 : 0);
  };
  training.Write(store_, "r");
  EXPECT_EQ(engine_.CheckRanks({.run = "r"})->verdict, RanksVerdict::kInconsistent);
  EXPECT_EQ(engine_.CheckRanks({.run = "r", .steps = "0-2"})->verdict, RanksVerdict::kConsistent);
  EXPECT_EQ(engine_.CheckRanks({.run = "r", .steps = "", .ranks = {0, 1}})->verdict,
            RanksVerdict::kConsistent);
  EXPECT_EQ(engine_.CheckRanks({.run = "r", .kinds = {Kind::kWeightGrad}})->verdict,
            RanksVerdict::kConsistent);
  EXPECT_EQ(engine_.CheckRanks({.run = "r", .ranks = {0}})->verdict, RanksVerdict::kIncomparable);
  EXPECT_THAT(engine_.CheckRanks({.run = "r", .steps = "99"})->message,
              HasSubstr("none of the requested steps; the run has steps 0.."));
  EXPECT_EQ(engine_.CheckRanks({.run = "r", .steps = "100-"})->verdict,
            RanksVerdict::kIncomparable);
  EXPECT_EQ(engine_.CheckRanks({.run = "r", .tolerance = -1}).status().code(),
            Code::kInvalidArgument);
}

TEST_F(RanksTest, TellsProgressAndIsCancelled) {
  Training{.ranks = 2, .steps = 5}.Write(store_, "r");
  Progress last;
  ASSERT_TRUE(
      engine_.CheckRanks({.run = "r"}, [&](const Progress& progress) { last = progress; }).ok());
  EXPECT_EQ(last.done, 10u);
  EXPECT_EQ(last.total, 10u);
  std::stop_source stop;
  const auto cancelled = engine_.CheckRanks(
      {.run = "r"},
      [&](const Progress& progress) { progress.done == 3 ? stop.request_stop() : false; },
      stop.get_token());
  EXPECT_EQ(cancelled.status().code(), Code::kCancelled);
}

// Everything that a person or a script sees of it.
std::string Told(const RanksReport& report) {
  std::string text = std::to_string(static_cast<int>(report.verdict)) + " " +
                     std::to_string(report.compared.records) + " " +
                     std::to_string(report.compared.diverged);
  for (const RankFinding& f : report.findings) {
    text += "\n" + std::to_string(f.step) + "-" + std::to_string(f.last_step) + " " +
            std::to_string(f.steps) + " " + std::to_string(f.activations) +
            (f.propagated ? " propagated " : " ") + f.text;
  }
  for (const std::string& note : report.notes) text += "\n" + note;
  return text;
}

TEST_F(RanksTest, AnswersTheSameOnAnyNumberOfThreads) {
  Training training{.ranks = 5, .steps = 40};
  training.config = {{"tp", "1"}};
  training.seed = [base = training.seed](auto rank, auto step, const auto& name, auto kind) {
    const bool stale = rank == 3 && step >= 17 && name == "b.weight" && kind == Kind::kWeight;
    const bool skipped = rank == 1 && step == 29 && kind == Kind::kWeightGrad;
    return base(rank, step, name, kind) + (stale || skipped ? 7777 : 0);
  };
  training.scale = [](auto rank, auto step, const auto& name, auto kind) {
    return rank == 4 && step == 11 && name == "a" && kind == Kind::kOutput ? kNan : 1.0;
  };
  training.recorded = [](auto rank, auto step, const auto&) { return rank != 2 || step < 37; };
  training.Write(store_, "r");
  auto view = RunView::Open(store_, "r");
  ASSERT_TRUE(view.ok());
  std::set<std::string> answers;
  for (const std::size_t threads : {1u, 2u, 3u, 8u, 2u}) {
    std::uint64_t done = 0;
    const auto report = CheckRanks(
        *view, {.run = "r"}, {},
        [&](const Progress& progress) { EXPECT_EQ(progress.done, ++done); }, {}, threads);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(done, 5u * 40u);
    answers.insert(Told(*report));
  }
  EXPECT_EQ(answers.size(), 1u);
  EXPECT_THAT(*answers.begin(),
              AllOf(HasSubstr("Rank 3 does not have the b.weight"), HasSubstr("NaN"),
                    HasSubstr("Rank 2 has no statistics in steps 37..39")));
}

TEST_F(RanksTest, SettingsThatDifferBetweenRanksAreNoted) {
  Training training;
  training.own_config = [](auto rank) {
    return std::map<std::string, std::string>{{"lr", rank == 0 ? "0.1" : "0.2"}};
  };
  EXPECT_THAT(
      Check(training).notes,
      ElementsAre("the ranks' configurations differ: lr is '0.1' on rank 0, '0.2' on rank 1"));
}

using Configs = std::map<std::uint32_t, std::map<std::string, std::string>>;

Configs Same(std::uint32_t ranks, const std::map<std::string, std::string>& config) {
  Configs configs;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) configs[rank] = config;
  return configs;
}

TEST(Replicas, ReadsSizesInTheUsualOrderOfRanks) {
  const auto layout = FindReplicas(
      Same(8, {{"model.tensor_model_parallel_size", "2"}, {"pipeline-parallel-size", "2"}}), 8);
  EXPECT_TRUE(layout.stated);
  EXPECT_THAT(layout.groups, ElementsAre(ElementsAre(0, 2), ElementsAre(4, 6), ElementsAre(1, 3),
                                         ElementsAre(5, 7)));
  EXPECT_THAT(FindReplicas(Same(4, {{"cp_size", "2"}, {"dp", "2"}}), 4).groups,
              ElementsAre(ElementsAre(0, 1, 2, 3)));
}

TEST(Replicas, RanksOwnCoordinatesComeFirst) {
  Configs configs = Same(4, {{"tp_size", "2"}});
  for (auto& [rank, config] : configs) config["tp_rank"] = std::to_string(rank / 2);
  EXPECT_THAT(FindReplicas(configs, 4).groups, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
}

TEST(Replicas, LayoutThatDoesNotFitTheWorldIsNotUsed) {
  const auto layout = FindReplicas(Same(6, {{"tp", "4"}}), 6);
  EXPECT_FALSE(layout.stated);
  EXPECT_THAT(layout.groups, ElementsAre(ElementsAre(0, 1, 2, 3, 4, 5)));
  EXPECT_THAT(layout.notes, ElementsAre(HasSubstr("it was not used")));
  EXPECT_FALSE(FindReplicas(Same(2, {{"tp", "many"}, {"dp", "0"}}), 2).stated);
  EXPECT_TRUE(FindReplicas({}, 0).groups.empty());
}

TEST(Replicas, KnowsWhatIsSharded) {
  const auto with = [](const std::map<std::string, std::string>& config) {
    const auto layout = FindReplicas(Same(2, config), 2);
    return std::vector<bool>{layout.weights_sharded, layout.gradients_sharded,
                             layout.state_sharded};
  };
  EXPECT_THAT(with({{"fsdp", "full_shard auto_wrap"}}), ElementsAre(true, true, true));
  EXPECT_THAT(with({{"fsdp", "false"}}), ElementsAre(false, false, false));
  EXPECT_THAT(with({{"train.sharding_strategy", "SHARD_GRAD_OP"}}), ElementsAre(true, true, true));
  EXPECT_THAT(with({{"sharding_strategy", "NO_SHARD"}}), ElementsAre(false, false, false));
  EXPECT_THAT(with({{"deepspeed.zero_optimization.stage", "2"}}), ElementsAre(false, true, true));
  EXPECT_THAT(with({{"zero_stage", "1"}}), ElementsAre(false, false, true));
  EXPECT_THAT(with({{"use_distributed_optimizer", "True"}}), ElementsAre(false, false, true));
  EXPECT_THAT(with({{"lr", "1"}}), ElementsAre(false, false, false));
}

}  // namespace
}  // namespace statcollect::query
