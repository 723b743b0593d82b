// Unsigned integers as little-endian bytes, on any processor.
#ifndef STATCOLLECT_COMMON_ENDIAN_H_
#define STATCOLLECT_COMMON_ENDIAN_H_

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <string>

namespace statcollect {

template <std::unsigned_integral T>
void StoreLittleEndian(char* to, T value) {
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(to, &value, sizeof value);
  } else {
    for (std::size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<char>(value >> (8 * i));
  }
}

template <std::unsigned_integral T>
T LoadLittleEndian(const char* from) {
  T value = 0;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&value, from, sizeof value);
  } else {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>(
          value | static_cast<T>(static_cast<T>(static_cast<unsigned char>(from[i])) << (8 * i)));
    }
  }
  return value;
}

template <std::unsigned_integral T>
void AppendLittleEndian(std::string* to, T value) {
  char bytes[sizeof(T)];
  StoreLittleEndian(bytes, value);
  to->append(bytes, sizeof(T));
}

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_ENDIAN_H_
