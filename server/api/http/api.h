// The HTTP/JSON endpoints of all queries. Each request becomes a call of the gRPC server in this
// process, with the same pools, limits, errors and answers. Uses messages only through their
// descriptors.
#ifndef STATCOLLECT_SERVER_API_HTTP_API_H_
#define STATCOLLECT_SERVER_API_HTTP_API_H_

#include <memory>

#include "server/http/exchange.h"

namespace grpc {
class Server;
}

namespace statcollect::api {

// Threads: passed to an HttpServer's services under kHttpPrefix; its calls return at once. Answers
// are converted to text on two threads of its own.
class HttpApi {
 public:
  // The server must outlive it.
  explicit HttpApi(grpc::Server& server);
  // Calls Close.
  ~HttpApi();
  HttpApi(const HttpApi&) = delete;
  HttpApi& operator=(const HttpApi&) = delete;

  void Serve(HttpRequest request, const std::shared_ptr<HttpExchange>& exchange);
  // Cancels running requests and waits for them; later requests get 503. The exchanges' io_context
  // must run meanwhile.
  void Close();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_HTTP_API_H_
