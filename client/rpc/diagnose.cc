#include "client/rpc/diagnose.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "client/rpc/collector.h"
#include "common/names.h"
#include "common/owned_fd.h"
#include "common/unix_address.h"
#include "tls/probe.h"

namespace statcollect::client {
namespace {

constexpr int kConnectMillis = 500, kAnswerMillis = 500;
constexpr std::chrono::milliseconds kTlsTime{2000};
constexpr std::string_view kNameIt =
    "name the collector with --collector HOST:PORT or STATCTL_COLLECTOR";

class Socket {
 public:
  explicit Socket(const addrinfo& to)
      : fd_(socket(to.ai_family, to.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, to.ai_protocol)) {}

  // 0, or why not: ETIMEDOUT after kConnectMillis.
  int Connect(const addrinfo& to) const {
    if (fd_.get() < 0) return errno;
    if (connect(fd_.get(), to.ai_addr, to.ai_addrlen) == 0) return 0;
    if (errno != EINPROGRESS) return errno;
    if (!Await(POLLOUT, kConnectMillis)) return ETIMEDOUT;
    int error = 0;
    socklen_t size = sizeof error;
    return getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
  }
  // The beginning of what it says to a request of HTTP/1; empty if it says nothing.
  std::string AnswerToHttp() const {
    constexpr std::string_view kRequest = "HEAD / HTTP/1.0\r\n\r\n";
    if (send(fd_.get(), kRequest.data(), kRequest.size(), MSG_NOSIGNAL) < 0) return {};
    std::array<char, 64> answer{};
    if (!Await(POLLIN, kAnswerMillis)) return {};
    const ssize_t got = recv(fd_.get(), answer.data(), answer.size(), 0);
    return got > 0 ? std::string(answer.data(), static_cast<std::size_t>(got)) : std::string();
  }

 private:
  bool Await(short what, int millis) const {
    pollfd ready{.fd = fd_.get(), .events = what, .revents = 0};
    return poll(&ready, 1, millis) > 0;
  }
  const OwnedFd fd_;
};

// Whether an answer begins with a settings frame, as that of each HTTP/2 server does: 3 bytes of
// length, type 4, flags, and stream 0 (RFC 9113, 4.1 and 6.5).
bool IsHttp2(std::string_view answer) {
  constexpr std::size_t kHeadBytes = 9, kType = 3, kStream = 5;
  return answer.size() >= kHeadBytes && answer[kType] == 4 &&
         answer.substr(kStream, kHeadBytes - kStream) == std::string_view("\0\0\0\0", 4);
}

Diagnosis Unavailable(std::string message) {
  return {.status = {Code::kUnavailable, std::move(message)}};
}

Diagnosis Silent(const std::string& address, std::chrono::milliseconds patience) {
  const std::string message = fmt::format(
      "no collector at {} answered within {:g} s; check the address, firewalls, and that the "
      "process there "
      "is running (--timeout sets how long to wait)",
      address, static_cast<double>(patience.count()) / 1000);
  return {.status = {Code::kUnavailable, message}, .silent = true};
}

// Diagnoses an address that accepts connections.
Diagnosis Answering(const std::string& address, const std::string& answer,
                    std::chrono::milliseconds patience) {
  if (answer.empty() || IsHttp2(answer))
    return Silent(address, patience);  // a collector that is slow
  if (answer.starts_with("HTTP/1")) {
    return Unavailable(
        fmt::format("no collector at {}: it speaks HTTP; is it statcollectord's --http address? "
                    "expected its gRPC "
                    "address (--listen, by default port 7433); {}",
                    address, kNameIt));
  }
  return Unavailable(
      fmt::format("no collector at {}: it does not speak gRPC; expected statcollectord's gRPC "
                  "address (--listen, by default port 7433); {}",
                  address, kNameIt));
}

// Where a unix:/PATH address leads.
struct SocketPlace {
  explicit SocketPlace(const std::string& address) {
    const std::string path = SocketPath("--collector", address).value();
    name.sun_family = AF_UNIX;
    std::copy_n(path.data(), std::min(path.size(), sizeof name.sun_path - 1), name.sun_path);
    info.ai_family = AF_UNIX;
    info.ai_socktype = SOCK_STREAM;
    info.ai_addr = reinterpret_cast<sockaddr*>(&name);
    info.ai_addrlen = sizeof name;
  }
  sockaddr_un name{};
  addrinfo info{};
};

// Where a HOST:PORT address leads; on failure `error` says why.
struct HostPlaces {
  explicit HostPlaces(const std::string& address) {
    const std::size_t colon = address.rfind(':');
    host = address.substr(0, colon);
    if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    error = getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found);
    places.reset(found);
  }
  std::string host;
  int error = 0;
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> places{nullptr, freeaddrinfo};
};

// As below, for unix:/PATH.
Diagnosis DiagnoseSocket(const std::string& address, std::chrono::milliseconds patience) {
  const SocketPlace place(address);
  const addrinfo& info = place.info;
  const Socket socket(info);
  const std::string shown = Printable(address);
  switch (const int error = socket.Connect(info)) {
    case 0:
      return Answering(shown, socket.AnswerToHttp(), patience);
    case EACCES:
      return Unavailable(
          fmt::format("no access to the socket {}; expected the right to write to it; ask for its "
                      "group, or for another "
                      "--socket-mode of statcollectord",
                      shown));
    case ENOENT:
    case ENOTDIR:
      return Unavailable(
          fmt::format("no collector at {}: there is no such socket; start one with statcollectord "
                      "--listen {}, or {}",
                      shown, shown, kNameIt));
    default:
      return Unavailable(
          fmt::format("no collector at {} ({}); start one with statcollectord --listen {}, or {}",
                      shown, std::strerror(error), shown, kNameIt));
  }
}

}  // namespace

bool NothingListens(const std::string& address) {
  if (IsUnixAddress(address)) {
    const SocketPlace place(address);
    const int error = Socket(place.info).Connect(place.info);
    return error == ENOENT || error == ENOTDIR || error == ECONNREFUSED;
  }
  const HostPlaces found(address);
  if (found.error != 0) return false;
  for (const addrinfo* to = found.places.get(); to != nullptr; to = to->ai_next) {
    if (Socket(*to).Connect(*to) != ECONNREFUSED) return false;
  }
  return true;
}

Diagnosis DiagnoseConnection(const std::string& address, const tls::Material& tls,
                             std::chrono::milliseconds patience) {
  if (IsUnixAddress(address)) return DiagnoseSocket(address, patience);
  const std::string shown = Printable(address);
  const HostPlaces found(address);
  if (found.error != 0) {
    return Unavailable(
        fmt::format("no collector at {}: host '{}' is unknown ({}); check its name; {}", shown,
                    Printable(found.host), gai_strerror(found.error), kNameIt));
  }
  int error = 0;
  for (const addrinfo* to = found.places.get(); to != nullptr; to = to->ai_next) {
    const Socket socket(*to);
    error = socket.Connect(*to);
    if (error == 0) {
      if (std::string why =
              tls::ExplainFailure(address, tls, {.timeout = kTlsTime, .names = kTlsFlags});
          !why.empty())
        return Unavailable(std::move(why));
    }
    if (error == 0) return Answering(shown, socket.AnswerToHttp(), patience);
  }
  if (error == ETIMEDOUT) return Silent(shown, patience);
  return Unavailable(fmt::format("no collector at {} ({}); start one with statcollectord, or {}",
                                 shown, std::strerror(error), kNameIt));
}

}  // namespace statcollect::client
