#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/page_link.h"
#include "client/render/flatten.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

std::string LostText(const v1::GetStatusResponse& s) {
  const std::map<std::string, std::uint64_t> causes(s.dropped_by_cause().begin(),
                                                    s.dropped_by_cause().end());
  std::uint64_t sum = 0;
  std::string text;
  for (const auto& [cause, count] : causes) {
    sum += count;
    text += fmt::format("{}{} {}", text.empty() ? ": " : ", ", cause, FormatCount(count));
  }
  return fmt::format("{} records, in all stored runs{}", FormatCount(sum), text);
}

std::string LagText(const v1::GetStatusResponse& s) {
  if (s.backlog_records() == 0) return "none: everything received is durable";
  return fmt::format("{} records ({}) received and not yet durable; the oldest for {} ms",
                     FormatCount(s.backlog_records()), FormatBytes(s.backlog_bytes()),
                     FormatCount(static_cast<std::uint64_t>(s.backlog_oldest_millis())));
}

std::string LimitsText(const v1::Retention& r) {
  const std::string age =
      r.age_seconds_max() > 0 ? "runs older than " + FormatDuration(r.age_seconds_max()) : "";
  const std::string size =
      r.disk_bytes_max() > 0 ? "the oldest runs above " + FormatBytes(r.disk_bytes_max()) : "";
  if (age.empty() && size.empty()) return "off; statcollectord --retention, --max-disk";
  return fmt::format("removes {}{}{}; removed {} ({}) since start", age,
                     age.empty() || size.empty() ? "" : ", and ", size,
                     FormatCount(r.runs_removed()), FormatBytes(r.bytes_removed()));
}

std::string NextText(const v1::RetentionNext& next, std::int64_t now) {
  const std::int64_t left = (next.due_unix_nanos() - now) / 1'000'000'000;
  std::string when = "when space runs low";
  if (next.due_unix_nanos() > 0) when = left > 0 ? "in " + FormatDuration(left) : "within a minute";
  return fmt::format("{} ({}, written {}): {}", Printable(next.run()), FormatBytes(next.bytes()),
                     FormatAgo(next.last_write_unix_nanos(), now), when);
}

void AddRetention(const v1::Retention& r, Table* table) {
  table->AddRow({"retention", LimitsText(r)});
  if (!r.note().empty()) table->AddRow({"retention note", r.note()});
  const std::int64_t now = NowUnixNanos();
  const char* title = "removed next";
  for (const v1::RetentionNext& next : r.next())
    table->AddRow({std::exchange(title, ""), NextText(next, now)});
  std::string kept;
  for (const std::string& run : r.kept()) kept += (kept.empty() ? "" : ", ") + run;
  if (!kept.empty()) table->AddRow({"kept", kept});
}

std::string CountsText(const google::protobuf::Map<std::string, std::uint64_t>& by_rule) {
  const std::map<std::string, std::uint64_t> sorted(by_rule.begin(), by_rule.end());
  std::string text;
  for (const auto& [rule, count] : sorted) {
    if (count > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", FormatCount(count), rule);
  }
  return text.empty() ? "none" : text;
}

void AddAlarms(const v1::Alarms& a, Table* table) {
  if (!a.enabled()) return table->AddRow({"alarms", "off; statcollectord --alarms"});
  table->AddRow(
      {"alarms", CountsText(a.raised()) + " since start; active: " + CountsText(a.active())});
  if (a.skipped_records() > 0)
    table->AddRow(
        {"alarms skipped", FormatCount(a.skipped_records()) + " records: could not keep up"});
  if (!a.webhook().empty()) {
    table->AddRow({"alarm webhook",
                   fmt::format("{}: {} sent, {} attempts failed, {} dropped", a.webhook(),
                               FormatCount(a.webhook_sent()), FormatCount(a.webhook_failed()),
                               FormatCount(a.webhook_dropped()))});
  }
}

void AddAccess(const v1::Access& a, Table* table) {
  if (!a.on())
    return table->AddRow(
        {"access", "open to whoever reaches the collector; statcollectord token create"});
  table->AddRow(
      {"access",
       fmt::format(
           "tokens or certificates; since start {} calls refused without a valid one, {} for "
           "want of a scope or project",
           FormatCount(a.unauthenticated()), FormatCount(a.permission_denied()))});
  if (a.streams_refused() > 0)
    table->AddRow({"access limit",
                   FormatCount(a.streams_refused()) + " streams refused, over a caller's limit"});
  if (a.audit_lost() > 0)
    table->AddRow({"audit log", FormatCount(a.audit_lost()) + " lines could not be written"});
}

// The caller's project, if projects have limits.
void AddProject(const v1::GetStatusResponse& s, Table* table) {
  const v1::ProjectDisk& disk = s.project_disk();
  if (s.has_project_disk()) {
    const bool full = disk.bytes_max() > 0 && disk.bytes() >= disk.bytes_max();
    table->AddRow(
        {"project",
         fmt::format("{}: {}, limit {}{}", disk.project(), FormatBytes(disk.bytes()),
                     disk.bytes_max() == 0 ? "none" : FormatBytes(disk.bytes_max()),
                     full ? "; its records are refused until runs are removed (statctl rm)" : "")});
  }
  if (s.access().quota_refused() > 0) {
    table->AddRow({"project limits",
                   fmt::format("{} projects over their limit; {} streams and batches refused",
                               s.projects_full(), FormatCount(s.access().quota_refused()))});
  }
}

Page Render(const v1::GetStatusResponse& s, const Collector& collector) {
  const std::string& address = collector.address();
  Table table({{"what"}, {"value", Align::kLeft, true}});
  table.AddRow({"state", s.state()});
  table.AddRow({"collector", fmt::format("{}, pid {}, version {}", address, s.pid(), s.version())});
  const std::string origin = PageOrigin(s.http_address(), address, collector.uses_tls());
  table.AddRow({"page", !origin.empty()            ? origin + "/"
                        : s.http_address().empty() ? "off"
                                                   : s.http_address()});
  table.AddRow({"up", FormatDuration(s.uptime_seconds())});
  table.AddRow({"data", fmt::format("{} ({})", s.data_dir(), s.durability())});
  table.AddRow(
      {"disk", fmt::format("{} used, {}", FormatBytes(s.disk_bytes()),
                           s.disk_free_unknown() ? "free space unknown"
                                                 : FormatBytes(s.disk_free_bytes()) + " free")});
  table.AddRow({"runs", FormatCount(s.runs())});
  table.AddRow({"streams", fmt::format("{} open, {} since start", s.streams_open(),
                                       FormatCount(s.streams_total()))});
  table.AddRow({"records", FormatCount(s.records_total()) + " written durably since start"});
  table.AddRow(
      {"batches", fmt::format("{} ({}) in {} commits", FormatCount(s.batches_total()),
                              FormatBytes(s.bytes_total()), FormatCount(s.commits_total()))});
  table.AddRow(
      {"received twice", FormatCount(s.duplicate_records_total()) + " records, stored once"});
  table.AddRow({"refused", FormatCount(s.rejected_batches_total()) + " batches"});
  table.AddRow({"lag", LagText(s)});
  table.AddRow({"lost by agents", LostText(s)});
  AddProject(s, &table);
  AddRetention(s.retention(), &table);
  AddAlarms(s.alarms(), &table);
  AddAccess(s.access(), &table);
  if (s.access().throttled_millis() > 0) {
    table.AddRow({"slowed down",
                  FormatDuration(static_cast<std::int64_t>(s.access().throttled_millis() / 1000)) +
                      " in all streams, by limits of bytes a second"});
  }
  Page page;
  page.AddTable(std::move(table));
  return page;
}

}  // namespace

int ShowStatus(Session& session) {
  const auto response = session.collector().GetStatus();
  if (!response.ok()) return session.Fail("status", response.status());
  if (session.options().format == Format::kJson) {
    session.PrintJson(*response);
  } else if (session.options().format == Format::kCsv) {
    Flattener row(*v1::GetStatusResponse::descriptor(), {});
    row.Add(*response);
    session.PrintCsv(std::move(row).Take());
  } else {
    session.PrintPage(Render(*response, session.collector()));
  }
  return kExitSame;
}

}  // namespace statcollect::client
