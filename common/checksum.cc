#include "common/checksum.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

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

std::uint64_t LoadLittleEndian64(const char* from) {
  std::uint64_t word = 0;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&word, from, sizeof(word));
  } else {
    for (int i = 7; i >= 0; --i) word = (word << 8) | static_cast<unsigned char>(from[i]);
  }
  return word;
}

// Eight bytes at a time ("slicing-by-8", Kounavis and Berry, 2005).
std::uint32_t FoldWord(std::uint64_t word, std::uint32_t crc) {
  word ^= crc;
  std::uint32_t folded = 0;
  for (std::size_t i = 0; i < kSlices; ++i) folded ^= kTables[kSlices - 1 - i][(word >> (8 * i)) & 0xff];
  return folded;
}

}  // namespace

std::uint32_t Crc32c(std::string_view bytes, std::uint32_t seed) {
  std::uint32_t crc = ~seed;
  while (bytes.size() >= kSlices) {
    crc = FoldWord(LoadLittleEndian64(bytes.data()), crc);
    bytes.remove_prefix(kSlices);
  }
  for (const char c : bytes) crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

}  // namespace statcollect
