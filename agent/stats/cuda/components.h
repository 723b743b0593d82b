// What the components of each dtype are worth, sixteen bytes at a time. A type here describes one
// dtype to the templates of piece.h:
//   kBytes     of a component
//   kWide      its values need float64; else float32 holds them exactly
//   kAlwaysInRange no piece needs the float64 path
//   kExactSums the sum of a lane's components in a piece is exact in float32 if their magnitudes
//   lie close
//              together (at most 16 significant bits; see piece.h)
//   Clean      a vector as it is hashed and read
//   Value      component j of a vector
//   Range      smallest and largest value seen, NaN once one was seen
//   Signs      whether there was a zero, and how many sign bits were set
#ifndef STATCOLLECT_AGENT_STATS_CUDA_COMPONENTS_H_
#define STATCOLLECT_AGENT_STATS_CUDA_COMPONENTS_H_

#include <cmath>
#include <cstdint>

#include "agent/stats/accumulate.h"
#include "agent/stats/cuda/layout.h"
#include "common/types.h"

namespace statcollect::stats::cuda {

// NaN if either is.
STATCOLLECT_WARP float MinWithNan(float a, float b) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return a != a || b != b ? __builtin_nanf("") : b < a ? b : a;
#endif
}

STATCOLLECT_WARP float MaxWithNan(float a, float b) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return a != a || b != b ? __builtin_nanf("") : b > a ? b : a;
#endif
}

inline constexpr float kFloatInfinity = __builtin_huge_valf();

// For components that are taken one by one.
template <typename Component>
struct PlainRange {
  float min = kFloatInfinity, max = -kFloatInfinity;

  STATCOLLECT_WARP void Add(const Vector& vector) {
    STATCOLLECT_UNROLL
    for (int j = 0; j < kVectorBytes / Component::kBytes; ++j) {
      const float value = Component::Value(vector, j);
      min = MinWithNan(min, value);
      max = MaxWithNan(max, value);
    }
  }
  STATCOLLECT_WARP float Min() const { return min; }
  STATCOLLECT_WARP float Max() const { return max; }
};

// For components that are taken one by one: the smallest magnitude, and how many sign bits are set.
template <typename Component>
struct PlainSigns {
  float smallest = kFloatInfinity;
  std::uint32_t negatives = 0;

  STATCOLLECT_WARP void Add(const Vector& vector) {
    STATCOLLECT_UNROLL
    for (int j = 0; j < kVectorBytes / Component::kBytes; ++j) {
      const float value = Component::Value(vector, j);
      smallest = fminf(smallest, fabsf(value));
      negatives += BitsAs<std::uint32_t>(value) >> 31;
    }
  }
  STATCOLLECT_WARP bool AnyZero() const { return smallest == 0; }
  STATCOLLECT_WARP std::uint32_t Negatives() const { return negatives; }
};

// Bytes 1 and 3 of both words, each as its sign bit repeated.
STATCOLLECT_WARP std::uint32_t SignsOfHalves(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  std::uint32_t result;
  asm("prmt.b32 %0, %1, %2, 0xfdb9;" : "=r"(result) : "r"(a), "r"(b));
  return result;
#else
  const std::uint32_t bits =
      ((a >> 15) & 1) | ((a >> 31) << 8) | ((b << 1) & 0x10000) | ((b >> 31) << 24);
  return bits * 0xff;
#endif
}

// `count` plus the number of bytes that are -1, of bytes that are -1 or 0.
STATCOLLECT_WARP std::uint32_t AddBytes(std::uint32_t bytes, std::uint32_t count) {
#if defined(__CUDA_ARCH__)
  std::uint32_t result;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(bytes), "r"(0xffffffffu), "r"(count));
  return result;
#else
  return count + static_cast<std::uint32_t>(__builtin_popcount(bytes & 0x01010101u));
#endif
}

// Smaller ones of the halves of `smallest` and of the magnitudes of `word`, both read as float16:
// of other types it tells only whether one is 0. What is NaN as float16 is left out.
STATCOLLECT_WARP std::uint32_t SmallestHalves(std::uint32_t smallest, std::uint32_t word) {
#if defined(__CUDA_ARCH__)
  std::uint32_t result;
  asm("{.reg .b32 magnitudes;\n abs.f16x2 magnitudes, %2;\n min.f16x2 %0, %1, magnitudes;}"
      : "=r"(result)
      : "r"(smallest), "r"(word));
  return result;
#else
  const std::uint32_t lower = word & 0x7fffu, upper = word & 0x7fff0000u;
  const std::uint32_t so_far = smallest & 0xffffu;
  return (lower < so_far ? lower : so_far) |
         (upper < (smallest & 0xffff0000u) ? upper : smallest & 0xffff0000u);
#endif
}

// Two 16-bit floats in a word. `Kind` has the format's names for PTX.
template <typename Component>
struct PackedRange {
  std::uint32_t min = Component::kInfinity * 0x10001u,
                max = (Component::kInfinity | 0x8000u) * 0x10001u;

  STATCOLLECT_WARP void Add(const Vector& vector) {
    STATCOLLECT_UNROLL
    for (const std::uint32_t word : vector.words) {
      min = Component::Min2(min, word);
      max = Component::Max2(max, word);
    }
  }
  STATCOLLECT_WARP float Min() const {
    return MinWithNan(Component::Lower(min), Component::Upper(min));
  }
  STATCOLLECT_WARP float Max() const {
    return MaxWithNan(Component::Lower(max), Component::Upper(max));
  }
};

template <typename Component>
struct PackedSigns {
  std::uint32_t smallest = 0x7c007c00u;  // infinities
  std::uint32_t negatives = 0;

  STATCOLLECT_WARP void Add(const Vector& vector) {
    STATCOLLECT_UNROLL
    for (int i = 0; i < 4; i += 2) {
      smallest = SmallestHalves(SmallestHalves(smallest, vector.words[i]), vector.words[i + 1]);
      negatives = AddBytes(SignsOfHalves(vector.words[i], vector.words[i + 1]), negatives);
    }
  }
  STATCOLLECT_WARP bool AnyZero() const { return (smallest & 0xffffu) == 0 || smallest >> 16 == 0; }
  STATCOLLECT_WARP std::uint32_t Negatives() const { return negatives; }
};

// --- one type a dtype

struct Clear {
  STATCOLLECT_WARP static Vector Clean(const Vector& vector) { return vector; }
};

struct F32 : Clear {
  static constexpr int kBytes = 4;
  static constexpr bool kWide = false, kAlwaysInRange = false, kExactSums = false;
  using Range = PlainRange<F32>;
  using Signs = PlainSigns<F32>;
  STATCOLLECT_WARP static float Value(const Vector& vector, int j) {
    return BitsAs<float>(vector.words[j]);
  }
};

// What Bf16 and F16 share. Comparisons of NaN are false; only pieces without NaN are counted so.
template <typename Component>
struct Half : Clear {
  static constexpr int kBytes = 2;
  static constexpr bool kWide = false, kAlwaysInRange = false, kExactSums = true;
  using Range = PackedRange<Component>;
  using Signs = PackedSigns<Component>;
  STATCOLLECT_WARP static float Value(const Vector& vector, int j) {
    const std::uint32_t word = vector.words[j / 2];
    return j % 2 == 0 ? Component::Lower(word) : Component::Upper(word);
  }
  // What the device has instructions for.
  template <typename Choose>
  STATCOLLECT_WARP static std::uint32_t ChooseHalves(std::uint32_t a, std::uint32_t b,
                                                     const Choose& takes_b) {
    const auto half = [&](float x, float y, std::uint32_t of_a,
                          std::uint32_t of_b) -> std::uint32_t {
      if (x != x || y != y) return 0x7fff;
      return takes_b(x, y) ? of_b : of_a;
    };
    const std::uint32_t lower =
        half(Component::Lower(a), Component::Lower(b), a & 0xffff, b & 0xffff);
    return lower | half(Component::Upper(a), Component::Upper(b), a >> 16, b >> 16) << 16;
  }
};

struct Bf16 : Half<Bf16> {
  static constexpr std::uint32_t kInfinity = 0x7f80;
  STATCOLLECT_WARP static float Lower(std::uint32_t word) { return BitsAs<float>(word << 16); }
  STATCOLLECT_WARP static float Upper(std::uint32_t word) {
    return BitsAs<float>(word & 0xffff0000u);
  }
#if defined(__CUDA_ARCH__)
  STATCOLLECT_WARP static std::uint32_t Min2(std::uint32_t a, std::uint32_t b) {
    std::uint32_t result;
    asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
  }
  STATCOLLECT_WARP static std::uint32_t Max2(std::uint32_t a, std::uint32_t b) {
    std::uint32_t result;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
  }
#else
  STATCOLLECT_WARP static std::uint32_t Min2(std::uint32_t a, std::uint32_t b) {
    return ChooseHalves(a, b, [](float x, float y) { return y < x; });
  }
  STATCOLLECT_WARP static std::uint32_t Max2(std::uint32_t a, std::uint32_t b) {
    return ChooseHalves(a, b, [](float x, float y) { return y > x; });
  }
#endif
};

struct F16 : Half<F16> {
  static constexpr std::uint32_t kInfinity = 0x7c00;
#if defined(__CUDA_ARCH__)
  STATCOLLECT_WARP static float Lower(std::uint32_t word) {
    float result;
    asm("{.reg .b16 lower, upper;\n mov.b32 {lower, upper}, %1;\n cvt.f32.f16 %0, lower;}"
        : "=f"(result)
        : "r"(word));
    return result;
  }
  STATCOLLECT_WARP static float Upper(std::uint32_t word) {
    float result;
    asm("{.reg .b16 lower, upper;\n mov.b32 {lower, upper}, %1;\n cvt.f32.f16 %0, upper;}"
        : "=f"(result)
        : "r"(word));
    return result;
  }
  STATCOLLECT_WARP static std::uint32_t Min2(std::uint32_t a, std::uint32_t b) {
    std::uint32_t result;
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
  }
  STATCOLLECT_WARP static std::uint32_t Max2(std::uint32_t a, std::uint32_t b) {
    std::uint32_t result;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
  }
#else
  STATCOLLECT_WARP static float Lower(std::uint32_t word) {
    const std::uint32_t half = word & 0xffff;
    return FloatOfF16<float>(half);
  }
  STATCOLLECT_WARP static float Upper(std::uint32_t word) {
    const std::uint32_t half = word >> 16;
    return FloatOfF16<float>(half);
  }
  STATCOLLECT_WARP static std::uint32_t Min2(std::uint32_t a, std::uint32_t b) {
    return ChooseHalves(a, b, [](float x, float y) { return y < x; });
  }
  STATCOLLECT_WARP static std::uint32_t Max2(std::uint32_t a, std::uint32_t b) {
    return ChooseHalves(a, b, [](float x, float y) { return y > x; });
  }
#endif
};

STATCOLLECT_WARP std::uint32_t ByteOf(const Vector& vector, int j) {
  return (vector.words[j / 4] >> (8 * (j % 4))) & 0xffu;
}

STATCOLLECT_WARP std::uint32_t HalfOf(const Vector& vector, int j) {
  return (vector.words[j / 2] >> (16 * (j % 2))) & 0xffffu;
}

template <typename Component, int kComponentBytes, bool kIsInteger>
struct Narrow : Clear {
  static constexpr int kBytes = kComponentBytes;
  static constexpr bool kWide = false, kAlwaysInRange = kIsInteger, kExactSums = true;
  using Range = PlainRange<Component>;
  using Signs = PlainSigns<Component>;
};

struct F8E4M3 : Narrow<F8E4M3, 1, false> {
  STATCOLLECT_WARP static float Value(const Vector& vector, int j) {
    return FloatOfF8E4M3<float>(ByteOf(vector, j));
  }
};

struct F8E5M2 : Narrow<F8E5M2, 1, false> {
  STATCOLLECT_WARP static float Value(const Vector& vector, int j) {
    return FloatOfF8E5M2<float>(ByteOf(vector, j));
  }
};

// The bits of 2^23 + n, n < 2^23, read as a float: cheaper than the conversion instruction.
STATCOLLECT_WARP float FloatFromBelow2To23(std::uint32_t n, float zero) {
  return BitsAs<float>(0x4b000000u | n) - (0x1p23f + zero);
}

struct I8 : Narrow<I8, 1, true> {
  STATCOLLECT_WARP static float Value(const Vector& vector, int j) {
    return FloatFromBelow2To23(ByteOf(vector, j) ^ 0x80u, 128);
  }
};

struct U8 : Narrow<U8, 1, true> {
  STATCOLLECT_WARP static float Value(const Vector& vector, int j) {
    return FloatFromBelow2To23(ByteOf(vector, j), 0);
  }
};

struct Bool : U8 {
  using Range = PlainRange<Bool>;
  using Signs = PlainSigns<Bool>;
  STATCOLLECT_WARP static Vector Clean(const Vector& vector) {
    Vector clean;
    STATCOLLECT_UNROLL
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t word = vector.words[i];
      clean.words[i] = ((word | ((word & 0x7f7f7f7fu) + 0x7f7f7f7fu)) >> 7) & 0x01010101u;
    }
    return clean;
  }
};

struct I16 : Narrow<I16, 2, true> {
  STATCOLLECT_WARP static float Value(const Vector& vector, int j) {
    return FloatFromBelow2To23(HalfOf(vector, j) ^ 0x8000u, 32768);
  }
};

struct U16 : Narrow<U16, 2, true> {
  STATCOLLECT_WARP static float Value(const Vector& vector, int j) {
    return FloatFromBelow2To23(HalfOf(vector, j), 0);
  }
};

template <int kComponentBytes>
struct Wide : Clear {
  static constexpr int kBytes = kComponentBytes;
  static constexpr bool kWide = true, kAlwaysInRange = false, kExactSums = false;
};

STATCOLLECT_WARP std::uint64_t Word64Of(const Vector& vector, int j) {
  return vector.words[2 * j] | static_cast<std::uint64_t>(vector.words[2 * j + 1]) << 32;
}

struct F64 : Wide<8> {
  STATCOLLECT_WARP static double Value(const Vector& vector, int j) {
    return BitsAs<double>(Word64Of(vector, j));
  }
};

struct I64 : Wide<8> {
  STATCOLLECT_WARP static double Value(const Vector& vector, int j) {
    return static_cast<double>(static_cast<std::int64_t>(Word64Of(vector, j)));
  }
};

struct U64 : Wide<8> {
  STATCOLLECT_WARP static double Value(const Vector& vector, int j) {
    return static_cast<double>(Word64Of(vector, j));
  }
};

struct I32 : Wide<4> {
  STATCOLLECT_WARP static double Value(const Vector& vector, int j) {
    return static_cast<double>(static_cast<std::int32_t>(vector.words[j]));
  }
};

struct U32 : Wide<4> {
  STATCOLLECT_WARP static double Value(const Vector& vector, int j) {
    return static_cast<double>(vector.words[j]);
  }
};

// Calls function(Component{}) for the components of `dtype`, complex ones' parts; false if there is
// no such dtype.
template <typename F>
bool WithComponent(DType dtype, F&& function) {
  switch (dtype) {
    case DType::kF64:
    case DType::kC128:
      return function(F64{}), true;
    case DType::kF32:
    case DType::kC64:
      return function(F32{}), true;
    case DType::kF16:
      return function(F16{}), true;
    case DType::kBf16:
      return function(Bf16{}), true;
    case DType::kF8E4M3:
      return function(F8E4M3{}), true;
    case DType::kF8E5M2:
      return function(F8E5M2{}), true;
    case DType::kI8:
      return function(I8{}), true;
    case DType::kI16:
      return function(I16{}), true;
    case DType::kI32:
      return function(I32{}), true;
    case DType::kI64:
      return function(I64{}), true;
    case DType::kU8:
      return function(U8{}), true;
    case DType::kU16:
      return function(U16{}), true;
    case DType::kU32:
      return function(U32{}), true;
    case DType::kU64:
      return function(U64{}), true;
    case DType::kBool:
      return function(Bool{}), true;
    case DType::kUnspecified:
      break;
  }
  return false;
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_COMPONENTS_H_
