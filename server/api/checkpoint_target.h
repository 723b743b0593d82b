// Where a checkpoint that a client asked for may lie.
#ifndef STATCOLLECT_SERVER_API_CHECKPOINT_TARGET_H_
#define STATCOLLECT_SERVER_API_CHECKPOINT_TARGET_H_

#include <string>

#include "common/status.h"

namespace statcollect::api {

// The path for Store::Checkpoint. With a root (an absolute path), `asked` is a name, and the
// checkpoint lies directly below it; without one it is a path of the collector's machine, if
// `any_path` allows that. kInvalidArgument: not such a name or path; kPermissionDenied: a root is
// needed; kFailedPrecondition: the root cannot be used, or what has the name in it is a link or a
// file.
Result<std::string> CheckpointTarget(const std::string& asked, const std::string& root,
                                     bool any_path);

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_CHECKPOINT_TARGET_H_
