#include "server/daemon/local_socket.h"

#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "common/names.h"
#include "common/parse.h"

namespace statcollect {
namespace {

constexpr int kSocketBacklog = 4096;  // the system's own limit may be lower

std::string SystemText(int error) { return std::generic_category().message(error); }

Status SocketProblem(Code code, const std::string& path, const std::string& rest) {
  return {code, "listen for gRPC on unix:" + Printable(path) + ": " + rest};
}

sockaddr_un AddressOfPath(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy_n(path.data(), std::min(path.size(), sizeof address.sun_path - 1), address.sun_path);
  return address;
}

int NewSocket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

bool BindTo(int descriptor, const sockaddr_un& address) {
  return bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// Whether a process listens on it; an error that leaves this open counts as yes.
bool IsServed(const sockaddr_un& address) {
  const int descriptor = NewSocket();
  if (descriptor < 0) return true;
  const bool refused =
      connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno == ECONNREFUSED;
  close(descriptor);
  return !refused;
}

std::optional<gid_t> FindGroup(const std::string& name) {
  if (const auto number = ParseNumber<gid_t>(name)) return number;
  std::array<char, 16'384> buffer{};
  group entry{};
  group* found = nullptr;
  if (getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 ||
      found == nullptr)
    return std::nullopt;
  return found->gr_gid;
}

// Makes room for a new socket where a collector that was killed has left one.
Status RemoveStale(const std::string& path, const sockaddr_un& address) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) return Status::Ok();  // gone by now
  if (!S_ISSOCK(found.st_mode))
    return SocketProblem(Code::kInvalidArgument, path,
                         "found a file that is not a socket; expected a free name; choose another "
                         "one, or remove the file");
  if (IsServed(address))
    return SocketProblem(
        Code::kUnavailable, path,
        "another process listens there; stop it, or choose another name with --listen");
  if (unlink(path.c_str()) != 0 && errno != ENOENT)
    return SocketProblem(Code::kInvalidArgument, path,
                         "cannot remove the socket that is left there: " + SystemText(errno) +
                             "; expected a folder that this user may write to");
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<LocalSocket>> LocalSocket::Open(const LocalSocketOptions& options) {
  const int descriptor = NewSocket();
  if (descriptor < 0) return SocketProblem(Code::kUnavailable, options.path, SystemText(errno));
  std::unique_ptr<LocalSocket> socket(new LocalSocket(options.path, descriptor));
  STATCOLLECT_RETURN_IF_ERROR(socket->Prepare(options));
  return socket;
}

Status LocalSocket::Prepare(const LocalSocketOptions& options) {
  std::optional<gid_t> group;
  if (!options.group.empty()) {
    group = FindGroup(options.group);
    if (!group)
      return {Code::kInvalidArgument,
              "--socket-group: no group '" + Printable(options.group) +
                  "'; expected the name or number of a group; getent group lists them"};
  }
  const sockaddr_un address = AddressOfPath(path_);
  bool bound = BindTo(descriptor_, address);
  if (!bound && errno == EADDRINUSE) {
    STATCOLLECT_RETURN_IF_ERROR(RemoveStale(path_, address));
    bound = BindTo(descriptor_, address);
  }
  if (!bound)
    return SocketProblem(
        Code::kInvalidArgument, path_,
        SystemText(errno) +
            "; expected a path in a folder that exists and that this user may write to");
  struct stat made {};
  if (lstat(path_.c_str(), &made) == 0) inode_ = made.st_ino;
  if (group && chown(path_.c_str(), static_cast<uid_t>(-1), *group) != 0)
    return {Code::kInvalidArgument, "--socket-group: give unix:" + Printable(path_) +
                                        " to group '" + Printable(options.group) +
                                        "': " + SystemText(errno) +
                                        "; expected a group that this user is a member of"};
  if (chmod(path_.c_str(), options.mode) != 0 || listen(descriptor_, kSocketBacklog) != 0)
    return SocketProblem(Code::kInvalidArgument, path_, SystemText(errno));
  return Status::Ok();
}

LocalSocket::~LocalSocket() {
  close(descriptor_);
  struct stat found {};
  if (inode_ != 0 && lstat(path_.c_str(), &found) == 0 && found.st_ino == inode_)
    (void)unlink(path_.c_str());
}

}  // namespace statcollect
