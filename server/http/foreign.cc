#include "server/http/foreign.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include <boost/asio/ip/address.hpp>

#include "common/names.h"
#include "common/parse.h"

namespace statcollect {
namespace {

constexpr std::size_t kHostBytesMax = 255;
constexpr std::string_view kHttp = "http://", kHttps = "https://";

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

bool IsHostCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.' || c == '_';
}

// Who monitors or balances uses whatever name it likes; these two answer everybody.
bool IsProbe(const std::string& path) { return path == "/healthz" || path == "/readyz"; }

bool IsSafe(const std::string& method) { return method == "GET"; }  // also of HEAD

// A link on another site that somebody follows to the page: what it shows is asked for by the page
// itself.
bool IsLinkToPage(const HttpRequest& head) {
  return IsSafe(head.method) && head.path == "/" && head.fetch_mode == "navigate" &&
         head.fetch_dest == "document";
}

}  // namespace

std::optional<Authority> ParseAuthority(std::string_view text) {
  Authority parsed;
  std::string_view host = text, port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    host = text.substr(1, end - 1);
    port = text.substr(end + 1);
  } else if (const std::size_t colon = text.find(':'); colon != std::string_view::npos) {
    host = text.substr(0, colon);
    port = text.substr(colon);
  }
  if (!port.empty()) {
    const auto number =
        port.starts_with(':') ? ParseNumber<std::uint16_t>(port.substr(1)) : std::nullopt;
    if (!number || *number == 0) return std::nullopt;
    parsed.port = *number;
  }
  if (host.size() > 1 && host.ends_with('.')) host.remove_suffix(1);
  if (host.empty() || host.size() > kHostBytesMax) return std::nullopt;
  parsed.host = LowerCase(host);
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(parsed.host, error);
  parsed.is_address = !error;
  const bool bracketed = text.starts_with('[');
  if (bracketed) return !error && address.is_v6() ? std::optional(parsed) : std::nullopt;
  if (!std::all_of(host.begin(), host.end(), IsHostCharacter)) return std::nullopt;
  return parsed;
}

Result<std::string> ParseAllowedHost(std::string_view text) {
  const bool v6 = text.find(':') != text.rfind(':') && !text.starts_with('[');
  const auto parsed = ParseAuthority(v6 ? "[" + std::string(text) + "]" : std::string(text));
  if (parsed && parsed->port == 0) return parsed->host;
  return Status(Code::kInvalidArgument,
                "--http-allowed-host: found '" + Printable(text) +
                    "'; expected the name of this host in the addresses that browsers use, without "
                    "http:// and port, such as gpu7.example.org");
}

bool ForeignCheck::IsOwn(const Authority& host) const {
  return host.is_address || host.host == "localhost" || rules_.names.contains(host.host) ||
         (rules_.certified && rules_.certified(host.host));
}

// An attacker's page reaches the collector under the page's own name; an address in its place
// belongs to nobody who could point it elsewhere. Whoever sends no Host is not a browser.
std::optional<ForeignCheck::Refusal> ForeignCheck::CheckHost(const HttpRequest& head) const {
  if (head.host.size() > 1)
    return Refusal{Reason::kHost, 400, "found several Host fields; expected one; send it once"};
  if (head.host.empty() || IsProbe(head.path)) return std::nullopt;
  const auto host = ParseAuthority(head.host.front());
  if (!host)
    return Refusal{Reason::kHost, 400,
                   "Host: found '" + Printable(head.host.front()) +
                       "'; expected HOST or HOST:PORT; use the address that statcollectord prints"};
  if (IsOwn(*host)) return std::nullopt;
  return Refusal{Reason::kHost, 421,
                 "Host: found '" + Printable(host->host) +
                     "', which is not a name of this collector; expected localhost, an IP address, "
                     "this machine's host name, or a name in its certificate; use one of them, or "
                     "start statcollectord with --http-allowed-host " +
                     Printable(host->host) + " if the name is yours"};
}

std::optional<ForeignCheck::Refusal> ForeignCheck::CheckOrigin(const HttpRequest& head) const {
  const auto refused = [](const std::string& found) {
    return Refusal{
        Reason::kOrigin, 403,
        found +
            "; expected one from the collector's own page: other web pages may not ask it; open "
            "the address directly. A proxy must pass the Host field on unchanged"};
  };
  if (!head.origin.empty()) {
    std::string_view origin = head.origin;
    const bool secure = origin.starts_with(kHttps);
    const bool right_scheme = secure || (origin.starts_with(kHttp) && !rules_.https);
    origin.remove_prefix(std::min(origin.size(), secure ? kHttps.size() : kHttp.size()));
    const auto from = right_scheme ? ParseAuthority(origin) : std::nullopt;
    const auto here = head.host.size() == 1 ? ParseAuthority(head.host.front()) : std::nullopt;
    if (!from || !here || !(*from == *here))
      return refused("found a request from a page of the origin '" + Printable(head.origin) + "'");
  }
  const std::string& site = head.fetch_site;
  if (site.empty() || site == "same-origin" || site == "none" || IsLinkToPage(head))
    return std::nullopt;
  return refused("found a request from a page of another site (Sec-Fetch-Site: " + Printable(site) +
                 ")");
}

std::optional<ForeignCheck::Refusal> ForeignCheck::Check(const HttpRequest& head) {
  auto refusal = CheckHost(head);
  if (!refusal) refusal = CheckOrigin(head);
  if (refusal) refused_[static_cast<std::size_t>(refusal->reason)].fetch_add(1);
  return refusal;
}

}  // namespace statcollect
