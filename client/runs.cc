#include <fmt/format.h>

#include "client/commands.h"
#include "client/flatten.h"

namespace statcollect::client {
namespace {

std::string RanksText(const v1::RunSummary& run) {
  return run.ranks() == run.world_size() ? std::to_string(run.ranks())
                                         : fmt::format("{} of {}", run.ranks(), run.world_size());
}

Page Render(const v1::ListRunsResponse& response) {
  Page page;
  if (response.runs().empty()) {
    page.AddSentence(
        "No runs yet: start a training script that calls statagent.watch(model), with STATAGENT_RUN=<name>.");
    return page;
  }
  Table table({{"run", Align::kLeft, true},
               {"state"},
               {"ranks", Align::kRight},
               {"steps", Align::kRight},
               {"records", Align::kRight},
               {"attempts", Align::kRight},
               {"dropped", Align::kRight},
               {"started"}});
  const std::int64_t now = NowUnixNanos();
  for (const v1::RunSummary& run : response.runs()) {
    table.AddRow({run.run(), run.state(), RanksText(run), StepsText(run), FormatCount(run.records()),
                  std::to_string(run.attempts()), FormatCount(run.dropped()),
                  FormatAgo(run.start_unix_nanos(), now)});
  }
  page.AddTable(std::move(table));
  return page;
}

}  // namespace

int ListRuns(Session& session) {
  const auto response = session.collector().ListRuns();
  if (!response.ok()) return session.Fail("runs", response.status());
  session.Print(
      *response, [&] { return FlattenRecords(response->runs()); }, [&] { return Render(*response); });
  return kExitSame;
}

}  // namespace statcollect::client
