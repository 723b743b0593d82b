#include "server/query/number_text.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "common/text.h"

namespace statcollect::query {

std::string ShortNumber(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2g", Unsigned(value));
  const std::string number = text.data();
  const std::size_t exponent = number.find('e');
  if (exponent == std::string::npos) return number;
  std::string digits = number.substr(exponent + 2);
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  return number.substr(0, exponent + 1) + (number[exponent + 1] == '-' ? "-" : "") + digits;
}

std::string FactorsText(const std::map<std::uint32_t, double>& by_rank, const std::string& run) {
  constexpr std::size_t kShown = 4;
  const std::size_t count = std::min(kShown, by_rank.size());
  std::string text;
  std::size_t shown = 0;
  for (const auto& [rank, factor] : by_rank) {
    if (shown == count) break;
    text += (shown == 0           ? ""
             : shown + 1 == count ? " and "
                                  : ", ") +
            ShortNumber(factor) + " times" + (shown == 0 ? " that in " + run : "") + " on rank " +
            std::to_string(rank);
    ++shown;
  }
  return text;
}

}  // namespace statcollect::query
