// Bit for bit: every instruction set against a plain scalar reduction written from the definitions
// in accumulate.h and cpu/kernels.h.
#include "agent/stats/cpu/kernels.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <type_traits>

#include "tests/agent/stats/test_tensor.h"

namespace statcollect::stats {
namespace {

struct InstructionSetCase {
  InstructionSet set;
  const char* name;
};
constexpr InstructionSetCase kSets[] = {{InstructionSet::kBaseline, "baseline"},
                                        {InstructionSet::kAvx2, "avx2"},
                                        {InstructionSet::kAvx512, "avx512"}};

struct ScalarResult {
  double mean = 0, std = 0, l1 = 0, l2 = 0;
  std::vector<double> sketch;
};

// Sums of one chunk or of what chunks were appended.
struct ScalarSums {
  std::uint64_t count = 0;
  double origin = 0, offset = 0, deviations = 0, magnitudes = 0, squares = 0;
  std::vector<double> sketch;

  void Append(const ScalarSums& b) {
    for (std::size_t i = 0; i < sketch.size(); ++i) sketch[i] += b.sketch[i];
    if (b.count == 0) return;
    if (count == 0) {
      const std::vector<double> kept = sketch;
      *this = b;
      sketch = kept;
      return;
    }
    const double delta = (b.origin - origin) + (b.offset - offset);
    const double share = static_cast<double>(b.count) / static_cast<double>(count + b.count);
    offset += delta * share;
    deviations += b.deviations + delta * delta * (static_cast<double>(count) * share);
    count += b.count;
    magnitudes += b.magnitudes;
    squares += b.squares;
  }

  void SetDeviations(double shift, double sum, double squares_about_shift) {
    origin = shift;
    offset = sum / static_cast<double>(count);
    deviations = std::max(0.0, squares_about_shift - sum * offset);
  }
};

double InOrder(const double (&lanes)[16]) {
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// What fold `fold` of block `block` of the sketch does with its rows, from the definition in
// fingerprint.h.
struct ReferenceFold {
  unsigned rotation, bank, frame;
  bool minus;

  ReferenceFold(std::uint64_t block, std::uint64_t fold, std::uint32_t width) {
    const std::uint64_t mix = ReferenceSplitMixOutput(0x53544154534b4554ull, 4 * block + fold / 4);
    const auto bits = static_cast<unsigned>(mix / (1ull << (16 * (fold % 4))) % 65536);
    rotation = bits % 16, bank = bits / 16 % (width / 16), frame = bits / 256 % 8,
    minus = bits >= 32768;
  }
  bool RowMinus(unsigned row, unsigned lane) const {
    unsigned minus_signs = row == lane % 8 ? 1 : 0;
    unsigned both = (ReferenceFieldProduct(frame, 1 + lane % 7) ^ (lane / 2 % 8)) & row;
    for (; both != 0; both /= 2) minus_signs += both % 2;
    return minus_signs % 2 != 0;
  }
};

// Sketch of components [begin, end), which begin with a block: rows of a fold added in order, folds
// in order, in T within a block; what is not finite counts as 0.
template <typename T>
std::vector<double> SketchOfChunk(const std::vector<double>& x, std::size_t begin, std::size_t end,
                                  std::uint32_t width) {
  std::vector<double> totals(width, 0.0);
  for (std::size_t block = begin; block < end; block += 2048) {
    std::vector<T> sums(width, T{0});
    if constexpr (std::is_same_v<T, double>) sums = totals;
    for (std::size_t fold = 0; fold < 16 && block + 16 * fold < end; ++fold) {
      const ReferenceFold of(block / 2048, fold, width);
      for (unsigned lane = 0; lane < 16; ++lane) {
        T sum = 0;
        for (unsigned row = 0; row < 8; ++row) {
          const std::size_t i = block + 256 * row + 16 * fold + lane;
          const T value = i < end && std::isfinite(x[i]) ? static_cast<T>(x[i]) : T{0};
          sum += of.RowMinus(row, lane) ? -value : value;
        }
        sums[16 * of.bank + (lane + of.rotation) % 16] += of.minus ? -sum : sum;
      }
    }
    for (std::uint32_t i = 0; i < width; ++i) {
      totals[i] = std::is_same_v<T, double> ? sums[i] : totals[i] + static_cast<double>(sums[i]);
    }
  }
  return totals;
}

// The float64 path of cpu/kernels.h. No scaling: values must be of ordinary magnitude.
ScalarSums Float64Chunk(const std::vector<double>& x, std::size_t begin, std::size_t end,
                        std::uint32_t width) {
  ScalarSums chunk;
  double lanes[4][16] = {};
  std::optional<double> shift;
  for (std::size_t i = begin; i < end; ++i) {
    if (!std::isfinite(x[i])) continue;
    if (!shift) shift = x[i];
    ++chunk.count;
    const double shifted = x[i] - *shift;
    lanes[0][i % 16] += shifted;
    lanes[1][i % 16] += shifted * shifted;
    lanes[2][i % 16] += std::fabs(x[i]);
    lanes[3][i % 16] += x[i] * x[i];
  }
  chunk.sketch = SketchOfChunk<double>(x, begin, end, width);
  if (chunk.count == 0) return chunk;
  chunk.magnitudes = InOrder(lanes[2]);
  chunk.squares = InOrder(lanes[3]);
  chunk.SetDeviations(*shift, InOrder(lanes[0]), InOrder(lanes[1]));
  return chunk;
}

// Sums over a chunk, the rows of a fold and the folds of a block in float32: f(x) of each value, by
// lane.
template <typename Add>
void Float32Lanes(const std::vector<float>& x, double (&lanes)[16], const Add& add) {
  for (std::size_t block = 0; block < x.size(); block += 2048) {
    for (std::size_t lane = 0; lane < 16; ++lane) {
      std::vector<float> folds(16, 0.0f);
      for (std::size_t i = block + lane; i < std::min(x.size(), block + 2048); i += 16) {
        float& sum = folds[i / 16 % 16];
        sum = add(sum, x[i]);
      }
      while (folds.size() > 1) {
        std::vector<float> pairs;
        for (std::size_t f = 0; f < folds.size(); f += 2) pairs.push_back(folds[f] + folds[f + 1]);
        folds = pairs;
      }
      lanes[lane] += static_cast<double>(folds[0]);
    }
  }
}

// The float32 path of cpu/kernels.h; empty if it does not apply to the chunk.
std::optional<ScalarSums> Float32Chunk(const std::vector<double>& values, std::size_t begin,
                                       std::size_t end, std::uint32_t width) {
  std::vector<float> x;
  for (std::size_t i = begin; i < end; ++i) x.push_back(static_cast<float>(values[i]));
  ScalarSums chunk;
  chunk.count = x.size();
  double sums[16] = {}, magnitudes[16] = {}, squares[16] = {};
  Float32Lanes(x, sums, [](float sum, float v) { return sum + v; });
  Float32Lanes(x, magnitudes, [](float sum, float v) { return sum + std::fabs(v); });
  Float32Lanes(x, squares, [](float sum, float v) { return std::fmaf(v, v, sum); });
  chunk.magnitudes = InOrder(magnitudes);
  chunk.squares = InOrder(squares);
  float largest = 0;
  for (const float v : x) largest = std::max(largest, std::fabs(v));
  if (!std::isfinite(chunk.magnitudes) || !std::isfinite(chunk.squares)) return std::nullopt;
  if (chunk.magnitudes != 0 && largest < 0x1p-40f) return std::nullopt;
  const double sum = InOrder(sums), mean = sum / static_cast<double>(chunk.count);
  if (chunk.squares <= 5 * (chunk.squares - sum * mean)) {
    chunk.SetDeviations(0, sum, chunk.squares);
  } else {
    const auto shift = static_cast<float>(mean);
    double shifted[16] = {}, shifted_squares[16] = {};
    Float32Lanes(x, shifted, [&](float s, float v) { return s + (v - shift); });
    Float32Lanes(x, shifted_squares,
                 [&](float s, float v) { return std::fmaf(v - shift, v - shift, s); });
    chunk.SetDeviations(shift, InOrder(shifted), InOrder(shifted_squares));
  }
  chunk.sketch = SketchOfChunk<float>(values, begin, end, width);
  return chunk;
}

bool OnTheFloat32Path(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kC128:
    case DType::kI32:
    case DType::kI64:
    case DType::kU32:
    case DType::kU64:
      return false;
    default:
      return true;
  }
}

// No vectors, no blocks: the orders of summation from cpu/kernels.h and cpu/engine.h.
ScalarResult ReduceScalar(DType dtype, const std::vector<double>& x, std::uint32_t width) {
  ScalarSums all;
  all.sketch.assign(width, 0.0);
  for (std::size_t stripe_begin = 0; stripe_begin < x.size(); stripe_begin += 262144) {
    ScalarSums stripe;
    stripe.sketch.assign(width, 0.0);
    const std::size_t stripe_end = std::min<std::size_t>(x.size(), stripe_begin + 262144);
    for (std::size_t begin = stripe_begin; begin < stripe_end; begin += 16384) {
      const std::size_t end = std::min<std::size_t>(stripe_end, begin + 16384);
      std::optional<ScalarSums> chunk;
      if (OnTheFloat32Path(dtype)) chunk = Float32Chunk(x, begin, end, width);
      stripe.Append(chunk ? *chunk : Float64Chunk(x, begin, end, width));
    }
    all.Append(stripe);
  }
  ScalarResult result;
  result.sketch = all.sketch;
  if (all.count == 0) return result;
  result.mean = all.origin + all.offset;
  result.std = std::sqrt(all.deviations / static_cast<double>(all.count));
  result.l1 = all.magnitudes;
  result.l2 = std::sqrt(all.squares);
  return result;
}

TEST(Kernels, ExistForAtLeastTheBaseline) {
  ASSERT_NE(KernelsFor(InstructionSet::kBaseline), nullptr);
  for (const InstructionSetCase& set : kSets) {
    const CpuKernels* kernels = KernelsFor(set.set);
    std::printf("instruction set %s: %s\n", set.name,
                kernels != nullptr ? "tested" : "not on this processor");
    if (kernels == nullptr) continue;
    for (const DType dtype : kAllDTypes) {
      EXPECT_NE(kernels->of[static_cast<int>(dtype)].add, nullptr) << Name(dtype);
      EXPECT_EQ(kernels->of[static_cast<int>(dtype)].exact != nullptr, OnTheFloat32Path(dtype))
          << Name(dtype);
    }
  }
}

TEST(Kernels, GiveTheBitsOfThePlainScalarReductionOnEveryInstructionSet) {
  std::mt19937_64 random(61);
  for (const DType dtype : kAllDTypes) {
    for (const std::int64_t size : {1, 15, 16, 31, 2048, 2049, 16384, 16400, 70001}) {
      for (const bool any_bits : {false, true}) {
        // Arbitrary float64 bits have squares beyond float64: compared between the sets in the next
        // test.
        if (any_bits && DTypeBytes(dtype) >= 8 && dtype != DType::kI64 && dtype != DType::kU64 &&
            dtype != DType::kC64)
          continue;
        const TestTensor tensor =
            any_bits ? RandomBits(dtype, {size}, random) : RandomNumbers(dtype, {size}, random);
        const ReferenceComponents components = ComponentsOf(tensor.View());
        const ScalarResult scalar =
            ReduceScalar(dtype, {components.values.begin(), components.values.end()}, 32);
        for (const InstructionSetCase& set : kSets) {
          const CpuKernels* kernels = KernelsFor(set.set);
          if (kernels == nullptr) continue;
          Partial partial;
          Accumulate(tensor.View(), {0, components.values.size(), 0}, 32, *kernels, partial);
          std::vector<double> sketch(32);
          const TensorStats stats = Finished(partial, static_cast<std::uint64_t>(size), sketch);
          const std::string what =
              std::string(set.name) + " " + std::string(Name(dtype)) + " " + std::to_string(size);
          ASSERT_EQ(stats.mean, scalar.mean) << what;
          ASSERT_EQ(stats.std, scalar.std) << what;
          ASSERT_EQ(stats.l1, scalar.l1) << what;
          ASSERT_EQ(stats.l2, scalar.l2) << what;
          ASSERT_EQ(sketch, scalar.sketch) << what;
          ASSERT_EQ(stats.hash, ReferenceHash(components)) << what;
        }
      }
    }
  }
}

TEST(Kernels, GiveTheSameBitsForArbitraryFloat64OnEveryInstructionSet) {
  std::mt19937_64 random(62);
  for (const DType dtype : {DType::kF64, DType::kC128}) {
    for (const std::int64_t size : {3, 100, 5000, 40000}) {
      const TestTensor tensor = RandomBits(dtype, {size}, random);
      std::optional<TensorStats> first;
      std::vector<double> first_sketch;
      for (const InstructionSetCase& set : kSets) {
        const CpuKernels* kernels = KernelsFor(set.set);
        if (kernels == nullptr) continue;
        Partial partial;
        Accumulate(tensor.View(), {0, ComponentCount(tensor.View()), 0}, 16, *kernels, partial);
        std::vector<double> sketch(16);
        const TensorStats stats = Finished(partial, static_cast<std::uint64_t>(size), sketch);
        if (!first) first = stats, first_sketch = sketch;
        EXPECT_EQ(stats, *first) << set.name;
        EXPECT_EQ(sketch, first_sketch) << set.name;
      }
    }
  }
}

// Every path of float32: deviations about a shift, chunks left to float64, a chunk of each kind in
// one tensor.
TEST(Kernels, GiveTheBitsOfThePlainScalarReductionOnEveryFloat32Path) {
  std::mt19937_64 random(64);
  std::normal_distribution<float> normal;
  const auto tensor_of = [&](const std::vector<std::pair<float, float>>& chunks, std::size_t rest) {
    std::vector<float> values;
    for (const auto& [mean, std] : chunks) {
      for (int i = 0; i < 16384; ++i) values.push_back(mean + std * normal(random));
    }
    values.resize(values.size() - 16384 + rest);
    return values;
  };
  std::vector<std::vector<float>> tensors = {
      tensor_of({{1000, 0.01f}}, 16384),
      tensor_of({{3, 1}}, 777),
      tensor_of({{1.9f, 1}}, 1000),
      tensor_of({{0, 1e30f}}, 5000),
      tensor_of({{0, 1e-30f}}, 5000),
      tensor_of({{0, 1e-13f}}, 5000),
      tensor_of({{1, 0}, {0, 1}, {0, 1e25f}, {-7, 0.001f}, {0, 0}, {0, 1e-42f}}, 16383)};
  tensors.push_back(tensors.back());
  tensors.back()[40000] = std::numeric_limits<float>::quiet_NaN();
  tensors.back()[90000] = -std::numeric_limits<float>::infinity();
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const TestTensor tensor = TensorOf(tensors[t]);
    const ScalarResult scalar =
        ReduceScalar(DType::kF32, {tensors[t].begin(), tensors[t].end()}, 16);
    for (const InstructionSetCase& set : kSets) {
      const CpuKernels* kernels = KernelsFor(set.set);
      if (kernels == nullptr) continue;
      Partial partial;
      Accumulate(tensor.View(), {0, tensors[t].size(), 0}, 16, *kernels, partial);
      std::vector<double> sketch(16);
      const TensorStats stats = Finished(partial, tensors[t].size(), sketch);
      const std::string what = std::string(set.name) + " tensor " + std::to_string(t);
      EXPECT_EQ(stats.mean, scalar.mean) << what;
      EXPECT_EQ(stats.std, scalar.std) << what;
      EXPECT_EQ(stats.l1, scalar.l1) << what;
      EXPECT_EQ(stats.l2, scalar.l2) << what;
      EXPECT_EQ(sketch, scalar.sketch) << what;
    }
  }
}

// Ranges at stripe boundaries, appended in order, are one call over everything.
TEST(Accumulate, OverRangesAtStripeBoundariesGivesTheSameBits) {
  std::mt19937_64 random(63);
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kC64}) {
    TestTensor tensor = RandomNumbers(dtype, {1200, 500}, random);
    tensor.strides = {1, 1200};
    const std::uint64_t components = ComponentCount(tensor.View());
    Partial whole, parts;
    Accumulate(tensor.View(), {0, components, 0}, 16, BestKernels(), whole);
    for (std::uint64_t begin = 0; begin < components; begin += kStripeComponents) {
      const std::uint64_t count = std::min<std::uint64_t>(kStripeComponents, components - begin);
      Accumulate(tensor.View(), {begin, count, 0}, 16, BestKernels(), parts);
    }
    std::vector<double> whole_sketch(16), parts_sketch(16);
    EXPECT_EQ(Finished(whole, 600000, whole_sketch), Finished(parts, 600000, parts_sketch))
        << Name(dtype);
    EXPECT_EQ(whole_sketch, parts_sketch) << Name(dtype);
  }
}

TEST(Accumulate, GivesTheSameBitsOnAnyNumberOfThreads) {
  std::mt19937_64 random(65);
  for (const DType dtype : {DType::kBf16, DType::kF32, DType::kF64, DType::kC64, DType::kI8}) {
    for (const std::int64_t rows : {1, 700, 9000}) {
      TestTensor tensor = RandomNumbers(dtype, {rows, 2001}, random);
      tensor.strides = {1, rows};
      std::vector<double> sketch(16), samples(5);
      std::uint32_t written = 0;
      const TensorStats alone = ComputeCpu(tensor.View(), sketch, samples, &written);
      for (const int threads : {2, 3, 7}) {
        CpuWorkers workers(threads);
        for (int again = 0; again < 3; ++again) {
          std::vector<double> shared_sketch(16);
          EXPECT_EQ(ComputeCpu(tensor.View(), shared_sketch, samples, &written, &workers), alone)
              << Name(dtype) << ' ' << rows << ", threads " << threads;
          EXPECT_EQ(shared_sketch, sketch) << Name(dtype) << ' ' << rows << ", threads " << threads;
        }
      }
    }
  }
}

TEST(CpuWorkers, DoEveryPartOnceAlsoForSeveralCallersAtATime) {
  CpuWorkers workers(4);
  std::vector<std::thread> callers;
  std::atomic<int> wrong = 0;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        std::vector<std::atomic<int>> done(static_cast<std::size_t>(1 + round % 40));
        workers.Run(done.size(), [&](std::size_t part) { ++done[part]; });
        for (const auto& times : done) wrong += times != 1;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace statcollect::stats
