#include "common/read_at.h"

#include <unistd.h>

#include <cerrno>

namespace statcollect {

ssize_t ReadAt(int fd, std::uint64_t offset, std::size_t size, std::string* bytes) {
  bytes->resize(size);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n =
        pread(fd, bytes->data() + done, size - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return static_cast<ssize_t>(done);
}

}  // namespace statcollect
