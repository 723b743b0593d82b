// Projects: each has runs of its own, whose names are unique within it. Inside the collector a
// run's name carries its project, so that nothing can take runs of two projects for one.
#ifndef STATCOLLECT_COMMON_PROJECT_H_
#define STATCOLLECT_COMMON_PROJECT_H_

#include <string>
#include <string_view>

#include "common/status.h"

namespace statcollect {

inline constexpr std::string_view kDefaultProject = "default";
inline constexpr std::size_t kProjectNameBytesMax = 64;
// The metadata of gRPC, and the field of HTTP, in which a client names its project.
inline constexpr char kProjectField[] = "x-statcollect-project";

// [A-Za-z0-9][A-Za-z0-9._-]{0,63}; otherwise kInvalidArgument.
Status ValidateProjectName(std::string_view name);

// "run" in the default project, as stores without projects have it; "project/run" in the others.
// Names of runs have no slash.
std::string QualifiedRun(std::string_view project, std::string_view run);

struct ProjectRun {
  std::string_view project, run;
};
// The parts of a qualified name, which must outlive them.
ProjectRun SplitRun(std::string_view qualified);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_PROJECT_H_
