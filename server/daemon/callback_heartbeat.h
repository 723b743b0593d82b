#ifndef STATCOLLECT_SERVER_DAEMON_CALLBACK_HEARTBEAT_H_
#define STATCOLLECT_SERVER_DAEMON_CALLBACK_HEARTBEAT_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>

namespace statcollect {

// Keeps gRPC's callback threads listening. In gRPC 1.51 (CallbackAlternativeCQ), such a thread that
// has had nothing to do for a second sleeps for 100 ms; if all of them sleep, a call waits. Several
// times a second, this gives them a call that fails at once, on a channel that leads nowhere. Used
// and destroyed on the thread of `io`.
class CallbackHeartbeat {
 public:
  explicit CallbackHeartbeat(boost::asio::io_context& io);
  CallbackHeartbeat(const CallbackHeartbeat&) = delete;
  CallbackHeartbeat& operator=(const CallbackHeartbeat&) = delete;
  ~CallbackHeartbeat();  // waits until the last call has ended

 private:
  void Wait();
  void Beat();

  boost::asio::steady_timer timer_;
  grpc::GenericStub nowhere_;
  std::unique_ptr<grpc::ClientContext> context_;  // of the last call
  grpc::ByteBuffer request_, answer_;
  std::atomic<bool> calling_ = false;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_DAEMON_CALLBACK_HEARTBEAT_H_
