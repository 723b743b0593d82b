#include "server/api/checkpoint_target.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "common/names.h"
#include "common/owned_fd.h"

namespace statcollect::api {
namespace {

constexpr std::size_t kPathBytesMax = 4096;

std::string LastError() { return std::generic_category().message(errno); }

// Nobody but the collector's user, or root, may put links into it.
Status CheckRoot(int root, const std::string& path) {
  const auto bad = [&](const std::string& found) {
    return Status(Code::kFailedPrecondition,
                  "checkpoint: --checkpoint-root " + Printable(path) + ": " + found +
                      "; expected a folder that only the collector's user may change (chmod 700)");
  };
  struct stat found {};
  if (root < 0 || fstat(root, &found) != 0) return bad(LastError());
  if (found.st_uid != geteuid() && found.st_uid != 0)
    return bad("it belongs to user " + std::to_string(found.st_uid));
  if ((found.st_mode & 022) != 0) return bad("others may change it");
  return Status::Ok();
}

}  // namespace

Result<std::string> CheckpointTarget(const std::string& asked, const std::string& root_path,
                                     bool any_path) {
  if (root_path.empty()) {
    if (!any_path) {
      return Status(Code::kPermissionDenied,
                    "checkpoint: this collector takes no paths from clients, because it knows "
                    "several of them; expected --checkpoint-root FOLDER at its start, and then a "
                    "name below that folder");
    }
    if (asked.empty() || asked.size() > kPathBytesMax) {
      return Status(Code::kInvalidArgument,
                    "checkpoint: found a path of " + std::to_string(asked.size()) +
                        " bytes; expected 1.." + std::to_string(kPathBytesMax));
    }
    return asked;
  }
  if (!ValidateRunName(asked).ok()) {
    return Status(Code::kInvalidArgument,
                  "checkpoint '" + Printable(asked) +
                      "': expected a name such as monday, of at most 128 letters, digits, '.', '_' "
                      "and '-', because the collector has a --checkpoint-root; the checkpoint then "
                      "lies below that folder");
  }
  const OwnedFd root(open(root_path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  STATCOLLECT_RETURN_IF_ERROR(CheckRoot(root.get(), root_path));
  const OwnedFd existing(
      openat(root.get(), asked.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (existing.get() < 0 && errno != ENOENT) {
    return Status(Code::kFailedPrecondition,
                  "checkpoint '" + asked +
                      "': what has this name below --checkpoint-root is a link or a file (" +
                      LastError() + "); choose a different name");
  }
  return root_path + "/" + asked;
}

}  // namespace statcollect::api
