#include "server/runtime/http_server.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include "common/names.h"

namespace statcollect {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;

// What all connections share.
struct Shared {
  std::map<std::string, HttpHandler> handlers;
  HttpLimits limits;
  std::atomic<std::size_t> connections{0};
};

HttpResponse ErrorResponse(int status, const std::string& message) {
  return {.status = status,
          .content_type = "application/json",
          .body = nlohmann::json{{"error", message}}.dump() + "\n"};
}

HttpResponse Route(const Shared& shared, http::verb method, const std::string& target) {
  if (method != http::verb::get && method != http::verb::head) {
    return ErrorResponse(405, "expected GET or HEAD");
  }
  const auto handler = shared.handlers.find(target.substr(0, target.find('?')));
  if (handler == shared.handlers.end()) {
    std::string known;
    for (const auto& [path, unused] : shared.handlers) known += (known.empty() ? "" : ", ") + path;
    return ErrorResponse(404, "no page '" + Printable(target) + "'; there are " + known);
  }
  try {
    return handler->second(target);
  } catch (const std::exception& failure) {
    return ErrorResponse(500, Printable(failure.what()));
  }
}

// One connection. Keeps itself alive through the handlers of its pending operation; always runs on its own
// strand.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, std::shared_ptr<Shared> shared)
      : stream_(std::move(socket)), shared_(std::move(shared)) {
    shared_->connections.fetch_add(1);
  }
  ~Connection() { shared_->connections.fetch_sub(1); }

  void Read() {
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(shared_->limits.header_bytes_max));
    parser_->body_limit(0);
    stream_.expires_after(std::chrono::seconds(shared_->limits.idle_seconds_max));
    http::async_read(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](beast::error_code error, std::size_t) { self->OnRead(error); });
  }

 private:
  void OnRead(beast::error_code error) {
    if (error == http::error::end_of_stream || error == beast::error::timeout) return Close();
    if (error == http::error::body_limit)
      return Write(ErrorResponse(413, "expected no request body"), 11, false, false);
    if (error == http::error::header_limit) {
      return Write(ErrorResponse(431, "expected a request header of at most " +
                                          std::to_string(shared_->limits.header_bytes_max) + " bytes"),
                   11, false, false);
    }
    if (error && error.category() == http::make_error_code(http::error::bad_method).category()) {
      return Write(ErrorResponse(400, "not a valid HTTP request: " + error.message()), 11, false, false);
    }
    if (error) return;
    const auto& request = parser_->get();
    Write(Route(*shared_, request.method(), std::string(request.target())), request.version(),
          request.keep_alive(), request.method() == http::verb::head);
  }

  void Write(HttpResponse page, unsigned version, bool keep_alive, bool head) {
    response_.emplace(static_cast<http::status>(page.status), version);
    response_->set(http::field::server, "statcollectord");
    response_->set(http::field::content_type, page.content_type);
    response_->set(http::field::cache_control, "no-store");
    response_->set("X-Content-Type-Options", "nosniff");
    response_->keep_alive(keep_alive);
    const std::size_t length = page.body.size();
    if (!head) response_->body() = std::move(page.body);
    response_->content_length(length);
    stream_.expires_after(std::chrono::seconds(shared_->limits.idle_seconds_max));
    http::async_write(stream_, *response_,
                      [self = shared_from_this(), keep_alive](beast::error_code error, std::size_t) {
                        if (error) return;
                        keep_alive ? self->Read() : self->Close();
                      });
  }

  void Close() {
    beast::error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  }

  beast::tcp_stream stream_;
  std::shared_ptr<Shared> shared_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::empty_body>> parser_;
  std::optional<http::response<http::string_body>> response_;
};

}  // namespace

class HttpServer::Listener : public std::enable_shared_from_this<HttpServer::Listener> {
 public:
  Listener(asio::io_context& io, std::shared_ptr<Shared> shared)
      : io_(io), acceptor_(asio::make_strand(io)), shared_(std::move(shared)) {}

  Status Open(const Endpoint& wanted) {
    beast::error_code error;
    tcp::resolver resolver(io_);
    const auto found =
        resolver.resolve(wanted.host, std::to_string(wanted.port), tcp::resolver::passive, error);
    if (error || found.empty()) {
      return {Code::kInvalidArgument,
              "listen for HTTP on " + wanted.ToString() + ": no such address: " + error.message()};
    }
    const tcp::endpoint address = found.begin()->endpoint();
    acceptor_.open(address.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(address, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return {Code::kUnavailable, "listen for HTTP on " + wanted.ToString() + ": " + error.message() +
                                      "; name another address with --http, or --http off"};
    }
    bound_ = {.host = wanted.host, .port = acceptor_.local_endpoint().port()};
    return Status::Ok();
  }

  void Accept() {
    acceptor_.async_accept(
        asio::make_strand(io_), [self = shared_from_this()](beast::error_code error, tcp::socket socket) {
          if (error == asio::error::operation_aborted) return;
          // Over the cap the socket is closed at once; a peer sees a reset and tries again later.
          if (!error && self->shared_->connections.load() < self->shared_->limits.connections_max) {
            std::make_shared<Connection>(std::move(socket), self->shared_)->Read();
          }
          self->Accept();
        });
  }

  void Stop() {
    asio::post(acceptor_.get_executor(), [self = shared_from_this()] {
      beast::error_code ignored;
      self->acceptor_.close(ignored);
    });
  }

  const Endpoint& bound() const { return bound_; }

 private:
  asio::io_context& io_;
  tcp::acceptor acceptor_;
  std::shared_ptr<Shared> shared_;
  Endpoint bound_;
};

HttpServer::HttpServer(asio::io_context& io, std::map<std::string, HttpHandler> handlers, HttpLimits limits) {
  auto shared = std::make_shared<Shared>();
  shared->handlers = std::move(handlers);
  shared->limits = limits;
  listener_ = std::make_shared<Listener>(io, std::move(shared));
}

HttpServer::~HttpServer() { Stop(); }

Status HttpServer::Start(const Endpoint& endpoint) {
  STATCOLLECT_RETURN_IF_ERROR(listener_->Open(endpoint));
  listener_->Accept();
  return Status::Ok();
}

const Endpoint& HttpServer::endpoint() const { return listener_->bound(); }

void HttpServer::Stop() { listener_->Stop(); }

}  // namespace statcollect
