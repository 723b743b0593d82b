#include "common/text.h"

namespace statcollect {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

// The first eight ranges; `end` is what follows if there are more.
template <typename Number>
std::string RangesText(const std::vector<Number>& ascending, const std::string& end) {
  constexpr int kShown = 8;
  std::string text;
  int shown = 0;
  for (std::size_t i = 0; i < ascending.size();) {
    if (shown++ == kShown) return text + end;
    std::size_t last = i;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(ascending[i]);
    if (last > i) text += (last == i + 1 ? ", " : "-") + std::to_string(ascending[last]);
    i = last + 1;
  }
  return text.empty() ? "none" : text;
}

}  // namespace

std::vector<std::string_view> AllPartsOf(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + separator.size());
  }
}

std::string HexOf(std::span<const std::uint8_t> bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::uint8_t byte : bytes) {
    text += kHexDigits[byte >> 4];
    text += kHexDigits[byte & 15];
  }
  return text;
}

std::string HexOf(std::uint64_t number) {
  std::string text = "0x";
  for (int shift = 60; shift >= 0; shift -= 4) text += kHexDigits[number >> shift & 15];
  return text;
}

std::string RanksText(const std::vector<std::uint32_t>& ascending) {
  return RangesText(ascending, " and others");
}

std::string StepsNamed(const std::set<std::uint64_t>& steps) {
  const std::vector<std::uint64_t> ascending(steps.begin(), steps.end());
  const std::string end =
      steps.empty() ? "" : " and others up to " + std::to_string(*steps.rbegin());
  return (steps.size() == 1 ? "step " : "steps ") + RangesText(ascending, end);
}

std::string RanksNamed(const char* noun, const std::vector<std::uint32_t>& ascending) {
  return std::string(noun) + (ascending.size() == 1 ? " " : "s ") + RanksText(ascending);
}

}  // namespace statcollect
