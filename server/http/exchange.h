// One HTTP request and its answer, for services that take time: the answer may come from any
// thread, whole or in pieces.
#ifndef STATCOLLECT_SERVER_HTTP_EXCHANGE_H_
#define STATCOLLECT_SERVER_HTTP_EXCHANGE_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace statcollect {

struct HttpRequest {
  std::string method;        // "GET" (also for HEAD), "POST", ...
  std::string path;          // not decoded, up to '?'
  std::string query;         // not decoded, after '?'
  std::string content_type;  // of the body; may have parameters
  std::string body;
  std::string accept_encoding = {}, if_none_match = {};  // as sent; empty: not sent
  std::string last_event_id = {}, csrf = {};    // the same of Last-Event-ID and X-Statcollect-Csrf
  std::vector<std::string> authorization = {};  // the Authorization fields
  std::vector<std::string> host = {};           // the Host fields
  // Origin, and Sec-Fetch-Site, -Mode and -Dest, which browsers send; several of one, joined by ",
  // "
  std::string origin = {}, fetch_site = {}, fetch_mode = {}, fetch_dest = {};
  std::vector<std::string> cookies =
      {};                    // the Cookie fields, each of which may have several cookies
  std::string session = {};  // X-Statcollect-Session
  std::vector<std::string> project = {};  // the fields X-Statcollect-Project
  std::string address = {};               // of the caller, "ipv4:127.0.0.1:40000"
  std::vector<std::string> certificate =
      {};                  // names in the caller's certificate, which was verified
  bool encrypted = false;  // the connection has TLS
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::map<std::string, std::string> headers = {};  // additional headers
};

// Answer with Send, or with Begin, then one Write at a time, then End. Dropping it without an
// answer sends a 500. Thread-safe; never blocks.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual void Send(HttpResponse response) = 0;
  // Sends the head of an answer in pieces; its body is ignored.
  virtual void Begin(HttpResponse head) = 0;
  // `taken` is called when the client has received the piece (true) or is gone (false); then the
  // next piece may follow.
  virtual void Write(std::string piece, std::function<void(bool)> taken) = 0;
  // If not `whole`, the connection is broken off, so that the client does not take the pieces for a
  // complete answer.
  virtual void End(bool whole) = 0;
  // `gone` is called at most once, when the client closes its connection before the answer is
  // complete (immediately if it already has). Set it before answering.
  virtual void OnGone(std::function<void()> gone) = 0;
};

// Decides from the head of a request (no body yet) whether it may go on: absent, or the answer that
// refuses it. Like a handler, runs on a thread of the io_context.
using HttpGate = std::function<std::optional<HttpResponse>(const HttpRequest& head)>;

using HttpService = std::function<void(HttpRequest, std::shared_ptr<HttpExchange>)>;

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_HTTP_EXCHANGE_H_
