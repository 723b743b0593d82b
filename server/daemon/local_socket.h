// A Unix socket that listens for gRPC, beside or instead of a TCP port.
#ifndef STATCOLLECT_SERVER_DAEMON_LOCAL_SOCKET_H_
#define STATCOLLECT_SERVER_DAEMON_LOCAL_SOCKET_H_

#include <memory>
#include <string>

#include <sys/types.h>

#include "common/status.h"

namespace statcollect {

struct LocalSocketOptions {
  std::string path;      // absolute; empty: no socket
  unsigned mode = 0600;  // who may connect needs the right to write
  std::string group;     // name or number; empty: that of the process
};

// Not thread-safe.
class LocalSocket {
 public:
  // Takes the place of a socket that nobody listens on any more; never that of anything else.
  // Nobody can connect before mode and group are set. kUnavailable: another process listens there;
  // kInvalidArgument: no such folder or group, no right to it, or another file has the name.
  static Result<std::unique_ptr<LocalSocket>> Open(const LocalSocketOptions& options);
  // Closes it, and removes its file unless another one has taken its place.
  ~LocalSocket();
  LocalSocket(const LocalSocket&) = delete;
  LocalSocket& operator=(const LocalSocket&) = delete;

  int descriptor() const { return descriptor_; }

 private:
  LocalSocket(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  Status Prepare(const LocalSocketOptions& options);

  const std::string path_;
  const int descriptor_;
  ino_t inode_ = 0;  // of the file; 0: not made yet
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_DAEMON_LOCAL_SOCKET_H_
