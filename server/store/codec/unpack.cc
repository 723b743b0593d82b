#include "server/store/codec/unpack.h"

#include <algorithm>
#include <cassert>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace statcollect {

#if defined(__x86_64__)

namespace {

constexpr unsigned kWidest = 57;  // eight bytes hold such a number, wherever in the first of them it begins
constexpr std::size_t kLanes = 8;

// All lanes. g++ 12 warns of the unmasked forms of what takes a mask, whose headers read an uninitialized vector.
constexpr __mmask8 kAll = 0xff;
constexpr __mmask64 kAllBytes = ~__mmask64{0};

#define STATCOLLECT_VBMI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vbmi")))

bool HasVbmi() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi");
  return has;
}

// Eight numbers are `width` bytes, so each eight begin at a whole byte, and one load has them all. A permutation moves
// the bytes of each number to its lane.
STATCOLLECT_VBMI void UnpackWithPermutation(const char* from, unsigned width, std::uint64_t base,
                                            unsigned shift, std::uint64_t* to, std::size_t count) {
  const __m512i lanes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i first_bits = _mm512_mullo_epi64(lanes, _mm512_set1_epi64(width));
  const __m512i skip = _mm512_and_si512(first_bits, _mm512_set1_epi64(7));
  // The number of the first byte, at most 50, in each of the lane's eight bytes, and then 0 .. 7 added to them.
  const __m512i first_byte =
      _mm512_mullo_epi64(_mm512_maskz_srli_epi64(kAll, first_bits, 3), _mm512_set1_epi64(0x0101010101010101));
  const __m512i bytes = _mm512_add_epi8(first_byte, _mm512_set1_epi64(0x0706050403020100));
  const __m512i mask = _mm512_set1_epi64(static_cast<long long>((std::uint64_t{1} << width) - 1));
  const __m512i bases = _mm512_set1_epi64(static_cast<long long>(base));
  const __m128i left = _mm_cvtsi32_si128(static_cast<int>(shift));
  for (std::size_t i = 0; i < count; i += kLanes, from += width) {
    const std::size_t there = std::min(kLanes, count - i);
    const std::size_t length = (there * width + 7) / 8;
    const __m512i loaded = _mm512_maskz_loadu_epi8((std::uint64_t{1} << length) - 1, from);
    const __m512i apart =
        _mm512_maskz_srlv_epi64(kAll, _mm512_maskz_permutexvar_epi8(kAllBytes, bytes, loaded), skip);
    const __m512i shifted = _mm512_maskz_sll_epi64(kAll, _mm512_and_si512(apart, mask), left);
    _mm512_mask_storeu_epi64(to + i, static_cast<__mmask8>((1u << there) - 1),
                             _mm512_add_epi64(bases, shifted));
  }
}

}  // namespace

bool UnpacksWide(unsigned width) { return width <= kWidest && HasVbmi(); }

void UnpackWide(std::string_view bits, unsigned width, std::uint64_t base, unsigned shift,
                std::span<std::uint64_t> numbers) {
  assert(UnpacksWide(width) && shift < 64 && bits.size() >= (numbers.size() * width + 7) / 8);
  UnpackWithPermutation(bits.data(), width, base, shift, numbers.data(), numbers.size());
}

#else

bool UnpacksWide(unsigned) { return false; }
void UnpackWide(std::string_view, unsigned, std::uint64_t, unsigned, std::span<std::uint64_t>) {
  assert(false);
}

#endif

}  // namespace statcollect
