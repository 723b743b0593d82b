// Accepts the connections of the gRPC server, which cannot limit them by itself: at most so many at
// a time, and none whose descriptor the store may need. Over a limit a connection is closed at
// once; the peer tries again later.
#ifndef STATCOLLECT_SERVER_DAEMON_GRPC_LISTENER_H_
#define STATCOLLECT_SERVER_DAEMON_GRPC_LISTENER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <sys/types.h>

#include <grpcpp/server_builder.h>

#include "common/status.h"
#include "server/daemon/local_socket.h"
#include "server/http/endpoint.h"

namespace statcollect {

struct ListenerLimits {
  std::size_t connections_max = 4096;
  // Descriptors with this number and higher are left to the store: the system gives out the lowest
  // free one.
  int descriptors_end = 1 << 30;
  std::chrono::milliseconds ping_timeout{
      10'000};  // without an answer to what was sent, a connection ends
};

// The descriptors of accepted connections, which their user closes without saying so. Not
// thread-safe.
class OpenConnections {
 public:
  void Add(int descriptor);
  // Costs a system call for each connection, at most every 50 ms: in between it remembers the
  // answer.
  bool Full(std::size_t connections_max, std::chrono::steady_clock::time_point now);
  std::size_t size() const {
    return sockets_.size();
  }  // including those closed since the last look

 private:
  std::unordered_map<int, ino_t>
      sockets_;  // the inode tells a socket from a later one with its descriptor
  std::chrono::steady_clock::time_point full_until_{};
};

// Threads: made, started and stopped by one thread; accepts on a thread of its own.
class GrpcListener {
 public:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

  // Binds all addresses of the host. kUnavailable: in use, or not of this machine. `log`: from the
  // accepting thread, at most once a minute.
  static Result<std::unique_ptr<GrpcListener>> Open(
      const Endpoint& wanted, const ListenerLimits& limits,
      std::function<void(const std::string& line)> log);
  // Listens on a Unix socket instead; the limits count its connections alone. Errors: those of
  // LocalSocket::Open.
  static Result<std::unique_ptr<GrpcListener>> OpenSocket(
      const LocalSocketOptions& wanted, const ListenerLimits& limits,
      std::function<void(const std::string& line)> log);
  ~GrpcListener();
  GrpcListener(const GrpcListener&) = delete;
  GrpcListener& operator=(const GrpcListener&) = delete;

  // The bound address, with the real port; of a Unix socket, nothing.
  const Endpoint& endpoint() const { return endpoint_; }
  // Once, after the server was started that `acceptor` belongs to.
  void Start(std::unique_ptr<Acceptor> acceptor);
  // Accepts nothing more; open connections are the server's. Idempotent.
  void Stop();

 private:
  GrpcListener(Endpoint endpoint, const ListenerLimits& limits,
               std::function<void(const std::string&)> log);

  Status Bind(const Endpoint& wanted);
  void Run();
  void AcceptFrom(int listener);
  // Why a connection with this descriptor is not wanted; empty if it is.
  std::string Refusal(int descriptor);
  void Refuse(const std::string& why);
  void Prepare(int descriptor) const;

  Endpoint endpoint_;
  const ListenerLimits limits_;
  const std::function<void(const std::string&)> log_;
  std::vector<int> listeners_;
  std::unique_ptr<LocalSocket> socket_;
  int wake_ = -1;  // an eventfd: written to stop
  std::unique_ptr<Acceptor> acceptor_;
  std::thread thread_;
  // Of the accepting thread.
  OpenConnections open_;
  std::uint64_t refused_ = 0;  // since the last line
  std::chrono::steady_clock::time_point silent_until_{};
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_DAEMON_GRPC_LISTENER_H_
