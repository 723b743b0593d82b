#include "common/project.h"

#include "common/names.h"

namespace statcollect {

Status ValidateProjectName(std::string_view name) {
  if (ValidateRunName(name).ok() && name.size() <= kProjectNameBytesMax) return Status::Ok();
  return {Code::kInvalidArgument, "project '" + Printable(name, 80) +
                                      "': expected 1..64 letters, digits, '.', '_' and '-', of "
                                      "which the first is a letter or a digit"};
}

std::string QualifiedRun(std::string_view project, std::string_view run) {
  if (project.empty() || project == kDefaultProject) return std::string(run);
  return std::string(project) + "/" + std::string(run);
}

ProjectRun SplitRun(std::string_view qualified) {
  const std::size_t slash = qualified.find('/');
  if (slash == std::string_view::npos) return {.project = kDefaultProject, .run = qualified};
  return {.project = qualified.substr(0, slash), .run = qualified.substr(slash + 1)};
}

}  // namespace statcollect
