// Patterns of tensor names, as exponents and captures take them.
#ifndef STATCOLLECT_COMMON_PATTERN_H_
#define STATCOLLECT_COMMON_PATTERN_H_

#include <string>
#include <string_view>

#include "common/records.h"

namespace statcollect {

inline bool IsPattern(std::string_view text) {
  return text.find_first_of("*?") != std::string_view::npos;
}

// Whether the whole name fits: '*' stands for any characters, '?' for one byte.
// Cost: at worst the name's length times the number of '*' in the pattern.
bool MatchesPattern(std::string_view pattern, std::string_view name);

// "found 'weigth_grad' (did you mean 'weight_grad'?); expected output, ...": of a word that is no
// kind of tensor.
std::string NotAKind(std::string_view found);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_PATTERN_H_
