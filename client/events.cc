#include "client/commands.h"
#include "client/flatten.h"
#include "client/selection.h"
#include "common/names.h"

namespace statcollect::client {

Table EventTable(const google::protobuf::RepeatedPtrField<v1::EventRow>& events) {
  Table table(
      {{"rank", Align::kRight}, {"step", Align::kRight}, {"when"}, {"kind"}, {"text", Align::kLeft, true}});
  const std::int64_t now = NowUnixNanos();
  for (const v1::EventRow& event : events) {
    table.AddRow({std::to_string(event.rank()), std::to_string(event.step()),
                  FormatAgo(event.unix_nanos(), now), event.kind(), event.text()});
  }
  return table;
}

int Events(Session& session, const std::string& run, const std::string& rank_text) {
  v1::ListEventsRequest request;
  request.set_run(run);
  const auto ranks = ParseRanks(rank_text);
  if (!ranks.ok()) return session.Fail("events " + Printable(run), ranks.status());
  request.mutable_ranks()->Add(ranks->begin(), ranks->end());
  const auto response = session.collector().ListEvents(request);
  if (!response.ok()) return session.Fail("events " + Printable(run), response.status());
  if (session.options().format == Format::kJson) {
    session.PrintJson(*response);
  } else if (session.options().format == Format::kCsv) {
    session.PrintCsv(FlattenRecords(response->records()));
  } else {
    Page page;
    if (response->records().empty()) {
      page.AddSentence("No events in " + Printable(run) + ".");
    } else {
      page.AddTable(EventTable(response->records()));
    }
    session.PrintPage(page);
  }
  return kExitSame;
}

}  // namespace statcollect::client
