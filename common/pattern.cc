#include "common/pattern.h"

#include <string>
#include <vector>

#include "common/choice.h"
#include "common/names.h"

namespace statcollect {

// After a mismatch, the last '*' takes one more character.
bool MatchesPattern(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

std::string NotAKind(std::string_view found) {
  std::vector<std::string> kinds;
  for (int i = 1; i < kKindCount; ++i) kinds.emplace_back(Name(static_cast<Kind>(i)));
  return NotOneOf(found, kinds);
}

}  // namespace statcollect
