// A well-mixing bijection of 64 bits: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
#ifndef STATCOLLECT_COMMON_MIX_BITS_H_
#define STATCOLLECT_COMMON_MIX_BITS_H_

#include <cstdint>

namespace statcollect {

constexpr std::uint64_t MixBits(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_MIX_BITS_H_
