// The HTTP/JSON twin of every query: a call of HTTP becomes a call of the gRPC server in this process, so
// that it has the same pools, limits, errors and answers. Knows messages by their descriptors only.
#ifndef STATCOLLECT_SERVER_API_HTTP_API_H_
#define STATCOLLECT_SERVER_API_HTTP_API_H_

#include <memory>

#include "server/http/exchange.h"

namespace grpc {
class Server;
}

namespace statcollect::api {

// Threads: handed to an HttpServer's services under kHttpPrefix; its calls return at once. Answers are made
// into text on two threads of its own.
class HttpApi {
 public:
  // The server must outlive it.
  explicit HttpApi(grpc::Server& server);
  // Closes.
  ~HttpApi();
  HttpApi(const HttpApi&) = delete;
  HttpApi& operator=(const HttpApi&) = delete;

  void Serve(HttpRequest request, const std::shared_ptr<HttpExchange>& exchange);
  // Cancels what is under way and waits for it; what is asked later gets a 503. The exchanges' io_context
  // must run meanwhile.
  void Close();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_HTTP_API_H_
