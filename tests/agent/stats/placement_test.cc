// Shards of a logical tensor, cut anyhow, add up to the whole. STATCOLLECT_TEST_SEED and
// STATCOLLECT_TEST_CASES repeat or extend a run.
#include "agent/stats/placement.h"
#include "common/merge_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "agent/stats/cpu/engine.h"
#include "agent/stats/tensor_walk.h"
#include "tests/agent/stats/expect_like_reference.h"
#include "tests/agent/stats/random_cuts.h"

namespace statcollect::stats {
namespace {

TEST(Placement, ShardsAddUpToTheWholeHoweverItIsCut) {
  const std::uint64_t seed = Setting("STATCOLLECT_TEST_SEED", 20261123);
  const std::uint64_t cases = Setting("STATCOLLECT_TEST_CASES", 10000);
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  CpuWorkers workers(2);
  for (std::uint64_t i = 0; i < cases && !testing::Test::HasFailure(); ++i) {
    const DType dtype = kAllDTypes[random() % std::size(kAllDTypes)];
    const bool any_bits = random() % 3 == 0;
    const TestTensor whole = any_bits ? RandomBits(dtype, CutShape(random), random)
                                      : RandomNumbers(dtype, CutShape(random), random);
    const Cut cut = AnyCut(random, whole);
    const std::string what = "seed " + std::to_string(seed) + " case " + std::to_string(i) + ": " +
                             std::string(Name(dtype)) + " as " + cut.name;
    const Computed expected = Compute(whole, 32);
    TensorStats merged;
    std::vector<double> sketch(32, 0.0);
    for (const Shard& shard : cut.shards) {
      const Placement placement{whole.shape, shard.boxes, shard.ranges};
      const Status valid = Validate(shard.tensor.View(), placement);
      ASSERT_TRUE(valid.ok()) << what << ": " << valid.message();
      std::vector<double> of_shard(32);
      std::uint32_t written = 0;
      Merge(merged, ComputeCpu(shard.tensor.View(), of_shard, {}, &written, &workers, &placement));
      MergeSketch(sketch, of_shard);
    }
    const TensorStats& all = expected.stats;
    EXPECT_EQ(merged.hash, all.hash) << what;
    EXPECT_EQ(merged.numel, all.numel) << what;
    for (const auto count : {&TensorStats::nan, &TensorStats::pos_inf, &TensorStats::neg_inf,
                             &TensorStats::zero, &TensorStats::neg, &TensorStats::pos}) {
      EXPECT_EQ(merged.*count, all.*count) << what;
    }
    ASSERT_EQ(merged.has_finite, all.has_finite) << what;
    EXPECT_EQ(merged.min, all.min) << what;
    EXPECT_EQ(merged.max, all.max) << what;
    if (any_bits && !std::isfinite(all.l2)) continue;
    ExpectNear(merged.mean, all.mean, all.l2, what + " mean");
    ExpectNear(merged.std, all.std, all.l2, what + " std");
    ExpectNear(merged.l1, all.l1, all.l1, what + " l1");
    ExpectNear(merged.l2, all.l2, all.l2, what + " l2");
    for (int k = 0; k < 32; ++k)
      ExpectNear(sketch[k], expected.sketch[k], all.l2, what + " sketch");
  }
}

// Long runs are read where they lie, from any first component on; the hash is that of the
// definition.
TEST(Placement, PutsEachComponentAtItsIndex) {
  Random random(72);
  for (const DType dtype : kAllDTypes) {
    const TestTensor shard = RandomNumbers(dtype, {37, 301}, random);
    const ReferenceComponents components = ComponentsOf(shard.View());
    const std::uint64_t parts = IsComplex(dtype) ? 2 : 1;
    for (const std::int64_t column : {0, 1, 16, 699}) {
      const Sizes shape = {100, 1000}, boxes = {3, column, 37, 301};
      const Placement placement{shape, boxes, {}};
      ASSERT_TRUE(Validate(shard.View(), placement).ok());
      std::vector<double> sketch(16);
      std::uint32_t written = 0;
      const TensorStats stats = ComputeCpu(shard.View(), sketch, {}, &written, nullptr, &placement);
      const auto index = [&](std::uint64_t i) {
        const std::uint64_t element = i / parts;
        return ((3 + element / 301) * 1000 + static_cast<std::uint64_t>(column) + element % 301) *
                   parts +
               i % parts;
      };
      EXPECT_EQ(stats.hash, ReferenceHash(components, index))
          << Name(dtype) << " column " << column;
      const std::vector<long double> expected = ReferenceSketch(components, 16, index);
      for (std::size_t k = 0; k < 16; ++k) {
        ExpectNear(sketch[k], expected[k], stats.l2, std::string(Name(dtype)) + " sketch");
      }
    }
  }
}

// A set of rows, whole: any shape, with one unordered dimension.
struct RowSet {
  TestTensor whole;
  std::size_t rows = 0;  // which dimension they are along

  std::uint64_t Stride() const {
    std::uint64_t stride = 1;
    for (std::size_t d = rows + 1; d < whole.shape.size(); ++d)
      stride *= static_cast<std::uint64_t>(whole.shape[d]);
    return stride;
  }
  // As if there was one row.
  ReferenceIndex Index() const {
    const std::uint64_t parts = IsComplex(whole.dtype) ? 2 : 1, row = Stride() * parts;
    const auto count = static_cast<std::uint64_t>(whole.shape[rows]);
    return [=](std::uint64_t i) { return i / (row * count) * row + i % row; };
  }
};

// Rows are dealt out to ranks in any order; each rank's are cut once along another dimension.
Cut Deal(Random& random, const RowSet& set) {
  Cut cut{"rows", {}};
  const Sizes& shape = set.whole.shape;
  Sizes order = Between(0, shape[set.rows]);
  std::shuffle(order.begin(), order.end(), random);
  const Sizes places = CutPlaces(random, shape[set.rows], Pick(random, 1, 4));
  const auto other =
      static_cast<std::size_t>(Pick(random, 0, static_cast<std::int64_t>(shape.size()) - 1));
  for (std::size_t rank = 0; rank + 1 < places.size(); ++rank) {
    const Sizes sides = other == set.rows ? Sizes{0, shape[other]}
                                          : CutPlaces(random, shape[other], Pick(random, 1, 3));
    for (std::size_t side = 0; side + 1 < sides.size(); ++side) {
      std::vector<Sizes> indices;
      for (const std::int64_t size : shape) indices.push_back(Between(0, size));
      if (other != set.rows) indices[other] = Between(sides[side], sides[side + 1]);
      indices[set.rows].assign(order.begin() + places[rank], order.begin() + places[rank + 1]);
      Shard shard;
      Sizes size;
      for (const Sizes& along : indices) size.push_back(static_cast<std::int64_t>(along.size()));
      shard.boxes.assign(shape.size(), 0);
      shard.boxes.insert(shard.boxes.end(), size.begin(), size.end());
      shard.boxes[shape.size() + set.rows] = 1;
      if (other != set.rows) shard.boxes[other] = sides[side];
      shard.tensor = Elements(set.whole, NumbersOf(shape, indices), size);
      cut.shards.push_back(std::move(shard));
    }
  }
  return cut;
}

// Against the definition: whatever the order of rows, and however they are spread.
TEST(Placement, RowsInAnyOrderAddUpHoweverTheyAreSpread) {
  const std::uint64_t seed = Setting("STATCOLLECT_TEST_SEED", 20261129);
  const std::uint64_t cases = Setting("STATCOLLECT_TEST_CASES", 2000);
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  CpuWorkers workers(2);
  for (std::uint64_t i = 0; i < cases && !testing::Test::HasFailure(); ++i) {
    const DType dtype = kAllDTypes[random() % std::size(kAllDTypes)];
    RowSet set{RandomNumbers(dtype, CutShape(random), random), 0};
    set.rows = random() % set.whole.shape.size();
    Sizes logical = set.whole.shape;
    logical[set.rows] = 1;
    const std::string what = "seed " + std::to_string(seed) + " case " + std::to_string(i) + ": " +
                             std::string(Name(dtype));
    TensorStats merged;
    std::vector<double> sketch(32, 0.0);
    for (const Shard& shard : Deal(random, set).shards) {
      const Placement placement{.global_shape = logical,
                                .boxes = shard.boxes,
                                .unordered = static_cast<std::uint32_t>(set.rows + 1)};
      const Status valid = Validate(shard.tensor.View(), placement);
      ASSERT_TRUE(valid.ok()) << what << ": " << valid.message();
      std::vector<double> of_shard(32);
      std::uint32_t written = 0;
      Merge(merged, ComputeCpu(shard.tensor.View(), of_shard, {}, &written, &workers, &placement));
      MergeSketch(sketch, of_shard);
    }
    const ReferenceComponents components = ComponentsOf(set.whole.View());
    EXPECT_EQ(merged.hash, ReferenceHash(components, set.Index())) << what;
    const Computed whole = Compute(set.whole, 32);
    EXPECT_EQ(merged.numel, whole.stats.numel) << what;
    EXPECT_EQ(merged.max, whole.stats.max) << what;
    ExpectNear(merged.l2, whole.stats.l2, whole.stats.l2, what + " l2");
    const std::vector<long double> expected = ReferenceSketch(components, 32, set.Index());
    for (std::size_t k = 0; k < 32; ++k)
      ExpectNear(sketch[k], expected[k], whole.stats.l1, what + " sketch");
  }
}

// As wide as those of models: read where they lie, in quads.
TEST(Placement, WideRowsInAnyOrderAreAtTheirColumns) {
  Random random(75);
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF64, DType::kI8, DType::kC64}) {
    for (const std::int64_t columns : {16, 40, 64, 100, 256, 1024, 2048, 5000}) {
      const RowSet set{RandomNumbers(dtype, {67, columns}, random), 0};
      const Sizes logical = {1, columns}, boxes = {0, 0, 1, columns};
      const Placement placement{.global_shape = logical, .boxes = boxes, .unordered = 1};
      std::vector<double> sketch(32);
      std::uint32_t written = 0;
      const TensorStats stats =
          ComputeCpu(set.whole.View(), sketch, {}, &written, nullptr, &placement);
      const ReferenceComponents components = ComponentsOf(set.whole.View());
      const std::string what = std::string(Name(dtype)) + " " + std::to_string(columns);
      EXPECT_EQ(stats.hash, ReferenceHash(components, set.Index())) << what;
      const std::vector<long double> expected = ReferenceSketch(components, 32, set.Index());
      for (std::size_t k = 0; k < 32; ++k)
        ExpectNear(sketch[k], expected[k], stats.l1, what + " sketch");
    }
  }
}

// Rows of whole groups, next to each other and far apart, of boxes in two and three dimensions.
TEST(Placement, RowsOfWholeGroupsAreWalkedFromOneToTheNext) {
  Random random(73);
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF64, DType::kI8, DType::kC64}) {
    for (const std::int64_t width : {16, 48, 64, 192, 256, 512, 1024, 2048}) {
      const TestTensor shard = RandomNumbers(dtype, {3, 21, width}, random);
      const ReferenceComponents components = ComponentsOf(shard.View());
      const std::uint64_t parts = IsComplex(dtype) ? 2 : 1;
      for (const std::int64_t apart : {0, 32, 96, 1024}) {
        const Sizes shape = {5, 30, width + apart}, boxes = {1, 7, apart / 2, 3, 21, width};
        const Placement placement{shape, boxes, {}};
        ASSERT_TRUE(Validate(shard.View(), placement).ok());
        std::vector<double> sketch(16);
        std::uint32_t written = 0;
        const TensorStats stats =
            ComputeCpu(shard.View(), sketch, {}, &written, nullptr, &placement);
        const auto index = [&](std::uint64_t i) {
          const auto element = static_cast<std::int64_t>(i / parts);
          const std::int64_t row = (1 + element / (21 * width)) * 30 + 7 + element / width % 21;
          return static_cast<std::uint64_t>(row * (width + apart) + apart / 2 + element % width) *
                     parts +
                 i % parts;
        };
        const std::string what = std::string(Name(dtype)) + " " + std::to_string(width) +
                                 " columns, " + std::to_string(apart) + " apart";
        EXPECT_EQ(stats.hash, ReferenceHash(components, index)) << what;
        const std::vector<long double> expected = ReferenceSketch(components, 16, index);
        for (std::size_t k = 0; k < 16; ++k)
          ExpectNear(sketch[k], expected[k], stats.l2, what + " sketch");
      }
    }
  }
}

// Of columns in whole quads: every instruction set and width of the sketch. Values that float32
// does not suffice for, too.
TEST(Placement, ColumnsHaveTheSameBitsOnEveryInstructionSet) {
  Random random(74);
  for (const DType dtype :
       {DType::kF32, DType::kBf16, DType::kF16, DType::kI8, DType::kF8E4M3, DType::kBool}) {
    for (const std::int64_t columns : {64, 128, 192, 256, 512, 1024}) {
      TestTensor shard = RandomNumbers(dtype, {70, columns}, random);
      if (columns == 192 && dtype == DType::kF32)
        reinterpret_cast<float*>(shard.storage.data())[5] = std::numeric_limits<float>::infinity();
      const ReferenceComponents components = ComponentsOf(shard.View());
      const Sizes shape = {90, 4 * columns}, boxes = {7, 3 * columns, 70, columns};
      const Placement placement{shape, boxes, {}};
      ASSERT_TRUE(Validate(shard.View(), placement).ok());
      const PlacementRuns runs(shard.View(), placement);
      const auto index = [&](std::uint64_t i) {
        const auto at = static_cast<std::int64_t>(i);
        return static_cast<std::uint64_t>((7 + at / columns) * 4 * columns + 3 * columns +
                                          at % columns);
      };
      for (const std::uint32_t width : {0u, 16u, 32u, 64u}) {
        const std::string what = std::string(Name(dtype)) + " " + std::to_string(columns) +
                                 " columns, " + std::to_string(width) + " sums";
        std::optional<Partial> first;
        for (const InstructionSet set :
             {InstructionSet::kBaseline, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
          const CpuKernels* const kernels = KernelsFor(set);
          if (kernels == nullptr) continue;
          Partial partial;
          Accumulate(shard.View(), {0, ComponentCount(shard.View()), 0, &runs}, width, *kernels,
                     partial);
          if (!first) first = partial;
          EXPECT_EQ(partial.hash, first->hash) << what;
          EXPECT_EQ(partial.moments.squares, first->moments.squares) << what;
          for (std::uint32_t k = 0; k < width; ++k)
            EXPECT_EQ(partial.sketch[k], first->sketch[k]) << what;
        }
        EXPECT_EQ(first->hash, ReferenceHash(components, index)) << what;
        if (width == 0) continue;
        const std::vector<long double> expected = ReferenceSketch(components, width, index);
        const double scale = std::sqrt(first->moments.squares);
        for (std::uint32_t k = 0; k < width; ++k)
          ExpectNear(first->sketch[k], expected[k], scale, what + " sketch");
      }
    }
  }
}

// Columns in two boxes, the second in front of the first: rows of the shard lie in one block of the
// tensor, one after the other and backwards.
TEST(Placement, BoxesThatGoBackwardsAddWhatTheirComponentsDo) {
  Random random(75);
  constexpr std::int64_t kWidth = 256, kAll = 1024;
  const TestTensor shard = RandomNumbers(DType::kF32, {64, 2 * kWidth}, random);
  const Sizes shape = {64, kAll}, boxes = {0, 512, 64, kWidth, 0, 0, 64, kWidth};
  const Placement placement{shape, boxes, {}};
  ASSERT_TRUE(Validate(shard.View(), placement).ok());
  const PlacementRuns runs(shard.View(), placement);
  const auto index = [&](std::uint64_t i) {
    const std::uint64_t row = i / (2 * kWidth), column = i % (2 * kWidth);
    return row * kAll + (column < kWidth ? 512 + column : column - kWidth);
  };
  const ReferenceComponents components = ComponentsOf(shard.View());
  const std::vector<long double> expected = ReferenceSketch(components, 16, index);
  for (const InstructionSet set :
       {InstructionSet::kBaseline, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    const CpuKernels* const kernels = KernelsFor(set);
    if (kernels == nullptr) continue;
    Partial partial;
    Accumulate(shard.View(), {0, ComponentCount(shard.View()), 0, &runs}, 16, *kernels, partial);
    EXPECT_EQ(partial.hash, ReferenceHash(components, index));
    const double scale = std::sqrt(partial.moments.squares);
    for (std::uint32_t k = 0; k < 16; ++k)
      ExpectNear(partial.sketch[k], expected[k], scale, "sketch");
  }
}

std::string Refusal(const Sizes& shard, const Sizes& shape, const Sizes& boxes,
                    const Sizes& ranges) {
  static const std::vector<float> values(10000);
  const CpuTensor tensor{values.data(), DType::kF32, shard, {}};
  const Status status = Validate(tensor, {shape, boxes, ranges});
  return status.ok() ? "" : std::string(status.message());
}

TEST(Placement, IsRefusedIfItDoesNotFit) {
  using testing::HasSubstr;
  EXPECT_EQ(Refusal({2, 3}, {4, 6}, {1, 2, 2, 3}, {}), "");
  EXPECT_EQ(Refusal({2, 3}, {2, 3}, {}, {}), "");
  EXPECT_EQ(Refusal({0, 3}, {4, 6}, {4, 0, 0, 3}, {}), "");
  EXPECT_EQ(Refusal({5}, {4, 6}, {}, {20, 24, 3, 4}), "");
  EXPECT_THAT(Refusal({2, 3}, {4, 6}, {}, {}), HasSubstr("shape (2, 3) and no offset"));
  EXPECT_THAT(Refusal({2, 3}, {4, 6}, {1, 2, 2, 2}, {}),
              HasSubstr("shape (2, 3); expected (2, 2)"));
  EXPECT_THAT(Refusal({2, 3}, {4, 6}, {3, 2, 2, 3}, {}), HasSubstr("extends beyond dimension 0"));
  EXPECT_THAT(Refusal({2, 3}, {4, 6}, {-1, 2, 2, 3}, {}),
              HasSubstr("negative number in dimension 0"));
  EXPECT_THAT(Refusal({2, 3}, {4, 6}, {1, 2, 2}, {}), HasSubstr("boxes have 3 numbers"));
  EXPECT_THAT(Refusal({4, 3}, {4, 6}, {0, 0, 2, 3, 1, 0, 2, 3}, {}), HasSubstr("boxes overlap"));
  EXPECT_THAT(Refusal({4, 3}, {4, 6}, {0, 0, 2, 3, 2, 3, 2, 3}, {}),
              HasSubstr("more than one dimension"));
  EXPECT_THAT(Refusal({4}, {4, 6}, {}, {0, 2, 1, 3}), HasSubstr("ranges overlap"));
  EXPECT_THAT(Refusal({4}, {4, 6}, {}, {0, 2}), HasSubstr("4 elements; expected 2"));
  EXPECT_THAT(Refusal({4}, {4, 6}, {}, {22, 26}), HasSubstr("from 22 to 26"));
  EXPECT_THAT(Refusal({4}, {4, 6}, {}, {4, 0}), HasSubstr("from 4 to 0"));
  EXPECT_THAT(Refusal({4}, {4, 6}, {0, 0, 1, 4}, {0, 4}), HasSubstr("boxes and ranges"));
  EXPECT_THAT(Refusal({1}, {-4, 6}, {}, {0, 1}), HasSubstr("a size is negative"));
  EXPECT_THAT(Refusal({1}, {1ll << 40, 1ll << 40}, {}, {0, 1}), HasSubstr("2^62"));
}

using Doubles = std::vector<double>;

TEST(Merge, IsExactForHugeMeansOfOppositeSign) {
  constexpr double kHuge = 1.5e308;
  TensorStats merged;
  for (const double value : {kHuge, -kHuge, kHuge, -kHuge})
    Merge(merged, Compute(TensorOf(Doubles{value})).stats);
  const TensorStats whole = Compute(TensorOf(Doubles{kHuge, -kHuge, kHuge, -kHuge})).stats;
  EXPECT_EQ(merged.min, -kHuge);
  EXPECT_EQ(merged.max, kHuge);
  EXPECT_NEAR(merged.mean / kHuge, 0, 1e-15);
  EXPECT_NEAR(merged.std / kHuge, whole.std / kHuge, 1e-12);
}

TEST(Merge, WeighsByElementsWhereSignsWereNotCounted) {
  TensorStats a{.numel = 3, .min = 1, .max = 1, .mean = 1, .std = 0, .l1 = 3, .l2 = std::sqrt(3.0)};
  TensorStats b{.numel = 1, .min = 5, .max = 5, .mean = 5, .std = 0, .l1 = 5, .l2 = 5};
  a.has_finite = b.has_finite = true;
  Merge(a, b);
  EXPECT_DOUBLE_EQ(a.mean, 2);
  EXPECT_DOUBLE_EQ(a.std, std::sqrt(3.0));
}

TEST(Merge, LeavesOutWhatIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  TensorStats merged = Compute(TensorOf(Doubles{nan, nan})).stats;
  Merge(merged, Compute(TensorOf(Doubles{3.0, nan, 5.0})).stats);
  EXPECT_EQ(merged.nan, 3u);
  EXPECT_EQ(merged.mean, 4);
  EXPECT_EQ(merged.std, 1);
  Merge(merged, Compute(TensorOf(Doubles{nan})).stats);
  EXPECT_EQ(merged.mean, 4);
  EXPECT_EQ(merged.numel, 6u);
}

}  // namespace
}  // namespace statcollect::stats
