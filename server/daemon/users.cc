#include "server/daemon/users.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include <boost/system/error_code.hpp>

#include "common/data_folder.h"
#include "common/names.h"

namespace statcollect {
namespace {

constexpr std::chrono::milliseconds kLookEvery(
    50);  // how soon the end is noticed; costs one system call

}  // namespace

Result<std::unique_ptr<Users>> Users::Watch(boost::asio::io_context& io, const std::string& folder,
                                            std::function<bool()> busy) {
  const std::string path = folder + '/' + kUsersFile;
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0)
    return Status(Code::kPermissionDenied, "--until-unused: open '" + Printable(path) +
                                               "': " + std::strerror(errno) +
                                               "; expected a folder this user may write");
  return std::unique_ptr<Users>(new Users(io, fd, std::move(busy)));
}

Users::Users(boost::asio::io_context& io, int fd, std::function<bool()> busy)
    : io_(io), timer_(io), busy_(std::move(busy)), fd_(fd) {
  Wait();
}

void Users::Wait() {
  timer_.expires_after(kLookEvery);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    AllGone() ? io_.stop() : Wait();
  });
}

bool Users::AllGone() {
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0) return false;
  if (!busy_()) return true;
  flock(fd_, LOCK_UN);
  return false;
}

}  // namespace statcollect
