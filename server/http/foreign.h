// Requests that a web page made somebody's browser send: by a name that an attacker's DNS points at
// this collector (rebinding), or from a page of another origin.
#ifndef STATCOLLECT_SERVER_HTTP_FOREIGN_H_
#define STATCOLLECT_SERVER_HTTP_FOREIGN_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "common/status.h"
#include "server/http/exchange.h"

namespace statcollect {

// The Host field of a request, or what follows "scheme://" in an origin.
struct Authority {
  std::string host;         // lower case, without brackets and a final dot
  std::uint16_t port = 0;   // 0: not given
  bool is_address = false;  // of IPv4 or IPv6
  bool operator==(const Authority&) const = default;
};
// Absent: not of this form.
std::optional<Authority> ParseAuthority(std::string_view text);

// A value of --http-allowed-host, in lower case. kInvalidArgument unless it is a host's name or
// address alone.
Result<std::string> ParseAllowedHost(std::string_view text);

struct ForeignRules {
  std::set<std::string, std::less<>>
      names;  // lower case; localhost and all addresses need not be in it
  std::function<bool(const std::string& name)> certified =
      {};  // whether the certificate is for this name
  bool https = false;
};

// Thread-safe; a check takes about a microsecond.
class ForeignCheck {
 public:
  enum class Reason { kHost, kOrigin };
  struct Refusal {
    Reason reason;
    int status;           // 421 for a host, 400 for a malformed one, 403 for an origin
    std::string message;  // what was found, what was expected, what to do
  };

  explicit ForeignCheck(ForeignRules rules) : rules_(std::move(rules)) {}

  // Absent: nothing speaks against it. Refusals are counted.
  std::optional<Refusal> Check(const HttpRequest& head);
  std::uint64_t refused(Reason reason) const {
    return refused_[static_cast<std::size_t>(reason)].load();
  }

 private:
  std::optional<Refusal> CheckHost(const HttpRequest& head) const;
  std::optional<Refusal> CheckOrigin(const HttpRequest& head) const;
  bool IsOwn(const Authority& host) const;

  const ForeignRules rules_;
  std::array<std::atomic<std::uint64_t>, 2> refused_{};
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_HTTP_FOREIGN_H_
