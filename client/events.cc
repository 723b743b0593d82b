#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "client/commands.h"
#include "common/names.h"

namespace statcollect::client {

int Events(Session& session, const std::string& run, const std::string& rank_text) {
  v1::ListEventsRequest request;
  request.set_run(run);
  const auto ranks = ParseRanks(rank_text);
  if (!ranks.ok()) return UsageError(ranks.status().message());
  request.mutable_ranks()->Add(ranks->begin(), ranks->end());
  grpc::ClientContext context;
  session.Prepare(context);
  v1::ListEventsResponse response;
  const grpc::Status status = session.query().ListEvents(&context, request, &response);
  if (!status.ok()) return session.Fail("events " + Printable(run), status);
  if (session.json()) {
    session.PrintJson(response);
    return kExitSame;
  }
  Table table(
      {{"rank", Align::kRight}, {"step", Align::kRight}, {"when"}, {"kind"}, {"text", Align::kLeft, true}});
  const std::int64_t now = NowUnixNanos();
  for (const v1::EventRow& event : response.records()) {
    table.AddRow({std::to_string(event.rank()), std::to_string(event.step()),
                  session.csv() ? std::to_string(event.unix_nanos()) : FormatAgo(event.unix_nanos(), now),
                  event.kind(), event.text()});
  }
  if (table.empty() && !session.csv()) {
    Page page;
    page.AddSentence("No events.");
    session.Print(page);
    return kExitSame;
  }
  session.PrintTable(table);
  return kExitSame;
}

}  // namespace statcollect::client
