#include "server/store/clickhouse/dsn.h"

#include <algorithm>
#include <optional>

#include "common/names.h"
#include "common/parse.h"
#include "common/text.h"

namespace statcollect {
namespace {

constexpr std::size_t kDsnBytesMax = 4096;
constexpr std::size_t kHostsMax = 16;
constexpr std::size_t kDatabaseBytesMax = 64;
constexpr unsigned kQuorumMax = 16;

Status WrongDsn(const std::string& found) {
  return {Code::kInvalidArgument,
          "--store: " + found +
              "; expected rocksdb, or clickhouse://HOST:PORT/DATABASE with the engine's HTTP "
              "port, such as clickhouse://127.0.0.1:8123/statcollect"};
}

bool IsIdentifier(std::string_view text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  return !text.empty() && text.size() <= kDatabaseBytesMax && letter(text[0]) &&
         std::all_of(text.begin(), text.end(), [&](char c) { return letter(c) || digit(c); });
}

// %41 is A.
std::optional<std::string> PercentDecoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const auto byte = ParseNumber<unsigned>(text.substr(i + 1, 2), 16);
    if (i + 2 >= text.size() || !byte || *byte < ' ' || *byte > 255) return std::nullopt;
    decoded += static_cast<char>(*byte);
    i += 2;
  }
  return decoded;
}

// "HOST", "HOST:PORT", "[v6]:PORT" as an address of HTTP.
Result<std::string> UrlOf(std::string_view endpoint, bool tls) {
  const std::size_t after_host = endpoint.starts_with('[') ? endpoint.find(']') : 0;
  const std::size_t colon =
      after_host == std::string_view::npos ? after_host : endpoint.find(':', after_host);
  const std::string_view host = endpoint.substr(0, colon);
  const std::string_view port =
      colon == std::string_view::npos ? (tls ? "8443" : "8123") : endpoint.substr(colon + 1);
  const auto is_of_host = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_' || c == '[' || c == ']' || c == ':';
  };
  if (host.empty() || !std::all_of(host.begin(), host.end(), is_of_host))
    return WrongDsn("'" + Printable(endpoint) + "' names no host");
  const auto number = ParseNumber<std::uint16_t>(port);
  if (!number || *number == 0)
    return WrongDsn("'" + Printable(port) + "' of '" + Printable(endpoint) +
                    "' is not a port from 1 to 65535");
  return (tls ? "https://" : "http://") + std::string(host) + ":" + std::to_string(*number) + "/";
}

Status ParseUser(std::string_view text, ClickHouseDsn* dsn) {
  const std::size_t colon = text.find(':');
  const auto user = PercentDecoded(text.substr(0, colon));
  const auto password = PercentDecoded(colon == std::string_view::npos ? "" : text.substr(colon + 1));
  if (!user || user->empty() || !password)
    return WrongDsn("the part before '@' is not USER:PASSWORD; write special characters as %XX, so @ as %40");
  dsn->user = *user;
  dsn->password = *password;
  return Status::Ok();
}

Status ParseAuthorities(std::string_view value, ClickHouseDsn* dsn) {
  if (!dsn->tls)
    return WrongDsn("ca= without TLS; write clickhouses:// for a connection with TLS, or leave ca= out");
  auto file = PercentDecoded(value);
  if (!file || file->empty())
    return WrongDsn("'ca=" + Printable(value) + "' names no file; write special characters as %XX");
  dsn->ca_file = *std::move(file);
  return Status::Ok();
}

Status ParseDsnOptions(std::string_view text, ClickHouseDsn* dsn) {
  for (const std::string_view option : PartsOf(text, '&')) {
    const std::size_t equals = option.find('=');
    const std::string_view name = option.substr(0, equals);
    if (name == "ca" && equals != std::string_view::npos) {
      STATCOLLECT_RETURN_IF_ERROR(ParseAuthorities(option.substr(equals + 1), dsn));
      continue;
    }
    if (name != "quorum" || equals == std::string_view::npos)
      return WrongDsn("'" + Printable(option) +
                      "' is not an option; there are quorum=N and, with clickhouses://, ca=FILE");
    const auto quorum = ParseNumber<unsigned>(option.substr(equals + 1));
    if (!quorum || *quorum == 0 || *quorum > kQuorumMax)
      return WrongDsn("'" + Printable(option) + "': the quorum is a number from 1 to " +
                      std::to_string(kQuorumMax));
    dsn->quorum = *quorum;
  }
  return Status::Ok();
}

}  // namespace

Result<ClickHouseDsn> ParseClickHouseDsn(const std::string& text) {
  if (text.size() > kDsnBytesMax)
    return WrongDsn("the address has more than " + std::to_string(kDsnBytesMax) + " bytes");
  std::string_view rest = text;
  if (!IsClickHouseAddress(rest))
    return WrongDsn("'" + Printable(text.substr(0, text.find("://"))) + "' is unknown");
  ClickHouseDsn dsn;
  dsn.tls = rest.starts_with(kClickHouseTlsScheme);
  rest.remove_prefix(dsn.tls ? kClickHouseTlsScheme.size() : kClickHouseScheme.size());
  if (const std::size_t question = rest.find('?'); question != std::string_view::npos) {
    STATCOLLECT_RETURN_IF_ERROR(ParseDsnOptions(rest.substr(question + 1), &dsn));
    rest = rest.substr(0, question);
  }
  if (const std::size_t at = rest.rfind('@'); at != std::string_view::npos) {
    STATCOLLECT_RETURN_IF_ERROR(ParseUser(rest.substr(0, at), &dsn));
    rest.remove_prefix(at + 1);
  }
  const std::size_t slash = rest.find('/');
  dsn.database = slash == std::string_view::npos ? "" : rest.substr(slash + 1);
  if (!IsIdentifier(dsn.database))
    return WrongDsn("the database is '" + Printable(dsn.database) +
                    "'; its name is made of letters, digits and '_' and does not begin with a digit");
  const auto hosts = PartsOf(rest.substr(0, slash), ',');
  if (hosts.empty() || hosts.size() > kHostsMax)
    return WrongDsn("found " + std::to_string(hosts.size()) + " hosts, not 1 to " +
                    std::to_string(kHostsMax));
  for (const std::string_view host : hosts) {
    auto url = UrlOf(host, dsn.tls);
    if (!url.ok()) return url.status();
    dsn.urls.push_back(*std::move(url));
  }
  // Each host would answer with what it has: what another one acknowledged could be missing.
  if (hosts.size() > 1 && dsn.quorum < 2)
    return WrongDsn(
        "found " + std::to_string(hosts.size()) + " hosts with quorum " + std::to_string(dsn.quorum) +
        ", and they would hold different records; several hosts need replicated tables and ?quorum=2 or more");
  return dsn;
}

std::string ClickHouseDsn::Describe() const {
  std::string text(tls ? kClickHouseTlsScheme : kClickHouseScheme);
  for (std::size_t i = 0; i < urls.size(); ++i) {
    std::string_view host = urls[i];
    host.remove_prefix(host.find("//") + 2);
    host.remove_suffix(1);
    text.append(i == 0 ? "" : ",").append(host);
  }
  return text + "/" + database + (quorum > 0 ? "?quorum=" + std::to_string(quorum) : "");
}

}  // namespace statcollect
