#include "server/store/direct_io.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

namespace statcollect {

bool SupportsDirectIo(const std::string& directory) {
  std::string path = directory + "/direct_io_XXXXXX";
  const int made = mkstemp(path.data());
  if (made < 0) return false;
  close(made);
  const int fd = open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC);
  if (fd >= 0) close(fd);
  unlink(path.c_str());
  return fd >= 0;
}

}  // namespace statcollect
