#include "server/store/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>

namespace statcollect {
namespace {

constexpr std::chrono::seconds kPatience(30);
constexpr std::string_view kUntilUnused = " until unused";

}  // namespace

// As it wrote itself into the file: its pid, and that it leaves the directory when unused.
std::string DirectoryLock::Holder() const {
  std::array<char, 64> text{};
  const ssize_t size = pread(fd_, text.data(), text.size(), 0);
  const std::string holder(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  return holder.substr(0, holder.find('\n'));
}

Result<std::unique_ptr<DirectoryLock>> DirectoryLock::Acquire(
    const std::string& directory, bool until_unused,
    const std::function<void(const std::string& line)>& log) {
  const std::string path = directory + "/statcollectord.pid";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    return Status(
        Code::kPermissionDenied,
        "open '" + path + "': " + std::strerror(errno) +
            "; expected a folder this user may write; choose a different one with --data-dir");
  }
  std::unique_ptr<DirectoryLock> lock(new DirectoryLock(fd));
  const auto end = std::chrono::steady_clock::now() + kPatience;
  for (int looks = 1; flock(fd, LOCK_EX | LOCK_NB) != 0; ++looks) {
    const std::string holder = lock->Holder(), pid = holder.substr(0, holder.find(' '));
    const std::string held = "open store '" + directory + "': process " +
                             (pid.empty() ? "?" : pid) +
                             " holds it; expected no other statcollectord on this folder; stop "
                             "it or choose a different folder with --data-dir";
    const bool leaves = holder.ends_with(kUntilUnused) && !until_unused;
    // It writes itself once it has the lock: a first look may be too early.
    if ((looks > 1 && !leaves) || std::chrono::steady_clock::now() >= end)
      return Status(Code::kFailedPrecondition, held);
    if (looks == 2)
      log(held + "; waiting up to " + std::to_string(kPatience.count()) + " s for its end");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  std::string text = std::to_string(getpid());
  if (until_unused) text += kUntilUnused;
  text += '\n';
  if (ftruncate(fd, 0) != 0 ||
      pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return Status(Code::kUnavailable, "write '" + path + "': " + std::strerror(errno));
  }
  return lock;
}

DirectoryLock::~DirectoryLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace statcollect
