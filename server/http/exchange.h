// One HTTP request and the way back, for services whose answers take time: they are given from any thread,
// whole or in pieces.
#ifndef STATCOLLECT_SERVER_HTTP_EXCHANGE_H_
#define STATCOLLECT_SERVER_HTTP_EXCHANGE_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace statcollect {

struct HttpRequest {
  std::string method;        // "GET" (HEAD is told as GET), "POST", ...
  std::string path;          // not decoded, up to '?'
  std::string query;         // not decoded, behind '?'
  std::string content_type;  // of the body; may have parameters
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::map<std::string, std::string> headers = {};  // further ones
};

// Answer by Send, or by Begin, then one Write at a time, then End. Whoever drops it without an answer makes
// it a 500. Thread-safe; nothing blocks.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual void Send(HttpResponse response) = 0;
  // The head of an answer in pieces; its body is not looked at.
  virtual void Begin(HttpResponse head) = 0;
  // `taken` is called when the client has taken the piece (true) or is gone (false): the next one may come.
  virtual void Write(std::string piece, std::function<void(bool)> taken) = 0;
  // Not `whole`: the connection is broken off, so that the client does not take the pieces for the answer.
  virtual void End(bool whole) = 0;
  // `gone` is called at most once, when the client closes its connection before the answer is complete; at
  // once if it has. Set it before answering.
  virtual void OnGone(std::function<void()> gone) = 0;
};

using HttpService = std::function<void(HttpRequest, std::shared_ptr<HttpExchange>)>;

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_HTTP_EXCHANGE_H_
