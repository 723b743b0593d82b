#include "server/store/codec/packed_column.h"

#include <algorithm>
#include <array>
#include <bit>

#include "common/endian.h"
#include "common/wide_loops.h"
#include "server/store/codec/unpack.h"

namespace statcollect {
namespace {

constexpr unsigned kOneLoad =
    57;  // widths up to which eight bytes hold a number, wherever it begins

std::size_t GroupBytes(std::size_t count, unsigned width) { return (count * width + 7) / 8; }

// Eight bytes from `at`, as far as there are any, lowest first.
std::uint64_t LoadWord(std::string_view bytes, std::size_t at) {
  if (at + 8 <= bytes.size()) return LoadLittleEndian<std::uint64_t>(bytes.data() + at);
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < 8 && at + i < bytes.size(); ++i) {
    word |= std::uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return word;
}

std::uint64_t LoadBits(std::string_view bytes, std::size_t bit, unsigned width) {
  if (width == 0) return 0;
  const unsigned skip = bit % 8;
  std::uint64_t value = LoadWord(bytes, bit / 8) >> skip;
  if (skip + width > 64) value |= LoadWord(bytes, bit / 8 + 8) << (64 - skip);
  return width == 64 ? value : value & ((std::uint64_t{1} << width) - 1);
}

// For each group, the bitwise or of its numbers' distances from `base`.
STATCOLLECT_WIDE_LOOPS void GroupBits(const std::uint64_t* numbers, std::size_t count,
                                      std::uint64_t base, std::uint64_t* bits) {
  std::size_t i = 0;
  for (; i + kPackedGroup <= count; i += kPackedGroup) {
    std::uint64_t all = 0;
    for (std::size_t j = 0; j < kPackedGroup; ++j) all |= numbers[i + j] - base;
    *bits++ = all;
  }
  if (i == count) return;
  std::uint64_t all = 0;
  for (; i < count; ++i) all |= numbers[i] - base;
  *bits = all;
}

STATCOLLECT_WIDE_LOOPS std::uint64_t Smallest(const std::uint64_t* numbers, std::size_t count) {
  std::uint64_t least = numbers[0];
  for (std::size_t i = 1; i < count; ++i) least = numbers[i] < least ? numbers[i] : least;
  return least;
}

char* PackGroup(std::span<const std::uint64_t> group, std::uint64_t base, unsigned shift,
                unsigned width, char* to) {
  char* const end = to + GroupBytes(group.size(), width);
  std::uint64_t word = 0;
  unsigned filled = 0;
  for (const std::uint64_t number : group) {
    const std::uint64_t value = (number - base) >> shift;
    word |= value << filled;
    filled += width;
    if (filled >= 64) {
      StoreLittleEndian(to, word);
      to += 8;
      filled -= 64;
      word = filled == 0 ? 0 : value >> (width - filled);
    }
  }
  StoreLittleEndian(to, word);
  return end;
}

}  // namespace

Packing PackingOf(std::span<const std::uint64_t> numbers) {
  Packing packing;
  packing.base = Smallest(numbers.data(), numbers.size());
  std::array<std::uint64_t, kPackedNumbersMax / kPackedGroup> bits;
  GroupBits(numbers.data(), numbers.size(), packing.base, bits.data());
  const std::size_t groups = (numbers.size() + kPackedGroup - 1) / kPackedGroup;
  std::uint64_t all = 0;
  for (std::size_t group = 0; group < groups; ++group) all |= bits[group];
  if (all == 0) return packing;
  packing.shift = static_cast<unsigned>(std::countr_zero(all));
  for (std::size_t group = 0; group < groups; ++group) {
    const auto width = static_cast<unsigned>(std::bit_width(bits[group] >> packing.shift));
    packing.widths[group] = static_cast<std::uint8_t>(width);
    packing.bytes +=
        1 + GroupBytes(std::min(kPackedGroup, numbers.size() - group * kPackedGroup), width);
  }
  return packing;
}

void WritePacked(ByteWriter& out, std::span<const std::uint64_t> numbers, const Packing& packing) {
  out.Varint(packing.base);
  out.U8(static_cast<std::uint8_t>(packing.shift));
  if (packing.shift == kPackedConstant) return;
  std::array<char, kPackedNumbersMax * 8 + 8> bytes;
  char* to = bytes.data();
  for (std::size_t first = 0; first < numbers.size(); first += kPackedGroup) {
    const auto group = numbers.subspan(first, std::min(kPackedGroup, numbers.size() - first));
    const unsigned width = packing.widths[first / kPackedGroup];
    out.U8(static_cast<std::uint8_t>(width));
    if (width > 0) to = PackGroup(group, packing.base, packing.shift, width, to);
  }
  out.Raw({bytes.data(), static_cast<std::size_t>(to - bytes.data())});
}

PackedColumn::PackedColumn(ByteReader& in, std::size_t count) : count_(count) {
  base_ = in.Varint();
  shift_ = in.U8();
  if (shift_ == kPackedConstant) return;
  if (shift_ > kPackedConstant) in.Fail();
  const std::size_t groups = (count + kPackedGroup - 1) / kPackedGroup;
  widths_ = in.Raw(groups);
  std::size_t bytes = 0;
  for (std::size_t group = 0; group < widths_.size(); ++group) {
    const auto width = static_cast<unsigned char>(widths_[group]);
    if (width > 64 - shift_) in.Fail();
    bytes += GroupBytes(std::min(kPackedGroup, count - group * kPackedGroup), width);
  }
  bits_ = in.Raw(bytes);
  followed_ = in.remaining() >= 8;
  if (!in.ok()) *this = PackedColumn();
}

std::uint64_t PackedColumn::At(std::size_t index) const {
  if (shift_ == kPackedConstant || count_ == 0) return base_;
  const std::size_t group = index / kPackedGroup;
  std::size_t at = 0;
  for (std::size_t before = 0; before < group; ++before) {
    at += GroupBytes(kPackedGroup, static_cast<unsigned char>(widths_[before]));
  }
  const unsigned width = static_cast<unsigned char>(widths_[group]);
  return base_ + (LoadBits(bits_, at * 8 + (index % kPackedGroup) * width, width) << shift_);
}

void PackedColumn::ReadAll(std::span<std::uint64_t> numbers) const {
  if (shift_ == kPackedConstant || count_ == 0) {
    std::fill(numbers.begin(), numbers.end(), base_);
    return;
  }
  std::size_t at = 0;
  for (std::size_t group = 0; group < widths_.size(); ++group) {
    const unsigned width = static_cast<unsigned char>(widths_[group]);
    const std::size_t first = group * kPackedGroup;
    const std::size_t count = std::min(kPackedGroup, count_ - first);
    std::size_t bit = at * 8;
    if (UnpacksWide(width)) {
      UnpackWide(bits_.substr(at, GroupBytes(count, width)), width, base_, shift_,
                 numbers.subspan(first, count));
    } else if (followed_ && width <= kOneLoad) {
      const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
      const char* const bits = bits_.data();
      for (std::size_t i = 0; i < count; ++i, bit += width) {
        numbers[first + i] =
            base_ +
            ((LoadLittleEndian<std::uint64_t>(bits + bit / 8) >> (bit % 8) & mask) << shift_);
      }
    } else {
      for (std::size_t i = 0; i < count; ++i, bit += width) {
        numbers[first + i] = base_ + (LoadBits(bits_, bit, width) << shift_);
      }
    }
    at += GroupBytes(count, width);
  }
}

}  // namespace statcollect
