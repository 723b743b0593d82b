// A connection's bytes: plain, or inside TLS. Time-outs are those of the TCP stream in both cases.
#ifndef STATCOLLECT_SERVER_HTTP_STREAM_H_
#define STATCOLLECT_SERVER_HTTP_STREAM_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/tcp_stream.hpp>

#include "tls/peer_names.h"

namespace statcollect {

// Meets Beast's AsyncStream, with completion handlers only (no futures or coroutines). Not
// thread-safe.
class HttpStream {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;

  explicit HttpStream(boost::asio::ip::tcp::socket socket) : tcp_(std::move(socket)) {}

  // What follows is encrypted; `received`: what was read of the handshake already.
  template <typename Buffers, typename Handler>
  void AcceptTls(std::shared_ptr<boost::asio::ssl::context> context, const Buffers& received,
                 Handler handler) {
    context_ = std::move(context);
    tls_.emplace(tcp_, *context_);
    tls_->async_handshake(boost::asio::ssl::stream_base::server, received, std::move(handler));
  }
  bool encrypted() const { return tls_.has_value(); }
  // In the certificate of the peer, after the handshake.
  std::vector<std::string> PeerNames() {
    return tls_ ? tls::PeerNames(tls_->native_handle()) : std::vector<std::string>();
  }
  // Says goodbye to the peer; only if encrypted.
  template <typename Handler>
  void CloseTls(Handler handler) {
    tls_->async_shutdown(std::move(handler));
  }

  boost::beast::tcp_stream& tcp() { return tcp_; }
  const boost::beast::tcp_stream& tcp() const { return tcp_; }
  executor_type get_executor() { return tcp_.get_executor(); }

  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    tls_ ? tls_->async_read_some(buffers, std::forward<Handler>(handler))
         : tcp_.async_read_some(buffers, std::forward<Handler>(handler));
  }
  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    tls_ ? tls_->async_write_some(buffers, std::forward<Handler>(handler))
         : tcp_.async_write_some(buffers, std::forward<Handler>(handler));
  }

 private:
  boost::beast::tcp_stream tcp_;
  std::shared_ptr<boost::asio::ssl::context> context_;  // outlives the stream
  std::optional<boost::asio::ssl::stream<boost::beast::tcp_stream&>> tls_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_HTTP_STREAM_H_
