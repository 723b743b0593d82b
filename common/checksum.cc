#include "common/checksum.h"

#include <array>
#include <cstddef>

#include "common/endian.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
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
  for (std::size_t i = 0; i < kSlices; ++i) folded ^= kTables[kSlices - 1 - i][(word >> (8 * i)) & 0xff];
  return folded;
}

// The checksum's register after `bytes`, from the register `crc`.
std::uint32_t FoldPortably(std::string_view bytes, std::uint32_t crc) {
  while (bytes.size() >= kSlices) {
    crc = FoldWord(LoadLittleEndian<std::uint64_t>(bytes.data()), crc);
    bytes.remove_prefix(kSlices);
  }
  for (const char c : bytes) crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return crc;
}

#if defined(__x86_64__)

// The instruction gives a result every cycle, but each waits three for the one before: three lanes at once.
constexpr std::size_t kLane = 256;  // bytes

using ShiftTables = std::array<std::array<std::uint32_t, 256>, 4>;

// tables[i][b]: the register that has b in its byte i, after kLane bytes of zero. Shifting is linear over
// xor.
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

std::uint32_t Fold(std::string_view bytes, std::uint32_t crc) {
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  return has_instruction ? FoldWithInstruction(bytes, crc) : FoldPortably(bytes, crc);
}

#else

std::uint32_t Fold(std::string_view bytes, std::uint32_t crc) { return FoldPortably(bytes, crc); }

#endif

}  // namespace

std::uint32_t Crc32c(std::string_view bytes, std::uint32_t seed) { return ~Fold(bytes, ~seed); }

std::uint32_t Crc32cPortable(std::string_view bytes, std::uint32_t seed) {
  return ~FoldPortably(bytes, ~seed);
}

}  // namespace statcollect
