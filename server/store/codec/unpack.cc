#include "server/store/codec/unpack.h"

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace statcollect {

#if defined(__x86_64__)

namespace {

constexpr unsigned kWidest =
    57;  // eight bytes hold such a number, wherever in the first of them it begins
constexpr std::size_t kLanes = 8;

// All lanes. g++ 12 warns of the unmasked forms of what takes a mask, whose headers read an
// uninitialized vector.
constexpr __mmask8 kAll = 0xff;
constexpr __mmask64 kAllBytes = ~__mmask64{0};

#define STATCOLLECT_VBMI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vbmi")))

bool HasVbmi() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vbmi");
  return has;
}

// Where eight numbers of a width begin in as many bytes as the width is bits.
struct alignas(64) Places {
  std::array<std::uint8_t, 64> bytes;      // eight of each number, from the one it begins in
  std::array<std::uint64_t, kLanes> skip;  // bits before it in the first of them
};

constexpr std::array<Places, kWidest + 1> MakePlaces() {
  std::array<Places, kWidest + 1> all{};
  for (std::size_t width = 0; width <= kWidest; ++width) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      all[width].skip[lane] = lane * width % 8;
      for (std::size_t i = 0; i < 8; ++i)
        all[width].bytes[lane * 8 + i] = static_cast<std::uint8_t>(lane * width / 8 + i);
    }
  }
  return all;
}

constexpr std::array<Places, kWidest + 1> kPlaces = MakePlaces();

// Eight numbers are `width` bytes, so each eight begin at a whole byte, and one load has them all.
// A permutation moves the bytes of each number to its lane.
STATCOLLECT_VBMI void UnpackWithPermutation(const char* from, unsigned width, std::uint64_t base,
                                            unsigned shift, std::uint64_t* to, std::size_t count) {
  const __m512i bytes = _mm512_load_si512(kPlaces[width].bytes.data());
  const __m512i skip = _mm512_load_si512(kPlaces[width].skip.data());
  const __m512i mask = _mm512_set1_epi64(static_cast<long long>((std::uint64_t{1} << width) - 1));
  const __m512i bases = _mm512_set1_epi64(static_cast<long long>(base));
  const __m128i left = _mm_cvtsi32_si128(static_cast<int>(shift));
  const auto all_at = [&](const __m512i loaded) STATCOLLECT_VBMI {
    const __m512i apart = _mm512_maskz_srlv_epi64(
        kAll, _mm512_maskz_permutexvar_epi8(kAllBytes, bytes, loaded), skip);
    return _mm512_add_epi64(bases,
                            _mm512_maskz_sll_epi64(kAll, _mm512_and_si512(apart, mask), left));
  };
  const __mmask64 load = (std::uint64_t{1} << width) - 1;
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes, from += width)
    _mm512_storeu_si512(to + i, all_at(_mm512_maskz_loadu_epi8(load, from)));
  if (i == count) return;
  const __mmask64 load_last = (std::uint64_t{1} << ((count - i) * width + 7) / 8) - 1;
  _mm512_mask_storeu_epi64(to + i, static_cast<__mmask8>((1u << (count - i)) - 1),
                           all_at(_mm512_maskz_loadu_epi8(load_last, from)));
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
