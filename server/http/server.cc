#include "server/http/server.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "common/names.h"
#include "server/http/pages.h"
#include "server/http/request_head.h"
#include "server/http/stream.h"

namespace statcollect {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;

// Whether the body is as long as Content-Length says, or in chunks, and encoded in no other way.
bool HasPlainBody(const http::request_header<>& request) {
  const auto encodings = request.count(http::field::transfer_encoding);
  if (encodings == 0) return true;
  return encodings == 1 && request.version() == 11 &&
         beast::iequals(request[http::field::transfer_encoding], "chunked");
}

// What all connections share.
struct Shared {
  std::map<std::string, HttpHandler> handlers;
  HttpServices services;
  HttpGate gate;
  HttpLimits limits;
  std::unique_ptr<TlsContexts> tls;  // null: plain HTTP
  std::atomic<std::size_t> connections{0};
};

// One connection. Keeps itself alive through the handlers of its pending operation; always runs on
// its own strand.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, std::shared_ptr<Shared> shared)
      : stream_(std::move(socket)), shared_(std::move(shared)) {
    shared_->connections.fetch_add(1);
    beast::error_code ignored;
    this->socket().non_blocking(true, ignored);
  }
  ~Connection() { shared_->connections.fetch_sub(1); }

  void Start() {
    if (!shared_->tls) return Read();
    // The first byte says whether the client means TLS; one that does not is told so.
    ExpectProgress();
    stream_.tcp().async_read_some(
        buffer_.prepare(1), [self = shared_from_this()](beast::error_code error, std::size_t got) {
          if (!error) self->OnFirstByte(got);
        });
  }

  void Read() {
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(shared_->limits.header_bytes_max));
    parser_->body_limit(shared_->limits.body_bytes_max);
    ExpectProgress();
    http::async_read_header(stream_, buffer_, *parser_,
                            [self = shared_from_this()](beast::error_code error, std::size_t) {
                              self->OnHeader(error);
                            });
  }

  asio::any_io_executor executor() { return stream_.get_executor(); }

  // --- of the exchange of request `number`; on the strand

  void Send(std::uint64_t number, HttpResponse page) {
    if (number != number_ || state_ != State::kAsked) return;
    Write(std::move(page));
  }

  void Begin(std::uint64_t number, const HttpResponse& head) {
    if (number != number_ || state_ != State::kAsked) return;
    state_ = State::kPieces;
    head_.emplace(static_cast<http::status>(head.status), version_);
    SetFields(*head_, head);
    // HTTP/1.0 has no chunks, so the end of the connection ends the answer.
    if (version_ < 11) keep_alive_ = false;
    head_->keep_alive(keep_alive_);
    head_->chunked(version_ >= 11);
    head_serializer_.emplace(*head_);
    ExpectProgress();
    writing_ = true;
    http::async_write_header(stream_, *head_serializer_,
                             [self = shared_from_this()](beast::error_code error, std::size_t) {
                               self->OnPiece(error, [](bool) {});
                             });
  }

  void WritePiece(std::uint64_t number, std::string piece, std::function<void(bool)> taken) {
    if (number != number_ || state_ != State::kPieces || head_only_) return taken(false);
    if (writing_) {  // the head still
      waiting_ = [this, number, piece = std::move(piece), taken = std::move(taken)]() mutable {
        WritePiece(number, std::move(piece), std::move(taken));
      };
      return;
    }
    if (piece.empty()) return taken(true);
    piece_ = std::move(piece);
    writing_ = true;
    ExpectProgress();
    auto done = [self = shared_from_this(), taken = std::move(taken)](
                    beast::error_code error, std::size_t) { self->OnPiece(error, taken); };
    if (version_ >= 11) {
      asio::async_write(stream_, http::make_chunk(asio::buffer(piece_)), std::move(done));
    } else {
      asio::async_write(stream_, asio::buffer(piece_), std::move(done));
    }
  }

  void End(std::uint64_t number, bool whole) {
    if (number != number_ || state_ != State::kPieces) return;
    if (writing_) {
      waiting_ = [this, number, whole] { End(number, whole); };
      return;
    }
    if (!whole) return Abort();
    if (version_ < 11 || head_only_) return Finish();
    writing_ = true;
    ExpectProgress();
    asio::async_write(stream_, http::make_chunk_last(),
                      [self = shared_from_this()](beast::error_code error, std::size_t) {
                        self->writing_ = false;
                        error ? self->Abort() : self->Finish();
                      });
  }

  void OnGone(std::uint64_t number, std::function<void()> gone) {
    if (number != number_ || state_ == State::kGone) return gone();
    if (state_ != State::kIdle) gone_ = std::move(gone);
  }

 private:
  enum class State { kIdle, kAsked, kPieces, kGone };
  class Exchange;
  static constexpr std::size_t kReadAheadMax =
      64 * 1024;  // of later requests, while one is answered
  static constexpr std::size_t kDrainMax = 4 * 1024 * 1024;  // of a body that was refused

  // The time for the next operation begins.
  void ExpectProgress() {
    stream_.tcp().expires_after(std::chrono::seconds(shared_->limits.idle_seconds_max));
  }

  tcp::socket& socket() { return stream_.tcp().socket(); }

  void OnFirstByte(std::size_t got) {
    constexpr char kHandshake = 22;  // the record type of TLS
    buffer_.commit(got);
    if (*static_cast<const char*>(buffer_.data().data()) != kHandshake)
      return Refuse(
          ErrorResponse(400,
                        "read a request: found no TLS; expected https; use https:// with this "
                        "address, and the authority of its certificate (its ca.pem)"));
    auto context = shared_->tls->Current();
    if (context == nullptr) return;
    stream_.AcceptTls(std::move(context), buffer_.data(),
                      [self = shared_from_this()](beast::error_code error, std::size_t taken) {
                        if (error) return;
                        self->buffer_.consume(taken);
                        self->Read();
                      });
  }

  void Refuse(HttpResponse page) {
    version_ = 11;
    keep_alive_ = head_only_ = false;
    state_ = State::kAsked;
    Write(std::move(page));
  }

  bool IsRefused(beast::error_code error) {
    if (error == http::error::body_limit) {
      Refuse(ErrorResponse(413, "expected a request body of at most " +
                                    std::to_string(shared_->limits.body_bytes_max) + " bytes"));
    } else if (error == http::error::header_limit) {
      Refuse(ErrorResponse(431, "expected a request header of at most " +
                                    std::to_string(shared_->limits.header_bytes_max) + " bytes"));
    } else if (error.category() == http::make_error_code(http::error::bad_method).category()) {
      Refuse(ErrorResponse(400, "not a valid HTTP request: " + error.message()));
    } else {
      return false;
    }
    return true;
  }

  void OnHeader(beast::error_code error) {
    if (error == http::error::end_of_stream || error == beast::error::timeout) return Close();
    if (error) return void(IsRefused(error));
    const auto& request = parser_->get();
    const std::string target(request.target());
    // What the parser takes for no body, a proxy in front may take for one: the two would disagree
    // where the next request begins.
    if (!HasPlainBody(request)) {
      return Refuse(ErrorResponse(
          400, "found Transfer-Encoding '" +
                   Printable(std::string(request[http::field::transfer_encoding]), 100) +
                   "'; expected one such field, 'chunked', in HTTP/1.1, or none"));
    }
    if (shared_->gate) {
      if (auto refused = shared_->gate(HeadOf(request))) return Refuse(*std::move(refused));
    }
    service_ = FindService(target.substr(0, target.find('?')));
    const bool has_body = request.chunked() || parser_->content_length().value_or(0) > 0;
    if (service_ == nullptr && has_body)
      return Refuse(ErrorResponse(413, "expected no request body"));
    if (has_body && beast::iequals(request[http::field::expect], "100-continue")) {
      asio::async_write(stream_, asio::buffer(kContinue),
                        [self = shared_from_this()](beast::error_code failed, std::size_t) {
                          if (!failed) self->ReadBody();
                        });
      return;
    }
    ReadBody();
  }

  void ReadBody() {
    http::async_read(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](beast::error_code error, std::size_t) { self->OnRead(error); });
  }

  void OnRead(beast::error_code error) {
    if (error == beast::error::timeout) return Close();
    if (error) return void(IsRefused(error));
    auto request = parser_->release();
    version_ = request.version();
    keep_alive_ = request.keep_alive();
    head_only_ = request.method() == http::verb::head;
    state_ = State::kAsked;
    ++number_;
    if (service_ == nullptr)
      return Write(
          AnswerPage(shared_->handlers, shared_->services, request, std::string(request.target())));
    Serve(std::move(request));
  }

  void Serve(http::request<http::string_body> request);

  HttpRequest HeadOf(const http::request<http::string_body>& request) {
    HttpRequest head = statcollect::HeadOf(request);
    head.encrypted = stream_.encrypted();
    head.certificate = stream_.PeerNames();
    beast::error_code failed;
    const tcp::endpoint peer = stream_.tcp().socket().remote_endpoint(failed);
    if (!failed) {
      const bool v6 = peer.address().is_v6();
      head.address = (v6 ? "ipv6:[" : "ipv4:") + peer.address().to_string() + (v6 ? "]:" : ":") +
                     std::to_string(peer.port());
    }
    return head;
  }

  const HttpService* FindService(const std::string& path) const {
    for (const auto& [prefix, service] : shared_->services) {
      if (prefix == "/" ? path == prefix : path.starts_with(prefix)) return &service;
    }
    return nullptr;
  }

  // Notices while a request is answered that the client is gone; keeps what it sends meanwhile.
  void Watch() {
    if (stream_.encrypted()) return WatchTls();
    socket().async_wait(tcp::socket::wait_read, [self = shared_from_this(),
                                                 number = number_](beast::error_code error) {
      if (number != self->number_ ||
          (self->state_ != State::kAsked && self->state_ != State::kPieces))
        return;
      if (error) return self->Abort();
      beast::error_code failed;
      const std::size_t got = self->socket().read_some(self->buffer_.prepare(4096), failed);
      self->buffer_.commit(got);
      if (failed && failed != asio::error::would_block && failed != asio::error::try_again)
        return self->Abort();
      if (self->buffer_.size() < kReadAheadMax) self->Watch();
    });
  }

  // The same with TLS, where nobody knows what came without decrypting it.
  void WatchTls() {
    if (reading_) return;
    reading_ = true;
    stream_.tcp().expires_never();  // the answer may take its time
    stream_.async_read_some(buffer_.prepare(4096),
                            [self = shared_from_this()](beast::error_code error, std::size_t got) {
                              self->reading_ = false;
                              self->buffer_.commit(got);
                              const bool cancelled = error == asio::error::operation_aborted;
                              if (auto next = std::exchange(self->after_reading_, nullptr))
                                return error && !cancelled ? self->Abort() : next();
                              if (error) return self->Abort();
                              if (self->buffer_.size() < kReadAheadMax) self->WatchTls();
                            });
  }
  // There is one read at a time; what it has got is kept.
  void EndReading(std::function<void()> next) {
    if (!reading_) return next();
    after_reading_ = std::move(next);
    stream_.tcp().cancel();
  }

  template <typename Response>
  void SetFields(Response& response, const HttpResponse& page) {
    response.set(http::field::server, "statcollectord");
    response.set(http::field::content_type, page.content_type);
    response.set(http::field::cache_control, "no-store");
    // Pages bring a policy of their own; no other answer is meant to run, to load or to be framed.
    response.set("Content-Security-Policy",
                 "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    response.set("Cross-Origin-Resource-Policy", "same-origin");
    response.set("Referrer-Policy", "no-referrer");
    response.set("X-Content-Type-Options", "nosniff");
    response.set("X-Frame-Options", "DENY");
    for (const auto& [name, value] : page.headers) response.set(name, value);
  }

  void Write(HttpResponse page) {
    response_.emplace(static_cast<http::status>(page.status), version_);
    SetFields(*response_, page);
    response_->keep_alive(keep_alive_);
    const std::size_t length = page.body.size();
    if (!head_only_) response_->body() = std::move(page.body);
    response_->content_length(length);
    serializer_.emplace(*response_);
    writing_ = true;
    const HttpLimits& limits = shared_->limits;
    written_by_ =
        std::chrono::steady_clock::now() + std::chrono::seconds(limits.idle_seconds_max) +
        std::chrono::seconds(length / std::max<std::size_t>(1, limits.bytes_per_second_min));
    WriteSome();
  }

  // Piece by piece, so that a client may be slow as long as it takes enough.
  void WriteSome() {
    const auto idle = std::chrono::seconds(shared_->limits.idle_seconds_max);
    stream_.tcp().expires_at(std::min(std::chrono::steady_clock::now() + idle, written_by_));
    http::async_write_some(stream_, *serializer_,
                           [self = shared_from_this()](beast::error_code error, std::size_t) {
                             if (error) return self->Abort();
                             if (!self->serializer_->is_done()) return self->WriteSome();
                             self->writing_ = false;
                             self->Finish();
                           });
  }

  void OnPiece(beast::error_code error, const std::function<void(bool)>& taken) {
    writing_ = false;
    piece_.clear();
    if (error || state_ != State::kPieces) {
      Abort();
      return taken(false);
    }
    stream_.tcp().expires_never();
    taken(true);
    if (auto next = std::exchange(waiting_, nullptr)) next();
  }

  // The answer is complete.
  void Finish() {
    state_ = State::kIdle;
    gone_ = nullptr;
    waiting_ = nullptr;
    EndReading([this] { keep_alive_ ? Read() : Close(); });
  }

  // The client is gone, or is to notice that the answer is not whole.
  void Abort() {
    if (state_ == State::kGone) return;
    state_ = State::kGone;
    stream_.tcp().close();
    if (auto gone = std::exchange(gone_, nullptr)) gone();
    if (auto next = std::exchange(waiting_, nullptr)) next();
  }

  // Reads and drops what the client still sends: if the connection were closed immediately, it
  // would lose the answer.
  void Close() {
    stream_.tcp().expires_after(std::chrono::seconds(2));
    buffer_.clear();
    if (!stream_.encrypted()) return CloseTcp();
    stream_.CloseTls([self = shared_from_this()](beast::error_code) { self->CloseTcp(); });
  }
  void CloseTcp() {
    beast::error_code ignored;
    socket().shutdown(tcp::socket::shutdown_send, ignored);
    Drain(0);
  }
  void Drain(std::size_t drained) {
    if (drained > kDrainMax) return;
    stream_.tcp().async_read_some(
        buffer_.prepare(16 * 1024),
        [self = shared_from_this(), drained](beast::error_code error, std::size_t got) {
          if (!error) self->Drain(drained + got);
        });
  }

  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  HttpStream stream_;
  std::shared_ptr<Shared> shared_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  const HttpService* service_ = nullptr;
  // The request that is answered.
  State state_ = State::kIdle;
  std::uint64_t number_ = 0;
  unsigned version_ = 11;
  bool keep_alive_ = false, head_only_ = false, writing_ = false;
  bool reading_ = false;  // WatchTls
  std::function<void()> gone_, waiting_, after_reading_;
  std::optional<http::response<http::string_body>> response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
  std::optional<http::response<http::empty_body>> head_;
  std::optional<http::response_serializer<http::empty_body>> head_serializer_;
  std::string piece_;
  std::chrono::steady_clock::time_point written_by_;  // all of response_
};

// A service's end of a connection; all calls are forwarded to the connection's strand.
class Connection::Exchange final : public HttpExchange {
 public:
  Exchange(std::shared_ptr<Connection> connection, std::uint64_t number)
      : connection_(std::move(connection)), number_(number) {}
  ~Exchange() override {
    if (answered_) return;
    begun_ ? End(false) : Send(ErrorResponse(500, "the request was dropped without an answer"));
  }

  void Send(HttpResponse response) override {
    answered_ = true;
    Post([number = number_, response = std::move(response)](Connection& c) mutable {
      c.Send(number, std::move(response));
    });
  }
  void Begin(HttpResponse head) override {
    begun_ = true;
    Post([number = number_, head = std::move(head)](Connection& c) { c.Begin(number, head); });
  }
  void Write(std::string piece, std::function<void(bool)> taken) override {
    Post([number = number_, piece = std::move(piece), taken = std::move(taken)](
             Connection& c) mutable { c.WritePiece(number, std::move(piece), std::move(taken)); });
  }
  void End(bool whole) override {
    answered_ = true;
    Post([number = number_, whole](Connection& c) { c.End(number, whole); });
  }
  void OnGone(std::function<void()> gone) override {
    Post([number = number_, gone = std::move(gone)](Connection& c) mutable {
      c.OnGone(number, std::move(gone));
    });
  }

 private:
  template <typename F>
  void Post(F&& function) {
    asio::post(connection_->executor(),
               [connection = connection_, function = std::forward<F>(function)]() mutable {
                 function(*connection);
               });
  }
  const std::shared_ptr<Connection> connection_;
  const std::uint64_t number_;
  std::atomic<bool> answered_ = false, begun_ = false;
};

void Connection::Serve(http::request<http::string_body> request) {
  stream_.tcp().expires_never();  // the service's own limits count from here on
  HttpRequest asked = HeadOf(request);
  asked.body = std::move(request.body());
  Watch();
  auto exchange = std::make_shared<Exchange>(shared_from_this(), number_);
  try {
    (*service_)(std::move(asked), exchange);
  } catch (const std::exception& failure) {
    exchange->Send(ErrorResponse(500, Printable(failure.what())));
  }
}

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
      return {Code::kUnavailable,
              "listen for HTTP on " + wanted.ToString() + ": " + error.message() +
                  "; choose a different address with --http, or use --http off"};
    }
    bound_ = {.host = wanted.host, .port = acceptor_.local_endpoint().port()};
    return Status::Ok();
  }

  void Accept() {
    acceptor_.async_accept(
        asio::make_strand(io_),
        [self = shared_from_this()](beast::error_code error, tcp::socket socket) {
          if (error == asio::error::operation_aborted) return;
          // Over the cap the socket is closed at once; a peer sees a reset and tries again later.
          const HttpLimits& limits = self->shared_->limits;
          if (!error && self->shared_->connections.load() < limits.connections_max &&
              socket.native_handle() < limits.descriptors_end) {
            std::make_shared<Connection>(std::move(socket), self->shared_)->Start();
          }
          error ? self->AcceptLater() : self->Accept();
        });
  }

  // Out of descriptors, say: trying again at once would only burn the processor.
  void AcceptLater() {
    retry_.expires_after(std::chrono::milliseconds(50));
    retry_.async_wait([self = shared_from_this()](beast::error_code error) {
      if (!error && self->acceptor_.is_open()) self->Accept();
    });
  }

  void Stop() {
    asio::post(acceptor_.get_executor(), [self = shared_from_this()] {
      beast::error_code ignored;
      self->retry_.cancel();
      self->acceptor_.close(ignored);
    });
  }

  const Endpoint& bound() const { return bound_; }

 private:
  asio::io_context& io_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_{acceptor_.get_executor()};
  std::shared_ptr<Shared> shared_;
  Endpoint bound_;
};

HttpServer::HttpServer(asio::io_context& io, std::map<std::string, HttpHandler> handlers,
                       HttpLimits limits, HttpServices services, HttpGate gate,
                       std::unique_ptr<TlsContexts> tls) {
  auto shared = std::make_shared<Shared>();
  shared->gate = std::move(gate);
  shared->tls = std::move(tls);
  shared->services = std::move(services);
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
