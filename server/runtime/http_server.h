// A small HTTP/1.1 listener for health checks, metrics and pages: GET and HEAD only, no request bodies.
#ifndef STATCOLLECT_SERVER_RUNTIME_HTTP_SERVER_H_
#define STATCOLLECT_SERVER_RUNTIME_HTTP_SERVER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>

#include "common/status.h"
#include "server/runtime/endpoint.h"

namespace statcollect {

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
};

// Runs on a thread of the io_context; must be quick and thread-safe.
using HttpHandler = std::function<HttpResponse(const std::string& target)>;

struct HttpLimits {
  std::size_t connections_max = 64;
  std::size_t header_bytes_max = 8192;
  int idle_seconds_max = 15;  // to send a request, or between two
};

// Threads: constructed, started and stopped by one thread; connections live on the io_context's threads.
class HttpServer {
 public:
  // Handlers by exact path (the target up to '?').
  HttpServer(boost::asio::io_context& io, std::map<std::string, HttpHandler> handlers,
             HttpLimits limits = {});
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Binds and begins to accept. kUnavailable (address in use), kInvalidArgument (no such address).
  Status Start(const Endpoint& endpoint);
  // The bound address, with the real port.
  const Endpoint& endpoint() const;
  // Stops accepting; connections under way end by themselves or with the io_context.
  void Stop();

 private:
  class Listener;
  std::shared_ptr<Listener> listener_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_RUNTIME_HTTP_SERVER_H_
