// Holds a data directory for one process: a locked file in it with the holder's pid.
#ifndef STATCOLLECT_SERVER_STORE_DIRECTORY_LOCK_H_
#define STATCOLLECT_SERVER_STORE_DIRECTORY_LOCK_H_

#include <memory>
#include <string>

#include "common/status.h"

namespace statcollect {

// The lock ends with the object, or with the process, however it ends.
class DirectoryLock {
 public:
  // The directory must exist. kFailedPrecondition: another process holds it; gives its pid.
  static Result<std::unique_ptr<DirectoryLock>> Acquire(const std::string& directory);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  explicit DirectoryLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_DIRECTORY_LOCK_H_
