// One HTTP POST after another over kept connections. Redirects are not followed, and the
// environment's proxies are not used.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_HTTP_POST_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_HTTP_POST_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "common/thread_annotations.h"

namespace statcollect {

struct PostReply {
  enum class Fate {
    kAnswered,    // `http_status` and `body` are the server's
    kNotSent,     // the server was not reached
    kUntrusted,   // the same, because of its certificate, or that of an authority
    kUnanswered,  // it may have been received, or not
  };
  Fate fate = Fate::kNotSent;
  long http_status = 0;
  std::string body;
  std::string why;  // unless it was answered
};

// Threads: any; each call takes a connection of its own.
class HttpPoster {
 public:
  struct Options {
    std::vector<std::string> headers;  // sent with each request
    std::chrono::milliseconds connect_timeout, timeout;
    // Of https: the authorities that are trusted; empty: the system's. The certificate must be of
    // the URL's host.
    std::string ca_file;
  };
  explicit HttpPoster(Options options);
  ~HttpPoster();
  HttpPoster(const HttpPoster&) = delete;
  HttpPoster& operator=(const HttpPoster&) = delete;

  PostReply Post(const std::string& url, const std::string& body);
  // A request that has no answer by then fails, also one that is under way, within a second.
  void EndBy(std::chrono::steady_clock::time_point end) { end_ = end; }
  // `text` for use in the query of a URL.
  static std::string Escaped(const std::string& text);

 private:
  class Connection;
  std::unique_ptr<Connection> Take();
  void GiveBack(std::unique_ptr<Connection> connection);

  const Options options_;
  std::atomic<std::chrono::steady_clock::time_point> end_{
      std::chrono::steady_clock::time_point::max()};
  Mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_HTTP_POST_H_
