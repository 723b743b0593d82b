#include "client/commands/page_link.h"

#include <string_view>

#include <fmt/format.h>

#include "common/names.h"
#include "common/parse.h"
#include "common/unix_address.h"
#include "proto/convert.h"

namespace statcollect::client {
namespace {

constexpr std::size_t kPathBytesMax = 8000;  // the collector takes requests of 16 KiB

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

std::string Encoded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.' || c == ',';
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

template <typename List, typename ToText>
std::string Joined(const List& list, ToText&& text) {
  std::string out;
  for (const auto& one : list) out += (out.empty() ? "" : ",") + text(one);
  return out;
}

}  // namespace

std::string PageOrigin(const std::string& http, const std::string& collector, bool tls) {
  const auto page = ParseHostPort(http);
  const auto reached =
      IsUnixAddress(collector) ? HostPort{.host = "127.0.0.1"} : ParseHostPort(collector);
  if (!page || page->port == 0 || !reached) return {};
  std::string host = page->host;
  if (host == "0.0.0.0" || host == "::") host = reached->host;
  if (IsLoopback(host) && !IsLoopback(reached->host)) return {};
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  return fmt::format("{}://{}:{}", tls ? "https" : "http", host, page->port);
}

std::string ComparePath(const v1::DiffRequest& request) {
  std::string path = "/?view=compare";
  const auto add = [&path](const char* name, const std::string& value) {
    if (!value.empty()) path += fmt::format("&{}={}", name, Encoded(value));
  };
  const auto flag = [&](const char* name, bool set) { add(name, set ? "true" : ""); };
  add("a", request.run_a());
  add("b", request.run_b());
  if (request.has_tolerance()) add("tolerance", fmt::format("{}", request.tolerance()));
  flag("exact", request.exact());
  add("ranks", Joined(request.ranks(), [](std::uint32_t rank) { return std::to_string(rank); }));
  add("steps", request.steps());
  add("kinds",
      Joined(request.kinds(), [](int kind) { return std::string(Name(static_cast<Kind>(kind))); }));
  add("map", request.map());
  flag("no_alignment", request.no_alignment());
  flag("first_only", request.first_only());
  add("noise", Joined(request.noise(), [](const std::string& run) { return run; }));
  flag("no_noise", request.no_noise());
  flag("merge_ranks", request.merge_ranks());
  flag("logical", request.logical());
  flag("by_rank", request.by_rank());
  return path.size() <= kPathBytesMax ? path : "";
}

}  // namespace statcollect::client
