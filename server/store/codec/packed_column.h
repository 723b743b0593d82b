// One bit-packed column of numbers: the smallest is subtracted from all, common trailing zero bits
// are dropped, and each group of 32 is stored with as many bits as its largest needs.
//
//   base varint | shift u8 (0..63; 64: every number is `base`, nothing follows) | width u8 per
//   group | bits
//
// Bits are filled from the lowest; a group begins at a whole byte. Cost: about 2 ns per number to
// write or read.
#ifndef STATCOLLECT_SERVER_STORE_CODEC_PACKED_COLUMN_H_
#define STATCOLLECT_SERVER_STORE_CODEC_PACKED_COLUMN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "server/store/byte_io.h"

namespace statcollect {

inline constexpr std::size_t kPackedGroup = 32;
inline constexpr std::size_t kPackedNumbersMax = 256;
inline constexpr unsigned kPackedConstant = 64;  // the shift of a column of equal numbers

// The stored size and parameters of a column.
struct Packing {
  std::uint64_t base = 0;
  unsigned shift = 64;
  std::array<std::uint8_t, kPackedNumbersMax / kPackedGroup> widths;
  std::size_t bytes = 1;  // excluding the base's
};

// Precondition: 1 <= numbers.size() <= kPackedNumbersMax.
Packing PackingOf(std::span<const std::uint64_t> numbers);
void WritePacked(ByteWriter& out, std::span<const std::uint64_t> numbers, const Packing& packing);

// A stored column. Points into the bytes from which it was read.
class PackedColumn {
 public:
  PackedColumn() = default;  // no numbers
  // Reads a column of `count` <= kPackedNumbersMax numbers from `in`, which fails if there is none.
  PackedColumn(ByteReader& in, std::size_t count);

  std::size_t size() const { return count_; }
  // Whether all numbers are At(0).
  bool is_constant() const { return shift_ == kPackedConstant; }
  std::uint64_t At(std::size_t index) const;             // index < size()
  void ReadAll(std::span<std::uint64_t> numbers) const;  // numbers.size() == size()

 private:
  std::size_t count_ = 0;
  std::uint64_t base_ = 0;
  unsigned shift_ = 0;
  std::string_view widths_, bits_;
  bool followed_ = false;  // at least 8 more bytes can be read after bits_
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CODEC_PACKED_COLUMN_H_
