#include "common/text.h"

namespace statcollect {

std::string RanksText(const std::vector<std::uint32_t>& ascending) {
  constexpr int kShown = 8;
  std::string text;
  int shown = 0;
  for (std::size_t i = 0; i < ascending.size();) {
    if (shown++ == kShown) return text + " and others";
    std::size_t last = i;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(ascending[i]);
    if (last > i) text += (last == i + 1 ? ", " : "-") + std::to_string(ascending[last]);
    i = last + 1;
  }
  return text.empty() ? "none" : text;
}

std::string RanksNamed(const char* noun, const std::vector<std::uint32_t>& ascending) {
  return std::string(noun) + (ascending.size() == 1 ? " " : "s ") + RanksText(ascending);
}

}  // namespace statcollect
