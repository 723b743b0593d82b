// What to say of a word that is none of a fixed set.
#ifndef STATCOLLECT_COMMON_CHOICE_H_
#define STATCOLLECT_COMMON_CHOICE_H_

#include <string>
#include <string_view>
#include <vector>

namespace statcollect {

// "found 'runing' (did you mean 'running'?); expected running, finished or interrupted".
std::string NotOneOf(std::string_view found, const std::vector<std::string>& expected);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_CHOICE_H_
