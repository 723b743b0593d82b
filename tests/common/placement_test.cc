#include "common/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/shape.h"
#include "tests/support/random_placement.h"

namespace statcollect {
namespace {

using ::testing::HasSubstr;
using Sizes = std::vector<std::int64_t>;

TEST(PlacementCheck, TakesWhateverTilesAShardOfThisShape) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 5000; ++i) {
    const Layout shard = testing::RandomShard(random);
    const Status checked = CheckPlacement(shard.shape, View(*shard.placement));
    ASSERT_TRUE(checked.ok()) << checked.message();
    EXPECT_TRUE(Matches(*shard.placement, View(*shard.placement)));
    EXPECT_EQ(Copy(View(*shard.placement)), *shard.placement);
  }
}

void ExpectRefused(const Placement& placement, const Sizes& shape, const std::string& part) {
  const Status checked = CheckPlacement(shape, View(placement));
  EXPECT_EQ(checked.code(), Code::kInvalidArgument) << part;
  EXPECT_THAT(checked.message(), HasSubstr(part));
  EXPECT_LT(checked.message().size(), 6000u);
}

TEST(PlacementCheck, RefusesGlobalShapesThatCannotBe) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 31;
  ExpectRefused({.global_shape = {4, -1}}, {4}, "(4, -1): a size is negative");
  ExpectRefused({.global_shape = {kHuge, kHuge, 2}}, {1}, "more than 2^62 elements");
  ExpectRefused({.global_shape = {0, INT64_MAX, INT64_MAX}}, {0}, "more than 2^62 elements");
  ExpectRefused({.global_shape = Sizes(1'000'000, 1)}, {1},
                "it has 1000000 dimensions; expected 64 at most");
}

TEST(PlacementCheck, RefusesBoxesThatDoNotLieInTheTensor) {
  const Sizes global = {4, 8};
  ExpectRefused(
      {.global_shape = global, .boxes = {0, 5, 4, 4}}, {4, 4},
      "the box at (0, 5) of size (4, 4) extends beyond dimension 1; expected offset + size of 8");
  ExpectRefused({.global_shape = global, .boxes = {0, INT64_MAX, 4, INT64_MAX}}, {4, 4},
                "extends beyond");
  ExpectRefused({.global_shape = global, .boxes = {-1, 0, 4, 4}}, {4, 4},
                "negative number in dimension 0");
  ExpectRefused({.global_shape = global, .boxes = {0, 0, 4, INT64_MIN}}, {4, 4}, "negative number");
  ExpectRefused({.global_shape = global, .boxes = {0, 0, 4}}, {4, 4}, "boxes have 3 numbers");
  ExpectRefused({.global_shape = {}, .boxes = {0, 1}}, {}, "boxes have 2 numbers");
}

TEST(PlacementCheck, RefusesBoxesThatAreNotTheShards) {
  const Sizes global = {4, 8};
  ExpectRefused({.global_shape = global, .boxes = {0, 4, 4, 4}}, {4, 5},
                "the shard has the shape (4, 5); expected (4, 4), the size of the box at (0, 4)");
  ExpectRefused({.global_shape = global}, {4, 4}, "no offset");
  ExpectRefused({.global_shape = global, .boxes = {0, 0, 4, 2, 0, 6, 4, 2}}, {4, 5},
                "its boxes together");
  ExpectRefused({.global_shape = global, .boxes = {0, 0, 4, 2, 1, 6, 3, 2}}, {4, 4},
                "differ in more than one dimension");
  ExpectRefused({.global_shape = global, .boxes = {0, 0, 4, 3, 0, 2, 4, 3}}, {4, 6},
                "overlap in dimension 1");
  ExpectRefused({.global_shape = global, .boxes = {0, 0, 4, 3, 0, 0, 4, 3}}, {4, 6}, "overlap");
}

TEST(PlacementCheck, AnUnorderedDimensionHasAnyLengthAndNoPlace) {
  const Sizes global = {1, 8};
  for (const std::int64_t rows : {0, 1, 37}) {
    const Sizes shape = {rows, 4};
    EXPECT_TRUE(CheckPlacement(shape, {.global_shape = global,
                                       .boxes = Sizes{0, 4, 1, 4},
                                       .piece = 1,
                                       .pieces = 2,
                                       .unordered = 1})
                    .ok());
  }
  ExpectRefused({.global_shape = global, .boxes = {0, 4, 1, 4}, .unordered = 1}, {7, 3},
                "the shard has the shape (7, 3)");
  ExpectRefused({.global_shape = {9, 8}, .boxes = {2, 0, 7, 8}, .unordered = 1}, {7, 8},
                "dimension 0 is unordered, and the tensor or a box has a place or a size there; "
                "expected the offset 0 and the size 1");
  ExpectRefused({.global_shape = global, .boxes = {0, 0, 1, 8}, .unordered = 3}, {7, 8},
                "dimension 2 is unordered in a shard of the shape (7, 8)");
  ExpectRefused({.global_shape = global, .unordered = 1}, {7, 8}, "and boxes");
  ExpectRefused({.global_shape = global, .ranges = {0, 8}, .unordered = 1}, {7, 8}, "and boxes");
  EXPECT_FALSE(IsWhole({.global_shape = global, .boxes = Sizes{0, 0, 1, 8}, .unordered = 1}));
}

TEST(PlacementCheck, RefusesRangesThatAreNotTheShards) {
  const Sizes global = {4, 8};
  ExpectRefused({.global_shape = global, .ranges = {0, 33}}, {33}, "a range goes from 0 to 33");
  ExpectRefused({.global_shape = global, .ranges = {-1, 3}}, {4}, "a range goes from -1 to 3");
  ExpectRefused({.global_shape = global, .ranges = {5, 3}}, {4}, "a range goes from 5 to 3");
  ExpectRefused({.global_shape = global, .ranges = {0, 3, 2, 4}}, {5}, "ranges overlap");
  ExpectRefused({.global_shape = global, .ranges = {0, 3}}, {4},
                "the shard has 4 elements; expected 3");
  ExpectRefused({.global_shape = global, .ranges = {0, 3, 4}}, {4}, "ranges have 3 numbers");
  ExpectRefused({.global_shape = global, .boxes = {0, 0, 4, 8}, .ranges = {0, 32}}, {4, 8},
                "it has boxes and ranges");
}

TEST(PlacementCheck, RefusesPiecesThatAreNotThereAndMoreNumbersThanTheBound) {
  ExpectRefused({.global_shape = {4}, .piece = 2, .pieces = 2}, {4}, "it is piece 2 of 2");
  ExpectRefused({.global_shape = {4}, .piece = 0, .pieces = 0}, {4}, "it is piece 0 of 0");
  const Sizes many(kPlacementNumbersMax + 2, 0);
  ExpectRefused({.global_shape = {4}, .ranges = many}, {0}, "65536 at most");
  ExpectRefused({.global_shape = {4}, .boxes = many}, {0}, "65536 at most");
  EXPECT_TRUE(
      CheckPlacement(Sizes{0}, {.global_shape = Sizes{4}, .ranges = Sizes(kPlacementNumbersMax, 0)})
          .ok());
}

// Index in the logical tensor of each element of the shard, in row-major order.
Sizes IndicesOf(const Layout& shard) {
  const Placement& place = *shard.placement;
  Sizes indices;
  for (std::size_t i = 0; i < place.ranges.size(); i += 2) {
    for (std::int64_t at = place.ranges[i]; at < place.ranges[i + 1]; ++at) indices.push_back(at);
  }
  if (!place.ranges.empty()) return indices;
  indices.push_back(0);
  const std::size_t dims = place.global_shape.size();
  const std::size_t joined = JoinedDimension(View(place));
  for (std::size_t d = 0; d < dims; ++d) {
    Sizes along;  // places of the shard's rows in this dimension
    for (std::size_t i = 0; i == 0 || (d == joined && i < place.boxes.size()); i += 2 * dims) {
      const std::int64_t offset = place.boxes.empty() ? 0 : place.boxes[i + d];
      const std::int64_t size =
          place.boxes.empty() ? place.global_shape[d] : place.boxes[i + dims + d];
      for (std::int64_t at = offset; at < offset + size; ++at) along.push_back(at);
    }
    Sizes next;
    for (const std::int64_t outer : indices) {
      for (const std::int64_t at : along) next.push_back(outer * place.global_shape[d] + at);
    }
    indices = std::move(next);
  }
  return indices;
}

bool HasEmptyParts(const Placement& place) {
  for (std::size_t i = 0; i < place.ranges.size(); i += 2) {
    if (place.ranges[i] == place.ranges[i + 1]) return true;
  }
  const std::size_t dims = place.global_shape.size();
  for (std::size_t i = 0; i < place.boxes.size(); i += 2 * dims) {
    if (NumelOf(std::span(place.boxes).subspan(i + dims, dims)) == 0) return true;
  }
  return false;
}

TEST(PlacementWhole, IsWhatLeavesEachElementAtItsIndex) {
  std::mt19937_64 random(11);
  int wholes = 0;
  for (int i = 0; i < 20000; ++i) {
    const Layout shard = testing::RandomShard(random);
    if (shard.placement->unordered != 0) continue;
    Sizes extents = shard.placement->global_shape;
    for (std::int64_t& extent : extents) extent = std::max<std::int64_t>(extent, 1);
    if (NumelOf(extents) > 4096) continue;
    Sizes whole(NumelOf(shard.placement->global_shape));
    std::iota(whole.begin(), whole.end(), 0);
    const bool expected = IndicesOf(shard) == whole;
    const bool found = IsWhole(View(*shard.placement));
    wholes += found ? 1 : 0;
    // Where a part without elements lies makes no difference; IsWhole may then say no.
    if (!HasEmptyParts(*shard.placement) || found) {
      EXPECT_EQ(found, expected);
    }
  }
  EXPECT_GT(wholes, 1000);
  EXPECT_TRUE(IsWhole({.global_shape = Sizes{4, 8}}));
  EXPECT_TRUE(IsWhole({.global_shape = Sizes{4, 8}, .boxes = Sizes{0, 0, 4, 8}}));
  EXPECT_TRUE(IsWhole({.global_shape = Sizes{4, 8}, .boxes = Sizes{0, 0, 4, 3, 0, 3, 4, 5}}));
  EXPECT_TRUE(IsWhole({.global_shape = Sizes{4, 8}, .ranges = Sizes{0, 30, 30, 32}}));
  EXPECT_TRUE(IsWhole({.global_shape = Sizes{4}, .partial = true, .piece = 1, .pieces = 2}));
  EXPECT_FALSE(IsWhole({.global_shape = Sizes{4, 8}, .boxes = Sizes{0, 3, 4, 5, 0, 0, 4, 3}}));
  EXPECT_FALSE(IsWhole({.global_shape = Sizes{4, 8}, .boxes = Sizes{0, 0, 4, 4}}));
  EXPECT_FALSE(IsWhole({.global_shape = Sizes{4, 8}, .boxes = Sizes{1, 0, 3, 8}}));
  EXPECT_FALSE(IsWhole({.global_shape = Sizes{4, 8}, .ranges = Sizes{0, 31}}));
  EXPECT_FALSE(IsWhole({.global_shape = Sizes{4, 8}, .ranges = Sizes{16, 32, 0, 16}}));
}

}  // namespace
}  // namespace statcollect
