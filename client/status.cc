#include <fmt/format.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "client/commands.h"
#include "common/names.h"

namespace statcollect::client {

int ShowStatus(Session& session) {
  grpc::ClientContext context;
  session.Prepare(context);
  v1::GetStatusResponse s;
  const grpc::Status status = session.admin().GetStatus(&context, {}, &s);
  if (!status.ok()) return session.Fail("status", status);
  if (session.json()) {
    session.PrintJson(s);
    return kExitSame;
  }
  Table table({{"what"}, {"value", Align::kLeft, true}});
  table.AddRow({"state", s.state()});
  table.AddRow({"collector", session.options().collector + ", pid " + std::to_string(s.pid())});
  table.AddRow({"version", s.version()});
  table.AddRow({"up", FormatDuration(s.uptime_seconds())});
  table.AddRow({"data", s.data_dir() + " (" + s.durability() + ")"});
  table.AddRow(
      {"disk", FormatBytes(s.disk_bytes()) + " used, " + FormatBytes(s.disk_free_bytes()) + " free"});
  table.AddRow({"runs", FormatCount(s.runs())});
  table.AddRow(
      {"streams", fmt::format("{} open, {} since start", s.streams_open(), FormatCount(s.streams_total()))});
  table.AddRow({"records", FormatCount(s.records_total()) + " durable since start"});
  table.AddRow({"batches", fmt::format("{} in {} commits, {}", FormatCount(s.batches_total()),
                                       FormatCount(s.commits_total()), FormatBytes(s.bytes_total()))});
  table.AddRow({"received twice", FormatCount(s.duplicate_records_total()) + " records, discarded"});
  table.AddRow({"refused", FormatCount(s.rejected_batches_total()) + " batches"});
  table.AddRow({"lost by agents", FormatCount(s.agents_dropped_total()) + " records"});
  session.PrintTable(table);
  return kExitSame;
}

}  // namespace statcollect::client
