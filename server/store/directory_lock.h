// Holds a data directory for one process: a locked file in it with the holder's pid.
#ifndef STATCOLLECT_SERVER_STORE_DIRECTORY_LOCK_H_
#define STATCOLLECT_SERVER_STORE_DIRECTORY_LOCK_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "common/status.h"

namespace statcollect {

// The lock ends with the object, or with the process, however it ends.
class DirectoryLock {
 public:
  // Waits so long for another process to leave it, and says so once.
  struct Patience {
    std::chrono::seconds time{0};
    std::function<void(const std::string& line)> log = {};  // if `time` is not 0
  };
  // The directory must exist. kFailedPrecondition: another process holds it; gives its pid.
  static Result<std::unique_ptr<DirectoryLock>> Acquire(const std::string& directory,
                                                        const Patience& patience);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  explicit DirectoryLock(int fd) : fd_(fd) {}
  std::string HeldText(const std::string& directory) const;
  int fd_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_DIRECTORY_LOCK_H_
