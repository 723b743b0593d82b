#include "client/imports/locked_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include <fmt/format.h>

#include "common/read_at.h"

namespace statcollect::client {
namespace {

Status Os(const char* what, int error) {
  return {Code::kDataLoss, std::string(what) + ": " + std::generic_category().message(error)};
}

}  // namespace

Result<int> OpenLocked(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Os("cannot open it", errno);
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  close(fd);
  return Status(Code::kUnavailable,
                "a training process, its child or another statctl has it open; the training sends "
                "it itself, or send it after the training has ended");
}

Result<std::uint64_t> SizeOf(int fd) {
  struct stat found {};
  if (fstat(fd, &found) != 0) return Os("cannot inspect it", errno);
  if (!S_ISREG(found.st_mode)) return Status(Code::kDataLoss, "it is not a regular file");
  return static_cast<std::uint64_t>(found.st_size);
}

Status ReadExactly(int fd, std::uint64_t offset, std::size_t size, std::string* bytes) {
  const ssize_t done = ReadAt(fd, offset, size, bytes);
  if (done < 0) return Os("cannot read it", errno);
  if (static_cast<std::size_t>(done) < size) {
    return {Code::kDataLoss,
            fmt::format("it ends at byte {}", offset + static_cast<std::uint64_t>(done))};
  }
  return Status::Ok();
}

}  // namespace statcollect::client
