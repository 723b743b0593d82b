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

}  // namespace statcollect::query
