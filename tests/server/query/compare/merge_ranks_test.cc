// Runs of different numbers of ranks, compared replica by replica.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "server/query/query.h"
#include "tests/server/query/premises.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Key;
using ::testing::Not;
using testing::RunWriter;
using testing::Tensor;

Tensor Wave(double scale, std::size_t n = 64) {
  Tensor tensor;
  for (std::size_t i = 0; i < n; ++i)
    tensor.values.push_back(scale * std::sin(static_cast<double>(i) + 1));
  return tensor;
}

using Config = std::map<std::string, std::string>;
// May replace a tensor of a rank.
using Change = std::function<Tensor(std::uint32_t rank, std::uint64_t step, const TensorKey& key,
                                    Tensor tensor)>;

// Data parallel training: batch, activations and losses are each rank's own.
struct Training {
  std::uint32_t ranks = 1;
  Change change;
  Config config;       // of every rank
  std::set<Kind> own;  // kinds of which each rank has values of its own
  std::function<double(std::uint32_t)> of = [](std::uint32_t) {
    return 1.0;
  };  // scale of a rank's weights
  std::function<bool(std::uint32_t rank, std::uint64_t step)> without = [](auto, auto) {
    return false;
  };
};

class MergeRanksTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const Training& training, std::uint64_t steps = 3) {
    RunWriter run(store_, name, training.ranks);
    for (std::uint32_t rank = 0; rank < training.ranks; ++rank) {
      run.Config(rank, training.config);
      for (std::uint64_t step = 0; step < steps; ++step) {
        if (!training.without(rank, step)) WriteStep(run, training, rank, step);
      }
    }
    run.Commit();
    ASSERT_EQ(store_.violation(), "");
  }

  static void WriteStep(RunWriter& run, const Training& training, std::uint32_t rank,
                        std::uint64_t step) {
    const double shared = (1 + static_cast<double>(step)) * training.of(rank);
    const double own = 10 + rank + training.ranks;
    const auto put = [&](const TensorKey& key, Tensor tensor) {
      if (training.own.contains(key.kind)) tensor = Wave(own);
      run.Observe(rank, step, key,
                  training.change ? training.change(rank, step, key, tensor) : tensor);
    };
    if (step == 0)
      put(Key("fc.weight", Kind::kWeight, "", 0, 0, Mode::kInit), Wave(0.5 * training.of(rank)));
    put(Key("ids", Kind::kBatch), Wave(own));
    put(Key("fc"), Wave(own));
    put(Key("fc", Kind::kGradOutput), Wave(own));
    run.Scalar(rank, step, "loss", own);
    put(Key("fc.weight", Kind::kWeightGrad), Wave(2 * shared));
    put(Key("fc.weight", Kind::kWeight), Wave(3 * shared));
    put(Key("fc.weight.m", Kind::kOptimizerState), Wave(4 * shared));
  }

  DiffReport Ask(DiffRequest request = {}) {
    request.run_a = "a";
    request.run_b = "b";
    request.merge_ranks = true;
    auto report = QueryEngine(store_).Diff(request);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : DiffReport();
  }

  FakeStore store_;
};

TEST_F(MergeRanksTest, EveryRankOfBothRunsIsComparedWithAReplica) {
  Write("a", {.ranks = 2});
  Write("b", {.ranks = 4});
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical) << r.message;
  EXPECT_THAT(r.ranks, ElementsAre(0, 1));
  EXPECT_THAT(r.ranks_b, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(r.compared.records,
            4u * (1 + 3 * 3));  // pairs; initial weights, and three kinds in three steps
  EXPECT_EQ(r.inputs.weights, "identical");
  EXPECT_EQ(r.inputs.batches, "unknown");
  EXPECT_THAT(testing::Holding(r), Contains("ranks: 4 pairs of replicas"));
  EXPECT_THAT(r.notes, Contains(HasSubstr("0, 1 of a and 0-3 of b are replicas")));
  EXPECT_THAT(
      r.notes,
      Contains(HasSubstr("activations, batches and losses depend on each rank's own data")));
}

TEST_F(MergeRanksTest, TheLargerRunMayBeA) {
  Write("a", {.ranks = 3});
  Write("b", {.ranks = 1});
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical);
  EXPECT_THAT(r.ranks, ElementsAre(0, 1, 2));
  EXPECT_THAT(r.ranks_b, ElementsAre(0));
}

// Its agent lost them, or began later: another step tells whether it is a replica.
TEST_F(MergeRanksTest, ARankWithoutWeightsInTheFirstStepIsJudgedByALaterOne) {
  Write("a", {.ranks = 2});
  Training late{.ranks = 4};
  late.without = [](auto rank, auto step) { return rank == 3 && step == 0; };
  Write("b", late);
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kWithinTolerance)
      << r.message;  // a step of one rank was not compared
  EXPECT_EQ(r.compared.identical, r.compared.records);
  EXPECT_THAT(testing::Broken(r), Contains(HasSubstr("rank 3 of b has no statistics in 1 step")));
  EXPECT_THAT(r.notes, Not(Contains(HasSubstr("not confirmed"))));
}

TEST_F(MergeRanksTest, WithoutMergingOtherDataIsADivergence) {
  Write("a", {.ranks = 1});
  Write("b", {.ranks = 2});
  auto r = QueryEngine(store_).Diff({.run_a = "a", .run_b = "b"});
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->first->stage, Stage::kBatch);
  EXPECT_THAT(testing::Broken(*r), Contains(HasSubstr("--merge-ranks")));
  EXPECT_THAT(r->ranks_b, IsEmpty());
}

TEST_F(MergeRanksTest, AStaleWeightOnOneRankIsNamedWithItsRank) {
  Write("a", {.ranks = 2});
  Write("b", {.ranks = 4, .change = [](auto rank, auto step, const auto& key, Tensor tensor) {
                const bool stale = rank == 3 && step == 1 && key.kind == Kind::kWeight;
                return stale ? Wave(1.0) : tensor;
              }});
  const DiffReport r = Ask();
  ASSERT_EQ(r.verdict, Verdict::kDiverged);
  EXPECT_EQ(r.first->step, 1u);
  EXPECT_EQ(r.first->stage, Stage::kOptimizer);
  EXPECT_EQ(r.first->rank, 1u);
  EXPECT_EQ(r.first->rank_b, 3u);
  EXPECT_EQ(r.compared.diverged, 1u);
  EXPECT_THAT(r.spread.ranks, ElementsAre(1));
  EXPECT_THAT(r.spread.ranks_b, ElementsAre(3));
}

TEST_F(MergeRanksTest, AWeightThatTwoRanksLackIsMissingOnBoth) {
  Write("a", {.ranks = 1});
  Training lacking{.ranks = 3};
  RunWriter run(store_, "b", 3);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    WriteStep(run, lacking, rank, 0);
    if (rank == 0) run.Observe(rank, 0, Key("extra.weight", Kind::kWeight), Wave(1));
  }
  run.Commit();
  const DiffReport r = Ask();
  EXPECT_EQ(r.first->reason, Reason::kMissingInA);
  EXPECT_EQ(r.first->activation, "extra.weight");
}

TEST_F(MergeRanksTest, GradientsThatAreReducedInTheOptimizerAreNotCompared) {
  Write("a", {.ranks = 1});
  Write("b", {.ranks = 2, .own = {Kind::kWeightGrad}});
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical);
  EXPECT_EQ(r.compared.records, 2u * (1 + 3 * 2));
  EXPECT_THAT(r.notes, Contains(HasSubstr("gradients of b are each rank's own")));
}

TEST_F(MergeRanksTest, AReductionLeftOutIsADivergenceOfGradientsAndWeights) {
  Write("a", {.ranks = 1});
  Write("b", {.ranks = 2, .change = [](auto rank, auto step, const auto& key, Tensor tensor) {
                const bool unreduced =
                    step >= 1 && (key.kind == Kind::kWeightGrad || key.kind == Kind::kWeight);
                return unreduced ? Wave(7.0 + rank) : tensor;
              }});
  const DiffReport r = Ask();
  ASSERT_EQ(r.verdict, Verdict::kDiverged);
  EXPECT_EQ(r.first->step, 1u);
  EXPECT_EQ(r.first->stage, Stage::kGrad);
}

TEST_F(MergeRanksTest, RanksWhoseWeightsDifferAreNoReplicas) {
  Write("a", {.ranks = 2, .of = [](std::uint32_t rank) { return 1.0 + rank; }});
  Write("b", {.ranks = 4, .of = [](std::uint32_t rank) { return 1.0 + rank % 2; }});
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIncomparable);
  EXPECT_THAT(r.message, HasSubstr("not replicas"));
  EXPECT_THAT(r.message, HasSubstr("tp"));
}

TEST_F(MergeRanksTest, ShardsAreMergedByTheirPlaceInTheLayout) {
  const auto shard = [](std::uint32_t rank) { return 1.0 + rank % 2; };  // tensor parallel rank
  Write("a", {.ranks = 2, .config = {{"tp", "2"}}, .of = shard});
  Write("b", {.ranks = 6, .config = {{"tp", "2"}, {"dp", "3"}}, .of = shard});
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical) << r.message;
  EXPECT_EQ(r.compared.records, 6u * (1 + 3 * 3));
  EXPECT_THAT(r.notes,
              Contains(HasSubstr("0 of a and 0, 2, 4 of b; 1 of a and 1, 3, 5 of b are replicas")));
}

TEST_F(MergeRanksTest, OtherTensorParallelSizesAreIncomparable) {
  const auto shard = [](std::uint32_t rank) { return 1.0 + rank; };
  Write("a", {.ranks = 2, .config = {{"tp", "2"}}, .of = shard});
  Write("b", {.ranks = 4, .config = {{"tp", "4"}}, .of = shard});
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIncomparable);
  EXPECT_THAT(r.message, HasSubstr("2 parts, b over 4 parts"));
  Write("c", {.ranks = 2, .config = {{"pp", "2"}}, .of = shard});
  auto stages = QueryEngine(store_).Diff({.run_a = "a", .run_b = "c", .merge_ranks = true});
  EXPECT_EQ(stages->verdict, Verdict::kIncomparable);  // two parts as well, but others
}

TEST_F(MergeRanksTest, ShardedWeightsAreIncomparableAndShardedStateIsLeftOut) {
  Write("a", {.ranks = 1});
  Write("b", {.ranks = 2, .config = {{"fsdp", "true"}}});
  EXPECT_EQ(Ask().verdict, Verdict::kIncomparable);
  Write("c", {.ranks = 2, .config = {{"zero_stage", "1"}}, .own = {Kind::kOptimizerState}});
  auto r = QueryEngine(store_).Diff({.run_a = "a", .run_b = "c", .merge_ranks = true});
  EXPECT_EQ(r->verdict, Verdict::kIdentical);
  EXPECT_EQ(r->compared.records, 2u * (1 + 3 * 2));
}

TEST_F(MergeRanksTest, KindsAndRanksNarrowTheQuestion) {
  Write("a", {.ranks = 2});
  Write("b", {.ranks = 4});
  EXPECT_EQ(Ask({.kinds = {Kind::kOutput}}).verdict, Verdict::kIncomparable);
  const DiffReport r = Ask({.ranks = {1}, .kinds = {Kind::kWeightGrad, Kind::kOutput}});
  EXPECT_EQ(r.compared.records, 2u * 3);
  EXPECT_THAT(r.ranks_b, ElementsAre(1, 3));
  EXPECT_EQ(Ask({.ranks = {7}}).verdict, Verdict::kIncomparable);
}

TEST_F(MergeRanksTest, RunsWithoutWeightsAreComparedAndThatIsSaid) {
  for (const auto& [name, ranks] : {std::pair("a", 1u), std::pair("b", 2u)}) {
    RunWriter run(store_, name, ranks);
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
      run.Observe(rank, 0, Key("w", Kind::kWeightGrad), Wave(1));
    run.Commit();
  }
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical);
  EXPECT_THAT(r.notes, Contains(HasSubstr("was not confirmed")));
}

}  // namespace
}  // namespace statcollect::query
