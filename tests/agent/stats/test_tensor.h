// Tensors for tests, and a slow reference for everything the engine computes: written from the
// definitions, in long double, sharing no code with the engine.
#ifndef STATCOLLECT_TESTS_AGENT_STATS_TEST_TENSOR_H_
#define STATCOLLECT_TESTS_AGENT_STATS_TEST_TENSOR_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "agent/stats/cpu/engine.h"
#include "agent/stats/stats.h"
#include "common/names.h"

namespace statcollect::stats {

inline constexpr DType kAllDTypes[] = {
    DType::kF64, DType::kF32, DType::kF16,  DType::kBf16, DType::kF8E4M3, DType::kF8E5M2,
    DType::kI8,  DType::kI16, DType::kI32,  DType::kI64,  DType::kU8,     DType::kU16,
    DType::kU32, DType::kU64, DType::kBool, DType::kC64,  DType::kC128};

// Owns storage; the element with index 0 in every dimension lies `origin` elements into it.
struct TestTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape, strides;  // empty strides: contiguous
  std::int64_t origin = 0;
  std::vector<std::uint64_t> storage;  // words, so that every dtype is aligned

  CpuTensor View() const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(storage.data());
    return {bytes + origin * static_cast<std::int64_t>(DTypeBytes(dtype)), dtype, shape, strides};
  }
};

template <typename T>
TestTensor TensorOf(DType dtype, const std::vector<T>& values) {
  TestTensor tensor{dtype, {static_cast<std::int64_t>(values.size())}, {}, 0, {}};
  if (IsComplex(dtype)) tensor.shape[0] /= 2;
  tensor.storage.resize(values.size() * sizeof(T) / 8 + 2);
  if (!values.empty()) std::memcpy(tensor.storage.data(), values.data(), values.size() * sizeof(T));
  return tensor;
}
inline TestTensor TensorOf(const std::vector<float>& values) {
  return TensorOf(DType::kF32, values);
}
inline TestTensor TensorOf(const std::vector<double>& values) {
  return TensorOf(DType::kF64, values);
}

// --- reference

inline long double ReferenceSmallFloat(std::uint32_t bits, int exponent_bits, int mantissa_bits,
                                       bool has_infinity) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const bool negative = ((bits >> (exponent_bits + mantissa_bits)) & 1) != 0;
  const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const auto mantissa = static_cast<int>(bits & ((1u << mantissa_bits) - 1));
  long double value = 0;
  const bool last = exponent == (1 << exponent_bits) - 1;
  if (last && has_infinity) {
    value = mantissa == 0 ? std::numeric_limits<long double>::infinity() : std::nanl("");
  } else if (last && mantissa == (1 << mantissa_bits) - 1) {
    value = std::nanl("");
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<long double>(mantissa), 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(static_cast<long double>(mantissa + (1 << mantissa_bits)),
                       exponent - bias - mantissa_bits);
  }
  return negative ? -value : value;
}

template <typename T>
T ReadAs(const unsigned char* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

inline long double ReferenceValue(DType dtype, const unsigned char* at) {
  switch (dtype) {
    case DType::kF64:
    case DType::kC128:
      return ReadAs<double>(at);
    case DType::kF32:
    case DType::kC64:
      return ReadAs<float>(at);
    case DType::kF16:
      return ReferenceSmallFloat(ReadAs<std::uint16_t>(at), 5, 10, true);
    case DType::kBf16:
      return ReferenceSmallFloat(ReadAs<std::uint16_t>(at), 8, 7, true);
    case DType::kF8E4M3:
      return ReferenceSmallFloat(*at, 4, 3, false);
    case DType::kF8E5M2:
      return ReferenceSmallFloat(*at, 5, 2, true);
    case DType::kI8:
      return ReadAs<std::int8_t>(at);
    case DType::kI16:
      return ReadAs<std::int16_t>(at);
    case DType::kI32:
      return ReadAs<std::int32_t>(at);
    case DType::kI64:
      return static_cast<double>(ReadAs<std::int64_t>(at));
    case DType::kU8:
      return *at;
    case DType::kU16:
      return ReadAs<std::uint16_t>(at);
    case DType::kU32:
      return ReadAs<std::uint32_t>(at);
    case DType::kU64:
      return static_cast<double>(ReadAs<std::uint64_t>(at));
    case DType::kBool:
      return *at != 0 ? 1 : 0;
    case DType::kUnspecified:
      break;
  }
  return std::nanl("");
}

struct ReferenceComponents {
  std::vector<long double> values;
  std::vector<unsigned char> bytes;  // packed in logical order; bools as 0 or 1
  std::size_t component_bytes = 0;
};

inline ReferenceComponents ComponentsOf(const CpuTensor& tensor) {
  ReferenceComponents out;
  const std::size_t parts = IsComplex(tensor.dtype) ? 2 : 1,
                    element_bytes = DTypeBytes(tensor.dtype);
  out.component_bytes = element_bytes / parts;
  std::uint64_t elements = 1;
  for (const std::int64_t size : tensor.shape) elements *= static_cast<std::uint64_t>(size);
  for (std::uint64_t element = 0; element < elements; ++element) {
    std::int64_t offset = 0, packed_stride = 1;
    std::uint64_t rest = element;
    for (std::size_t d = tensor.shape.size(); d-- > 0;) {
      const auto index =
          static_cast<std::int64_t>(rest % static_cast<std::uint64_t>(tensor.shape[d]));
      rest /= static_cast<std::uint64_t>(tensor.shape[d]);
      offset += index * (tensor.strides.empty() ? packed_stride : tensor.strides[d]);
      packed_stride *= tensor.shape[d];
    }
    const auto* at = static_cast<const unsigned char*>(tensor.data) +
                     offset * static_cast<std::int64_t>(element_bytes);
    for (std::size_t part = 0; part < parts; ++part, at += out.component_bytes) {
      out.values.push_back(ReferenceValue(tensor.dtype, at));
      for (std::size_t b = 0; b < out.component_bytes; ++b) {
        out.bytes.push_back(tensor.dtype == DType::kBool ? static_cast<unsigned char>(*at != 0)
                                                         : at[b]);
      }
    }
  }
  return out;
}

inline std::uint64_t ReferenceSplitMix(std::uint64_t z) {
  z ^= z >> 30;
  z *= 0xbf58476d1ce4e5b9ull;
  z ^= z >> 27;
  z *= 0x94d049bb133111ebull;
  z ^= z >> 31;
  return z;
}
inline std::uint64_t ReferenceSplitMixOutput(std::uint64_t seed, std::uint64_t n) {
  return ReferenceSplitMix(seed + (n + 1) * 0x9e3779b97f4a7c15ull);
}

// `index(i)`: of component i in the logical tensor.
using ReferenceIndex = std::function<std::uint64_t(std::uint64_t)>;

// Byte by byte: a byte at position p of the packed logical tensor is worth 2^(8 * (p % 4)) of its
// word.
inline std::uint64_t ReferenceHash(const ReferenceComponents& components,
                                   const ReferenceIndex& index) {
  std::uint64_t hash = 0;
  for (std::size_t at = 0; at < components.bytes.size(); ++at) {
    const std::uint64_t component = at / components.component_bytes;
    const std::uint64_t position =
        index(component) * components.component_bytes + at % components.component_bytes;
    const std::uint64_t word = position / 4;
    const std::uint64_t key =
        ReferenceSplitMixOutput(0x5354415448415348ull, word % 512) % (1ull << 32) | 1;
    const std::uint64_t factor = ReferenceSplitMixOutput(0x53544154424c4f43ull, word / 512) | 1;
    hash +=
        factor * key * (static_cast<std::uint64_t>(components.bytes[at]) << (8 * (position % 4)));
  }
  return hash;
}
inline std::uint64_t ReferenceHash(const ReferenceComponents& components, std::uint64_t first = 0) {
  return ReferenceHash(components, [&](std::uint64_t i) { return first + i; });
}

// Product in the field of eight elements, modulo x^3 + x + 1, by shift and add.
inline unsigned ReferenceFieldProduct(unsigned a, unsigned b) {
  unsigned product = 0;
  for (; b != 0; b /= 2) {
    if (b % 2 != 0) product ^= a;
    a *= 2;
    if (a >= 8) a ^= 11;
  }
  return product;
}

inline std::vector<long double> ReferenceSketch(const ReferenceComponents& components,
                                                std::uint32_t width, const ReferenceIndex& index) {
  std::vector<long double> sums(width, 0);
  for (std::size_t c = 0; c < components.values.size(); ++c) {
    if (!std::isfinite(components.values[c])) continue;
    const std::uint64_t i = index(c);
    const auto lane = static_cast<unsigned>(i % 16);
    const std::uint64_t group = i / 16, block = group / 128, fold = group % 16;
    const auto row = static_cast<unsigned>(group / 16 % 8);
    const std::uint64_t mix = ReferenceSplitMixOutput(0x53544154534b4554ull, 4 * block + fold / 4);
    const auto bits = static_cast<unsigned>(mix / (1ull << (16 * (fold % 4))) % 65536);
    const unsigned rotation = bits % 16, bank = bits / 16 % (width / 16), frame = bits / 256 % 8;
    const unsigned hadamard_row = ReferenceFieldProduct(frame, 1 + lane % 7) ^ (lane / 2 % 8);
    int minus = bits >= 32768 ? 1 : 0;
    for (unsigned both = hadamard_row & row; both != 0; both /= 2)
      minus += static_cast<int>(both % 2);
    if (row == lane % 8) ++minus;
    sums[16 * bank + (lane + rotation) % 16] +=
        minus % 2 != 0 ? -components.values[c] : components.values[c];
  }
  return sums;
}
inline std::vector<long double> ReferenceSketch(const ReferenceComponents& components,
                                                std::uint32_t width, std::uint64_t first = 0) {
  return ReferenceSketch(components, width, [&](std::uint64_t i) { return first + i; });
}

struct ReferenceStats {
  std::uint64_t nan = 0, pos_inf = 0, neg_inf = 0, zero = 0, neg = 0, pos = 0, finite = 0;
  long double min = 0, max = 0, mean = 0, std = 0, l1 = 0, l2 = 0, rms = 0;
};

// Two passes in long double, whose exponents reach far enough for every square.
inline ReferenceStats StatsOf(const ReferenceComponents& components) {
  ReferenceStats stats;
  long double sum = 0, squares = 0, deviations = 0;
  for (const long double x : components.values) {
    if (std::isnan(x)) ++stats.nan;
    if (std::isinf(x)) ++(x > 0 ? stats.pos_inf : stats.neg_inf);
    if (!std::isfinite(x)) continue;
    ++(x == 0 ? stats.zero : x < 0 ? stats.neg : stats.pos);
    stats.min = stats.finite == 0 ? x : std::min(stats.min, x);
    stats.max = stats.finite == 0 ? x : std::max(stats.max, x);
    ++stats.finite;
    sum += x;
    stats.l1 += std::fabs(x);
    squares += x * x;
  }
  if (stats.finite == 0) return stats;
  const auto n = static_cast<long double>(stats.finite);
  stats.mean = sum / n;
  // Again about the rounded mean, whose own error counts where all values are nearly equal.
  long double correction = 0;
  for (const long double x : components.values) {
    if (std::isfinite(x)) correction += x - stats.mean;
  }
  stats.mean += correction / n;
  for (const long double x : components.values) {
    if (std::isfinite(x)) deviations += (x - stats.mean) * (x - stats.mean);
  }
  stats.std = std::sqrt(deviations / n);
  stats.l2 = std::sqrt(squares);
  stats.rms = std::sqrt(squares / n);
  return stats;
}

// --- the engine, briefly

struct Computed {
  TensorStats stats;
  std::vector<double> sketch, samples;
};

inline Computed Compute(const CpuTensor& tensor, std::uint32_t sketch_width = 16,
                        std::size_t samples = 0) {
  Computed computed;
  computed.sketch.resize(sketch_width, -1);
  computed.samples.resize(samples);
  std::uint32_t written = 0;
  computed.stats = ComputeCpu(tensor, computed.sketch, computed.samples, &written);
  computed.samples.resize(written);
  return computed;
}
inline Computed Compute(const TestTensor& tensor, std::uint32_t sketch_width = 16,
                        std::size_t samples = 0) {
  return Compute(tensor.View(), sketch_width, samples);
}
inline std::uint64_t HashOf(const TestTensor& tensor) { return Compute(tensor, 0).stats.hash; }

// --- random contents

// Bits at random: every value the dtype has, NaN payloads included.
inline TestTensor RandomBits(DType dtype, std::vector<std::int64_t> shape,
                             std::mt19937_64& random) {
  std::size_t elements = 1;
  for (const std::int64_t size : shape) elements *= static_cast<std::size_t>(size);
  TestTensor tensor{dtype, std::move(shape), {}, 0, {}};
  tensor.storage.resize(elements * DTypeBytes(dtype) / 8 + 2);
  for (std::uint64_t& word : tensor.storage) word = random();
  return tensor;
}

// Ordinary numbers of the dtype: normally distributed floats, any integers.
inline TestTensor RandomNumbers(DType dtype, std::vector<std::int64_t> shape,
                                std::mt19937_64& random) {
  TestTensor tensor = RandomBits(dtype, std::move(shape), random);
  std::normal_distribution<double> normal;
  auto* bytes = reinterpret_cast<unsigned char*>(tensor.storage.data());
  const std::size_t size = tensor.storage.size() * 8;
  const auto fill = [&](auto number, auto make) {
    for (std::size_t at = 0; at + sizeof(number) <= size; at += sizeof(number)) {
      number = make();
      std::memcpy(bytes + at, &number, sizeof(number));
    }
  };
  if (dtype == DType::kF64 || dtype == DType::kC128) fill(double{}, [&] { return normal(random); });
  if (dtype == DType::kF32 || dtype == DType::kC64)
    fill(float{}, [&] { return static_cast<float>(normal(random)); });
  // Exponents in the middle of each narrow type's range.
  if (dtype == DType::kF16)
    fill(std::uint16_t{}, [&] {
      return static_cast<std::uint16_t>((random() & 0x83ff) | (0x2c00 + (random() % 6 << 10)));
    });
  if (dtype == DType::kBf16)
    fill(std::uint16_t{}, [&] {
      return static_cast<std::uint16_t>((random() & 0x807f) | (0x3d80 + (random() % 6 << 7)));
    });
  if (dtype == DType::kF8E4M3)
    fill(std::uint8_t{},
         [&] { return static_cast<std::uint8_t>((random() & 0x87) | ((3 + random() % 6) << 3)); });
  if (dtype == DType::kF8E5M2)
    fill(std::uint8_t{},
         [&] { return static_cast<std::uint8_t>((random() & 0x83) | ((11 + random() % 6) << 2)); });
  return tensor;
}

}  // namespace statcollect::stats

#endif  // STATCOLLECT_TESTS_AGENT_STATS_TEST_TENSOR_H_
