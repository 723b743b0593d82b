// A file descriptor that is closed at the end.
#ifndef STATCOLLECT_COMMON_OWNED_FD_H_
#define STATCOLLECT_COMMON_OWNED_FD_H_

#include <unistd.h>

namespace statcollect {

class OwnedFd {
 public:
  // Below 0: none, as open returns it.
  explicit OwnedFd(int fd) : fd_(fd) {}
  ~OwnedFd() {
    if (fd_ >= 0) close(fd_);
  }
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_OWNED_FD_H_
