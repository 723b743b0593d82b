// Text forms of an enumeration whose numbers, from 0, index a table of names.
#ifndef STATCOLLECT_COMMON_ENUM_NAMES_H_
#define STATCOLLECT_COMMON_ENUM_NAMES_H_

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace statcollect {

// The name of entry 0 for values out of range.
template <typename Enum, std::size_t N>
constexpr std::string_view NameIn(const std::array<std::string_view, N>& names, Enum value) {
  const auto index = static_cast<std::size_t>(value);
  return index < N ? names[index] : names[0];
}

// Never entry 0.
template <typename Enum, std::size_t N>
constexpr std::optional<Enum> ParseIn(const std::array<std::string_view, N>& names,
                                      std::string_view name) {
  for (std::size_t i = 1; i < N; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_ENUM_NAMES_H_
