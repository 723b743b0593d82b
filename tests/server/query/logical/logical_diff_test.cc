// Runs that are cut up differently, compared as one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>

#include "common/names.h"
#include "server/query/answers/noise.h"
#include "server/query/logical/logical_run.h"
#include "server/query/query.h"
#include "tests/server/query/ask.h"
#include "tests/server/query/logical/cut_tensor.h"
#include "tests/server/query/premises.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using namespace statcollect::testing;  // NOLINT: the helpers

struct Item {
  TensorKey key;
  Sizes shape;
};

// A step of the little model, in order; samples are along the first dimension of outputs.
const std::vector<Item>& Items() {
  static const std::vector<Item> items = {
      {Key("embed"), {8, 10}},
      {Key("q"), {8, 12}},
      {Key("head"), {8, 14}},
      {Key("head", Kind::kGradOutput), {8, 14}},
      {Key("q.weight", Kind::kWeightGrad), {12, 10}},
      {Key("norm.weight", Kind::kWeightGrad), {10}},
      {Key("q.weight", Kind::kWeight), {12, 10}},
      {Key("norm.weight", Kind::kWeight), {10}},
  };
  return items;
}

bool Is(const Item& item, const std::string& name, Kind kind = Kind::kOutput) {
  return item.key.name == name && item.key.kind == kind;
}

using Cutter = std::function<std::vector<Held>(const Item&)>;

std::vector<Held> OneRank(const Item&) { return {{0, std::nullopt}}; }

// q's and the head's features over the ranks, everything else on all of them.
Cutter TensorParallel(std::uint32_t ranks) {
  return [ranks](const Item& item) {
    const bool cut = item.key.name.starts_with("q") || item.key.name.starts_with("head");
    const std::size_t dim = item.key.name.ends_with("weight") ? 0 : 1;
    return cut ? Shards(item.shape, dim, ranks) : Copies(item.shape, ranks);
  };
}

struct Training {
  Cutter cut = OneRank;
  std::uint64_t first = 0, steps = 3;
  // May change what a rank sees.
  std::function<void(const Item&, std::uint64_t step, std::uint32_t rank, Whole&)> change;
  std::function<bool(const Item&, std::uint64_t step, std::uint32_t rank)> without;
};

class LogicalDiff : public ::testing::Test {
 protected:
  void Write(const std::string& name, const Training& training) {
    std::uint32_t ranks = 1;
    for (const Item& item : Items()) {
      for (const Held& held : training.cut(item)) ranks = std::max(ranks, held.rank + 1);
    }
    RunWriter run(store_, name, ranks);
    for (std::uint64_t step = training.first; step < training.first + training.steps; ++step) {
      for (const Item& item : Items()) WriteItem(run, training, item, step);
    }
    run.Commit();
    ASSERT_EQ(store_.violation(), "");
  }
  static void WriteItem(RunWriter& run, const Training& training, const Item& item,
                        std::uint64_t step) {
    Random random(std::hash<std::string>()(item.key.name) +
                  100 * static_cast<std::uint64_t>(item.key.kind) + step);
    const Whole whole = RandomTensor(random, item.shape);
    for (const Held& held : training.cut(item)) {
      if (training.without && training.without(item, step, held.rank)) continue;
      Whole of_rank = whole;
      if (training.change) training.change(item, step, held.rank, of_rank);
      Record(run, step, item.key, of_rank, {held});
    }
  }
  void Write(const std::string& name, const Cutter& cut) {
    Write(name, {.cut = cut, .change = {}, .without = {}});
  }

  DiffReport Ask(DiffRequest request = {}) {
    request.run_a = "a";
    request.run_b = "b";
    auto report = QueryEngine(store_).Diff(request);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : DiffReport();
  }
  static bool AsOneModel(const DiffReport& report) {
    const auto texts = testing::Holding(report);
    return std::any_of(texts.begin(), texts.end(), [](const std::string& text) {
      return text.starts_with("ranks: compared as one model each");
    });
  }

  FakeStore store_;
};

TEST_F(LogicalDiff, TensorParallelAgainstOneRankIsIdentical) {
  Write("a", TensorParallel(2));
  Write("b", OneRank);
  const DiffReport r = Ask();
  EXPECT_TRUE(AsOneModel(r));
  EXPECT_EQ(r.verdict, Verdict::kIdentical) << ::testing::PrintToString(r.notes);
  EXPECT_EQ(r.compared.records, 3 * Items().size());
  EXPECT_THAT(r.ranks, ElementsAre(0, 1));
  EXPECT_THAT(r.ranks_b, ElementsAre(0));
}

// Data-parallel ranks against one process: statistics of the pieces are added in another order,
// gradients and weights are rounded differently.
TEST_F(LogicalDiff, RoundingIsKnownFromWeightsIfActivationsHaveStatisticsOnly) {
  constexpr std::uint32_t kPieces = 2;
  const Sizes whole = {64, 30}, piece = {32, 30}, matrix = {40, 30};
  RunWriter a(store_, "a"), b(store_, "b", kPieces);
  const auto rounded = [](Whole tensor, Random& random) {
    std::normal_distribution<float> normal(0, 1e-7F);
    for (float& x : tensor.values) x *= 1 + normal(random);
    return tensor;
  };
  for (std::uint64_t step = 0; step < 3; ++step) {
    Random random(step + 1);
    for (const TensorKey& key : {Key("x", Kind::kBatch), Key("fc")}) {
      const Whole all = RandomTensor(random, whole);
      Record(a, step, key, all, {{0, std::nullopt}});
      for (std::uint32_t rank = 0; rank < kPieces; ++rank) {
        const auto begin = all.values.begin() + rank * (all.values.size() / kPieces);
        const Whole part{piece, {begin, begin + all.values.size() / kPieces}};
        Record(b, step, key, part, {{rank, Piece(piece, rank, kPieces)}});
      }
    }
    for (const TensorKey& key :
         {Key("fc.weight", Kind::kWeightGrad), Key("fc.weight", Kind::kWeight)}) {
      const Whole all = RandomTensor(random, matrix);
      Record(a, step, key, all, {{0, std::nullopt}});
      Record(b, step, key, rounded(all, random), Copies(matrix, kPieces));
    }
  }
  a.Commit();
  b.Commit();
  const DiffReport r = Ask();
  EXPECT_TRUE(AsOneModel(r));
  ASSERT_TRUE(r.first_bitwise);
  EXPECT_EQ(r.first_bitwise->distance_kind, DistanceKind::kStatistics);
  EXPECT_FALSE(r.root) << r.root->at.activation << ": " << r.root->because.front();
  EXPECT_TRUE(r.explained_by_rounding) << ::testing::PrintToString(r.notes);
  EXPECT_EQ(r.inputs.batches, "unknown") << "the bits of a batch in pieces are not known";
}

TEST_F(LogicalDiff, RandomCutsOfOneTrainingAreIdentical) {
  Random random(20261127);
  std::map<std::string, std::vector<Held>> cuts;
  const auto randomly = [&](const Item& item) {
    auto& cut = cuts[item.key.name + std::string(Name(item.key.kind))];
    if (cut.empty()) cut = RandomCut(random, item.shape);
    return cut;
  };
  Write("a", randomly);
  cuts.clear();
  Write("b", randomly);
  DiffRequest request;
  request.logical = true;
  const DiffReport r = Ask(request);
  EXPECT_EQ(r.verdict, Verdict::kIdentical) << ::testing::PrintToString(r.notes);
  EXPECT_EQ(r.compared.identical, 3 * Items().size())
      << r.compared.records << ::testing::PrintToString(r.notes);
}

TEST_F(LogicalDiff, ATensorThatDiffersIsNamedWithItsRanks) {
  Write("a", TensorParallel(4));
  Write("b", {.change =
                  [](const Item& item, std::uint64_t step, std::uint32_t, Whole& whole) {
                    if (Is(item, "q") && step == 1) whole.values[20] += 3;
                  },
              .without = {}});
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kDiverged);
  ASSERT_TRUE(r.root);
  EXPECT_EQ(r.root->at.activation, "q");
  EXPECT_EQ(r.root->at.step, 1u);
  EXPECT_THAT(r.root->at.ranks_a, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(r.root->at.ranks_b, ElementsAre(0));
}

// --- where it differs

TEST_F(LogicalDiff, TheSmallestPartThatBothRunsHaveIsNamed) {
  Write("a", TensorParallel(4));
  Write("b", {.cut = TensorParallel(2),
              .change =
                  [](const Item& item, std::uint64_t step, std::uint32_t, Whole& whole) {
                    if (Is(item, "q") && step == 1) whole.values[12 + 8] += 3;  // row 1, column 8
                  },
              .without = {}});
  const DiffReport r = Ask();
  ASSERT_TRUE(r.root && r.first);
  for (const Divergence& row : {r.root->at, *r.first}) {
    EXPECT_EQ(row.parts_total, 2u);
    ASSERT_EQ(row.parts.size(), 1u);
    EXPECT_EQ(row.parts[0].place, "[0:8, 6:12] of (8, 12)");
    EXPECT_THAT(row.parts[0].ranks_a, ElementsAre(2, 3));
    EXPECT_THAT(row.parts[0].ranks_b, ElementsAre(1));
    EXPECT_GT(row.parts[0].distance, row.distance);
  }
}

TEST_F(LogicalDiff, CutsAcrossEachOtherHaveOnlyTheWholeInCommon) {
  const auto by_rows = [](const Item& item) {
    return Is(item, "q") ? Shards(item.shape, 0, 2) : Copies(item.shape, 2);
  };
  Write("a", TensorParallel(4));
  Write("b", {.cut = by_rows,
              .change = [](const Item& item, std::uint64_t, std::uint32_t,
                           Whole& whole) { whole.values[3] += Is(item, "q") ? 3 : 0; },
              .without = {}});
  const DiffReport r = Ask();
  ASSERT_TRUE(r.root);
  EXPECT_EQ(r.root->at.activation, "q");
  EXPECT_EQ(r.root->at.parts_total, 0u);
  EXPECT_THAT(r.root->at.parts, IsEmpty());
}

TEST_F(LogicalDiff, EveryPartThatDiffersIsNamedAlsoInRangesAndWithReplicas) {
  const auto flat = [](std::vector<std::int64_t> ends, std::uint32_t copies) {
    return [ends, copies](const Item& item) {
      if (!Is(item, "q.weight", Kind::kWeight)) return Copies(item.shape, 2);
      std::vector<Held> held;
      for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
        Placement place;
        place.global_shape = item.shape;
        place.ranges = {ends[i], ends[i + 1]};
        for (std::uint32_t copy = 0; copy < copies; ++copy)
          held.push_back({static_cast<std::uint32_t>(held.size()), place});
      }
      return held;
    };
  };
  Write("a", flat({0, 30, 60, 90, 120}, 1));
  Write("b", {.cut = flat({0, 30, 90, 120}, 2),
              .change =
                  [](const Item& item, std::uint64_t step, std::uint32_t, Whole& whole) {
                    if (!Is(item, "q.weight", Kind::kWeight) || step != 0) return;
                    whole.values[40] += 1;
                    whole.values[110] += 2;
                  },
              .without = {}});
  DiffRequest request;
  request.logical = true;
  const DiffReport r = Ask(request);
  ASSERT_TRUE(r.root);
  const Divergence& row = r.root->at;
  EXPECT_EQ(row.parts_total, 3u);
  ASSERT_EQ(row.parts.size(), 2u);
  EXPECT_EQ(row.parts[0].place, "elements 30:90 of (12, 10)");
  EXPECT_THAT(row.parts[0].ranks_a, ElementsAre(1, 2));
  EXPECT_THAT(row.parts[0].ranks_b, ElementsAre(2, 3));
  EXPECT_EQ(row.parts[1].place, "elements 90:120 of (12, 10)");
  EXPECT_THAT(row.parts[1].ranks_a, ElementsAre(3));
  EXPECT_THAT(row.parts[1].ranks_b, ElementsAre(4, 5));
}

// --- the choice

TEST_F(LogicalDiff, RunsThatAreCutAlikeAreComparedByRank) {
  Write("a", TensorParallel(2));
  Write("b", TensorParallel(2));
  const DiffReport r = Ask();
  EXPECT_FALSE(AsOneModel(r));
  EXPECT_EQ(r.verdict, Verdict::kIdentical);
  EXPECT_EQ(r.compared.records, 2 * 3 * Items().size());
}

// As torch's tensor parallelism against a hand-written one: the layouts are the same as sets.
TEST_F(LogicalDiff, ATensorWhosePlaceOnlyOneRunKnowsIsLeftOut) {
  Write("a", TensorParallel(2));
  const auto of_rank = [](const Item& item, std::uint64_t, std::uint32_t rank, Whole& whole) {
    if (!Is(item, "q")) return;
    const Computed half = Compute(whole, Shards(item.shape, 1, 2)[rank].placement);
    whole.shape = half.layout.shape;
    Whole part{whole.shape, {}};
    ForEachInBox(*half.layout.placement, 0, 0, [&](std::int64_t i) {
      part.values.push_back(whole.values[static_cast<std::size_t>(i)]);
    });
    whole = part;
  };
  const Cutter by_hand = [](const Item& item) {
    return Is(item, "q") ? std::vector<Held>{{0, std::nullopt}, {1, std::nullopt}}
                         : TensorParallel(2)(item);
  };
  Write("b", {.cut = by_hand, .change = of_rank, .without = {}});
  const DiffReport r = Ask();
  EXPECT_TRUE(AsOneModel(r));
  EXPECT_EQ(r.compared.diverged, 0u) << ::testing::PrintToString(r.notes);
  EXPECT_EQ(r.compared.records, 3 * (Items().size() - 1));
  EXPECT_THAT(r.notes, Contains(HasSubstr("layout not known: 1 tensor, such as output q")));
}

TEST_F(LogicalDiff, OtherCutsOverAsManyRanksAreFound) {
  Write("a", TensorParallel(2));
  Write("b", [](const Item& item) { return Shards(item.shape, 0, 2); });
  const DiffReport r = Ask();
  EXPECT_TRUE(AsOneModel(r));
  EXPECT_EQ(r.verdict, Verdict::kIdentical) << ::testing::PrintToString(r.notes);
}

TEST_F(LogicalDiff, RunsWithoutPlacementsAreComparedByRankAsBefore) {
  const Cutter two = [](const Item&) {
    return std::vector<Held>{{0, std::nullopt}, {1, std::nullopt}};
  };
  Write("a", two);
  Write("b", OneRank);
  const DiffReport r = Ask();
  EXPECT_FALSE(AsOneModel(r));
  EXPECT_THAT(testing::Broken(r), Contains(HasSubstr("ranks: 0 in both (1); a has 0, 1, b has 0")));
}

// --- what is not whole: said in one sentence, and the rest is compared

TEST_F(LogicalDiff, AMissingRankMakesItsTensorsIncomplete) {
  Write("a", {.cut = TensorParallel(2),
              .change = {},
              .without = [](const Item&, std::uint64_t, std::uint32_t rank) { return rank == 1; }});
  Write("b", OneRank);
  const DiffReport r = Ask();
  EXPECT_EQ(r.compared.diverged, 0u) << ::testing::PrintToString(r.notes);
  EXPECT_NE(r.verdict, Verdict::kDiverged);
  EXPECT_THAT(r.unmatched.only_b, IsEmpty());
  EXPECT_THAT(r.notes, Contains(HasSubstr(
                           "a: incomplete, not compared: 5 tensors, such as output q, step 0: "
                           "rank 0 recorded 48 of its 96 elements")));
}

TEST_F(LogicalDiff, PartsThatOverlapAreSaidAndTheRestIsCompared) {
  const Cutter overlapping = [](const Item& item) {
    auto held = TensorParallel(2)(item);
    if (Is(item, "q")) held[1].placement = Box({8, 12}, {0, 5}, {8, 7});
    return held;
  };
  Write("a", overlapping);
  Write("b", {.change =
                  [](const Item& item, std::uint64_t step, std::uint32_t, Whole& whole) {
                    if (Is(item, "head") && step == 2) whole.values[3] += 2;
                  },
              .without = {}});
  const DiffReport r = Ask();
  EXPECT_THAT(
      r.notes,
      Contains(HasSubstr("a: layout contradicts itself, not compared: 1 tensor, output q, step 0: "
                         "the parts of ranks 0 and 1 overlap")));
  EXPECT_EQ(r.verdict, Verdict::kDiverged);
  EXPECT_EQ(r.compared.diverged, 1u);
  ASSERT_TRUE(r.first);
  EXPECT_EQ(r.first->activation, "head");
}

// A rank that took another shape for the whole, and one whose part is too small: both are said, and
// the rest is compared.
TEST_F(LogicalDiff, RanksThatDisagreeAboutTheShapeAndHolesAreSaidAndTheRestIsCompared) {
  const Cutter cut = [](const Item& item) {
    auto held = TensorParallel(2)(item);
    if (Is(item, "q")) held[1].placement = Box({8, 11}, {0, 6}, {8, 5});
    if (Is(item, "head")) held[1].placement = Box({8, 14}, {0, 7}, {8, 6});
    return held;
  };
  Write("a", cut);
  Write("b", {.change =
                  [](const Item& item, std::uint64_t step, std::uint32_t, Whole& whole) {
                    if (Is(item, "embed") && step == 1) whole.values[3] += 2;
                  },
              .without = {}});
  const DiffReport r = Ask();
  EXPECT_THAT(
      r.notes,
      Contains(HasSubstr(
          "a: layout contradicts itself, not compared: 1 tensor, output q, step 0: ranks 0 and 1 "
          "do not agree about its global shape or dtype: (8, 12) of f32 and (8, 11) of f32")));
  EXPECT_THAT(r.notes, Contains(HasSubstr(
                           "a: incomplete, not compared: 1 tensor, output head, step 0: ranks 0, 1 "
                           "recorded 104 of its 112 elements")));
  EXPECT_EQ(r.verdict, Verdict::kDiverged);
  EXPECT_EQ(r.compared.diverged, 1u);
  ASSERT_TRUE(r.first);
  EXPECT_EQ(r.first->activation, "embed");
}

TEST_F(LogicalDiff, ReplicasThatDifferAreSaid) {
  Write("a", {.cut = TensorParallel(4),
              .change =
                  [](const Item& item, std::uint64_t step, std::uint32_t rank, Whole& whole) {
                    if (Is(item, "norm.weight", Kind::kWeightGrad) && step == 1 && rank == 3)
                      whole.values[4] += 1;
                  },
              .without = {}});
  Write("b", OneRank);
  const DiffReport r = Ask();
  EXPECT_THAT(r.notes,
              Contains(HasSubstr(
                  "a: replicas differ: 1 tensor, weight_grad norm.weight, step 1: rank 3 ")));
}

// The first rank's value, which is compared with the other run, is right.
TEST_F(LogicalDiff, ReplicasThatPartAreTheRoot) {
  float apart = 1;
  const auto write = [&](std::uint64_t other_from) {
    Write("a", OneRank);
    Write("b", {.cut = TensorParallel(4),
                .steps = 4,
                .change =
                    [=](const Item& item, std::uint64_t step, std::uint32_t rank, Whole& whole) {
                      if (Is(item, "norm.weight", Kind::kWeight) && step >= 1 && rank == 3)
                        whole.values[4] += apart * std::abs(whole.values[4]);
                      if (Is(item, "q") && step >= other_from) whole.values[20] += 3;
                    },
                .without = {}});
  };
  const auto expect_root = [](const DiffReport& r) {
    EXPECT_EQ(r.verdict, Verdict::kDiverged);
    ASSERT_TRUE(r.root && r.first);
    EXPECT_EQ(r.root->at.reason, Reason::kNumeric);
    EXPECT_EQ(r.root->at.activation, "norm.weight");
    EXPECT_EQ(r.root->at.step, 1u);
    EXPECT_THAT(r.root->at.ranks_a, IsEmpty());
    EXPECT_THAT(r.root->at.ranks_b, ElementsAre(3));
    ASSERT_FALSE(r.root->causes.empty());
    EXPECT_THAT(r.root->causes.front().text,
                HasSubstr("the replicas of b differ at step 1: rank 3 does not have the "
                          "norm.weight after the update of ranks 0-2"));
    EXPECT_EQ(r.compared.records,
              r.compared.identical + r.compared.within_tolerance + r.compared.diverged);
  };
  write(99);
  expect_root(Ask());
  write(2);
  const DiffReport later = Ask();
  expect_root(later);
  EXPECT_EQ(later.first->activation, "q") << "where the runs differ";
  write(0);
  EXPECT_EQ(Ask().root->at.activation, "q") << "before the replicas part";
  apart = 1e-7F;
  write(99);
  const DiffReport rounding = Ask();
  EXPECT_EQ(rounding.verdict, Verdict::kIdentical);
  EXPECT_THAT(rounding.notes, Contains(HasSubstr("b: replicas differ: 1 tensor")));
}

// A gradient of a loss is a constant. Without a placement, equal parts of it look like replicas.
TEST_F(LogicalDiff, PartsOfAConstantAreNotTakenForReplicas) {
  const auto write = [&](const std::string& name, std::uint32_t ranks, float last) {
    RunWriter run(store_, name, ranks);
    Random random(1);
    for (std::uint64_t step = 0; step < 2; ++step) {
      const Item& placed = Items().front();
      const Whole whole = RandomTensor(random, placed.shape);
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        Record(run, step, placed.key, whole, {{rank, AllOf(placed.shape)}});
        const Sizes shape = {8, 16 / ranks};
        Whole constant{shape, std::vector<float>(NumelOf(shape), 0.25F)};
        constant.values.back() = last;
        Record(run, step, Key("criterion", Kind::kGradOutput), constant, {{rank, std::nullopt}});
      }
    }
    run.Commit();
  };
  write("a", 1, 0.25F);
  write("b", 2, 0.25F);
  const DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical) << ::testing::PrintToString(r.notes);
  EXPECT_THAT(r.notes, Contains(HasSubstr("layout not known: 1 tensor, such as grad_output crit")));
  write("b", 2, 0.5F);
  EXPECT_EQ(Ask().verdict, Verdict::kDiverged) << "replicas of another shape";
}

TEST_F(LogicalDiff, ARunMayChangeItsLayoutWhenItResumes) {
  Write("a", TensorParallel(2));
  Write("a", {.cut = TensorParallel(4), .first = 3, .change = {}, .without = {}});
  Write("b", {.steps = 6, .change = {}, .without = {}});
  const DiffReport r = Ask();
  EXPECT_TRUE(AsOneModel(r));
  EXPECT_EQ(r.verdict, Verdict::kIdentical) << ::testing::PrintToString(r.notes);
  EXPECT_EQ(r.compared.records, 6 * Items().size());
}

// --- over many steps, of which equal ones are told by their digests

constexpr std::uint64_t kManySteps = 200;

// Of the first block of each step, of the only rank of a run that is read as one model.
std::vector<BlockDigest> DigestsOf(RunReader& store, const std::string& run) {
  auto logical = LogicalRun::Open(store, run);
  EXPECT_TRUE(logical.ok()) << logical.status().message();
  std::vector<BlockDigest> digests;
  if (!logical.ok()) return digests;
  (*logical)->Choose({}, {}, /*fold=*/false);
  const auto scan = (*logical)->ScanStats((*(*logical)->Attempts(run))[0].id, 0, {});
  while (scan->NextHead()) digests.push_back(scan->head().digest);
  return digests;
}

TEST_F(LogicalDiff, EqualStepsHaveEqualDigests) {
  Write("a", {.cut = TensorParallel(4), .change = {}, .without = {}});
  Write("b", {.change =
                  [](const Item& item, std::uint64_t step, std::uint32_t, Whole& whole) {
                    if (Is(item, "q") && step == 1) whole.values[20] += 3;
                  },
              .without = {}});
  const auto a = DigestsOf(store_, "a"), b = DigestsOf(store_, "b");
  ASSERT_EQ(a.size(), 3u);
  ASSERT_EQ(b.size(), 3u);
  EXPECT_EQ(a[0], b[0]);
  EXPECT_NE(a[1], b[1]);
  EXPECT_EQ(a[2], b[2]);
  EXPECT_NE(a[0], a[2]);
}

TEST_F(LogicalDiff, StepsThatDifferAfterEqualOnesAreCompared) {
  for (const std::uint64_t differs : {150, 151}) {
    SCOPED_TRACE(differs);
    const std::string a = "a" + std::to_string(differs), b = "b" + std::to_string(differs);
    Write(a, {.cut = TensorParallel(4), .steps = kManySteps, .change = {}, .without = {}});
    Write(b, {.steps = kManySteps,
              .change =
                  [&](const Item& item, std::uint64_t step, std::uint32_t, Whole& whole) {
                    if (Is(item, "q") && (step == differs || step == 190)) whole.values[20] += 3;
                  },
              .without = {}});
    auto r = QueryEngine(store_).Diff({.run_a = a, .run_b = b});
    ASSERT_TRUE(r.ok()) << r.status().message();
    ASSERT_TRUE(r->root);
    EXPECT_EQ(r->root->at.activation, "q");
    EXPECT_EQ(r->root->at.step, differs);
    EXPECT_EQ(r->compared.diverged, 2u);
    EXPECT_EQ(r->compared.identical, kManySteps * Items().size() - 2);
  }
}

TEST_F(LogicalDiff, ReplicasThatDifferInALaterStepAreSaid) {
  Write("a", {.cut = TensorParallel(4),
              .steps = kManySteps,
              .change =
                  [](const Item& item, std::uint64_t step, std::uint32_t rank, Whole& whole) {
                    if (Is(item, "norm.weight", Kind::kWeightGrad) && step == 150 && rank == 3)
                      whole.values[4] += 1;
                  },
              .without = {}});
  Write("b", {.steps = kManySteps, .change = {}, .without = {}});
  EXPECT_THAT(Ask().notes,
              Contains(HasSubstr(
                  "a: replicas differ: 1 tensor, weight_grad norm.weight, step 150: rank 3 ")));
}

TEST_F(LogicalDiff, StepsOfOtherRecordsAreCompared) {
  const auto rarely = [](const Item& item, std::uint64_t step, std::uint32_t) {
    return item.key.kind == Kind::kWeight && step % 10 != 0;
  };
  Write("a", {.cut = TensorParallel(4), .steps = kManySteps, .change = {}, .without = rarely});
  Write("b", {.steps = kManySteps, .change = {}, .without = rarely});
  DiffReport r = Ask();
  EXPECT_EQ(r.verdict, Verdict::kIdentical) << ::testing::PrintToString(r.notes);
  EXPECT_EQ(r.compared.identical, kManySteps * (Items().size() - 2) + kManySteps / 10 * 2);
  // A part that is missing in a later step.
  Write("c", {.cut = TensorParallel(4),
              .steps = kManySteps,
              .change = {},
              .without = [&](const Item& item, std::uint64_t step, std::uint32_t rank) {
                return rarely(item, step, rank) || (Is(item, "head") && step == 155 && rank == 1);
              }});
  auto incomplete = QueryEngine(store_).Diff({.run_a = "c", .run_b = "b"});
  ASSERT_TRUE(incomplete.ok());
  EXPECT_THAT(incomplete->notes,
              Contains(HasSubstr("incomplete, not compared: 1 tensor, output head, step 155: ")));
}

// Every element of q's output is off by up to this share of its size, differently in each run.
Training Noisy(Cutter cut, double share, std::uint64_t seed) {
  Training training{.cut = std::move(cut), .change = {}, .without = {}};
  training.change = [=](const Item& item, std::uint64_t step, std::uint32_t, Whole& whole) {
    if (!Is(item, "q")) return;
    Random random(1000 * seed + step);
    std::uniform_real_distribution<double> off(1 - share, 1 + share);
    for (float& value : whole.values) value = static_cast<float>(value * off(random));
  };
  return training;
}

DiffRequest Repeats() { return {.noise = {"a2"}}; }

TEST_F(LogicalDiff, NoiseOfRepeatsJudgesWholeTensors) {
  Write("a", Noisy(TensorParallel(3), 0.01, 1));
  Write("a2", Noisy(TensorParallel(3), 0.01, 2));
  Write("b", Noisy(OneRank, 0.01, 3));
  ASSERT_EQ(Ask().verdict, Verdict::kDiverged);
  const DiffReport report = Ask(Repeats());
  EXPECT_TRUE(AsOneModel(report));
  EXPECT_NE(report.verdict, Verdict::kDiverged);
  EXPECT_FALSE(report.noise->stored);
  Write("b", Noisy(OneRank, 0.5, 3));
  const DiffReport worse = Ask(Repeats());
  ASSERT_EQ(worse.verdict, Verdict::kDiverged);
  EXPECT_EQ(worse.first->activation, "q");
  EXPECT_GT(worse.first->times_noise, 10);
}

// Also if the repeats are cut in another way.
TEST_F(LogicalDiff, NoiseOfRepeatsOnOneRankJudgesWholeTensors) {
  Write("a", Noisy(TensorParallel(3), 0.01, 1));
  Write("a2", Noisy(OneRank, 0.01, 2));
  Write("b", Noisy(TensorParallel(2), 0.01, 3));
  ASSERT_EQ(Ask().verdict, Verdict::kDiverged);
  EXPECT_NE(Ask(Repeats()).verdict, Verdict::kDiverged);
}

TEST_F(LogicalDiff, StoredNoiseOfRanksJudgesWholeTensors) {
  Write("a", Noisy(TensorParallel(3), 0.01, 1));
  Write("a2", Noisy(TensorParallel(3), 0.01, 2));
  Write("b", Noisy(OneRank, 0.01, 3));
  ASSERT_TRUE(QueryEngine(store_).SaveNoise({.run = "a", .repeats = {"a2"}}).ok());
  const DiffReport report = Ask();
  EXPECT_TRUE(AsOneModel(report));
  EXPECT_NE(report.verdict, Verdict::kDiverged);
  EXPECT_TRUE(report.noise->stored);
  DiffRequest without;
  without.no_noise = true;
  EXPECT_EQ(Ask(without).verdict, Verdict::kDiverged);
  Write("b", Noisy(OneRank, 0.5, 3));
  const DiffReport worse = Ask();
  ASSERT_EQ(worse.verdict, Verdict::kDiverged);
  EXPECT_EQ(worse.first->activation, "q");
}

TEST_F(LogicalDiff, NoiseIsSavedFromRepeatsThatAreCutInAnotherWay) {
  Write("a", Noisy(TensorParallel(3), 0.01, 1));
  Write("a2", Noisy(OneRank, 0.01, 2));
  Write("b", Noisy(OneRank, 0.01, 3));
  const auto saved = QueryEngine(store_).SaveNoise({.run = "a", .repeats = {"a2"}});
  ASSERT_TRUE(saved.ok()) << saved.status().message();
  EXPECT_EQ(saved->steps, 3u);
  EXPECT_GT(testing::Ask(store_, GetNoise, "a")->activations(), 0u);
  EXPECT_NE(Ask().verdict, Verdict::kDiverged);
  Write("b", Noisy(OneRank, 0.5, 3));
  EXPECT_EQ(Ask().verdict, Verdict::kDiverged);
}

}  // namespace
}  // namespace statcollect::query
