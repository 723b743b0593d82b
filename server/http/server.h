// A small HTTP/1.1 server, plain or with TLS, for pages that are rendered at once (health, metrics:
// GET and HEAD, no request bodies) and for services that answer later.
#ifndef STATCOLLECT_SERVER_HTTP_SERVER_H_
#define STATCOLLECT_SERVER_HTTP_SERVER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>

#include "common/status.h"
#include "server/http/endpoint.h"
#include "server/http/exchange.h"
#include "server/http/tls_contexts.h"

namespace statcollect {

// Runs on a thread of the io_context; must be quick and thread-safe.
using HttpHandler = std::function<HttpResponse(const std::string& target)>;

struct HttpLimits {
  std::size_t connections_max = 1024;     // which also limits concurrent requests
  std::size_t header_bytes_max = 16'384;  // including the target
  std::size_t body_bytes_max = 1 << 20;   // of a request to a service
  int descriptors_end =
      1 << 30;  // a connection with this descriptor or a higher one is closed at once
  int idle_seconds_max =
      15;  // to send a request, between two requests, or without reading any of an answer
  std::size_t bytes_per_second_min =
      16 << 10;  // of a page; who reads it more slowly in all is disconnected
};

// Services by path prefix ("/api/v1/"; "/" stands for that path only); they may be called while the
// io_context runs.
using HttpServices = std::map<std::string, HttpService>;

// Threads: constructed, started and stopped by one thread; connections run on the io_context's
// threads.
class HttpServer {
 public:
  // Handlers by exact path (the target up to '?'). An empty gate lets everything through. With
  // `tls`, plain requests get an answer that says so; a client that does not finish its handshake
  // within idle_seconds_max is disconnected.
  HttpServer(boost::asio::io_context& io, std::map<std::string, HttpHandler> handlers,
             HttpLimits limits = {}, HttpServices services = {}, HttpGate gate = {},
             std::unique_ptr<TlsContexts> tls = {});
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Binds and starts to accept. kUnavailable: address in use; kInvalidArgument: no such address.
  Status Start(const Endpoint& endpoint);
  // The bound address, with the real port.
  const Endpoint& endpoint() const;
  // Stops accepting; open connections end by themselves or with the io_context.
  void Stop();

 private:
  class Listener;
  std::shared_ptr<Listener> listener_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_HTTP_SERVER_H_
