// Similarity of names, for suggestions after a typo.
#ifndef STATCOLLECT_COMMON_EDIT_DISTANCE_H_
#define STATCOLLECT_COMMON_EDIT_DISTANCE_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace statcollect {

// Levenshtein distance in bytes. Cost: |a| * |b|.
std::size_t EditDistance(std::string_view a, std::string_view b);

// The name that was probably meant: one that begins with `wanted`, otherwise the closest one within
// a third of its length (at least 2 edits). Empty: none is close.
std::string NearestName(std::string_view wanted, const std::vector<std::string>& names);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_EDIT_DISTANCE_H_
