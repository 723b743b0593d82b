#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "client/commands.h"

namespace statcollect::client {
namespace {

std::string StepsText(const v1::RunSummary& run) {
  if (!run.has_first_step()) return "none";
  return std::to_string(run.first_step()) + ".." + std::to_string(run.last_step());
}

}  // namespace

int ListRuns(Session& session) {
  grpc::ClientContext context;
  session.Prepare(context);
  v1::ListRunsResponse response;
  const grpc::Status status = session.query().ListRuns(&context, {}, &response);
  if (!status.ok()) return session.Fail("runs", status);
  if (session.json()) {
    session.PrintJson(response);
    return kExitSame;
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
    table.AddRow({run.run(), run.state(), std::to_string(run.ranks()), StepsText(run),
                  FormatCount(run.records()), std::to_string(run.attempts()), FormatCount(run.dropped()),
                  FormatAgo(run.start_unix_nanos(), now)});
  }
  if (table.empty() && !session.csv()) {
    Page page;
    page.AddSentence(
        "No runs yet. Start a training script with STATAGENT_RUN=<name> and statagent.watch(model).");
    session.Print(page);
    return kExitSame;
  }
  session.PrintTable(table);
  return kExitSame;
}

}  // namespace statcollect::client
