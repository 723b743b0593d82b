// The binary exponent of a number, for host and device alike.
#ifndef STATCOLLECT_AGENT_STATS_EXPONENT_OF_H_
#define STATCOLLECT_AGENT_STATS_EXPONENT_OF_H_

#include <cstdint>

#include "agent/stats/accumulate.h"

namespace statcollect::stats {

// Of 0, infinities and NaN.
inline constexpr std::int32_t kNoExponent = INT32_MIN;

// Exponents that finite float64 numbers have, subnormals included.
inline constexpr std::int32_t kExponentMin = -1074, kExponentMax = 1023;
inline constexpr std::uint32_t kExponentCount = kExponentMax - kExponentMin + 1;

// Number of the highest set bit. Precondition: there is one.
STATCOLLECT_HD std::int32_t HighestBit(std::uint64_t bits) {
#if defined(__CUDA_ARCH__)
  return 63 - __clzll(static_cast<long long>(bits));
#else
  return 63 - __builtin_clzll(bits);
#endif
}

// floor(log2(|value|)), from the bits: no rounding mode or flushing of subnormals changes it.
STATCOLLECT_HD std::int32_t ExponentOf(float value) {
  const auto bits = BitsAs<std::uint32_t>(value);
  const std::uint32_t field = bits >> 23 & 0xff, significand = bits & 0x7fffff;
  if (field == 0xff) return kNoExponent;
  if (field != 0) return static_cast<std::int32_t>(field) - 127;
  return significand == 0 ? kNoExponent : HighestBit(significand) - 149;
}

STATCOLLECT_HD std::int32_t ExponentOf(double value) {
  const auto bits = BitsAs<std::uint64_t>(value);
  const std::uint64_t field = bits >> 52 & 0x7ff, significand = bits & 0xf'ffff'ffff'ffff;
  if (field == 0x7ff) return kNoExponent;
  if (field != 0) return static_cast<std::int32_t>(field) - 1023;
  return significand == 0 ? kNoExponent : HighestBit(significand) - 1074;
}

// Where an exponent is counted: lowest + i at i, what lies beyond at the ends. Precondition: bins >
// 0, it is one.
STATCOLLECT_HD std::uint32_t BinOf(std::int32_t exponent, std::int32_t lowest, std::uint32_t bins) {
  if (exponent <= lowest) return 0;
  const auto bin = static_cast<std::uint32_t>(exponent - lowest);
  return bin < bins ? bin : bins - 1;
}

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_EXPONENT_OF_H_
