// Helpers for short texts: options, lists, lines of a file.
#ifndef STATCOLLECT_COMMON_TEXT_H_
#define STATCOLLECT_COMMON_TEXT_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace statcollect {

// `text` without the characters of `blanks` at both ends. A view into `text`, like the results
// below.
inline std::string_view Trimmed(std::string_view text, std::string_view blanks = " \t\r\n") {
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// The parts between separators, untrimmed, without blank ones.
inline std::vector<std::string_view> PartsOf(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(separator));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    if (!Trimmed(part).empty()) parts.push_back(part);
  }
  return parts;
}

// All parts between separators, blank ones too; at least one.
std::vector<std::string_view> AllPartsOf(std::string_view text, std::string_view separator);

// "a, b, c"; numbers in decimal.
template <typename Values>
std::string Joined(const Values& values, std::string_view separator = ", ") {
  std::string text;
  for (const auto& value : values) {
    if (!text.empty()) text += separator;
    if constexpr (std::is_arithmetic_v<typename Values::value_type>) {
      text += std::to_string(value);
    } else {
      text += value;
    }
  }
  return text;
}

// "1 record", "2 records". For nouns whose plural is an s.
inline std::string Counted(std::uint64_t n, std::string_view noun) {
  return std::to_string(n) + " " + std::string(noun) + (n == 1 ? "" : "s");
}

// To be printed: a NaN without its sign, which means nothing and would be printed as "-nan".
inline double Unsigned(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

// Two lower-case hexadecimal digits for each byte.
std::string HexOf(std::span<const std::uint8_t> bytes);
// Of all 16, after "0x".
std::string HexOf(std::uint64_t number);

// "0-3, 7" for 0 1 2 3 7; "none" for nothing. The first eight ranges, then "and others".
std::string RanksText(const std::vector<std::uint32_t>& ascending);
template <typename Ranks>  // a field of a message
std::string RanksText(const Ranks& ascending) {
  return RanksText(std::vector<std::uint32_t>(ascending.begin(), ascending.end()));
}

// "step 3", "steps 0-3, 7"; of many "steps 0, 100, 200, 300, 400, 500, 600, 700 and others up to
// 9900".
std::string StepsNamed(const std::set<std::uint64_t>& steps);

// "rank 3", "ranks 0-3, 7" for the noun "rank".
std::string RanksNamed(const char* noun, const std::vector<std::uint32_t>& ascending);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_TEXT_H_
