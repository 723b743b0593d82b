// Bounds-checked reading and writing of bytes, used for all stored values. Fixed-width numbers are
// little-endian; varint is LEB128 of at most 10 bytes; signed numbers are zigzag varints; text is a
// varint length and its bytes.
#ifndef STATCOLLECT_SERVER_STORE_BYTE_IO_H_
#define STATCOLLECT_SERVER_STORE_BYTE_IO_H_

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "common/endian.h"

namespace statcollect {

class ByteWriter {
 public:
  void U8(std::uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  void U32(std::uint32_t value) { AppendLittleEndian(&bytes_, value); }
  void U64(std::uint64_t value) { AppendLittleEndian(&bytes_, value); }
  void F32(float value) { AppendLittleEndian(&bytes_, std::bit_cast<std::uint32_t>(value)); }
  void F64(double value) { AppendLittleEndian(&bytes_, std::bit_cast<std::uint64_t>(value)); }
  template <typename T>  // fixed-width numbers, one after another
  void Array(std::span<const T> values) {
    if constexpr (std::endian::native == std::endian::little) {
      bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    } else {
      for (const T value : values) AppendLittleEndian(&bytes_, std::bit_cast<Bits<T>>(value));
    }
  }
  void Varint(std::uint64_t value) {
    while (value >= 0x80) {
      U8(static_cast<std::uint8_t>(value | 0x80));
      value >>= 7;
    }
    U8(static_cast<std::uint8_t>(value));
  }
  void Signed(std::int64_t value) {
    Varint((static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63));
  }
  void Text(std::string_view text) {
    Varint(text.size());
    bytes_ += text;
  }
  void Raw(std::string_view bytes) { bytes_ += bytes; }
  void Reserve(std::size_t bytes) { bytes_.reserve(bytes); }
  const std::string& bytes() const { return bytes_; }
  std::string Take() { return std::move(bytes_); }

 private:
  template <typename T>
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

  std::string bytes_;
};

// After a failure, every further read returns 0 or empty and ok() stays false, so one check at the
// end is enough.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  bool done() const { return ok_ && bytes_.empty(); }
  std::size_t remaining() const { return bytes_.size(); }
  void Fail() { ok_ = false; }

  std::uint8_t U8() { return Fixed<std::uint8_t>(); }
  std::uint32_t U32() { return Fixed<std::uint32_t>(); }
  std::uint64_t U64() { return Fixed<std::uint64_t>(); }
  float F32() { return std::bit_cast<float>(Fixed<std::uint32_t>()); }
  double F64() { return std::bit_cast<double>(Fixed<std::uint64_t>()); }
  std::uint64_t Varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint8_t byte = U8();
      if (shift == 63 && byte > 1) break;
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return ok_ ? value : 0;
    }
    ok_ = false;
    return 0;
  }
  std::uint32_t Varint32() {
    const std::uint64_t value = Varint();
    if (value > 0xffffffffu) ok_ = false;
    return ok_ ? static_cast<std::uint32_t>(value) : 0;
  }
  std::int64_t Signed() {
    const std::uint64_t value = Varint();
    return static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
  }
  // A view into the source bytes.
  std::string_view Raw(std::uint64_t size) {
    if (size > bytes_.size()) ok_ = false;
    if (!ok_) return {};
    const std::string_view raw = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return raw;
  }
  std::string Text() { return std::string(Raw(Varint())); }
  // Reads a number of entries, each of at least `entry_bytes_min` bytes. Fails if that many cannot
  // follow, so that a damaged count never causes a large allocation.
  std::size_t Count(std::size_t entry_bytes_min) {
    const std::uint64_t count = Varint();
    if (entry_bytes_min > 0 && count > bytes_.size() / entry_bytes_min) ok_ = false;
    return ok_ ? count : 0;
  }

 private:
  template <typename T>
  T Fixed() {
    if (bytes_.size() < sizeof(T)) ok_ = false;
    if (!ok_) return 0;
    const T value = LoadLittleEndian<T>(bytes_.data());
    bytes_.remove_prefix(sizeof(T));
    return value;
  }

  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_BYTE_IO_H_
