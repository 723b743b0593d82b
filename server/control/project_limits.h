// How much disk the runs of a project may take.
#ifndef STATCOLLECT_SERVER_CONTROL_PROJECT_LIMITS_H_
#define STATCOLLECT_SERVER_CONTROL_PROJECT_LIMITS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace statcollect {

struct ProjectLimits {
  std::uint64_t each = 0;                                        // bytes; 0: no limit
  std::map<std::string, std::uint64_t, std::less<>> named = {};  // instead, of these projects
  bool any() const { return each > 0 || !named.empty(); }
  std::uint64_t Of(std::string_view project) const {
    const auto found = named.find(project);
    return found == named.end() ? each : found->second;
  }
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_CONTROL_PROJECT_LIMITS_H_
