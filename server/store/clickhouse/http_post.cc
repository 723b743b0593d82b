#include "server/store/clickhouse/http_post.h"

#include <curl/curl.h>

#include <array>
#include <utility>

namespace statcollect {
namespace {

constexpr std::size_t kIdleConnectionsMax = 16;
constexpr std::size_t kReplyBytesMax = std::size_t{1} << 30;

template <auto kRelease>
struct CurlDeleter {
  template <typename T>
  void operator()(T* object) const {
    kRelease(object);
  }
};

// libcurl keeps process-wide state, set up once before the first use.
void InitializeCurlOnce() {
  static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
  (void)initialized;  // if it failed, so does every request, which says why
}

// Nothing of the request has left this machine.
bool IsNotSent(CURLcode code) {
  return code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST ||
         code == CURLE_OUT_OF_MEMORY || code == CURLE_URL_MALFORMAT ||
         code == CURLE_UNSUPPORTED_PROTOCOL;
}

// The handshake of TLS failed.
bool IsUntrusted(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CONNECT_ERROR ||
         code == CURLE_SSL_CACERT_BADFILE || code == CURLE_SSL_ISSUER_ERROR;
}

PostReply::Fate FateOf(CURLcode code, long bytes_sent) {
  if (IsUntrusted(code)) return PostReply::Fate::kUntrusted;
  return IsNotSent(code) || bytes_sent == 0 ? PostReply::Fate::kNotSent
                                            : PostReply::Fate::kUnanswered;
}

}  // namespace

class HttpPoster::Connection {
 public:
  Connection(const Options& options, const std::atomic<std::chrono::steady_clock::time_point>& end)
      : end_(end) {
    headers_.reset(curl_slist_append(headers_.release(), "Expect:"));
    for (const std::string& header : options.headers)
      headers_.reset(curl_slist_append(headers_.release(), header.c_str()));
    if (easy_ == nullptr) return;
    Set(CURLOPT_PROTOCOLS_STR, "http,https");
    Set(CURLOPT_SSL_VERIFYPEER, 1L);
    Set(CURLOPT_SSL_VERIFYHOST, 2L);
    Set(CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
    if (!options.ca_file.empty()) {
      Set(CURLOPT_CAINFO, options.ca_file.c_str());
      Set(CURLOPT_CAPATH, static_cast<const char*>(nullptr));  // nobody else
    }
    Set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    Set(CURLOPT_PROXY, "");
    Set(CURLOPT_USERAGENT, "statcollectord");
    Set(CURLOPT_HTTPHEADER, headers_.get());
    Set(CURLOPT_NOSIGNAL, 1L);
    Set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options.connect_timeout.count()));
    Set(CURLOPT_TIMEOUT_MS, static_cast<long>(options.timeout.count()));
    Set(CURLOPT_ERRORBUFFER, error_.data());
    Set(CURLOPT_WRITEFUNCTION, &Connection::OnBody);
    Set(CURLOPT_WRITEDATA, static_cast<void*>(this));
    Set(CURLOPT_NOPROGRESS, 0L);
    Set(CURLOPT_XFERINFOFUNCTION, &Connection::IsOver);  // once a second at least
    Set(CURLOPT_XFERINFODATA, static_cast<void*>(this));
  }

  PostReply Post(const std::string& url, const std::string& body) {
    if (easy_ == nullptr) return {.why = "out of memory"};
    reply_.clear();
    error_[0] = '\0';
    Set(CURLOPT_URL, url.c_str());
    Set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    Set(CURLOPT_POSTFIELDS, body.data());
    if (set_up_ != CURLE_OK)
      return {.why = std::string("set up the request: ") + curl_easy_strerror(set_up_)};
    const CURLcode code = curl_easy_perform(easy_.get());
    PostReply reply;
    if (code == CURLE_OK) {
      reply.fate = PostReply::Fate::kAnswered;
      curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &reply.http_status);
      reply.body = std::exchange(reply_, {});
      return reply;
    }
    long sent = 0;
    curl_easy_getinfo(easy_.get(), CURLINFO_REQUEST_SIZE, &sent);
    reply.fate = FateOf(code, sent);
    reply.why = error_[0] == '\0' ? curl_easy_strerror(code) : error_.data();
    return reply;
  }

 private:
  static std::size_t OnBody(char* bytes, std::size_t size, std::size_t n, void* self) {
    auto* const connection = static_cast<Connection*>(self);
    if (connection->reply_.size() + size * n > kReplyBytesMax) return 0;  // ends the transfer
    connection->reply_.append(bytes, size * n);
    return size * n;
  }
  static int IsOver(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return std::chrono::steady_clock::now() >= static_cast<Connection*>(self)->end_.load() ? 1 : 0;
  }
  template <typename Value>
  void Set(CURLoption option, Value value) {
    if (const CURLcode code = curl_easy_setopt(easy_.get(), option, value); set_up_ == CURLE_OK)
      set_up_ = code;
  }

  const std::atomic<std::chrono::steady_clock::time_point>& end_;
  std::unique_ptr<curl_slist, CurlDeleter<curl_slist_free_all>>
      headers_;  // outlives the handle that uses it
  std::array<char, CURL_ERROR_SIZE> error_{};
  const std::unique_ptr<CURL, CurlDeleter<curl_easy_cleanup>> easy_{curl_easy_init()};
  CURLcode set_up_ = CURLE_OK;
  std::string reply_;
};

HttpPoster::HttpPoster(Options options) : options_(std::move(options)) { InitializeCurlOnce(); }

HttpPoster::~HttpPoster() = default;

PostReply HttpPoster::Post(const std::string& url, const std::string& body) {
  auto connection = Take();
  PostReply reply = connection->Post(url, body);
  GiveBack(std::move(connection));
  return reply;
}

std::string HttpPoster::Escaped(const std::string& text) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '.';
    if (plain)
      escaped += c;
    else
      escaped.append({'%', kHex[byte >> 4], kHex[byte & 15]});
  }
  return escaped;
}

std::unique_ptr<HttpPoster::Connection> HttpPoster::Take() {
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      auto connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  return std::make_unique<Connection>(options_, end_);
}

void HttpPoster::GiveBack(std::unique_ptr<Connection> connection) {
  MutexLock lock(mutex_);
  if (idle_.size() < kIdleConnectionsMax) idle_.push_back(std::move(connection));
}

}  // namespace statcollect
