#include "common/secret_addresses.h"

#include <algorithm>
#include <iterator>

#include "common/ascii.h"
#include "common/redact.h"

namespace statcollect {
namespace {

using ascii::IsAlnum;
using ascii::IsDigit;
using ascii::IsOneOf;

constexpr std::size_t kNowhere = std::string_view::npos;
// Hosts whose paths are secrets after their first part.
constexpr std::string_view kWebhookHosts[] = {
    "hooks.slack.com", "hooks.zapier.com", "discord.com",       "discordapp.com",
    "maker.ifttt.com", "open.feishu.cn",   "open.larksuite.com"};
constexpr std::string_view kWebhookDomains[] = {".webhook.office.com", ".discord.com",
                                                ".logic.azure.com"};
// Parts of a path after which a webhook's secret stands.
constexpr std::string_view kWebhookParts[] = {"webhook",  "webhooks",  "webhookb2", "hook", "hooks",
                                              "services", "workflows", "triggers",  "with"};
constexpr std::size_t kSecretPartMin = 16;
constexpr std::size_t kAddressMax = 4096;  // so that hostile text is not read again and again
// Schemes in which "user:12/34@host" has no port.
constexpr std::string_view kStoreSchemes[] = {"postgres", "postgresql", "mysql",  "mariadb",
                                              "mongodb",  "redis",      "rediss", "amqp",
                                              "amqps",    "clickhouse"};

// A URL in a text: positions of its parts.
struct Address {
  std::string_view scheme;
  std::size_t begin = 0;  // after "://"
  std::size_t path = 0;   // the first of "/?#", or the end
  std::size_t end = 0;
};

class AddressScanner {
 public:
  explicit AddressScanner(std::string_view text) : text_(text) {}

  std::string HideSecrets() {
    return EachAddress([this](const Address& address) {
      const std::size_t host = HideUser(address);
      HideWebhook(address, host);
    });
  }

  std::string HidePaths() {
    return EachAddress([this](const Address& address) {
      if (address.path + 1 < address.end) Hide(address.path + 1, address.end);
    });
  }

 private:
  template <typename Handle>
  std::string EachAddress(const Handle& handle) {
    for (std::size_t at = text_.find("://"); at != kNowhere; at = text_.find("://", at + 3)) {
      std::size_t scheme = at;
      while (scheme > 0 && IsAlnum(text_[scheme - 1])) --scheme;
      Address address{.scheme = text_.substr(scheme, at - scheme), .begin = at + 3};
      if (address.begin < done_) continue;
      const std::string_view near =
          text_.substr(0, std::min(address.begin + kAddressMax, text_.size()));
      address.end = std::min(near.find_first_of(" \t\r\n\"'<>`", address.begin), near.size());
      const std::string_view rest = text_.substr(address.begin, address.end - address.begin);
      const std::size_t next = rest.find("://");  // a list of addresses
      if (next != kNowhere) {
        const std::size_t comma = rest.substr(0, next).rfind(',');
        if (comma != kNowhere && comma > 0) address.end = address.begin + comma;
      }
      address.path = std::min(text_.find_first_of("/?#", address.begin), address.end);
      handle(address);
    }
    return written_.append(text_.substr(done_));
  }

  void Hide(std::size_t begin, std::size_t end) {
    if (text_.substr(begin, kRedacted.size()) == kRedacted) return;
    written_.append(text_.substr(done_, begin - done_)).append(kRedacted);
    done_ = end;
  }

  // scheme://user:password@host -> scheme://(redacted)@host. Returns where the host begins. A
  // password may have the characters that end a user ("pa/ss"): then its '@' stands after the first
  // '/'.
  std::size_t HideUser(const Address& address) {
    const std::string_view authority = text_.substr(address.begin, address.path - address.begin);
    const std::string_view all = text_.substr(address.begin, address.end - address.begin);
    std::size_t mark = authority.rfind('@');
    const std::size_t last = all.rfind('@');
    if (mark != kNowhere) {
      const bool has_password = authority.find(':') < mark;
      const std::string_view host = authority.substr(mark + 1);
      if (has_password && last > mark && host.find_first_of(".:[") == kNowhere &&
          host != "localhost")
        mark = last;
    } else if (last != kNowhere && HasPassword(address.scheme, authority)) {
      mark = last;
    }
    if (mark == kNowhere) return address.begin;
    if (mark > 0 && all.substr(0, mark) != "git") Hide(address.begin, address.begin + mark);
    return address.begin + mark + 1;
  }

  // Whether "user:pass" stands there, rather than "host:port".
  static bool HasPassword(std::string_view scheme, std::string_view authority) {
    const std::size_t colon = authority.find(':');
    if (colon == kNowhere || colon == 0 || authority.starts_with('[')) return false;
    const std::string_view rest = authority.substr(colon + 1);
    return IsOneOf(kStoreSchemes, scheme) || rest.size() > 5 ||
           !std::all_of(rest.begin(), rest.end(), IsDigit);
  }

  void HideWebhook(const Address& address, std::size_t host_begin) {
    if (!address.scheme.starts_with("http")) return;
    const std::size_t slash = std::min(text_.find('/', host_begin), address.end);
    std::string_view host = text_.substr(host_begin, slash - host_begin);
    host = host.substr(0, host.find_first_of(":?#"));
    const bool known = IsOneOf(kWebhookHosts, host) ||
                       std::any_of(std::begin(kWebhookDomains), std::end(kWebhookDomains),
                                   [&](std::string_view domain) { return host.ends_with(domain); });
    for (std::size_t at = slash; at < address.end;) {
      const std::size_t begin = at + 1,
                        stop = std::min(text_.find_first_of("/?#", begin), address.end);
      const std::string_view part = text_.substr(begin, stop - begin);
      if (part.starts_with("bot") && part.find(':') != kNowhere)
        return Hide(begin + 3, stop);  // of Telegram
      if (IsOneOf(kWebhookParts, part) && stop + 1 < address.end && text_[stop] == '/' &&
          (known || HasLongPart(text_.substr(stop, address.end - stop)))) {
        // "webhooks", "hook" and "services" follow each other in some: the last one counts.
        const std::size_t next = std::min(text_.find('/', stop + 1), address.end);
        if (!IsOneOf(kWebhookParts, text_.substr(stop + 1, next - stop - 1)))
          return Hide(stop + 1, address.end);
      }
      if (stop >= address.end || text_[stop] != '/') return;
      at = stop;
    }
  }

  // A part with digits that is too long for a name, outside a name of a file.
  static bool HasLongPart(std::string_view path) {
    while (!path.empty()) {
      path.remove_prefix(1);
      const std::size_t end = std::min(path.find_first_of("/?#"), path.size());
      const std::string_view part = path.substr(0, end);
      if (part.size() >= kSecretPartMin && std::any_of(part.begin(), part.end(), IsDigit) &&
          part.find('.') == kNowhere)
        return true;
      path.remove_prefix(end);
    }
    return false;
  }

  const std::string_view text_;
  std::string written_;
  std::size_t done_ = 0;
};

}  // namespace

std::string HideInAddresses(std::string_view text) { return AddressScanner(text).HideSecrets(); }

std::string HidePaths(std::string_view text) { return AddressScanner(text).HidePaths(); }

}  // namespace statcollect
