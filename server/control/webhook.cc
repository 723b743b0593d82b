#include "server/control/webhook.h"

#include <curl/curl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/names.h"
#include "common/signals_blocked.h"
#include "common/thread_annotations.h"
#include "server/control/authorities.h"
#include "server/control/webhook_signature.h"

namespace statcollect {
namespace {

constexpr std::size_t kUrlBytesMax = 2048;

template <auto kFree>
struct FreeWith {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using EasyHandle = std::unique_ptr<CURL, FreeWith<curl_easy_cleanup>>;
using MultiHandle = std::unique_ptr<CURLM, FreeWith<curl_multi_cleanup>>;
using Url = std::unique_ptr<CURLU, FreeWith<curl_url_cleanup>>;
using HeaderList = std::unique_ptr<curl_slist, FreeWith<curl_slist_free_all>>;

// The part, or nothing if the URL has none.
std::optional<std::string> PartOf(CURLU* url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, flags) != CURLUE_OK) return std::nullopt;
  std::string copy = text;
  curl_free(text);
  return copy;
}

// libcurl keeps process-wide state, set up once before the first use.
void InitializeCurl() {
  static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
  (void)initialized;  // if it failed, so does every attempt, which says why
}

// For messages about a URL that need not be one: without what may be a secret, its user and its
// path.
std::string WithoutPath(const std::string& url) {
  const std::size_t scheme = url.find("://");
  const std::size_t begin = scheme == std::string::npos ? 0 : scheme + 3;
  const std::size_t end = std::min(url.find_first_of("/?#", begin), url.size());
  const std::string authority = url.substr(begin, end - begin);
  const std::size_t at = authority.rfind('@');
  return url.substr(0, begin) +
         (at == std::string::npos ? authority : "..." + authority.substr(at)) +
         (end + 1 < url.size() ? url.substr(end, 1) + "..." : url.substr(end));
}

// How an attempt ended.
struct Outcome {
  bool sent = false;
  std::string why;  // unless it was sent
};

// One POST. The body of the answer is not read: the transfer ends behind the header.
class Request {
 public:
  // `signature`: fields of the header.
  Request(const WebhookTarget& target, const WebhookOptions& options, const std::string& json,
          const std::vector<std::string>& signature);

  CURL* easy() const { return easy_.get(); }
  Outcome OutcomeOf(CURLcode code) const;

 private:
  static curl_socket_t OpenSocket(void* self, curlsocktype purpose, curl_sockaddr* address);
  static std::size_t OnHeader(char* line, std::size_t size, std::size_t n, void* self);
  template <typename Value>
  void Set(CURLoption option, Value value) {
    if (const CURLcode code = curl_easy_setopt(easy_.get(), option, value); set_up_ == CURLE_OK)
      set_up_ = code;
  }
  long HttpStatus() const {
    long status = 0;
    curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &status);
    return status;
  }

  const WebhookOptions& options_;
  const EasyHandle easy_{curl_easy_init()};
  HeaderList headers_;
  std::array<char, CURL_ERROR_SIZE> error_{};
  CURLcode set_up_ = CURLE_OK;
  bool answered_ = false;  // the header of the answer is complete
  std::string forbidden_;  // an address that is in none of the allowed networks
};

Request::Request(const WebhookTarget& target, const WebhookOptions& options,
                 const std::string& json, const std::vector<std::string>& signature)
    : options_(options) {
  for (const char* header : {"Content-Type: application/json", "Connection: close", "Expect:"}) {
    headers_.reset(curl_slist_append(headers_.release(), header));
  }
  for (const std::string& header : signature) {
    headers_.reset(curl_slist_append(headers_.release(), header.c_str()));
  }
  Set(CURLOPT_URL, target.url.c_str());
  Set(CURLOPT_PROTOCOLS_STR, "http,https");
  Set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  Set(CURLOPT_PROXY, "");
  Set(CURLOPT_FOLLOWLOCATION, 0L);
  Set(CURLOPT_OPENSOCKETFUNCTION, &Request::OpenSocket);
  Set(CURLOPT_OPENSOCKETDATA, static_cast<void*>(this));
  Set(CURLOPT_USERAGENT, "statcollectord");
  Set(CURLOPT_HTTPHEADER, headers_.get());
  Set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(json.size()));
  Set(CURLOPT_POSTFIELDS, json.data());
  Set(CURLOPT_TIMEOUT_MS, static_cast<long>(options.timeout.count()));
  Set(CURLOPT_NOSIGNAL, 1L);
  Set(CURLOPT_QUICK_EXIT, 1L);  // does not wait for a thread that looks up a name
  if (const std::string authorities =
          options.ca_file.empty() ? SystemAuthorities() : options.ca_file;
      !authorities.empty()) {
    Set(CURLOPT_CAINFO, authorities.c_str());
  }
  Set(CURLOPT_ERRORBUFFER, error_.data());
  Set(CURLOPT_HEADERFUNCTION, &Request::OnHeader);
  Set(CURLOPT_HEADERDATA, static_cast<void*>(this));
}

// Here, and not where the URL is read: a name may stand for another address each time.
curl_socket_t Request::OpenSocket(void* self, curlsocktype, curl_sockaddr* address) {
  auto* const request = static_cast<Request*>(self);
  if (!request->options_.allowed.empty() && !request->options_.allowed.Contains(address->addr)) {
    request->forbidden_ = AddressText(address->addr);
    return CURL_SOCKET_BAD;
  }
  return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

std::size_t Request::OnHeader(char* line, std::size_t size, std::size_t n, void* self) {
  auto* const request = static_cast<Request*>(self);
  const std::string_view text(line, size * n);
  const bool is_last = text == "\r\n" || text == "\n";
  if (!is_last || request->HttpStatus() < 200) return text.size();
  request->answered_ = true;
  return 0;  // ends the transfer
}

Outcome Request::OutcomeOf(CURLcode code) const {
  if (set_up_ != CURLE_OK)
    return {.why = std::string("set up the request: ") + curl_easy_strerror(set_up_)};
  if (answered_) {
    const long status = HttpStatus();
    if (status >= 200 && status < 300) return {.sent = true};
    return {.why = "got HTTP status " + std::to_string(status) + "; expected 2xx"};
  }
  if (!forbidden_.empty())
    return {.why = "its address " + forbidden_ +
                   " is in none of the networks of --alarm-webhook-allow"};
  std::string why = error_[0] == '\0' ? curl_easy_strerror(code) : error_.data();
  if (code == CURLE_PEER_FAILED_VERIFICATION) {
    why += "; --alarm-webhook-ca names the file of the authority that signed it";
  }
  return {.why = std::move(why)};
}

}  // namespace

Result<WebhookTarget> ParseWebhook(const std::string& url) {
  const auto wrong = [&](const std::string& found) {
    return Status(Code::kInvalidArgument,
                  "--alarm-webhook: '" + Printable(WithoutPath(url)) + "': " + found +
                      "; expected http://HOST:PORT/PATH or https://HOST/PATH, such as "
                      "http://127.0.0.1:9000/alarms");
  };
  if (url.size() > kUrlBytesMax)
    return wrong("it has more than " + std::to_string(kUrlBytesMax) + " bytes");
  if (!ValidateTensorName("address", url).ok()) return wrong("it is not printable text");
  const Url parts(curl_url());
  const CURLUcode parsed = curl_url_set(parts.get(), CURLUPART_URL, url.c_str(), 0);
  if (parsed != CURLUE_OK) return wrong(curl_url_strerror(parsed));
  const auto scheme = PartOf(parts.get(), CURLUPART_SCHEME);
  if (scheme != "http" && scheme != "https")
    return wrong("it begins with neither http:// nor https://");
  if (PartOf(parts.get(), CURLUPART_USER)) return wrong("it contains a user name");
  WebhookTarget target{.url = url,
                       .host = PartOf(parts.get(), CURLUPART_HOST).value_or(""),
                       .port = PartOf(parts.get(), CURLUPART_PORT, CURLU_DEFAULT_PORT).value_or(""),
                       .path = PartOf(parts.get(), CURLUPART_PATH).value_or("/")};
  if (const auto query = PartOf(parts.get(), CURLUPART_QUERY)) target.path += "?" + *query;
  if (target.host.empty()) return wrong("it has no host");
  if (target.port == "0") return wrong("'0' is not a port");
  if (target.host.starts_with('[') && target.host.ends_with(']')) {
    target.host = target.host.substr(1, target.host.size() - 2);
  }
  target.shown =
      *scheme + "://" +
      (target.host.find(':') == std::string::npos ? target.host : "[" + target.host + "]") + ":" +
      target.port + (target.path == "/" ? "/" : "/...");
  return target;
}

// Threads: Run is the webhook's own; the rest as Webhook.
class Webhook::Sender {
 public:
  Sender(WebhookTarget target, WebhookOptions options)
      : target_(std::move(target)), options_(std::move(options)) {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { Run(); });
  }
  ~Sender() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    curl_multi_wakeup(multi_.get());
    thread_.join();
  }

  void Post(std::string json) {
    MutexLock lock(mutex_);
    if (queue_.size() >= options_.queue_max) {
      lock.unlock();
      dropped_.fetch_add(1);
      return;
    }
    queue_.push_back(std::move(json));
    lock.unlock();
    changed_.notify_all();
  }
  WebhookCounters counters() const {
    return {.sent = sent_.load(), .failed = failed_.load(), .dropped = dropped_.load()};
  }

 private:
  void Run() {
    MutexLock lock(mutex_);
    while (true) {
      changed_.wait(mutex_,
                    [this]() STATCOLLECT_REQUIRES(mutex_) { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      const std::string& json =
          queue_.front();  // stays in the queue, and counts there, until it is settled
      lock.unlock();
      const bool settled = Deliver(json);
      lock.lock();
      if (!settled) return;
      queue_.pop_front();
    }
  }

  // Attempts it until it is sent or dropped. False: the sender is stopping.
  bool Deliver(const std::string& json) {
    for (std::size_t tries = 0;; ++tries) {
      const auto outcome = Attempt(json);
      if (!outcome) return false;
      if (outcome->sent) {
        sent_.fetch_add(1);
        return true;
      }
      failed_.fetch_add(1);
      const bool last = tries >= options_.pauses.size();
      options_.log("alarm webhook " + Printable(target_.shown) + ": " + Printable(outcome->why) +
                   (last ? "; the alarm is not sent" : "; trying again"));
      if (last) {
        dropped_.fetch_add(1);
        return true;
      }
      MutexLock lock(mutex_);
      if (changed_.wait_for(mutex_, options_.pauses[tries],
                            [this]() STATCOLLECT_REQUIRES(mutex_) { return stopping_; }))
        return false;
    }
  }

  Status Sign(const std::string& json, std::vector<std::string>* fields) const {
    if (options_.secret_file.empty()) return Status::Ok();
    STATCOLLECT_ASSIGN_OR_RETURN(const auto secret, ReadWebhookSecret(options_.secret_file));
    const std::int64_t now = SystemClock().UnixNanos() / 1'000'000'000;
    *fields = {"X-Statcollect-Timestamp: " + std::to_string(now),
               "X-Statcollect-Signature: " + WebhookSignature(secret, now, json)};
    return Status::Ok();
  }

  // Nothing: the sender is stopping.
  std::optional<Outcome> Attempt(const std::string& json) {
    std::vector<std::string> signature;
    if (const Status bad = Sign(json, &signature); !bad.ok()) return Outcome{.why = bad.message()};
    const Request request(target_, options_, json, signature);
    if (request.easy() == nullptr || multi_ == nullptr) return Outcome{.why = "out of memory"};
    if (curl_multi_add_handle(multi_.get(), request.easy()) != CURLM_OK)
      return Outcome{.why = "out of memory"};
    std::optional<Outcome> outcome;
    for (int running = 1; running > 0 && !stopping();) {
      if (const CURLMcode code = curl_multi_perform(multi_.get(), &running); code != CURLM_OK) {
        outcome = Outcome{.why = curl_multi_strerror(code)};
        break;
      }
      if (running > 0)
        (void)curl_multi_poll(multi_.get(), nullptr, 0, 1000, nullptr);  // or until a wakeup
    }
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi_.get(), &left)) {
      if (message->msg == CURLMSG_DONE) outcome = request.OutcomeOf(message->data.result);
    }
    curl_multi_remove_handle(multi_.get(), request.easy());
    return outcome;
  }

  bool stopping() {
    MutexLock lock(mutex_);
    return stopping_;
  }

  const WebhookTarget target_;
  const WebhookOptions options_;
  const MultiHandle multi_{curl_multi_init()};
  std::atomic<std::uint64_t> sent_{0}, failed_{0}, dropped_{0};
  Mutex mutex_;  // guards the rest
  ConditionVariable changed_;
  std::deque<std::string> queue_ STATCOLLECT_GUARDED_BY(mutex_);  // the first one is on its way
  bool stopping_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

Webhook::Webhook(WebhookTarget target, WebhookOptions options)
    : sender_((InitializeCurl(), std::make_unique<Sender>(std::move(target), std::move(options)))) {
}
Webhook::~Webhook() = default;

void Webhook::Post(std::string json) { sender_->Post(std::move(json)); }
WebhookCounters Webhook::counters() const { return sender_->counters(); }

}  // namespace statcollect
