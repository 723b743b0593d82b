// Which permissions a file with a secret may have.
#ifndef STATCOLLECT_COMMON_SECRET_MODE_H_
#define STATCOLLECT_COMMON_SECRET_MODE_H_

#include <sys/stat.h>

namespace statcollect {

// Only its owner may read or change it. Or it is root's and a group may read it: so Kubernetes
// mounts secrets for a pod that does not run as root, and root alone decides who is in the group.
inline bool IsClosedToOthers(const struct stat& file) {
  const mode_t others = file.st_mode & 077;
  return others == 0 || (file.st_uid == 0 && others == S_IRGRP);
}

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_SECRET_MODE_H_
