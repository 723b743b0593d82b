// Characters of ASCII, whatever the locale, and words in lists of constants.
#ifndef STATCOLLECT_COMMON_ASCII_H_
#define STATCOLLECT_COMMON_ASCII_H_

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

namespace statcollect::ascii {

constexpr bool IsDigit(char c) { return c >= '0' && c <= '9'; }
constexpr bool IsUpper(char c) { return c >= 'A' && c <= 'Z'; }
constexpr bool IsLower(char c) { return c >= 'a' && c <= 'z'; }
constexpr bool IsAlnum(char c) { return IsDigit(c) || IsUpper(c) || IsLower(c); }
constexpr char ToLower(char c) { return IsUpper(c) ? static_cast<char>(c - 'A' + 'a') : c; }

inline std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), ToLower);
  return lower;
}

template <typename Words>
bool IsOneOf(const Words& words, std::string_view word) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

}  // namespace statcollect::ascii

#endif  // STATCOLLECT_COMMON_ASCII_H_
