#include <fmt/format.h>

#include "client/commands.h"
#include "client/flatten.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

Page Render(const v1::GetStatusResponse& s, const std::string& address) {
  Table table({{"what"}, {"value", Align::kLeft, true}});
  table.AddRow({"state", s.state()});
  table.AddRow({"collector", fmt::format("{}, pid {}, version {}", address, s.pid(), s.version())});
  table.AddRow({"up", FormatDuration(s.uptime_seconds())});
  table.AddRow({"data", fmt::format("{} ({})", s.data_dir(), s.durability())});
  table.AddRow({"disk", fmt::format("{} used, {} free", FormatBytes(s.disk_bytes()),
                                    FormatBytes(s.disk_free_bytes()))});
  table.AddRow({"runs", FormatCount(s.runs())});
  table.AddRow(
      {"streams", fmt::format("{} open, {} since start", s.streams_open(), FormatCount(s.streams_total()))});
  table.AddRow({"records", FormatCount(s.records_total()) + " made durable since start"});
  table.AddRow({"batches", fmt::format("{} ({}) in {} commits", FormatCount(s.batches_total()),
                                       FormatBytes(s.bytes_total()), FormatCount(s.commits_total()))});
  table.AddRow({"received twice", FormatCount(s.duplicate_records_total()) + " records, stored once"});
  table.AddRow({"refused", FormatCount(s.rejected_batches_total()) + " batches"});
  table.AddRow({"lost by agents", FormatCount(s.agents_dropped_total()) + " records, in all runs held"});
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
    session.PrintPage(Render(*response, session.collector().address()));
  }
  return kExitSame;
}

}  // namespace statcollect::client
