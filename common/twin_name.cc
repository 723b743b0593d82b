#include "common/twin_name.h"

#include <algorithm>

namespace statcollect {
namespace {

constexpr std::string_view kMark = ".twin-";

bool IsNumber(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::string TwinName(std::string_view base, std::uint64_t ulps, std::uint64_t seed) {
  return std::string(base) + std::string(kMark) + std::to_string(ulps) + "-" + std::to_string(seed);
}

std::string_view BaseOfTwin(std::string_view run) {
  const std::size_t at = run.rfind(kMark);
  if (at == std::string_view::npos || at == 0) return {};
  const std::string_view numbers = run.substr(at + kMark.size());
  const std::size_t dash = numbers.find('-');
  if (dash == std::string_view::npos) return {};
  const bool both = IsNumber(numbers.substr(0, dash)) && IsNumber(numbers.substr(dash + 1));
  return both ? run.substr(0, at) : std::string_view();
}

}  // namespace statcollect
