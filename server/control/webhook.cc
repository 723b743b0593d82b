#include "server/control/webhook.h"

#include <atomic>
#include <charconv>
#include <deque>
#include <optional>
#include <string_view>
#include <utility>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "common/names.h"

namespace statcollect {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;

constexpr std::size_t kAnswerBytesMax = 64 << 10;

}  // namespace

Result<WebhookTarget> ParseWebhook(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  const auto wrong = [&](const std::string& found) {
    return Status(Code::kInvalidArgument,
                  "--alarm-webhook: '" + Printable(url) + "': " + found +
                      "; expected http://HOST:PORT/PATH, such as http://127.0.0.1:9000/alarms (no TLS: put a "
                      "proxy of your own in between)");
  };
  if (url.size() > 2048 || !ValidateTensorName("address", url).ok()) return wrong("it is no address");
  if (!url.starts_with(kScheme)) return wrong("it does not begin with http://");
  const std::string rest = url.substr(kScheme.size());
  const std::string authority = rest.substr(0, rest.find('/'));
  WebhookTarget target{.url = url, .host = authority, .port = "80", .path = "/"};
  if (authority.size() < rest.size()) target.path = rest.substr(authority.size());
  const bool bracketed = authority.starts_with('[');
  const std::size_t colon = authority.find(':', bracketed ? authority.find(']') : 0);
  if (colon != std::string::npos) {
    target.host = authority.substr(0, colon);
    target.port = authority.substr(colon + 1);
    unsigned port = 0;
    const auto [end, error] =
        std::from_chars(target.port.data(), target.port.data() + target.port.size(), port);
    if (error != std::errc() || end != target.port.data() + target.port.size() || port == 0 || port > 65535)
      return wrong("'" + Printable(target.port) + "' is no port");
  }
  if (bracketed && target.host.ends_with(']')) target.host = target.host.substr(1, target.host.size() - 2);
  if (target.host.empty() || target.host.find_first_of(" @\t") != std::string::npos)
    return wrong("it names no host");
  return target;
}

// Lives as long as a handler of it waits. Everything but the counters belongs to the strand.
class Webhook::Sender : public std::enable_shared_from_this<Webhook::Sender> {
 public:
  Sender(asio::io_context& io, WebhookTarget target, WebhookOptions options)
      : target_(std::move(target)),
        options_(std::move(options)),
        strand_(asio::make_strand(io)),
        resolver_(strand_),
        pause_(strand_) {}

  void Post(std::string json) {
    if (waiting_.fetch_add(1) >= options_.queue_max) {
      waiting_.fetch_sub(1);
      dropped_.fetch_add(1);
      return;
    }
    asio::post(strand_, [self = shared_from_this(), json = std::move(json)]() mutable {
      self->queue_.push_back(std::move(json));
      if (self->queue_.size() == 1) self->Attempt();
    });
  }
  WebhookCounters counters() const {
    return {.sent = sent_.load(), .failed = failed_.load(), .dropped = dropped_.load()};
  }

 private:
  // Sends the first message of the queue.
  void Attempt() {
    stream_.emplace(strand_);
    resolver_.async_resolve(
        target_.host, target_.port,
        [self = shared_from_this()](beast::error_code error, const tcp::resolver::results_type& found) {
          if (error) return self->Failed("look up the host", error);
          self->Connect(found);
        });
  }
  void Connect(const tcp::resolver::results_type& found) {
    stream_->expires_after(options_.timeout);  // of all that follows
    stream_->async_connect(found, [self = shared_from_this()](beast::error_code error, const tcp::endpoint&) {
      if (error) return self->Failed("connect", error);
      self->Write();
    });
  }
  void Write() {
    request_ = {};
    request_.method(http::verb::post);
    request_.target(target_.path);
    request_.version(11);
    request_.set(http::field::host, target_.host + ":" + target_.port);
    request_.set(http::field::user_agent, "statcollectord");
    request_.set(http::field::content_type, "application/json");
    request_.set(http::field::connection, "close");
    request_.body() = queue_.front();
    request_.prepare_payload();
    http::async_write(*stream_, request_, [self = shared_from_this()](beast::error_code error, std::size_t) {
      if (error) return self->Failed("write", error);
      self->Read();
    });
  }
  void Read() {
    answer_.emplace();
    answer_->body_limit(kAnswerBytesMax);
    buffer_.clear();
    http::async_read_header(*stream_, buffer_, *answer_,
                            [self = shared_from_this()](beast::error_code error, std::size_t) {
                              if (error) return self->Failed("read the answer", error);
                              const unsigned code = self->answer_->get().result_int();
                              if (code < 200 || code >= 300)
                                return self->Failed("got HTTP status " + std::to_string(code), {});
                              self->sent_.fetch_add(1);
                              self->Next();
                            });
  }

  void Failed(const std::string& attempted, beast::error_code error) {
    failed_.fetch_add(1);
    Close();
    const bool last = tries_ >= options_.pauses.size();
    options_.log("alarm webhook " + Printable(target_.url) + ": " + attempted +
                 (error ? ": " + error.message() : "") +
                 (last ? "; the alarm is not sent" : "; tried again"));
    if (last) {
      dropped_.fetch_add(1);
      return Next();
    }
    pause_.expires_after(options_.pauses[tries_++]);
    pause_.async_wait([self = shared_from_this()](beast::error_code stopped) {
      if (!stopped) self->Attempt();
    });
  }
  void Next() {
    Close();
    tries_ = 0;
    queue_.pop_front();
    waiting_.fetch_sub(1);
    if (!queue_.empty()) Attempt();
  }
  void Close() {
    beast::error_code ignored;
    if (stream_) stream_->socket().close(ignored);
  }

  const WebhookTarget target_;
  const WebhookOptions options_;
  const asio::strand<asio::io_context::executor_type> strand_;
  tcp::resolver resolver_;
  asio::steady_timer pause_;
  std::optional<beast::tcp_stream> stream_;
  beast::flat_buffer buffer_;
  http::request<http::string_body> request_;
  std::optional<http::response_parser<http::string_body>> answer_;
  std::deque<std::string> queue_;
  std::size_t tries_ = 0;
  std::atomic<std::size_t> waiting_{0};
  std::atomic<std::uint64_t> sent_{0}, failed_{0}, dropped_{0};
};

Webhook::Webhook(asio::io_context& io, WebhookTarget target, WebhookOptions options)
    : sender_(std::make_shared<Sender>(io, std::move(target), std::move(options))) {}
Webhook::~Webhook() = default;

void Webhook::Post(std::string json) { sender_->Post(std::move(json)); }
WebhookCounters Webhook::counters() const { return sender_->counters(); }

}  // namespace statcollect
