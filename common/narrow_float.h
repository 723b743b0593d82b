// Values of the narrow float types (bfloat16, float16, float8), exactly, on host and device. U:
// 32-bit unsigned, or a vector of them, with the type's bits in the lowest places; F: float, or as
// wide a vector.
#ifndef STATCOLLECT_COMMON_NARROW_FLOAT_H_
#define STATCOLLECT_COMMON_NARROW_FLOAT_H_

#include <cstring>

#if defined(__CUDACC__)
#define STATCOLLECT_HD __host__ __device__ __forceinline__
#else
// Always inlined: the translation units for different instruction sets must not share an
// out-of-line copy.
#define STATCOLLECT_HD inline __attribute__((always_inline))
#endif

namespace statcollect {

template <typename To, typename From>
STATCOLLECT_HD To BitsAs(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <typename F, typename U>
STATCOLLECT_HD F FloatOfBf16(const U& bits) {
  const U shifted = bits << 16;
  return BitsAs<F>(shifted);
}

// The magnitude's bits, moved to float's places, read as a float that is 2^112 too small,
// subnormals included; infinities and NaN (exponent 31) get float's exponent instead.
template <typename F, typename U>
STATCOLLECT_HD F FloatOfF16(const U& bits) {
  const U magnitude = (bits & 0x7fffu) << 13;
  const F scaled = BitsAs<F>(magnitude) * 0x1p112f;
  const U finite = BitsAs<U>(scaled);
  const U special = magnitude | 0x7f800000u;
  const U result = ((bits & 0x7c00u) == 0x7c00u ? special : finite) | ((bits & 0x8000u) << 16);
  return BitsAs<F>(result);
}

// Upper byte of a float16.
template <typename F, typename U>
STATCOLLECT_HD F FloatOfF8E5M2(const U& bits) {
  const U half = bits << 8;
  return FloatOfF16<F, U>(half);
}

// "fn": no infinities; NaN is 0x7f and 0xff.
template <typename F, typename U>
STATCOLLECT_HD F FloatOfF8E4M3(const U& bits) {
  const U magnitude = (bits & 0x7fu) << 20;
  const F scaled = BitsAs<F>(magnitude) * 0x1p120f;
  const U finite = BitsAs<U>(scaled);
  const U nan = magnitude | 0x7fc00000u;
  const U result = ((bits & 0x7fu) == 0x7fu ? nan : finite) | ((bits & 0x80u) << 24);
  return BitsAs<F>(result);
}

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_NARROW_FLOAT_H_
