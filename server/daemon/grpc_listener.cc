#include "server/daemon/grpc_listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace statcollect {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBacklog = 4096;  // the system's own limit may be lower
constexpr std::chrono::milliseconds kLookInterval{50};
constexpr std::chrono::minutes kLogInterval{1};
// After an accept that failed for lack of something: trying at once would only burn the processor.
constexpr int kRetryMs = 50;

std::string ErrorText(int error) { return std::generic_category().message(error); }

Status CannotListen(const Endpoint& wanted, const std::string& why) {
  return {
      Code::kUnavailable,
      "listen for gRPC on " + wanted.ToString() +
          ": the address is in use or not on this machine (" + why +
          "); stop the process that uses it (see ss -ltnp) or set a different one with --listen"};
}

void SetOption(int descriptor, int level, int option, int value) {
  (void)setsockopt(descriptor, level, option, &value, sizeof value);
}

// -1 with errno on failure.
int ListenOn(const addrinfo& address) {
  const int descriptor =
      socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol);
  if (descriptor < 0) return -1;
  SetOption(descriptor, SOL_SOCKET, SO_REUSEADDR,
            1);  // but not SO_REUSEPORT: a second daemon is refused
  if (bind(descriptor, address.ai_addr, address.ai_addrlen) == 0 &&
      listen(descriptor, kBacklog) == 0)
    return descriptor;
  const int error = errno;
  close(descriptor);
  errno = error;
  return -1;
}

std::uint16_t PortOf(int descriptor) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

void SetPort(sockaddr* address, std::uint16_t port) {
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(port);
  }
}

}  // namespace

void OpenConnections::Add(int descriptor) {
  struct stat found {};
  if (fstat(descriptor, &found) == 0) sockets_[descriptor] = found.st_ino;
}

bool OpenConnections::Full(std::size_t connections_max, Clock::time_point now) {
  if (sockets_.size() < connections_max) return false;
  if (now < full_until_) return true;
  std::erase_if(sockets_, [](const auto& entry) {
    struct stat found {};
    return fstat(entry.first, &found) != 0 || !S_ISSOCK(found.st_mode) ||
           found.st_ino != entry.second;
  });
  if (sockets_.size() < connections_max) return false;
  full_until_ = now + kLookInterval;
  return true;
}

GrpcListener::GrpcListener(Endpoint endpoint, const ListenerLimits& limits,
                           std::function<void(const std::string&)> log)
    : endpoint_(std::move(endpoint)), limits_(limits), log_(std::move(log)) {}

Result<std::unique_ptr<GrpcListener>> GrpcListener::Open(
    const Endpoint& wanted, const ListenerLimits& limits,
    std::function<void(const std::string&)> log) {
  std::unique_ptr<GrpcListener> listener(new GrpcListener(wanted, limits, std::move(log)));
  STATCOLLECT_RETURN_IF_ERROR(listener->Bind(wanted));
  return listener;
}

Result<std::unique_ptr<GrpcListener>> GrpcListener::OpenSocket(
    const LocalSocketOptions& wanted, const ListenerLimits& limits,
    std::function<void(const std::string&)> log) {
  std::unique_ptr<GrpcListener> listener(new GrpcListener({}, limits, std::move(log)));
  STATCOLLECT_ASSIGN_OR_RETURN(listener->socket_, LocalSocket::Open(wanted));
  listener->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (listener->wake_ < 0)
    return Status(Code::kUnavailable,
                  "listen for gRPC on unix:" + wanted.path + ": " + ErrorText(errno));
  return listener;
}

Status GrpcListener::Bind(const Endpoint& wanted) {
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) return CannotListen(wanted, ErrorText(errno));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(wanted.port);
  if (const int failed = getaddrinfo(wanted.host.c_str(), port.c_str(), &hints, &found);
      failed != 0)
    return CannotListen(wanted, gai_strerror(failed));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  int error = 0;
  for (addrinfo* address = found; address != nullptr; address = address->ai_next) {
    if (address->ai_family != AF_INET && address->ai_family != AF_INET6) continue;
    if (!listeners_.empty())
      SetPort(address->ai_addr, endpoint_.port);  // the same on all addresses
    const int descriptor = ListenOn(*address);
    if (descriptor < 0) {
      error = errno;
      if (error == EADDRINUSE) return CannotListen(wanted, ErrorText(error));
      continue;  // a family that this machine lacks, say
    }
    listeners_.push_back(descriptor);
    endpoint_.port = PortOf(descriptor);
  }
  return listeners_.empty() ? CannotListen(wanted, ErrorText(error)) : Status::Ok();
}

GrpcListener::~GrpcListener() {
  Stop();
  for (const int descriptor : listeners_) close(descriptor);
  if (wake_ >= 0) close(wake_);
}

void GrpcListener::Start(std::unique_ptr<Acceptor> acceptor) {
  acceptor_ = std::move(acceptor);
  thread_ = std::thread([this] { Run(); });
}

void GrpcListener::Stop() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  (void)!write(wake_, &one, sizeof one);
  thread_.join();
  for (const int descriptor : std::exchange(listeners_, {})) close(descriptor);
  socket_.reset();
}

void GrpcListener::Run() {
  std::vector<pollfd> watched{{.fd = wake_, .events = POLLIN, .revents = 0}};
  for (const int descriptor : listeners_)
    watched.push_back({.fd = descriptor, .events = POLLIN, .revents = 0});
  if (socket_) watched.push_back({.fd = socket_->descriptor(), .events = POLLIN, .revents = 0});
  while (true) {
    if (poll(watched.data(), watched.size(), -1) < 0 && errno != EINTR)
      poll(watched.data(), 1, kRetryMs);
    if (watched[0].revents != 0) return;
    for (std::size_t i = 1; i < watched.size(); ++i) {
      if (watched[i].revents != 0) AcceptFrom(watched[i].fd);
    }
  }
}

// One: the others of the backlog are announced again, and Stop is not kept waiting by a flood of
// them.
void GrpcListener::AcceptFrom(int listener) {
  const int descriptor = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (descriptor < 0) {
    const int error = errno;
    if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
      Refuse("accept: " + ErrorText(error));
      pollfd wake{.fd = wake_, .events = POLLIN, .revents = 0};
      (void)poll(&wake, 1, kRetryMs);
    }
    return;
  }
  if (const std::string why = Refusal(descriptor); !why.empty()) {
    close(descriptor);
    return Refuse(why);
  }
  Prepare(descriptor);
  open_.Add(descriptor);
  Acceptor::NewConnectionParameters connection;
  connection.listener_fd = listener;
  connection.fd = descriptor;
  acceptor_->HandleNewConnection(&connection);
}

std::string GrpcListener::Refusal(int descriptor) {
  if (open_.Full(limits_.connections_max, Clock::now()))
    return std::to_string(limits_.connections_max) + " connections are open (--connections-max)";
  if (descriptor >= limits_.descriptors_end)
    return std::to_string(limits_.descriptors_end) +
           " descriptors are in use, and the others are for the store (ulimit -n, LimitNOFILE)";
  return "";
}

void GrpcListener::Refuse(const std::string& why) {
  ++refused_;
  const auto now = Clock::now();
  if (now < silent_until_) return;
  silent_until_ = now + kLogInterval;
  log_("gRPC: refused " + std::to_string(std::exchange(refused_, 0)) + " connections: " + why);
}

// As gRPC prepares the connections that it accepts itself.
void GrpcListener::Prepare(int descriptor) const {
  SetOption(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT,
            static_cast<int>(limits_.ping_timeout.count()));
}

}  // namespace statcollect
