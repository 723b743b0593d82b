#include "server/store/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

namespace statcollect {

std::string DirectoryLock::HeldText(const std::string& directory) const {
  std::array<char, 32> text{};
  const ssize_t size = pread(fd_, text.data(), text.size() - 1, 0);
  std::string pid(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  while (!pid.empty() && pid.back() == '\n') pid.pop_back();
  return "open store '" + directory + "': process " + (pid.empty() ? "?" : pid) +
         " holds it; expected no other statcollectord on this folder; stop it or "
         "choose a different folder with --data-dir";
}

Result<std::unique_ptr<DirectoryLock>> DirectoryLock::Acquire(const std::string& directory,
                                                              const Patience& patience) {
  const std::string path = directory + "/statcollectord.pid";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    return Status(
        Code::kPermissionDenied,
        "open '" + path + "': " + std::strerror(errno) +
            "; expected a folder this user may write; choose a different one with --data-dir");
  }
  std::unique_ptr<DirectoryLock> lock(new DirectoryLock(fd));
  const auto end = std::chrono::steady_clock::now() + patience.time;
  for (bool said = false; flock(fd, LOCK_EX | LOCK_NB) != 0; said = true) {
    const std::string held = lock->HeldText(directory);
    if (std::chrono::steady_clock::now() >= end) return Status(Code::kFailedPrecondition, held);
    if (!said)
      patience.log(held + "; waiting up to " + std::to_string(patience.time.count()) +
                   " s for its end");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const std::string pid = std::to_string(getpid()) + "\n";
  if (ftruncate(fd, 0) != 0 ||
      pwrite(fd, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return Status(Code::kUnavailable, "write '" + path + "': " + std::strerror(errno));
  }
  return lock;
}

DirectoryLock::~DirectoryLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace statcollect
