// Random tensors of every dtype, shape, stride pattern and class of values against the reference,
// thousands of them. STATCOLLECT_TEST_SEED and STATCOLLECT_TEST_CASES repeat or extend a run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <numeric>

#include "tests/agent/stats/expect_like_reference.h"

namespace statcollect::stats {
namespace {

using Random = std::mt19937_64;

std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::int64_t Between(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

// --- values

struct ValueClass {
  const char* name;
  std::function<double(Random&)> make;
};

double Normal(Random& random) { return std::normal_distribution<double>()(random); }

// Of the dtypes that can hold them; others get bits.
const std::vector<ValueClass>& ValueClasses() {
  static const std::vector<ValueClass> classes = {
      {"normal", Normal},
      {"constant", [](Random&) { return 0.1; }},
      {"zeros of both signs", [](Random& r) { return r() % 2 == 0 ? 0.0 : -0.0; }},
      {"mean far above std", [](Random& r) { return 1000 + 1e-3 * Normal(r); }},
      {"mean below", [](Random& r) { return -2.2 + Normal(r); }},
      {"rectified", [](Random& r) { return std::max(0.0, Normal(r)); }},
      {"sparse", [](Random& r) { return r() % 50 == 0 ? Normal(r) : 0.0; }},
      {"tiny", [](Random& r) { return 1e-30 * Normal(r); }},
      {"subnormal in float32", [](Random& r) { return 1e-42 * Normal(r); }},
      {"huge", [](Random& r) { return 1e30 * Normal(r); }},
      {"many magnitudes",
       [](Random& r) {
         return Normal(r) * std::pow(10.0, static_cast<double>(Between(r, -37, 37)));
       }},
      {"outliers", [](Random& r) { return r() % 200 == 0 ? 1e6 : Normal(r); }},
      {"few values", [](Random& r) { return static_cast<double>(Between(r, -1, 1)); }},
      {"some not finite",
       [](Random& r) {
         const double odd[] = {std::numeric_limits<double>::quiet_NaN(),
                               std::numeric_limits<double>::infinity(),
                               -std::numeric_limits<double>::infinity()};
         return r() % 30 == 0 ? odd[r() % 3] : Normal(r);
       }},
      {"nothing finite", [](Random&) { return std::numeric_limits<double>::quiet_NaN(); }}};
  return classes;
}

template <typename T>
void Fill(TestTensor& tensor, const std::function<double(Random&)>& make, Random& random) {
  auto* bytes = reinterpret_cast<unsigned char*>(tensor.storage.data());
  for (std::size_t at = 0; at + sizeof(T) <= tensor.storage.size() * 8; at += sizeof(T)) {
    const T value = static_cast<T>(make(random));
    std::memcpy(bytes + at, &value, sizeof(value));
  }
}

// Returns what the values are.
std::string FillAnyhow(TestTensor& tensor, Random& random) {
  const std::size_t words = tensor.storage.size();
  const ValueClass& values = ValueClasses()[random() % ValueClasses().size()];
  switch (tensor.dtype) {
    case DType::kF64:
    case DType::kC128:
      Fill<double>(tensor, values.make, random);
      return values.name;
    case DType::kF32:
    case DType::kC64:
      Fill<float>(tensor, values.make, random);
      return values.name;
    default:
      break;
  }
  const bool numbers = random() % 2 == 0;
  TestTensor filled =
      numbers ? RandomNumbers(tensor.dtype, {static_cast<std::int64_t>(words)}, random)
              : RandomBits(tensor.dtype, {static_cast<std::int64_t>(words * 8)}, random);
  filled.storage.resize(words, 0);
  tensor.storage = std::move(filled.storage);
  return numbers ? "numbers" : "any bits";
}

// --- shapes and strides

std::vector<std::int64_t> AnyShape(Random& random) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(Between(random, 0, 4)));
  std::int64_t left = random() % 40 == 0 ? 70000 : 1500;
  for (std::int64_t& size : shape) {
    size = random() % 60 == 0  ? 0
           : random() % 4 == 0 ? 1
                               : Between(random, 1, std::max<std::int64_t>(1, left));
    left = size == 0 ? left : left / size;
  }
  std::shuffle(shape.begin(), shape.end(), random);
  return shape;
}

// A layout that lies in a storage of its own: permuted dimensions, gaps, negative and zero strides.
void LayOut(TestTensor& tensor, Random& random) {
  const std::size_t dims = tensor.shape.size();
  std::vector<std::size_t> order(dims);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const bool contiguous = random() % 4 == 0;
  if (!contiguous) std::shuffle(order.begin(), order.end(), random);
  tensor.strides.assign(dims, 0);
  std::int64_t reach = 1, low = 0, high = 0;
  for (std::size_t i = dims; i-- > 0;) {
    const std::size_t d = order[i];
    std::int64_t stride = reach;
    if (!contiguous) {
      if (random() % 4 == 0) stride += Between(random, 0, 5);
      if (random() % 5 == 0) stride = -stride;
      if (random() % 8 == 0) stride = 0;
    }
    tensor.strides[d] = stride;
    const std::int64_t extent = stride * std::max<std::int64_t>(tensor.shape[d] - 1, 0);
    low += std::min<std::int64_t>(extent, 0);
    high += std::max<std::int64_t>(extent, 0);
    reach = std::max(reach, high - low + 1);
  }
  const std::int64_t offset = Between(random, 0, 3);  // so that vectors are not aligned
  tensor.origin = offset - low;
  tensor.storage.resize(
      (static_cast<std::size_t>(offset + high - low) + 1) * DTypeBytes(tensor.dtype) / 8 + 2);
  if (contiguous && random() % 2 == 0) tensor.strides.clear();
}

std::string Numbers(const std::vector<std::int64_t>& values) {
  std::string text;
  for (const std::int64_t value : values) text += (text.empty() ? "" : " ") + std::to_string(value);
  return "[" + text + "]";
}

// Every instruction set gives the bits that the best one gave.
void ExpectSameOnEverySet(const CpuTensor& tensor, const std::string& what) {
  const Computed best = Compute(tensor, 32);
  for (const InstructionSet set :
       {InstructionSet::kBaseline, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    const CpuKernels* kernels = KernelsFor(set);
    if (kernels == nullptr) continue;
    Partial partial;
    Accumulate(tensor, {0, ComponentCount(tensor), 0}, 32, *kernels, partial);
    std::vector<double> sketch(32);
    EXPECT_EQ(Finished(partial, best.stats.numel, sketch), best.stats) << what;
    EXPECT_EQ(sketch, best.sketch) << what;
  }
}

TEST(StatisticsProperty, EqualTheReferenceForRandomTensors) {
  const std::uint64_t seed = FromEnvironment("STATCOLLECT_TEST_SEED", 20261121);
  const std::uint64_t cases = FromEnvironment("STATCOLLECT_TEST_CASES", 5000);
  Random random(seed);
  for (std::uint64_t i = 0; i < cases && !HasFailure(); ++i) {
    TestTensor tensor;
    tensor.dtype = kAllDTypes[random() % std::size(kAllDTypes)];
    tensor.shape = AnyShape(random);
    LayOut(tensor, random);
    const std::string values = FillAnyhow(tensor, random);
    const std::string what = "seed " + std::to_string(seed) + " case " + std::to_string(i) + ": " +
                             std::string(Name(tensor.dtype)) + " " + Numbers(tensor.shape) +
                             " strides " + Numbers(tensor.strides) + ", " + values;
    ExpectLikeReference(tensor.View(), what);
    ExpectSameOnEverySet(tensor.View(), what);
  }
}

}  // namespace
}  // namespace statcollect::stats
