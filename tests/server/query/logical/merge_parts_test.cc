// The ranks of a launch, put together, are what one rank would have recorded. STATCOLLECT_TEST_SEED
// and STATCOLLECT_TEST_CASES repeat or extend the random test.
#include "server/query/logical/merge_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>

#include "tests/server/query/logical/cut_tensor.h"

namespace statcollect::query {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace statcollect::testing;  // NOLINT: the helpers

std::uint64_t Setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Parts of one tensor, as they were recorded, and their sum.
struct Put {
  std::deque<Computed> computed;
  std::vector<Part> parts;
  MergePlan plan;
  TensorStats stats;
  std::vector<double> sketch;
  std::vector<std::uint32_t> differing;

  void Add(const Whole& whole, const Held& held, std::uint32_t micro_batch = 0) {
    Add(Compute(whole, held.placement));
    parts.back().rank = held.rank;
    parts.back().micro_batch = micro_batch;
  }
  void Add(Computed one) {
    computed.push_back(std::move(one));
    Part part;
    part.layout = &computed.back().layout;
    part.stats = &computed.back().stats;
    part.sketch = computed.back().sketch;
    parts.push_back(part);
  }
  void Add(const Whole& whole, const std::vector<Held>& held) {
    for (const Held& one : held) Add(whole, one);
  }
  Put& Together() {
    plan = MakePlan(parts);
    EXPECT_TRUE(Fits(plan, parts));
    Merge(plan, parts, &stats, &sketch, &differing);
    return *this;
  }
};

void ExpectEqual(const Put& put, const Computed& whole, const std::string& what) {
  const TensorStats &m = put.stats, &w = whole.stats;
  EXPECT_EQ(put.plan.layout.shape, whole.layout.shape) << what;
  EXPECT_EQ(put.plan.layout.absent, 0u) << what;
  EXPECT_EQ(m.hash, w.hash) << what;
  EXPECT_EQ(m.numel, w.numel) << what;
  EXPECT_EQ(m.neg, w.neg) << what;
  EXPECT_EQ(m.pos, w.pos) << what;
  EXPECT_EQ(m.min, w.min) << what;
  EXPECT_EQ(m.max, w.max) << what;
  const double close = 1e-6 * (w.l2 + 1e-30);
  EXPECT_NEAR(m.mean, w.mean, close) << what;
  EXPECT_NEAR(m.std, w.std, close) << what;
  EXPECT_NEAR(m.l1, w.l1, 1e-6 * w.l1 + 1e-30) << what;
  EXPECT_NEAR(m.l2, w.l2, close) << what;
  ASSERT_EQ(put.sketch.size(), whole.sketch.size()) << what;
  for (std::size_t k = 0; k < whole.sketch.size(); ++k)
    EXPECT_NEAR(put.sketch[k], whole.sketch[k], close) << what << ", sum " << k;
}

TEST(MergeParts, AddUpToTheWholeHoweverItIsCut) {
  const std::uint64_t seed = Setting("STATCOLLECT_TEST_SEED", 20261123);
  Random random(seed);
  for (std::uint64_t i = 0; i < Setting("STATCOLLECT_TEST_CASES", 300) && !HasFailure(); ++i) {
    Sizes shape(static_cast<std::size_t>(Pick(random, 1, 3)));
    for (std::int64_t& size : shape) size = Pick(random, 1, 9);
    const Whole whole = RandomTensor(random, shape);
    Put put;
    put.Add(whole, RandomCut(random, shape));
    std::shuffle(put.parts.begin(), put.parts.end(), random);
    ExpectEqual(put.Together(), Compute(whole, std::nullopt),
                "seed " + std::to_string(seed) + ", case " + std::to_string(i));
    EXPECT_THAT(put.differing, IsEmpty());
  }
}

TEST(MergeParts, PiecesOfABatchKeepWhatDoesNotDependOnTheOrderOfSamples) {
  Random random(4);
  const Whole x = RandomTensor(random, {3, 8}), y = RandomTensor(random, {3, 8});
  Whole both{{6, 8}, x.values};
  both.values.insert(both.values.end(), y.values.begin(), y.values.end());
  Put put;
  for (std::uint32_t piece = 0; piece < 2; ++piece) {
    for (Held& held : Shards({3, 8}, 1, 2, 2 * piece)) {
      held.placement->piece = piece;
      held.placement->pieces = 2;
      put.Add(piece == 0 ? x : y, held);
    }
  }
  put.Together();
  const Computed whole = Compute(both, std::nullopt);
  for (const Statistic absent :
       {Statistic::kHash, Statistic::kShape, Statistic::kL1, Statistic::kL2})
    EXPECT_FALSE(put.plan.layout.Has(absent));
  EXPECT_THAT(put.sketch, IsEmpty());
  EXPECT_EQ(put.stats.numel, 48u);
  EXPECT_EQ(put.stats.max, whole.stats.max);
  EXPECT_TRUE(put.plan.layout.Has(Statistic::kMax));
  EXPECT_NEAR(put.stats.std, whole.stats.std, 1e-6);
}

// A loss that the model returns: how its values spread depends on how the batch is cut.
TEST(MergeParts, OfSingleNumbersOfEachPieceOnlyTheMeanIsKnown) {
  Put put;
  for (std::uint32_t piece = 0; piece < 2; ++piece) {
    Held held{.rank = piece, .placement = Placement()};
    held.placement->piece = piece;
    held.placement->pieces = 2;
    put.Add(Whole{{}, {piece == 0 ? 2.0F : 3.0F}}, held);
  }
  put.Together();
  EXPECT_EQ(put.stats.mean, 2.5);
  EXPECT_TRUE(put.plan.layout.Has(Statistic::kMean));
  for (const Statistic absent :
       {Statistic::kMin, Statistic::kMax, Statistic::kStd, Statistic::kL2, Statistic::kHash})
    EXPECT_FALSE(put.plan.layout.Has(absent)) << static_cast<int>(absent);
}

// Over ranks and calls, with parts of columns, replicas, and ranks that have none.
TEST(MergeParts, RowsInAnyOrderAddUpHoweverTheyAreSpread) {
  const std::uint64_t seed = Setting("STATCOLLECT_TEST_SEED", 20261129);
  Random random(seed);
  for (std::uint64_t i = 0; i < Setting("STATCOLLECT_TEST_CASES", 300) && !HasFailure(); ++i) {
    const std::int64_t rows = Pick(random, 1, 20), columns = Pick(random, 1, 40);
    const Whole whole = RandomTensor(random, {rows, columns});
    Sizes order = Numbered(rows);
    std::shuffle(order.begin(), order.end(), random);
    const auto pieces = static_cast<std::uint32_t>(Pick(random, 1, 4));
    const Sizes places = CutPlaces(random, rows, Pick(random, 1, 6));
    Put put;
    std::uint32_t rank = 0;
    for (std::size_t part = 0; part + 1 < places.size(); ++part) {
      const auto piece = static_cast<std::uint32_t>(part % pieces);
      const std::span<const std::int64_t> here =
          std::span(order).subspan(static_cast<std::size_t>(places[part]),
                                   static_cast<std::size_t>(places[part + 1] - places[part]));
      const Sizes sides = CutPlaces(random, columns, Pick(random, 1, 2));
      for (std::size_t side = 0; side + 1 < sides.size(); ++side) {
        for (std::int64_t copy = Pick(random, 1, 2); copy > 0; --copy) {
          put.Add(SomeRows(whole, here, sides[side], sides[side + 1] - sides[side], piece, pieces));
          put.parts.back().rank = rank++;
          put.parts.back().call = static_cast<std::uint32_t>(part / pieces);
        }
      }
    }
    std::shuffle(put.parts.begin(), put.parts.end(), random);
    put.Together();
    const Computed expected = SomeRows(whole, Numbered(rows), 0, columns, 0, 1);
    ExpectEqual(put, expected, "seed " + std::to_string(seed) + ", case " + std::to_string(i));
    EXPECT_EQ(put.plan.layout.hash_kind, HashKind::kRows3);
    EXPECT_THAT(put.differing, IsEmpty());
  }
}

TEST(MergeParts, ASetWithoutRowsIsNothing) {
  Random random(4);
  const Whole whole = RandomTensor(random, {4, 8});
  Put none, mixed;
  none.Add(SomeRows(whole, {}, 0, 8, 0, 2));
  EXPECT_TRUE(none.Together().plan.nothing);
  mixed.Add(SomeRows(whole, {}, 0, 8, 0, 2));
  mixed.Add(SomeRows(whole, Numbered(4), 0, 8, 1, 2));
  EXPECT_FALSE(mixed.Together().plan.nothing);
  EXPECT_EQ(mixed.stats.numel, 32u);
}

TEST(MergeParts, PartsOfTheSameRowsHaveAsManyOfThem) {
  Random random(4);
  const Whole whole = RandomTensor(random, {4, 8});
  Put put;
  put.Add(SomeRows(whole, Numbered(4), 0, 4, 0, 1));
  put.Add(SomeRows(whole, Numbered(3), 4, 4, 0, 1));
  put.parts[1].rank = 1;
  put.Together();
  EXPECT_EQ(put.plan.tiling, Tiling::kConflicting);
  EXPECT_EQ(put.plan.problem, "ranks 0 and 1 have parts of the same rows, and 4 and 3 rows");
}

TEST(MergeParts, MicroBatchesArePiecesToo) {
  Random random(4);
  Put put;
  put.Add(RandomTensor(random, {3}), {0, AllOf({3})}, 0);
  put.Add(RandomTensor(random, {3}), {0, AllOf({3})}, 1);
  put.Together();
  EXPECT_EQ(put.stats.numel, 6u);
  EXPECT_EQ(put.plan.problem, "");
  EXPECT_FALSE(put.plan.layout.Has(Statistic::kHash));
}

TEST(MergeParts, AReplicaThatDiffersIsNamedAndDoesNotCount) {
  Random random(9);
  const Whole x = RandomTensor(random, {6, 2});
  Whole wrong = x;
  wrong.values[7] += 1;
  Put put;
  put.Add(x, Shards({6, 2}, 0, 2));
  put.Add(x, Shards({6, 2}, 0, 2, 2)[0]);
  put.Add(wrong, Shards({6, 2}, 0, 2, 2)[1]);
  ExpectEqual(put.Together(), Compute(x, std::nullopt), "");
  EXPECT_THAT(put.differing, ElementsAre(3));
}

TEST(MergeParts, WithoutSumsOfOneWidthThereIsNoSketch) {
  Random random(9);
  const Whole x = RandomTensor(random, {6});
  Put put;
  put.Add(x, Shards({6}, 0, 2));
  put.parts[1].sketch = {};
  put.Together();
  EXPECT_THAT(put.sketch, IsEmpty());
  EXPECT_EQ(put.stats.hash, Compute(x, std::nullopt).stats.hash);
}

TEST(MergeParts, APlanIsForItsLayoutsOnly) {
  Random random(9);
  const Whole x = RandomTensor(random, {6});
  Put put, other;
  put.Add(x, Shards({6}, 0, 2));
  put.Together();
  other.Add(x, Shards({6}, 0, 2));
  EXPECT_FALSE(Fits(put.plan, other.parts));
  put.parts.pop_back();
  EXPECT_FALSE(Fits(put.plan, put.parts));
}

// --- what is not whole

struct Bad {
  const char* name;
  std::vector<Held> held;
  Tiling tiling;
  const char* problem;
};

class NotWhole : public ::testing::TestWithParam<Bad> {};

TEST_P(NotWhole, IsSaidAndNothingIsMadeUp) {
  Random random(6);
  Put put;
  put.Add(RandomTensor(random, {4, 6}), GetParam().held);
  put.Together();
  EXPECT_EQ(put.plan.tiling, GetParam().tiling);
  EXPECT_THAT(put.plan.problem, HasSubstr(GetParam().problem));
  for (const Statistic statistic :
       {Statistic::kHash, Statistic::kMax, Statistic::kMean, Statistic::kNan})
    EXPECT_FALSE(put.plan.layout.Has(statistic));
  EXPECT_THAT(put.sketch, IsEmpty());
  EXPECT_EQ(put.stats, TensorStats());
}

Placement At(const Sizes& offset, const Sizes& size) { return Box({4, 6}, offset, size); }
Placement OfColumns(std::int64_t columns) { return Box({4, columns}, {2, 0}, {2, columns}); }

INSTANTIATE_TEST_SUITE_P(
    MergeParts, NotWhole,
    ::testing::Values(
        Bad{"missing",
            {{0, At({0, 0}, {2, 6})}},
            Tiling::kIncomplete,
            "rank 0 recorded 12 of its 24 elements"},
        Bad{"hole",
            {{0, At({0, 0}, {2, 6})}, {1, At({2, 0}, {2, 2})}, {2, At({2, 3}, {2, 3})}},
            Tiling::kIncomplete,
            "ranks 0-2 recorded 22 of its 24 elements"},
        Bad{"overlap",
            {{0, At({0, 0}, {3, 6})}, {5, At({2, 0}, {2, 6})}},
            Tiling::kConflicting,
            "the parts of ranks 0 and 5 overlap"},
        Bad{"shape",
            {{0, At({0, 0}, {2, 6})}, {1, OfColumns(5)}},
            Tiling::kConflicting,
            "ranks 0 and 1 do not agree about its global shape or dtype: (4, 6) of f32 and (4, 5) "
            "of f32"},
        Bad{"piece",
            {{0, Piece({4, 6}, 0, 3)}, {1, Piece({4, 6}, 1, 3)}},
            Tiling::kIncomplete,
            "ranks 0, 1 recorded 2 of the 3 pieces of its batch"},
        Bad{"pieces",
            {{0, Piece({4, 6}, 0, 2)}, {1, Piece({4, 6}, 1, 3)}},
            Tiling::kConflicting,
            "ranks 0 and 1 do not agree into how many pieces the batch is split: 2 and 3"}),
    [](const auto& info) { return std::string(info.param.name); });

// Two ranks with two micro-batches each: samples 0 to 7 in rows, dealt in turn within a
// micro-batch.
TEST(MergeParts, MicroBatchesOfKnownSamplesAreOneBatch) {
  Random random(5);
  const Sizes shape = {8, 6};
  const Whole whole = RandomTensor(random, shape);
  Put put;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    for (std::uint32_t micro_batch = 0; micro_batch < 2; ++micro_batch)
      put.Add(whole, {rank, Box(shape, {4 * micro_batch + 2 * rank, 0}, {2, 6})}, micro_batch);
  }
  ExpectEqual(put.Together(), Compute(whole, std::nullopt), "micro-batches");
}

// The same place in two micro-batches: it is not the batch's.
TEST(MergeParts, MicroBatchesOfUnknownSamplesStayPieces) {
  Random random(6);
  const Sizes shape = {4, 6};
  Put put;
  for (std::uint32_t micro_batch = 0; micro_batch < 2; ++micro_batch)
    put.Add(RandomTensor(random, shape), {0, AllOf(shape)}, micro_batch);
  put.Together();
  EXPECT_EQ(put.plan.tiling, Tiling::kWhole);
  EXPECT_FALSE(put.plan.layout.Has(Statistic::kHash));
  EXPECT_FALSE(put.plan.has_sketch);
  EXPECT_THAT(put.plan.replicas, IsEmpty());
}

TEST(MergeParts, AMissingMicroBatchIsSaid) {
  Random random(7);
  const Sizes shape = {6, 4};
  const Whole whole = RandomTensor(random, shape);
  Put put;
  for (const std::uint32_t micro_batch : {0u, 2u})
    put.Add(whole, {0, Box(shape, {2 * micro_batch, 0}, {2, 4})}, micro_batch);
  put.Together();
  EXPECT_EQ(put.plan.tiling, Tiling::kIncomplete);
  EXPECT_THAT(put.plan.problem, HasSubstr("of its 24 elements"));
}

}  // namespace
}  // namespace statcollect::query
