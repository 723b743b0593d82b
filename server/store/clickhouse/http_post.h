// One HTTP POST after another over kept connections. Redirects are not followed, and the environment's proxies are
// not used.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_HTTP_POST_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_HTTP_POST_H_

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
  // Sent with each request.
  HttpPoster(std::vector<std::string> headers, std::chrono::milliseconds connect_timeout,
             std::chrono::milliseconds timeout);
  ~HttpPoster();
  HttpPoster(const HttpPoster&) = delete;
  HttpPoster& operator=(const HttpPoster&) = delete;

  PostReply Post(const std::string& url, const std::string& body);
  // `text` for use in the query of a URL.
  static std::string Escaped(const std::string& text);

 private:
  class Connection;
  std::unique_ptr<Connection> Take();
  void GiveBack(std::unique_ptr<Connection> connection);

  const std::vector<std::string> headers_;
  const std::chrono::milliseconds connect_timeout_, timeout_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_HTTP_POST_H_
