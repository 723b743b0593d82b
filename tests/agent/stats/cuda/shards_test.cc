// Shards of a logical tensor, by the kernels run on the host, against the CPU engine.
// STATCOLLECT_TEST_SEED and STATCOLLECT_TEST_CASES repeat or extend a run: 10000 cases take 15 s.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "agent/stats/cuda/fingerprint_runs.h"
#include "agent/stats/cuda/plan.h"
#include "agent/stats/placement.h"
#include "common/merge_stats.h"
#include "tests/agent/stats/cuda/emulation.h"
#include "tests/agent/stats/cuda/shim/cuda_shim.h"
#include "tests/agent/stats/expect_like_reference.h"
#include "tests/agent/stats/random_cuts.h"

namespace statcollect::stats::cuda {
namespace {

Computed OnCpu(const CpuTensor& tensor, const Placement* placement, std::uint32_t width) {
  Computed computed;
  computed.sketch.resize(width);
  std::uint32_t written = 0;
  computed.stats = ComputeCpu(tensor, computed.sketch, {}, &written, nullptr, placement);
  return computed;
}

void ExpectLike(const TensorStats& found, const TensorStats& expected,
                std::span<const double> sketch, std::span<const double> expected_sketch,
                const std::string& what) {
  EXPECT_EQ(found.hash, expected.hash) << what;
  EXPECT_EQ(found.numel, expected.numel) << what;
  for (const auto count : {&TensorStats::nan, &TensorStats::pos_inf, &TensorStats::neg_inf,
                           &TensorStats::zero, &TensorStats::neg, &TensorStats::pos}) {
    EXPECT_EQ(found.*count, expected.*count) << what;
  }
  ASSERT_EQ(found.has_finite, expected.has_finite) << what;
  EXPECT_EQ(found.min, expected.min) << what;
  EXPECT_EQ(found.max, expected.max) << what;
  if (!std::isfinite(expected.l2)) return;
  ExpectNear(found.mean, expected.mean, expected.l2, what + " mean");
  ExpectNear(found.std, expected.std, expected.l2, what + " std");
  ExpectNear(found.l1, expected.l1, expected.l1, what + " l1");
  ExpectNear(found.l2, expected.l2, expected.l2, what + " l2");
  for (std::size_t k = 0; k < sketch.size(); ++k) {
    if (std::fabs(expected_sketch[k]) == std::numeric_limits<double>::max())
      continue;  // beyond float64
    ExpectNear(sketch[k], expected_sketch[k], expected.l2, what + " sketch");
  }
}

// The kernels against the CPU engine.
void ExpectAgrees(const CpuTensor& tensor, const Placement& placement, const std::string& what,
                  std::uint32_t width = 16, std::uint32_t unit_pieces = 0) {
  const Status valid = Validate(tensor, placement);
  ASSERT_TRUE(valid.ok()) << what << ": " << valid.message();
  const Computed expected = OnCpu(tensor, &placement, width);
  const Emulated found = Emulate(tensor, width, unit_pieces, &placement);
  ExpectLike(found.stats, expected.stats, found.sketch, expected.sketch, what);
}

TestTensor AnyTensor(Random& random, DType dtype, const Sizes& shape) {
  return random() % 3 == 0 ? RandomBits(dtype, shape, random) : RandomNumbers(dtype, shape, random);
}

TEST(CudaShards, AddUpToTheWholeHoweverItIsCut) {
  const std::uint64_t seed = Setting("STATCOLLECT_TEST_SEED", 20261123);
  const std::uint64_t cases = Setting("STATCOLLECT_TEST_CASES", 2000);
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  for (std::uint64_t i = 0; i < cases && !testing::Test::HasFailure(); ++i) {
    cuda_shim::Seed(seed + i);
    const DType dtype = kAllDTypes[random() % std::size(kAllDTypes)];
    const TestTensor whole = AnyTensor(random, dtype, CutShape(random));
    const Cut cut = AnyCut(random, whole);
    const std::string what = "seed " + std::to_string(seed) + " case " + std::to_string(i) + ": " +
                             std::string(Name(dtype)) + " as " + cut.name;
    TensorStats merged;
    std::vector<double> sketch(32, 0.0);
    for (const Shard& shard : cut.shards) {
      const Placement placement = shard.Of(whole.shape);
      const Emulated found = Emulate(shard.tensor.View(), 32, 0, &placement);
      const Computed expected = OnCpu(shard.tensor.View(), &placement, 32);
      ExpectLike(found.stats, expected.stats, found.sketch, expected.sketch, what + ", a shard");
      Merge(merged, found.stats);
      MergeSketch(sketch, found.sketch);
    }
    const Computed expected = OnCpu(whole.View(), nullptr, 32);
    ExpectLike(merged, expected.stats, sketch, expected.sketch, what);
  }
}

// Narrow and wide rows in any order, whole ones and parts of columns, of one matrix and of several.
TEST(CudaShards, RowsInAnyOrderAgree) {
  Random random(84);
  for (const DType dtype : kAllDTypes) {
    for (const std::int64_t columns : {1, 7, 16, 48, 256, 1000, 2048}) {
      const std::string what = std::string(Name(dtype)) + " " + std::to_string(columns);
      const TestTensor matrix = AnyTensor(random, dtype, {23, columns});
      const Sizes rows = {1, columns + 9}, part = {0, 9, 1, columns}, whole = {0, 0, 1, columns};
      ExpectAgrees(matrix.View(), {.global_shape = rows, .boxes = part, .unordered = 1}, what);
      ExpectAgrees(matrix.View(),
                   {.global_shape = std::span(whole).last(2), .boxes = whole, .unordered = 1},
                   what + " whole");
      const TestTensor several = AnyTensor(random, dtype, {3, 11, columns});
      const Sizes experts = {8, 1, columns}, box = {4, 0, 0, 3, 1, columns};
      ExpectAgrees(several.View(), {.global_shape = experts, .boxes = box, .unordered = 2},
                   what + " of experts");
    }
  }
}

// Rows that are blocks, groups, vectors, or nothing of the logical tensor's; several pieces a unit.
TEST(CudaShards, AgreeAtEveryKindOfPlace) {
  Random random(81);
  for (const DType dtype : kAllDTypes) {
    for (const std::int64_t row : {8192, 2048, 4096 + 16, 1376, 777, 64, 16}) {
      const std::int64_t rows = 40'000 / row + 1;
      const TestTensor shard = RandomNumbers(dtype, {rows, row}, random);
      for (const std::int64_t column : {0, 2048, 16, 4, 3}) {
        const Sizes shape = {rows + 3, 16384}, boxes = {2, column, rows, row};
        ExpectAgrees(shard.View(), {shape, boxes, {}},
                     std::string(Name(dtype)) + " rows of " + std::to_string(row) + " at " +
                         std::to_string(column),
                     std::uint32_t{16} << random() % 3, std::uint32_t{1} << random() % 4);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(CudaShards, AgreeForEverySketchWidthAndSize) {
  Random random(82);
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF64, DType::kU8}) {
    const auto piece = static_cast<std::int64_t>(kPieceBytes / DTypeBytes(dtype));
    for (const std::uint32_t width : {0u, 16u, 32u, 64u}) {
      for (const std::int64_t size : {std::int64_t{0}, std::int64_t{1}, std::int64_t{17}, piece - 1,
                                      piece, piece + 1, 33 * piece + 5}) {
        const TestTensor shard = RandomNumbers(dtype, {size}, random);
        for (const std::int64_t first : {16384, 16384 + 2048, 5}) {
          const Sizes shape = {1'000'000}, ranges = {first, first + size};
          ExpectAgrees(shard.View(), {shape, {}, ranges},
                       std::string(Name(dtype)) + " x " + std::to_string(size), width);
        }
      }
    }
  }
}

// A few MiB, where units have a tree of nodes above them; each cut leaves groups split.
TEST(CudaShards, AgreeForLargeTensors) {
  Random random(83);
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const std::int64_t size = (3 << 20) / static_cast<std::int64_t>(DTypeBytes(dtype)) + 13;
    const TestTensor shard = RandomNumbers(dtype, {size}, random);
    for (const std::int64_t first : {1 << 20, (1 << 20) + 7}) {
      const Sizes shape = {size, 4}, ranges = {first, first + size};
      ExpectAgrees(shard.View(), {shape, {}, ranges}, std::string(Name(dtype)), 16,
                   random() % 2 * 8);
    }
  }
}

TEST(CudaShards, AgreeForStridedAndMisalignedViews) {
  Random random(84);
  for (const DType dtype : kAllDTypes) {
    for (int round = 0; round < 4; ++round) {
      TestTensor view = AnyTensor(random, dtype, {60'000});
      Sizes shape, boxes;
      if (round % 2 == 0) {
        view.origin = 1 + static_cast<std::int64_t>(random() % 3);
        view.shape = {37, 301};
      } else {
        view.shape = {37, 301};
        view.strides = {1, 41};  // transposed, with gaps
        view.origin = 5;
      }
      shape = {50, 4096};
      boxes = {static_cast<std::int64_t>(random() % 14), static_cast<std::int64_t>(random() % 3000),
               37, 301};
      ExpectAgrees(view.View(), {shape, boxes, {}}, std::string(Name(dtype)) + " view");
    }
  }
}

// What float32 cannot sum goes another way, piece by piece.
TEST(CudaShards, AgreeOutOfRange) {
  Random random(85);
  const Sizes shape = {3'000'000}, aligned = {2048 * 17, 2048 * 17 + 30'000}, odd = {777, 30'777};
  for (const float special : {INFINITY, NAN, 1e30f, 1e-30f}) {
    std::vector<float> values(30'000, 1.0f);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) - 3;
    for (const std::size_t at : {std::size_t{3}, std::size_t{9999}, values.size() - 1})
      values[at] = special;
    for (const Sizes& ranges : {aligned, odd})
      ExpectAgrees(TensorOf(values).View(), {shape, {}, ranges}, std::to_string(special), 32, 4);
  }
  std::vector<double> scaled(20 * 1024);
  for (std::size_t i = 0; i < scaled.size(); ++i)
    scaled[i] = static_cast<double>(i % 7 + 1) * (i / 1024 % 3 == 0   ? 1e-200
                                                  : i / 1024 % 3 == 1 ? 1.0
                                                                      : 1e200);
  const Sizes ranges = {12345, 12345 + 20 * 1024};
  ExpectAgrees(TensorOf(scaled).View(), {shape, {}, ranges}, "levels", 16, 8);
  const std::vector<float> nothing(9000, NAN);
  const Sizes of_nan = {5, 9005};
  ExpectAgrees(TensorOf(nothing).View(), {shape, {}, of_nan}, "nothing but NaN", 16);
}

// Every bit pattern of narrow types, misaligned.
TEST(CudaShards, ReadEveryNarrowValue) {
  for (const DType dtype : {DType::kF16, DType::kBf16, DType::kI16, DType::kU16}) {
    std::vector<std::uint16_t> values(65536);
    std::iota(values.begin(), values.end(), std::uint16_t{0});
    const Sizes shape = {100'000}, ranges = {3, 3 + 65536};
    ExpectAgrees(TensorOf(dtype, values).View(), {shape, {}, ranges}, std::string(Name(dtype)));
  }
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8, DType::kU8, DType::kBool}) {
    std::vector<std::uint8_t> values(16384);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint8_t>(i % 256);
    const Sizes shape = {100'000}, ranges = {3, 3 + 16384};
    ExpectAgrees(TensorOf(dtype, values).View(), {shape, {}, ranges}, std::string(Name(dtype)));
  }
}

TEST(CudaShards, AgreeForAsManyRangesAsThereMayBe) {
  Random random(86);
  const std::int64_t count = kMapNumbersMax / 2;
  Sizes ranges;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = (i * 5 + 3) % count;  // in any order
    ranges.insert(ranges.end(), {7 * at, 7 * at + 1 + i % 3});
  }
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < ranges.size(); i += 2) elements += ranges[i + 1] - ranges[i];
  const Sizes shape = {7 * count};
  const TestTensor shard = RandomNumbers(DType::kBf16, {elements}, random);
  ExpectAgrees(shard.View(), {shape, {}, ranges}, "ranges");
  ranges.insert(ranges.end(), {7 * count - 1, 7 * count});
  const TestTensor longer = RandomNumbers(DType::kBf16, {elements + 1}, random);
  std::vector<std::uint64_t> words;
  const Status refused = MakeIndexMap(longer.View(), {shape, {}, ranges}, &words);
  EXPECT_EQ(refused.code(), Code::kUnimplemented);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("65538 numbers; expected 65536"));
}

// Places that 32 bits do not tell apart, and the last of a huge tensor.
TEST(CudaShards, AgreeInTensorsOfAnySize) {
  Random random(88);
  for (const DType dtype : kAllDTypes) {
    const std::int64_t whole = std::int64_t{1} << 59;  // bytes that 64 bits count
    const Sizes shape = {whole};
    Sizes ranges;
    for (std::int64_t i = 0; i < 900; ++i) {
      const std::int64_t at = (i << 33) + i / 8 % 2 * 16;
      ranges.insert(ranges.end(), {at, at + (i % 3 == 0 ? 16 : 5)});
    }
    ranges.insert(ranges.end(), {whole - 5000, whole});
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < ranges.size(); i += 2) elements += ranges[i + 1] - ranges[i];
    const TestTensor shard = RandomNumbers(dtype, {elements}, random);
    ExpectAgrees(shard.View(), {shape, {}, ranges}, std::string(Name(dtype)) + " far out");
    const TestTensor row = RandomNumbers(dtype, {300, 70}, random);
    const Sizes matrix = {std::int64_t{1} << 30, std::int64_t{1} << 32},
                boxes = {5, 1 << 20, 300, 70};
    ExpectAgrees(row.View(), {matrix, boxes, {}}, std::string(Name(dtype)) + " rows far apart");
  }
}

// --- maps

TEST(CudaIndexMap, SaysWhatTheCpuEngineSays) {
  Random random(87);
  for (int i = 0; i < 10'000 && !testing::Test::HasFailure(); ++i) {
    const DType dtype = kAllDTypes[random() % std::size(kAllDTypes)];
    const TestTensor whole = RandomBits(dtype, CutShape(random), random);
    for (const Shard& shard : AnyCut(random, whole).shards) {
      const Placement placement = shard.Of(whole.shape);
      const CpuTensor tensor = shard.tensor.View();
      const std::uint64_t parts = IsComplex(dtype) ? 2 : 1, components = ComponentCount(tensor);
      std::vector<std::uint64_t> words;
      ASSERT_TRUE(MakeIndexMap(tensor, placement, &words).ok());
      const PlacementRuns runs(tensor, placement);
      for (std::uint64_t at = 0; at < components; at += 1 + random() % 40) {
        const std::uint64_t expected = runs.At(at / parts).first * parts + at % parts;
        const IndexRun run =
            words.empty() ? IndexRun{at, components - at} : IndexMap(words.data()).At(at);
        ASSERT_EQ(run.first, expected) << "case " << i << " component " << at;
        ASSERT_GE(run.count, runs.At(at / parts).count * parts - at % parts)
            << "runs may join, not part";
        ASSERT_LE(at + run.count, components);
        const std::uint64_t last = at + run.count - 1;
        ASSERT_EQ(runs.At(last / parts).first * parts + last % parts, expected + run.count - 1);
      }
    }
  }
}

std::vector<std::uint64_t> MapOf(const Sizes& shard, const Sizes& shape, const Sizes& boxes,
                                 const Sizes& ranges, DType dtype = DType::kF32) {
  static const std::vector<double> values(100'000);
  std::vector<std::uint64_t> words;
  const CpuTensor tensor{values.data(), dtype, shard, {}};
  EXPECT_TRUE(Validate(tensor, {shape, boxes, ranges}).ok());
  EXPECT_TRUE(MakeIndexMap(tensor, {shape, boxes, ranges}, &words).ok());
  return words;
}
std::uint64_t Head(std::uint64_t dims, std::uint64_t cut = kNotCut, std::uint64_t segments = 0) {
  return dims | cut << 8 | segments << 32;
}

TEST(CudaIndexMap, IsAsSmallAsThePlacementAllows) {
  using Words = std::vector<std::uint64_t>;
  EXPECT_EQ(MapOf({4, 6}, {4, 6}, {}, {}), Words());
  EXPECT_EQ(MapOf({2, 6}, {4, 6}, {0, 0, 2, 6}, {}), Words()) << "the first rows";
  EXPECT_EQ(MapOf({2, 6}, {4, 6}, {2, 0, 2, 6}, {}), (Words{12, Head(1), 12, 1}));
  EXPECT_EQ(MapOf({1, 6}, {4, 6}, {2, 0, 1, 6}, {}, DType::kC64), (Words{24, Head(1), 12, 1}));
  EXPECT_EQ(MapOf({4, 2}, {4, 6}, {0, 3, 4, 2}, {}), (Words{3, Head(2), 4, 6, 2, 1}));
  EXPECT_EQ(MapOf({4, 1}, {4, 6}, {0, 3, 4, 1}, {}), (Words{3, Head(2), 4, 6, 1, 1}));
  EXPECT_EQ(MapOf({2, 3, 5}, {2, 4, 5}, {0, 1, 0, 2, 3, 5}, {}), (Words{5, Head(2), 2, 20, 15, 1}));
  // From both ends of a dimension, whose rows are whole.
  EXPECT_EQ(MapOf({2, 3}, {6, 3}, {0, 0, 1, 3, 5, 0, 1, 3}, {}),
            (Words{0, Head(1, 0, 2), 6, 1, 0, 0, 3, 15}));
  // Boxes that follow each other are one.
  EXPECT_EQ(MapOf({2, 3}, {6, 3}, {2, 0, 1, 3, 3, 0, 1, 3}, {}), (Words{6, Head(1), 6, 1}));
  EXPECT_EQ(MapOf({5}, {100}, {}, {20, 23, 23, 23, 23, 25}), (Words{20, Head(1), 5, 1}));
  EXPECT_EQ(MapOf({5}, {100}, {}, {20, 23, 7, 9}), (Words{0, Head(1, 0, 2), 5, 1, 0, 20, 3, 7}));
  EXPECT_EQ(MapOf({0, 3}, {6, 3}, {4, 0, 0, 3}, {}), Words());
}

TEST(CudaIndexMap, RefusesMoreDimensionsThanItWalks) {
  const Sizes shard(13, 2), shape(13, 3);
  Sizes boxes(13, 1);
  boxes.insert(boxes.end(), shard.begin(), shard.end());
  const std::vector<float> values(8192);
  const CpuTensor tensor{values.data(), DType::kF32, shard, {}};
  std::vector<std::uint64_t> words;
  ASSERT_TRUE(Validate(tensor, {shape, boxes, {}}).ok());
  const Status refused = MakeIndexMap(tensor, {shape, boxes, {}}, &words);
  EXPECT_EQ(refused.code(), Code::kUnimplemented);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("13 dimensions"));
}

// Which pieces take the short way: nothing else tells.
TEST(CudaShards, PiecesWhoseBlocksAreTheTensorsAreFound) {
  const auto lies = [](auto component, const std::vector<std::uint64_t>& map, std::uint64_t piece) {
    using C = decltype(component);
    std::atomic<int> found = 0;  // lanes are threads
    cuda_shim::Run({1, 32, 0}, [&] {
      std::uint64_t block = 0;
      if (LiesInBlocks<C>(map.data(), {nullptr, kPieceComponents<C>, piece}, &block)) ++found;
    });
    EXPECT_TRUE(found == 0 || found == 32) << "all lanes must agree";
    return found == 32;
  };
  const auto rows = [](std::uint64_t first, std::uint64_t size, std::uint64_t stride) {
    return std::vector<std::uint64_t>{first, Head(2), 100, stride, size, 1};
  };
  EXPECT_TRUE(lies(F32(), rows(2048, 2048, 8192), 5));
  EXPECT_TRUE(lies(F32(), rows(0, 4096, 8192), 5));
  EXPECT_FALSE(lies(F32(), rows(16, 2048, 8192), 5));
  EXPECT_FALSE(lies(F32(), rows(0, 2048, 8192 + 16), 5));
  EXPECT_FALSE(lies(F32(), rows(0, 2048 + 16, 8192), 5));
  EXPECT_TRUE(lies(Bf16(), rows(2048, 2048, 8192), 5)) << "two rows, two blocks";
  EXPECT_TRUE(lies(U8(), rows(2048, 2048, 8192), 5));
  EXPECT_FALSE(lies(Bf16(), rows(2048, 2048, 8192 + 1024), 5));
}

}  // namespace
}  // namespace statcollect::stats::cuda
