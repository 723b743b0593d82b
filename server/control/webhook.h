// POSTs JSON to a webhook, with a time limit, a bounded queue and retries, so that nothing in the
// collector ever waits for it. http or https; the server's certificate and host name are always
// checked.
#ifndef STATCOLLECT_SERVER_CONTROL_WEBHOOK_H_
#define STATCOLLECT_SERVER_CONTROL_WEBHOOK_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/control/address_list.h"

namespace statcollect {

struct WebhookTarget {
  std::string url, host, port, path;
  // For logs and status: the URL without its path and what follows, which may be a secret of the
  // service.
  std::string shown;
};
// kInvalidArgument unless it is http://HOST[:PORT][/PATH] or the same with https.
Result<WebhookTarget> ParseWebhook(const std::string& url);

struct WebhookOptions {
  std::string ca_file;      // certificate authorities, PEM; empty: the system's
  std::string secret_file;  // signs the messages; read for each attempt; empty: they are not signed
  AddressList allowed;      // networks of the server; empty: all
  std::size_t queue_max = 256;               // messages that may wait; further ones are dropped
  std::chrono::milliseconds timeout{5'000};  // per attempt
  // Pauses before the second attempt, the third, ...; after the last attempt the message is
  // dropped.
  std::vector<std::chrono::milliseconds> pauses = {std::chrono::milliseconds(1'000),
                                                   std::chrono::milliseconds(5'000),
                                                   std::chrono::milliseconds(25'000)};
  std::function<void(const std::string& line)> log = [](const std::string&) {
  };  // from the webhook's thread
};

struct WebhookCounters {
  std::uint64_t sent = 0;     // answered with 2xx
  std::uint64_t failed = 0;   // attempts
  std::uint64_t dropped = 0;  // messages
};

// Sends one message at a time, in the order of Post, from its own thread. With a secret, each
// attempt has the fields X-Statcollect-Timestamp (seconds since 1970) and X-Statcollect-Signature
// (WebhookSignature). Redirects are not followed, and the environment's proxies are not used. The
// destructor stops at once and drops waiting messages. Threads: Post and counters from any.
class Webhook {
 public:
  explicit Webhook(WebhookTarget target, WebhookOptions options = {});
  ~Webhook();
  Webhook(const Webhook&) = delete;
  Webhook& operator=(const Webhook&) = delete;

  // Returns at once.
  void Post(std::string json);
  WebhookCounters counters() const;

 private:
  class Sender;
  const std::unique_ptr<Sender> sender_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_CONTROL_WEBHOOK_H_
