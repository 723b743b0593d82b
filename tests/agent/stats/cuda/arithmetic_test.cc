// The kernels' arithmetic, run on the host, against the definitions and the CPU engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "agent/stats/cuda/layout.h"
#include "agent/stats/cuda/plan.h"
#include "common/names.h"
#include "tests/agent/stats/cuda/emulation.h"
#include "tests/agent/stats/cuda/shim/cuda_shim.h"
#include "tests/agent/stats/test_tensor.h"

namespace statcollect::stats {
namespace {

using cuda::Emulate;
using cuda::Emulated;

constexpr double kRelative = 1e-6;

void ExpectNear(double actual, double expected, double scale, const char* what) {
  if (std::isinf(expected)) {  // beyond float64; of a sketch sum, its largest number
    EXPECT_EQ(std::signbit(actual), std::signbit(expected)) << what;
    EXPECT_GE(std::abs(actual), std::numeric_limits<double>::max()) << what;
    return;
  }
  EXPECT_LE(std::abs(actual - expected), kRelative * scale)
      << what << ": " << actual << ", expected " << expected;
}

// Against the float64 reference of the definitions.
void ExpectAgrees(const CpuTensor& tensor, std::uint32_t width = 16,
                  std::uint32_t unit_pieces = 0) {
  const ReferenceComponents components = ComponentsOf(tensor);
  const ReferenceStats expected = StatsOf(components);
  const Emulated actual = Emulate(tensor, width, unit_pieces);
  const TensorStats& s = actual.stats;
  EXPECT_EQ(s.numel, components.values.size() / (IsComplex(tensor.dtype) ? 2 : 1));
  EXPECT_EQ(s.nan, expected.nan);
  EXPECT_EQ(s.pos_inf, expected.pos_inf);
  EXPECT_EQ(s.neg_inf, expected.neg_inf);
  EXPECT_EQ(s.zero, expected.zero);
  EXPECT_EQ(s.neg, expected.neg);
  EXPECT_EQ(s.pos, expected.pos);
  EXPECT_EQ(s.hash, ReferenceHash(components));
  ASSERT_EQ(s.has_finite, expected.finite != 0);
  if (s.has_finite) {
    EXPECT_EQ(s.min, static_cast<double>(expected.min));
    EXPECT_EQ(s.max, static_cast<double>(expected.max));
    const auto rms = static_cast<double>(expected.rms);
    ExpectNear(s.mean, static_cast<double>(expected.mean), rms, "mean");
    // Large integers: the reference's own mean is good to 64 bits.
    ExpectNear(s.std, static_cast<double>(expected.std),
               static_cast<double>(expected.std) + 1e-9 * rms, "std");
    ExpectNear(s.l1, static_cast<double>(expected.l1), static_cast<double>(expected.l1), "l1");
    ExpectNear(s.l2, static_cast<double>(expected.l2), static_cast<double>(expected.l2), "l2");
  }
  if (width == 0) return;
  const std::vector<long double> sums = ReferenceSketch(components, width);
  for (std::uint32_t i = 0; i < width; ++i) {
    ExpectNear(actual.sketch[i], static_cast<double>(sums[i]), static_cast<double>(expected.l2),
               "sketch sum");
  }
}

std::string Describe(DType dtype, std::int64_t size) {
  return std::string(Name(dtype)) + " x " + std::to_string(size);
}

// Sizes around vectors, groups, blocks, rows, pieces and nodes.
TEST(CudaArithmetic, AgreesForEverySizeAroundItsBoundaries) {
  std::mt19937_64 random(1);
  for (const DType dtype : kAllDTypes) {
    const auto piece = static_cast<std::int64_t>(cuda::kPieceBytes / (DTypeBytes(dtype)));
    std::vector<std::int64_t> sizes = {0,  1,  2,  3,  4,   5,   7,   8,   9,   15,
                                       16, 17, 31, 33, 255, 256, 257, 511, 513, 1000};
    for (const std::int64_t edge : {piece, 2 * piece, 33 * piece}) {
      for (const int by : {-17, -1, 0, 1, 15}) sizes.push_back(edge + by);
    }
    for (const std::int64_t size : sizes) {
      SCOPED_TRACE(Describe(dtype, size));
      ExpectAgrees(RandomNumbers(dtype, {size}, random).View());
      if (HasFailure()) return;
    }
  }
}

TEST(CudaArithmetic, AgreesForAnyBits) {
  std::mt19937_64 random(2);
  for (const DType dtype : kAllDTypes) {
    for (const std::int64_t size : {1, 100, 5000, 40000}) {
      SCOPED_TRACE(Describe(dtype, size));
      ExpectAgrees(RandomBits(dtype, {size}, random).View(), 64);
    }
  }
}

TEST(CudaArithmetic, AgreesForEverySketchWidth) {
  std::mt19937_64 random(3);
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF64}) {
    for (const std::uint32_t width : {0, 16, 32, 64}) {
      ExpectAgrees(RandomNumbers(dtype, {100003}, random).View(), width);
    }
  }
}

// Positive, negative, broadcast and overlapping strides, several dimensions, misaligned starts.
TEST(CudaArithmetic, AgreesForAnyStrides) {
  std::mt19937_64 random(4);
  for (const DType dtype : kAllDTypes) {
    for (int round = 0; round < 12; ++round) {
      TestTensor tensor = RandomNumbers(dtype, {60000}, random);
      const std::size_t dims = 1 + random() % 4;
      tensor.shape.clear();
      std::int64_t least = 0, most = 0;
      for (std::size_t d = 0; d < dims; ++d) {
        tensor.shape.push_back(1 + static_cast<std::int64_t>(random() % (dims == 1 ? 9000 : 20)));
        tensor.strides.push_back(static_cast<std::int64_t>(random() % 9) - 4);
        const std::int64_t reach = (tensor.shape[d] - 1) * tensor.strides[d];
        (reach < 0 ? least : most) += reach;
      }
      tensor.origin = -least + static_cast<std::int64_t>(random() % 7);
      ASSERT_LT(tensor.origin + most, 60000);
      SCOPED_TRACE(Describe(dtype, round));
      ExpectAgrees(tensor.View());
    }
    TestTensor shifted = RandomNumbers(dtype, {20000}, random);
    shifted.origin = 1;  // contiguous, not aligned to a vector
    shifted.shape = {19000};
    ExpectAgrees(shifted.View());
    TestTensor transposed = RandomNumbers(dtype, {130, 257}, random);
    transposed.shape = {257, 130};
    transposed.strides = {1, 257};
    ExpectAgrees(transposed.View());
  }
}

TEST(CudaArithmetic, KeepsItsPrecisionFarFromZero) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  for (const double mean : {1e3, 1e6, -3e7}) {
    std::vector<float> values(50000);
    for (float& value : values) value = static_cast<float>(mean + normal(random));
    ExpectAgrees(TensorOf(values).View());
  }
  for (const double mean : {1e6, 1e11}) {
    std::vector<double> values(50000);
    for (double& value : values) value = mean + normal(random);
    ExpectAgrees(TensorOf(values).View());
  }
  // One component in a piece differs by one unit in the last place.
  std::vector<float> flat(5000, 1234.5f);
  flat[777] = std::nextafter(1234.5f, 2000.0f);
  ExpectAgrees(TensorOf(flat).View());
  std::vector<std::uint16_t> halves(9000, 0x4311);
  halves[5] = 0x4312;
  ExpectAgrees(TensorOf(DType::kBf16, halves).View());
  ExpectAgrees(TensorOf(DType::kF16, halves).View());
}

// Sums go once more over a piece that lies far from 0. Here pieces of a unit do, or just do not, in
// any mixture.
TEST(CudaArithmetic, KeepsItsPrecisionWhereverTheMeanLies) {
  std::mt19937_64 random(11);
  std::normal_distribution<double> normal;
  for (const double mean : {0.0, 0.5, 1.0, 1.9, 2.0, 2.1, -2.0, 3.0, 10.0, 1000.0}) {
    std::vector<float> values(40 * 2048 + 77);
    for (float& value : values) value = static_cast<float>(mean + normal(random));
    std::vector<std::uint16_t> halves(values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      halves[i] = static_cast<std::uint16_t>(BitsAs<std::uint32_t>(values[i]) >> 16);
    std::vector<std::uint8_t> bytes(values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      bytes[i] =
          static_cast<std::uint8_t>(std::clamp(128 + 8 * (mean + normal(random)), 0.0, 255.0));
    for (const std::uint32_t unit_pieces : {0u, 8u}) {
      SCOPED_TRACE(testing::Message() << mean << " in units of " << unit_pieces);
      ExpectAgrees(TensorOf(values).View(), 16, unit_pieces);
      ExpectAgrees(TensorOf(DType::kBf16, halves).View(), 16, unit_pieces);
      ExpectAgrees(TensorOf(DType::kU8, bytes).View(), 16, unit_pieces);
      ExpectAgrees(TensorOf(DType::kI8, bytes).View(), 16, unit_pieces);
    }
  }
  // Steps from piece to piece: constant ones, whose squares no float32 holds, and others around 0
  // or far from it.
  for (const float step : {1e-30f, 1e-9f, 1.0f, 1e6f}) {
    for (const float noise : {0.0f, 0.1f, 1.0f}) {
      std::vector<float> values(20 * 2048);
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] =
            step * (static_cast<float>(i / 2048 % 4) + noise * static_cast<float>(normal(random)));
      SCOPED_TRACE(testing::Message() << "steps of " << step << ", noise " << noise);
      for (const std::uint32_t unit_pieces : {0u, 4u, 16u})
        ExpectAgrees(TensorOf(values).View(), 16, unit_pieces);
    }
  }
}

TEST(CudaArithmetic, FindsNoDeviationInConstants) {
  for (const float value : {0.1f, -3e20f, 1e-42f, 7.0f, 3e38f}) {
    const Emulated actual = Emulate(TensorOf(std::vector<float>(70001, value)).View(), 16);
    EXPECT_EQ(actual.stats.std, 0) << value;
    EXPECT_EQ(actual.stats.mean, static_cast<double>(value));
    ExpectAgrees(TensorOf(std::vector<float>(70001, value)).View());
  }
}

// Squares and deviations that overflow float32 and float64.
TEST(CudaArithmetic, AgreesAtTheEndsOfTheRange) {
  std::mt19937_64 random(6);
  std::normal_distribution<double> normal;
  for (const float scale : {1e38f, 1e25f, 1e-17f, 1e-20f, 1e-38f, 1e-42f}) {
    std::vector<float> values(9000);
    for (float& value : values) value = static_cast<float>(normal(random)) * scale;
    SCOPED_TRACE(scale);
    ExpectAgrees(TensorOf(values).View());
  }
  for (const double scale : {1e300, 1e160, 1e-160, 1e-300}) {
    std::vector<double> values(9000);
    for (double& value : values) value = normal(random) * scale;
    for (std::size_t i = 3000; i < 6000; ++i) values[i] *= 1e-150;
    SCOPED_TRACE(scale);
    ExpectAgrees(TensorOf(values).View());
  }
}

TEST(CudaArithmetic, CountsWhatIsNotFinitePieceByPiece) {
  std::mt19937_64 random(7);
  for (const float special : {INFINITY, -INFINITY, NAN, -0.0f}) {
    std::vector<float> values(20000, 1.0f);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) - 3;
    for (const std::size_t at :
         {std::size_t{0}, std::size_t{2047}, std::size_t{9999}, values.size() - 1}) {
      values[at] = special;
    }
    ExpectAgrees(TensorOf(values).View());
  }
  std::vector<std::uint16_t> masked(30000, 0xff80);  // -infinity
  for (std::size_t i = 0; i < masked.size(); i += 3) masked[i] = 0x3f80;
  ExpectAgrees(TensorOf(DType::kBf16, masked).View());
  for (const std::uint16_t nan : {0x7fff, 0xffff, 0x7f81, 0xffc0}) {
    masked.assign(10000, 0x3f80);
    masked[4097] = nan;
    ExpectAgrees(TensorOf(DType::kBf16, masked).View());
    ExpectAgrees(TensorOf(DType::kF16, masked).View());
  }
}

// Every bit pattern of the 8- and 16-bit types, in whole pieces.
TEST(CudaArithmetic, ReadsEveryNarrowValue) {
  for (const DType dtype : {DType::kF16, DType::kBf16, DType::kI16, DType::kU16}) {
    std::vector<std::uint16_t> values(65536);
    std::iota(values.begin(), values.end(), std::uint16_t{0});
    ExpectAgrees(TensorOf(dtype, values).View());
  }
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8, DType::kU8, DType::kBool}) {
    std::vector<std::uint8_t> values(16384);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint8_t>(i % 256);
    ExpectAgrees(TensorOf(dtype, values).View());
    std::fill(values.begin(), values.begin() + 8192, std::uint8_t{0x31});
    ExpectAgrees(TensorOf(dtype, values).View());
  }
}

// A tensor of three levels of nodes: units complete in any order, results keep their bits.
TEST(CudaArithmetic, GivesTheSameBitsWhateverUnitFinishesLast) {
  std::mt19937_64 random(8);
  const TestTensor tensor = RandomNumbers(DType::kBf16, {1100 * 4096 + 5}, random);
  const Emulated first = Emulate(tensor.View(), 16);
  for (int round = 0; round < 3; ++round) {
    const Emulated again = Emulate(tensor.View(), 16);
    EXPECT_EQ(again.stats, first.stats);
    EXPECT_EQ(again.sketch, first.sketch);
  }
  ExpectAgrees(tensor.View());
}

// As in large tensors: a unit's pieces share the sketch's slots, until one of them needs float64.
TEST(CudaArithmetic, AgreesForUnitsOfSeveralPieces) {
  std::mt19937_64 random(10);
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kU8, DType::kF64}) {
    const auto piece = static_cast<std::int64_t>(cuda::kPieceBytes / DTypeBytes(dtype));
    for (const std::uint32_t unit_pieces : {2u, 8u, 16u, 64u}) {
      SCOPED_TRACE(Describe(dtype, unit_pieces));
      ExpectAgrees(RandomNumbers(dtype, {40 * piece + 7}, random).View(), 16, unit_pieces);
    }
  }
  std::vector<float> values(30 * 2048 + 100);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 11) - 4.5f;
  for (const std::size_t wide :
       {std::size_t{0}, std::size_t{5}, std::size_t{17}, std::size_t{29}}) {
    values[2048 * wide + 3] = NAN;
    ExpectAgrees(TensorOf(values).View(), 32, 16);
  }
  // Levels of float64 that rise and fall within a unit.
  std::vector<double> scaled(20 * 1024);
  for (std::size_t i = 0; i < scaled.size(); ++i) {
    scaled[i] = static_cast<double>(i % 7 + 1) * (i / 1024 % 3 == 0   ? 1e-200
                                                  : i / 1024 % 3 == 1 ? 1.0
                                                                      : 1e200);
  }
  ExpectAgrees(TensorOf(scaled).View(), 16, 8);
}

// Any tensor in any order of threads, blocks and copies: up to 1 MiB, whole or a view that is
// misaligned or strided.
TEST(CudaArithmetic, AgreesForAnyTensorInAnyOrder) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    cuda_shim::Seed(seed);
    const DType dtype = kAllDTypes[random() % std::size(kAllDTypes)];
    const auto largest = static_cast<std::uint64_t>((1 << 20) / DTypeBytes(dtype));
    const auto size = static_cast<std::int64_t>(largest >> random() % 12) +
                      static_cast<std::int64_t>(random() % 40);
    TestTensor tensor = random() % 4 == 0 ? RandomBits(dtype, {size}, random)
                                          : RandomNumbers(dtype, {size}, random);
    if (seed % 3 == 1 && size > 4) {
      tensor.origin = 1 + static_cast<std::int64_t>(random() % 3);
      tensor.shape = {size - tensor.origin};
    } else if (seed % 3 == 2 && size > 64) {
      tensor.shape = {size / 64, 31};
      tensor.strides = {64, 2};
      tensor.origin = 1;
    }
    SCOPED_TRACE(Describe(dtype, size) + ", seed " + std::to_string(seed));
    ExpectAgrees(tensor.View(), std::uint32_t{16} << random() % 3);
    if (HasFailure()) return;
  }
}

TEST(CudaArithmetic, AgreesWithTheCpuEngine) {
  std::mt19937_64 random(9);
  for (const DType dtype : kAllDTypes) {
    const TestTensor tensor = RandomNumbers(dtype, {300007}, random);
    const Emulated gpu = Emulate(tensor.View(), 16);
    const Computed cpu = Compute(tensor);
    EXPECT_EQ(gpu.stats.hash, cpu.stats.hash) << Name(dtype);
    EXPECT_EQ(gpu.stats.min, cpu.stats.min);
    EXPECT_EQ(gpu.stats.max, cpu.stats.max);
    ExpectNear(gpu.stats.mean, cpu.stats.mean, cpu.stats.l2 / std::sqrt(300007.0), "mean");
    ExpectNear(gpu.stats.std, cpu.stats.std, cpu.stats.std, "std");
    ExpectNear(gpu.stats.l1, cpu.stats.l1, cpu.stats.l1, "l1");
    ExpectNear(gpu.stats.l2, cpu.stats.l2, cpu.stats.l2, "l2");
    for (std::size_t i = 0; i < 16; ++i)
      ExpectNear(gpu.sketch[i], cpu.sketch[i], cpu.stats.l2, "sketch sum");
  }
}

TEST(CudaArithmetic, CutsLargeTensorsIntoBoundedlyManyUnits) {
  EXPECT_EQ(cuda::UnitPieces(0), 1u);
  EXPECT_EQ(cuda::UnitPieces(cuda::kUnitsMax), 1u);
  EXPECT_EQ(cuda::UnitPieces(cuda::kUnitsMax + 1), 2u);
  const std::int64_t huge[] = {std::int64_t{1} << 40};
  cuda::Task task;
  ASSERT_TRUE(cuda::MakeTask({&huge, DType::kBf16, huge, {}}, &task).ok());
  EXPECT_EQ(task.units, cuda::kUnitsMax);
  EXPECT_EQ(static_cast<std::uint64_t>(task.unit_pieces) * cuda::kUnitsMax, task.pieces);
}

TEST(CudaArithmetic, RefusesMoreDimensionsThanItWalks) {
  const std::vector<std::int64_t> shape(13, 2);
  std::vector<std::int64_t> strides;
  for (std::int64_t i = 0; i < 13; ++i) strides.push_back(std::int64_t{1} << (2 * i));
  const double data = 0;
  cuda::Task task;
  const Status status = cuda::MakeTask({&data, DType::kF64, shape, strides}, &task);
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_NE(status.message().find("13"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace statcollect::stats
