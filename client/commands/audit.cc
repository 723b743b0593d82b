#include <array>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/render/flatten.h"
#include "common/names.h"
#include "common/parse.h"

namespace statcollect::client {
namespace {

constexpr std::int64_t kNanosPerSecond = 1'000'000'000;

// "2h" before now.
std::optional<std::int64_t> ParseAgo(const std::string& text) {
  constexpr std::array<std::pair<const char*, std::int64_t>, 5> kUnits = {
      {{"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86'400}, {"w", 604'800}}};
  const std::size_t digits = text.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string::npos) return std::nullopt;
  const auto number = ParseNumber<std::int64_t>(text.substr(0, digits));
  for (const auto& [unit, seconds] : kUnits) {
    if (text.substr(digits) == unit && number && *number <= 1'000'000)
      return NowUnixNanos() - *number * seconds * kNanosPerSecond;
  }
  return std::nullopt;
}

// "2026-01-31", "2026-01-31T12:00" or "2026-01-31T12:00:00", with or without Z.
std::optional<std::int64_t> ParseDate(std::string text) {
  if (text.ends_with('Z')) text.pop_back();
  for (const char* form : {"%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"}) {
    std::tm parts{};
    const char* end = strptime(text.c_str(), form, &parts);
    if (end == nullptr || *end != '\0') continue;
    return std::int64_t{timegm(&parts)} * kNanosPerSecond;
  }
  return std::nullopt;
}

Status MakeAuditRequest(const AuditOptions& options, v1::ListAuditRequest& request) {
  if (!options.since.empty()) {
    auto since = ParseAgo(options.since);
    if (!since) since = ParseDate(options.since);
    if (!since) {
      return {Code::kInvalidArgument,
              "--since: found '" + Printable(options.since) +
                  "'; expected 30min, 2h or 7d, or a UTC time such as 2026-01-31T12:00"};
    }
    request.set_since_unix_nanos(*since);
  }
  request.set_principal(options.principal);
  request.set_method(options.method);
  request.set_outcome(options.outcome);
  request.set_limit(options.limit);
  return Status::Ok();
}

// "Query/Diff" of "/statcollect.v1.Query/Diff".
std::string ShortMethod(const std::string& method) {
  constexpr std::string_view kPackage = "/statcollect.v1.";
  return method.starts_with(kPackage) ? method.substr(kPackage.size()) : method;
}

Page RenderAudit(const v1::ListAuditResponse& response, bool filtered) {
  Page page;
  if (response.records().empty()) {
    page.AddSentence(
        filtered ? "No calls of that selection in the audit log."
                 : "The audit log is empty: no call was refused, and none changed anything.");
    return page;
  }
  Table table({{"time"},
               {"principal", Align::kLeft, true},
               {"address"},
               {"method", Align::kLeft, true},
               {"object", Align::kLeft, true},
               {"outcome", Align::kLeft, true}});
  std::uint64_t left_out = 0;
  for (const v1::AuditRecord& record : response.records()) {
    table.AddRow({record.time(), record.principal(), record.address(), ShortMethod(record.method()),
                  record.object(), record.outcome()});
    left_out += record.left_out();
  }
  page.AddTable(std::move(table));
  if (left_out > 0)
    page.AddSentence(fmt::format("{} more refused calls were not written down one by one.",
                                 FormatCount(left_out)));
  if (response.more())
    page.AddSentence("There are older ones; --limit N shows more, --since narrows the time.");
  return page;
}

}  // namespace

int ListAudit(Session& session, const AuditOptions& options) {
  v1::ListAuditRequest request;
  if (const Status wrong = MakeAuditRequest(options, request); !wrong.ok())
    return session.Fail("audit", wrong);
  const auto response = session.collector().ListAudit(request);
  if (!response.ok()) return session.Fail("audit", response.status());
  const bool filtered =
      !(options.since + options.principal + options.method + options.outcome).empty();
  session.Print(
      *response, [&] { return FlattenRecords(response->records()); },
      [&] { return RenderAudit(*response, filtered); });
  return kExitSame;
}

}  // namespace statcollect::client
