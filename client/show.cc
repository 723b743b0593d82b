#include <fmt/format.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "client/commands.h"
#include "common/names.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

std::string Dropped(const google::protobuf::Map<std::string, std::uint64_t>& by_cause) {
  std::string text;
  for (const auto& [cause, count] : by_cause)
    text += (text.empty() ? "" : ", ") + FormatCount(count) + " " + cause;
  return text.empty() ? "0" : text;
}

Table RankTable(const v1::AttemptInfo& attempt) {
  Table table({{"rank", Align::kRight},
               {"host", Align::kLeft, true},
               {"pid", Align::kRight},
               {"state"},
               {"steps"},
               {"tensors", Align::kRight},
               {"records", Align::kRight},
               {"dropped"}});
  for (const v1::RankInfo& rank : attempt.ranks()) {
    table.AddRow({std::to_string(rank.rank()), rank.host(), std::to_string(rank.pid()), rank.state(),
                  rank.has_first_step() ? fmt::format("{}..{}", rank.first_step(), rank.last_step()) : "none",
                  FormatCount(rank.stat_records()), FormatCount(rank.records()), Dropped(rank.dropped())});
  }
  return table;
}

Page Render(const v1::GetRunResponse& run) {
  const v1::RunSummary& summary = run.summary();
  Page page;
  page.AddSentence(
      fmt::format("is {}; {} of {} ranks, {} steps, {} records, started {}", summary.state(), summary.ranks(),
                  summary.world_size(), FormatCount(summary.steps()), FormatCount(summary.records()),
                  FormatAgo(summary.start_unix_nanos(), NowUnixNanos())),
      Printable(summary.run()), Tone::kGood);
  for (const v1::AttemptInfo& attempt : run.attempts()) {
    page.AddHeading(fmt::format("Attempt {}", attempt.attempt()));
    page.AddTable(RankTable(attempt));
  }
  page.AddHeading(fmt::format("Activations ({})", FormatCount(run.activations())));
  Table kinds({{"kind"}, {"activations", Align::kRight}});
  for (const v1::KindCount& kind : run.kinds()) {
    kinds.AddRow({EnumText(*v1::Kind_descriptor(), kind.kind()), FormatCount(kind.activations())});
  }
  page.AddTable(std::move(kinds));
  if (!run.config().empty()) {
    page.AddHeading("Configuration");
    Table config({{"key"}, {"value", Align::kLeft, true}});
    const std::map<std::string, std::string> sorted(run.config().begin(), run.config().end());
    for (const auto& [key, value] : sorted) config.AddRow({key, value});
    page.AddTable(std::move(config));
  }
  if (!run.events().empty()) {
    page.AddHeading("Events");
    Table events({{"rank", Align::kRight}, {"step", Align::kRight}, {"kind"}, {"text", Align::kLeft, true}});
    for (const v1::EventRow& event : run.events()) {
      events.AddRow({std::to_string(event.rank()), std::to_string(event.step()), event.kind(), event.text()});
    }
    page.AddTable(std::move(events));
  }
  return page;
}

}  // namespace

int ShowRun(Session& session, const std::string& run) {
  grpc::ClientContext context;
  session.Prepare(context);
  v1::GetRunRequest request;
  request.set_run(run);
  v1::GetRunResponse response;
  const grpc::Status status = session.query().GetRun(&context, request, &response);
  if (!status.ok()) return session.Fail("show " + Printable(run), status);
  if (session.json()) {
    session.PrintJson(response);
  } else if (session.csv()) {
    session.PrintCsv(response.attempts().empty() ? Table({{"rank"}})
                                                 : RankTable(*response.attempts().rbegin()));
  } else {
    session.Print(Render(response));
  }
  return kExitSame;
}

}  // namespace statcollect::client
