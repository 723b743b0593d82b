#include "common/checksum.h"

#include <array>
#include <cstddef>

#include "common/endian.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace statcollect {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli, reflected
constexpr std::size_t kSlices = 8;

using Tables = std::array<std::array<std::uint32_t, 256>, kSlices>;

// tables[s][b]: what byte b contributes when s further bytes follow it in the word being folded.
constexpr Tables MakeTables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t slice = 1; slice < kSlices; ++slice) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t previous = tables[slice - 1][byte];
      tables[slice][byte] = (previous >> 8) ^ tables[0][previous & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

// Eight bytes at a time ("slicing-by-8", Kounavis and Berry, 2005).
std::uint32_t FoldWord(std::uint64_t word, std::uint32_t crc) {
  word ^= crc;
  std::uint32_t folded = 0;
  for (std::size_t i = 0; i < kSlices; ++i)
    folded ^= kTables[kSlices - 1 - i][(word >> (8 * i)) & 0xff];
  return folded;
}

// The checksum's register after `bytes`, from the register `crc`.
std::uint32_t FoldPortably(std::string_view bytes, std::uint32_t crc) {
  while (bytes.size() >= kSlices) {
    crc = FoldWord(LoadLittleEndian<std::uint64_t>(bytes.data()), crc);
    bytes.remove_prefix(kSlices);
  }
  for (const char c : bytes)
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return crc;
}

#if defined(__x86_64__)

// The instruction gives a result every cycle, but each waits three for the one before: three lanes
// at once.
constexpr std::size_t kLane = 256;  // bytes

using ShiftTables = std::array<std::array<std::uint32_t, 256>, 4>;

// tables[i][b]: the register that has b in its byte i, after kLane bytes of zero. Shifting is
// linear over xor.
constexpr ShiftTables MakeShiftTables() {
  std::array<std::uint32_t, 32> of_bit{};
  for (std::size_t bit = 0; bit < 32; ++bit) {
    std::uint32_t crc = std::uint32_t{1} << bit;
    for (std::size_t i = 0; i < kLane; ++i) crc = (crc >> 8) ^ kTables[0][crc & 0xff];
    of_bit[bit] = crc;
  }
  ShiftTables tables{};
  for (std::size_t byte = 0; byte < 4; ++byte) {
    for (std::size_t value = 0; value < 256; ++value) {
      for (std::size_t bit = 0; bit < 8; ++bit) {
        if ((value >> bit & 1) != 0) tables[byte][value] ^= of_bit[8 * byte + bit];
      }
    }
  }
  return tables;
}

constexpr ShiftTables kShift = MakeShiftTables();

std::uint32_t ShiftByLane(std::uint32_t crc) {
  return kShift[0][crc & 0xff] ^ kShift[1][crc >> 8 & 0xff] ^ kShift[2][crc >> 16 & 0xff] ^
         kShift[3][crc >> 24];
}

__attribute__((target("sse4.2"))) std::uint32_t FoldWithInstruction(std::string_view bytes,
                                                                    std::uint32_t seed) {
  const auto word = [](const char* from) { return LoadLittleEndian<std::uint64_t>(from); };
  std::uint64_t crc = seed;
  for (; bytes.size() >= 3 * kLane; bytes.remove_prefix(3 * kLane)) {
    std::uint64_t second = 0, third = 0;
    for (const char* at = bytes.data(); at != bytes.data() + kLane; at += 8) {
      crc = _mm_crc32_u64(crc, word(at));
      second = _mm_crc32_u64(second, word(at + kLane));
      third = _mm_crc32_u64(third, word(at + 2 * kLane));
    }
    const std::uint32_t two =
        ShiftByLane(static_cast<std::uint32_t>(crc)) ^ static_cast<std::uint32_t>(second);
    crc = ShiftByLane(two) ^ static_cast<std::uint32_t>(third);
  }
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) crc = _mm_crc32_u64(crc, word(bytes.data()));
  auto rest = static_cast<std::uint32_t>(crc);
  for (const char c : bytes) rest = _mm_crc32_u8(rest, static_cast<unsigned char>(c));
  return rest;
}

// Products without carries, 64 bytes at a time ("Fast CRC Computation ... Using PCLMULQDQ", Gopal
// et al., 2009): the bytes so far, as a polynomial, are multiplied by x^n modulo the CRC's, which
// moves them n bits on to the bytes there.
#define STATCOLLECT_VPCLMUL \
  __attribute__((target("avx512f,avx512bw,avx512dq,vpclmulqdq,pclmul,sse4.2")))

constexpr std::size_t kWide = 64, kWides = 4;  // bytes of a register, registers

// x^n modulo the polynomial, reflected as all else here, and shifted by the bit by which such a
// product is short.
constexpr long long PowerOfX(unsigned n) {
  std::uint32_t power = std::uint32_t{1} << 31;
  for (unsigned i = 0; i < n; ++i) power = (power >> 1) ^ ((power & 1) != 0 ? kPolynomial : 0);
  return static_cast<long long>(std::uint64_t{power} << 1);
}

bool HasWideProducts() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("vpclmulqdq") &&
                          __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.2");
  return has;
}

// Moves four times 16 bytes on by `kBits`, to where `there` is.
template <unsigned kBits>
STATCOLLECT_VPCLMUL __m512i FoldOnto(__m512i there, __m512i from) {
  constexpr long long kOfLow = PowerOfX(kBits + 32), kOfHigh = PowerOfX(kBits - 32);
  const __m512i powers =
      _mm512_set_epi64(kOfHigh, kOfLow, kOfHigh, kOfLow, kOfHigh, kOfLow, kOfHigh, kOfLow);
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(from, powers, 0x00),
                                   _mm512_clmulepi64_epi128(from, powers, 0x11), there,
                                   kXorOfThree);
}

STATCOLLECT_VPCLMUL __m128i FoldOnto(__m128i there, __m128i from) {
  constexpr long long kOfLow = PowerOfX(128 + 32), kOfHigh = PowerOfX(128 - 32);
  const __m128i powers = _mm_set_epi64x(kOfHigh, kOfLow);
  return _mm_xor_si128(there, _mm_xor_si128(_mm_clmulepi64_si128(from, powers, 0x00),
                                            _mm_clmulepi64_si128(from, powers, 0x11)));
}

// Precondition: at least kWides * kWide bytes.
STATCOLLECT_VPCLMUL std::uint32_t FoldWithProducts(std::string_view bytes, std::uint32_t crc) {
  const auto at = [&](std::size_t i) { return bytes.data() + i * kWide; };
  __m512i first = _mm512_xor_si512(
      _mm512_loadu_si512(at(0)), _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  __m512i second = _mm512_loadu_si512(at(1)), third = _mm512_loadu_si512(at(2)),
          fourth = _mm512_loadu_si512(at(3));
  constexpr unsigned kBits = 8 * kWide;
  bytes.remove_prefix(kWides * kWide);
  for (; bytes.size() >= kWides * kWide; bytes.remove_prefix(kWides * kWide)) {
    first = FoldOnto<kWides * kBits>(_mm512_loadu_si512(at(0)), first);
    second = FoldOnto<kWides * kBits>(_mm512_loadu_si512(at(1)), second);
    third = FoldOnto<kWides * kBits>(_mm512_loadu_si512(at(2)), third);
    fourth = FoldOnto<kWides * kBits>(_mm512_loadu_si512(at(3)), fourth);
  }
  fourth = FoldOnto<kBits>(fourth, FoldOnto<kBits>(third, FoldOnto<kBits>(second, first)));
  alignas(kWide) __m128i quarters[4];
  _mm512_store_si512(quarters, fourth);
  const __m128i last =
      FoldOnto(quarters[3], FoldOnto(quarters[2], FoldOnto(quarters[1], quarters[0])));
  const auto low = static_cast<std::uint64_t>(_mm_cvtsi128_si64(last));
  const auto high = static_cast<std::uint64_t>(_mm_extract_epi64(last, 1));
  const auto folded = static_cast<std::uint32_t>(_mm_crc32_u64(_mm_crc32_u64(0, low), high));
  _mm256_zeroupper();  // g++ 12 leaves it out here, and what follows in SSE instructions would be
                       // slower
  return FoldWithInstruction(bytes, folded);
}

std::uint32_t FoldNarrowly(std::string_view bytes, std::uint32_t crc) {
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  return has_instruction ? FoldWithInstruction(bytes, crc) : FoldPortably(bytes, crc);
}

std::uint32_t Fold(std::string_view bytes, std::uint32_t crc) {
  if (bytes.size() >= 2 * kWides * kWide && HasWideProducts()) return FoldWithProducts(bytes, crc);
  return FoldNarrowly(bytes, crc);
}

#else

std::uint32_t FoldNarrowly(std::string_view bytes, std::uint32_t crc) {
  return FoldPortably(bytes, crc);
}
std::uint32_t Fold(std::string_view bytes, std::uint32_t crc) { return FoldPortably(bytes, crc); }

#endif

}  // namespace

std::uint32_t Crc32c(std::string_view bytes, std::uint32_t seed) { return ~Fold(bytes, ~seed); }

std::uint32_t Crc32cNarrow(std::string_view bytes, std::uint32_t seed) {
  return ~FoldNarrowly(bytes, ~seed);
}

std::uint32_t Crc32cPortable(std::string_view bytes, std::uint32_t seed) {
  return ~FoldPortably(bytes, ~seed);
}

}  // namespace statcollect
