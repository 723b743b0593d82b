// What to say of a word that cannot be meant.
#ifndef STATCOLLECT_COMMON_CHOICE_H_
#define STATCOLLECT_COMMON_CHOICE_H_

#include <string>
#include <string_view>
#include <vector>

namespace statcollect {

// "found 'runing' (did you mean 'running'?); expected running, finished or interrupted".
std::string NotOneOf(std::string_view found, const std::vector<std::string>& expected);

// What to say of a path that is an option, because the option before it lacks its value; empty of
// another path. As CLI11's checks return it.
std::string OptionAsPath(const std::string& path);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_CHOICE_H_
