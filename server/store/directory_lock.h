// Holds a data directory for one process: a locked file in it with the holder's pid.
#ifndef STATCOLLECT_SERVER_STORE_DIRECTORY_LOCK_H_
#define STATCOLLECT_SERVER_STORE_DIRECTORY_LOCK_H_

#include <functional>
#include <memory>
#include <string>

#include "common/status.h"

namespace statcollect {

// The lock ends with the object, or with the process, however it ends.
class DirectoryLock {
 public:
  // The directory must exist. `until_unused`: this process leaves it as soon as nobody uses it.
  // Waits up to 30 s for such a one to leave, and says so in `log`, once. kFailedPrecondition:
  // another process holds it; gives its pid.
  static Result<std::unique_ptr<DirectoryLock>> Acquire(
      const std::string& directory, bool until_unused,
      const std::function<void(const std::string& line)>& log);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  explicit DirectoryLock(int fd) : fd_(fd) {}
  std::string Holder() const;
  int fd_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_DIRECTORY_LOCK_H_
