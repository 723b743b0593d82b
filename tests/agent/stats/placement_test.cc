// Shards of a logical tensor, cut anyhow, add up to the whole. STATCOLLECT_TEST_SEED and STATCOLLECT_TEST_CASES
// repeat or extend a run.
#include "agent/stats/placement.h"
#include "common/merge_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "agent/stats/tensor_walk.h"
#include "tests/agent/stats/expect_like_reference.h"

namespace statcollect::stats {
namespace {

using Random = std::mt19937_64;
using Sizes = std::vector<std::int64_t>;

std::uint64_t Setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::int64_t Pick(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

struct Shard {
  TestTensor tensor;
  Sizes boxes, ranges;
};

struct Cut {
  const char* name = "";
  std::vector<Shard> shards;
};

// The elements of the logical tensor with these numbers, as a contiguous tensor.
TestTensor Elements(const TestTensor& whole, const std::vector<std::int64_t>& numbers, Sizes shape) {
  const std::size_t bytes = DTypeBytes(whole.dtype);
  TestTensor part{whole.dtype, std::move(shape), {}, 0, {}};
  part.storage.resize(numbers.size() * bytes / 8 + 2);
  auto* to = reinterpret_cast<unsigned char*>(part.storage.data());
  const auto* from = static_cast<const unsigned char*>(whole.View().data);
  for (const std::int64_t number : numbers) {
    std::memcpy(to, from + static_cast<std::size_t>(number) * bytes, bytes);
    to += bytes;
  }
  return part;
}

// Numbers of the elements whose index in each dimension is among `indices[dimension]`, in row-major order.
std::vector<std::int64_t> NumbersOf(const Sizes& shape, const std::vector<Sizes>& indices) {
  std::vector<std::int64_t> numbers = {0};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::vector<std::int64_t> next;
    for (const std::int64_t number : numbers) {
      for (const std::int64_t index : indices[d]) next.push_back(number * shape[d] + index);
    }
    numbers = std::move(next);
  }
  return numbers;
}

Sizes Between(std::int64_t begin, std::int64_t end) {
  Sizes numbers(static_cast<std::size_t>(end - begin));
  std::iota(numbers.begin(), numbers.end(), begin);
  return numbers;
}

// 0, places in between, `size`; with equal neighbours now and then: an empty shard.
Sizes CutPlaces(Random& random, std::int64_t size, std::int64_t pieces) {
  Sizes places = {0, size};
  for (std::int64_t i = 1; i < pieces; ++i) places.push_back(Pick(random, 0, size));
  std::sort(places.begin(), places.end());
  return places;
}

Cut IntoBoxes(Random& random, const TestTensor& whole) {
  Cut cut{"boxes", {{}}};
  const std::size_t dims = whole.shape.size();
  std::vector<std::vector<Sizes>> boxes = {{}};  // begin, end in each dimension so far
  for (std::size_t d = 0; d < dims; ++d) {
    const Sizes places = CutPlaces(random, whole.shape[d], Pick(random, 1, 3));
    std::vector<std::vector<Sizes>> next;
    for (const auto& box : boxes) {
      for (std::size_t i = 0; i + 1 < places.size(); ++i) {
        next.push_back(box);
        next.back().push_back({places[i], places[i + 1]});
      }
    }
    boxes = std::move(next);
  }
  cut.shards.clear();
  for (const auto& box : boxes) {
    Shard shard;
    Sizes size;
    std::vector<Sizes> indices;
    for (const Sizes& side : box) {
      shard.boxes.push_back(side[0]);
      size.push_back(side[1] - side[0]);
      indices.push_back(Between(side[0], side[1]));
    }
    shard.boxes.insert(shard.boxes.end(), size.begin(), size.end());
    shard.tensor = Elements(whole, NumbersOf(whole.shape, indices), size);
    cut.shards.push_back(std::move(shard));
  }
  return cut;
}

// Each shard has one piece from the front of a dimension and its counterpart from the back.
Cut IntoZigzag(Random& random, const TestTensor& whole) {
  Cut cut{"zigzag", {}};
  const auto dim =
      static_cast<std::size_t>(Pick(random, 0, static_cast<std::int64_t>(whole.shape.size()) - 1));
  const std::int64_t ranks = Pick(random, 1, 4);
  const Sizes places = CutPlaces(random, whole.shape[dim], 2 * ranks);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    Shard shard;
    std::vector<Sizes> indices;
    for (const std::int64_t size : whole.shape) indices.push_back(Between(0, size));
    indices[dim].clear();
    for (const std::int64_t piece : {rank, 2 * ranks - 1 - rank}) {
      const std::int64_t begin = places[static_cast<std::size_t>(piece)],
                         end = places[static_cast<std::size_t>(piece) + 1];
      for (const std::int64_t index : Between(begin, end)) indices[dim].push_back(index);
      Sizes offset(whole.shape.size(), 0), size = whole.shape;
      offset[dim] = begin;
      size[dim] = end - begin;
      shard.boxes.insert(shard.boxes.end(), offset.begin(), offset.end());
      shard.boxes.insert(shard.boxes.end(), size.begin(), size.end());
    }
    Sizes shape = whole.shape;
    shape[dim] = static_cast<std::int64_t>(indices[dim].size());
    shard.tensor = Elements(whole, NumbersOf(whole.shape, indices), shape);
    cut.shards.push_back(std::move(shard));
  }
  return cut;
}

// Ranges of the flattened tensor, dealt out in any order.
Cut IntoRanges(Random& random, const TestTensor& whole) {
  Cut cut{"ranges", {}};
  const auto elements = static_cast<std::int64_t>(TensorWalk(whole.View()).size());
  const std::int64_t ranks = Pick(random, 1, 4);
  const Sizes places = CutPlaces(random, elements, Pick(random, 1, 12));
  std::vector<std::size_t> order(places.size() - 1);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::vector<std::int64_t>> numbers(static_cast<std::size_t>(ranks));
  cut.shards.resize(static_cast<std::size_t>(ranks));
  for (const std::size_t piece : order) {
    const auto rank = static_cast<std::size_t>(Pick(random, 0, ranks - 1));
    for (const std::int64_t number : Between(places[piece], places[piece + 1]))
      numbers[rank].push_back(number);
    cut.shards[rank].ranges.insert(cut.shards[rank].ranges.end(), {places[piece], places[piece + 1]});
  }
  for (std::size_t rank = 0; rank < numbers.size(); ++rank) {
    Shard& shard = cut.shards[rank];
    if (shard.ranges.empty()) shard.ranges = {0, 0};
    shard.tensor = Elements(whole, numbers[rank], {static_cast<std::int64_t>(numbers[rank].size())});
  }
  return cut;
}

Sizes CutShape(Random& random) {
  Sizes shape(static_cast<std::size_t>(Pick(random, 1, 4)));
  std::int64_t left = random() % 50 == 0 ? 60000 : random() % 3 == 0 ? 5000 : 300;
  for (std::int64_t& size : shape) {
    size = Pick(random, 1, std::max<std::int64_t>(1, left));
    left /= size;
  }
  std::shuffle(shape.begin(), shape.end(), random);
  return shape;
}

TEST(Placement, ShardsAddUpToTheWholeHoweverItIsCut) {
  const std::uint64_t seed = Setting("STATCOLLECT_TEST_SEED", 20261123);
  const std::uint64_t cases = Setting("STATCOLLECT_TEST_CASES", 10000);
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  CpuWorkers workers(2);
  for (std::uint64_t i = 0; i < cases && !testing::Test::HasFailure(); ++i) {
    const DType dtype = kAllDTypes[random() % std::size(kAllDTypes)];
    const bool any_bits = random() % 3 == 0;
    const Sizes shape = CutShape(random);
    const TestTensor whole =
        any_bits ? RandomBits(dtype, shape, random) : RandomNumbers(dtype, shape, random);
    const std::uint64_t kind = random() % 3;
    const Cut cut = kind == 0   ? IntoBoxes(random, whole)
                    : kind == 1 ? IntoZigzag(random, whole)
                                : IntoRanges(random, whole);
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
    for (int k = 0; k < 32; ++k) ExpectNear(sketch[k], expected.sketch[k], all.l2, what + " sketch");
  }
}

// Long runs are read where they lie, from any first component on; the hash is that of the definition.
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
        return ((3 + element / 301) * 1000 + static_cast<std::uint64_t>(column) + element % 301) * parts +
               i % parts;
      };
      EXPECT_EQ(stats.hash, ReferenceHash(components, index)) << Name(dtype) << " column " << column;
      const std::vector<long double> expected = ReferenceSketch(components, 16, index);
      for (std::size_t k = 0; k < 16; ++k) {
        ExpectNear(sketch[k], expected[k], stats.l2, std::string(Name(dtype)) + " sketch");
      }
    }
  }
}

std::string Refusal(const Sizes& shard, const Sizes& shape, const Sizes& boxes, const Sizes& ranges) {
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
  EXPECT_THAT(Refusal({2, 3}, {4, 6}, {1, 2, 2, 2}, {}), HasSubstr("shape (2, 3); expected (2, 2)"));
  EXPECT_THAT(Refusal({2, 3}, {4, 6}, {3, 2, 2, 3}, {}), HasSubstr("ends behind dimension 0"));
  EXPECT_THAT(Refusal({2, 3}, {4, 6}, {-1, 2, 2, 3}, {}), HasSubstr("negative number in dimension 0"));
  EXPECT_THAT(Refusal({2, 3}, {4, 6}, {1, 2, 2}, {}), HasSubstr("boxes have 3 numbers"));
  EXPECT_THAT(Refusal({4, 3}, {4, 6}, {0, 0, 2, 3, 1, 0, 2, 3}, {}), HasSubstr("boxes overlap"));
  EXPECT_THAT(Refusal({4, 3}, {4, 6}, {0, 0, 2, 3, 2, 3, 2, 3}, {}), HasSubstr("more than one dimension"));
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
