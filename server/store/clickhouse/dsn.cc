#include "server/store/clickhouse/dsn.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "common/names.h"
#include "common/parse.h"
#include "common/text.h"

namespace statcollect {
namespace {

constexpr std::size_t kDsnBytesMax = 4096;
constexpr std::size_t kHostsMax = 16;
constexpr std::size_t kDatabaseBytesMax = 64;
constexpr unsigned kQuorumMin = 2, kQuorumMax = 16;

// `found` goes on after "found".
Status WrongDsn(const std::string& found) {
  return {Code::kInvalidArgument,
          "--store: found " + found +
              "; expected rocksdb, or clickhouse://HOST:PORT/DATABASE with the engine's HTTP port, "
              "such as clickhouse://127.0.0.1:8123/statcollect; docs/clickhouse.md has the whole "
              "address"};
}

bool IsIdentifier(std::string_view text) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
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
    return WrongDsn("'" + Printable(endpoint) + "', which names no host");
  const auto number = ParseNumber<std::uint16_t>(port);
  if (!number || *number == 0)
    return WrongDsn("'" + Printable(port) + "' of '" + Printable(endpoint) +
                    "', which is not a port from 1 to 65535");
  return (tls ? "https://" : "http://") + std::string(host) + ":" + std::to_string(*number) + "/";
}

Status ParseUser(std::string_view text, ClickHouseDsn* dsn) {
  const std::size_t colon = text.find(':');
  const auto user = PercentDecoded(text.substr(0, colon));
  const auto password =
      PercentDecoded(colon == std::string_view::npos ? "" : text.substr(colon + 1));
  if (!user || user->empty() || !password)
    return WrongDsn(
        "something before '@' that is not USER:PASSWORD (write special characters as %XX, so @ as "
        "%40)");
  dsn->user = *user;
  dsn->password = *password;
  return Status::Ok();
}

Status ParseAuthorities(std::string_view value, ClickHouseDsn* dsn) {
  if (!dsn->tls)
    return WrongDsn(
        "ca= without TLS (write clickhouses:// for a connection with TLS, or leave ca= out)");
  auto file = PercentDecoded(value);
  if (!file || file->empty())
    return WrongDsn("'ca=" + Printable(value) +
                    "', which names no file (write special characters as %XX)");
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
      return WrongDsn(
          "'" + Printable(option) +
          "', which is not an option (there are quorum=N and, with clickhouses://, ca=FILE)");
    const auto quorum = ParseNumber<unsigned>(option.substr(equals + 1));
    if (!quorum || *quorum < kQuorumMin || *quorum > kQuorumMax)
      return WrongDsn("'" + Printable(option) + "', which is not a number from " +
                      std::to_string(kQuorumMin) + " to " + std::to_string(kQuorumMax) +
                      " (for a single host, leave quorum= out)");
    dsn->quorum = *quorum;
  }
  return Status::Ok();
}

// "[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]...][/DATABASE]"; `dsn` has what is the same for all
// shards.
Status ParseShard(std::string_view text, ClickHouseDsn* dsn) {
  if (const std::size_t at = text.rfind('@'); at != std::string_view::npos) {
    STATCOLLECT_RETURN_IF_ERROR(ParseUser(text.substr(0, at), dsn));
    text.remove_prefix(at + 1);
  }
  const std::size_t slash = text.find('/');
  if (slash != std::string_view::npos) dsn->database = text.substr(slash + 1);
  if (!IsIdentifier(dsn->database))
    return WrongDsn("database '" + Printable(dsn->database) +
                    "', whose name is not made of letters, digits and '_', or begins with a digit");
  const auto hosts = PartsOf(text.substr(0, slash), ',');
  if (hosts.empty() || hosts.size() > kHostsMax)
    return WrongDsn(std::to_string(hosts.size()) + " hosts" +
                    (dsn->shards > 1 ? " of shard " + std::to_string(dsn->number) : "") +
                    ", not 1 to " + std::to_string(kHostsMax));
  for (const std::string_view host : hosts) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto url, UrlOf(host, dsn->tls));
    dsn->urls.push_back(std::move(url));
  }
  // Each host would answer with what it has: what another one acknowledged could be missing.
  if (hosts.size() > 1 && dsn->quorum < 2)
    return WrongDsn(std::to_string(hosts.size()) +
                    " hosts without a quorum, which would hold different records (several hosts "
                    "need replicated tables and ?quorum=2 or more)");
  return Status::Ok();
}

// Two shards in one database would count everything twice.
Status CheckDistinct(const std::vector<ClickHouseDsn>& shards) {
  std::map<std::pair<std::string, std::string>, std::size_t> seen;
  for (const ClickHouseDsn& shard : shards) {
    for (const std::string& url : shard.urls) {
      const auto [before, is_new] = seen.emplace(std::pair(url, shard.database), shard.number);
      if (is_new || before->second == shard.number) continue;
      return WrongDsn("that shards " + std::to_string(before->second) + " and " +
                      std::to_string(shard.number) + " both name " + url + " and database '" +
                      shard.database + "', and each needs tables of its own");
    }
  }
  return Status::Ok();
}

}  // namespace

Result<std::vector<ClickHouseDsn>> ParseClickHouseDsn(const std::string& text) {
  if (text.size() > kDsnBytesMax)
    return WrongDsn("an address of more than " + std::to_string(kDsnBytesMax) + " bytes");
  std::string_view rest = text;
  if (!IsClickHouseAddress(rest))
    return WrongDsn("'" + Printable(text.substr(0, text.find("://"))) + "', which is unknown");
  ClickHouseDsn common;
  common.tls = rest.starts_with(kClickHouseTlsScheme);
  rest.remove_prefix(common.tls ? kClickHouseTlsScheme.size() : kClickHouseScheme.size());
  if (const std::size_t question = rest.find('?'); question != std::string_view::npos) {
    STATCOLLECT_RETURN_IF_ERROR(ParseDsnOptions(rest.substr(question + 1), &common));
    rest = rest.substr(0, question);
  }
  const auto parts = PartsOf(rest, '|');
  if (parts.size() > kShardsMax)
    return WrongDsn(std::to_string(parts.size()) + " shards, not 1 to " +
                    std::to_string(kShardsMax));
  // The database at the end is that of every shard that names none.
  if (const std::size_t slash = rest.rfind('/'), at = rest.rfind('@');
      slash != std::string_view::npos && (at == std::string_view::npos || slash > at))
    common.database = rest.substr(slash + 1);
  common.shards = std::max<std::size_t>(parts.size(), 1);
  std::vector<ClickHouseDsn> shards;
  for (std::size_t i = 0; i < common.shards; ++i) {
    ClickHouseDsn shard = common;
    shard.number = i + 1;
    if (i > 0) {
      shard.user = shards.front().user;
      shard.password = shards.front().password;
    }
    STATCOLLECT_RETURN_IF_ERROR(ParseShard(parts.empty() ? rest : parts[i], &shard));
    shards.push_back(std::move(shard));
  }
  STATCOLLECT_RETURN_IF_ERROR(CheckDistinct(shards));
  return shards;
}

std::string ClickHouseDsn::Describe() const { return statcollect::Describe({*this}); }

std::string ClickHouseDsn::ShardName() const {
  return shards == 1 ? ""
                     : "shard " + std::to_string(number) + " of " + std::to_string(shards) + " ";
}

std::string Describe(const std::vector<ClickHouseDsn>& shards) {
  const ClickHouseDsn& first = shards.front();
  std::string text(first.tls ? kClickHouseTlsScheme : kClickHouseScheme);
  for (const ClickHouseDsn& shard : shards) {
    text += &shard == &first ? "" : "|";
    for (std::size_t i = 0; i < shard.urls.size(); ++i) {
      std::string_view host = shard.urls[i];
      host.remove_prefix(host.find("//") + 2);
      host.remove_suffix(1);
      text.append(i == 0 ? "" : ",").append(host);
    }
    if (shard.database != shards.back().database) text += "/" + shard.database;
  }
  return text + "/" + shards.back().database +
         (first.quorum > 0 ? "?quorum=" + std::to_string(first.quorum) : "");
}

}  // namespace statcollect
