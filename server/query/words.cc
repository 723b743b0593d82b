#include "server/query/words.h"

namespace statcollect::query {

std::string RanksText(const std::vector<std::uint32_t>& ranks) {
  constexpr int kShown = 8;
  std::string text;
  int shown = 0;
  for (std::size_t i = 0; i < ranks.size();) {
    if (shown++ == kShown) return text + " and others";
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text.empty() ? "none" : text;
}

std::string RanksNamed(const char* noun, const std::vector<std::uint32_t>& ranks) {
  return std::string(noun) + (ranks.size() == 1 ? " " : "s ") + RanksText(ranks);
}

}  // namespace statcollect::query
