#include <chrono>
#include <ctime>
#include <functional>
#include <iostream>
#include <string>
#include <unordered_set>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/selection.h"
#include "client/render/flatten.h"
#include "common/names.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

constexpr std::chrono::milliseconds kReconnectPause{500};

Status MakeRequest(const EventsOptions& options, v1::ListEventsRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(options.run));
  request.set_run(options.run);
  const auto ranks = ParseRanks(options.ranks);
  if (!ranks.ok()) return ranks.status();
  request.mutable_ranks()->Add(ranks->begin(), ranks->end());
  for (const std::string& kind : SplitCommas(options.kinds)) request.add_kinds(kind);
  if (options.since_step) request.set_since_step(*options.since_step);
  return Status::Ok();
}

// Prints each event once, as it comes, also where a connection was lost in between.
class Follower {
 public:
  explicit Follower(Format format) : format_(format) {}

  void Take(const v1::FollowEventsResponse& response) {
    for (const v1::EventRow& event : response.records()) {
      const std::string json = DumpJson(ToJson(event), -1);
      if (printed_.insert(std::hash<std::string>()(json)).second) Print(event, json);
    }
    std::cout.flush();
  }

 private:
  void Print(const v1::EventRow& event, const std::string& json) {
    if (format_ == Format::kJson) {
      std::cout << json << '\n';
    } else if (format_ == Format::kCsv) {
      Flattener row(*v1::EventRow::descriptor(), {});
      row.Add(event);
      const std::string csv = std::move(row).Take().ToCsv();
      std::cout << (header_printed_ ? csv.substr(csv.find('\n') + 1) : csv);
      header_printed_ = true;
    } else {
      const std::time_t seconds = event.unix_nanos() / 1'000'000'000;
      std::cout << fmt::format("{:%Y-%m-%d %H:%M:%S}  rank {}  step {}  {}  {}\n",
                               fmt::localtime(seconds), event.rank(), event.step(),
                               Printable(event.kind()), Printable(event.text(), 2000));
    }
  }

  const Format format_;
  bool header_printed_ = false;
  std::unordered_set<std::size_t> printed_;  // hashes
};

// Ctrl-C is the ordinary end. A collector that goes after it has answered is waited for.
int Follow(Session& session, const v1::ListEventsRequest& events) {
  Collector& collector = session.collector();
  const Collector::Task task(collector);
  Follower follower(session.options().format);
  bool answered = false, lost = false;
  for (;;) {
    const Status ended =
        collector.FollowEvents(events, [&](const v1::FollowEventsResponse& response) {
          if (lost) session.Remark("statctl: connected again");
          answered = true;
          lost = false;
          follower.Take(response);
        });
    if (ended.code() == Code::kCancelled) return kExitSame;
    const bool again = ended.ok() || ended.code() == Code::kUnavailable ||
                       ended.code() == Code::kResourceExhausted;
    if (!answered || !again || !std::cout)
      return session.Fail("events " + Printable(events.run()), ended);
    if (!lost) session.Remark("statctl: " + ended.message() + "; waiting for it");
    lost = true;
    if (!collector.WaitUnlessCancelled(kReconnectPause)) return kExitSame;
  }
}

}  // namespace

Table EventTable(const google::protobuf::RepeatedPtrField<v1::EventRow>& events) {
  Table table({{"rank", Align::kRight, false, Use::kIfItVaries},
               {"step", Align::kRight},
               {"when", Align::kLeft, false, Use::kIfItFits},
               {"by", Align::kLeft, false, Use::kIfItVaries},
               {"kind"},
               {"text", Align::kLeft, true}});
  const std::int64_t now = NowUnixNanos();
  for (const v1::EventRow& event : events) {
    table.AddRow({std::to_string(event.rank()), std::to_string(event.step()),
                  FormatAgo(event.unix_nanos(), now), event.origin(), event.kind(), event.text()});
  }
  return table;
}

int Events(Session& session, const EventsOptions& options) {
  const std::string attempted = "events " + Printable(options.run);
  v1::ListEventsRequest request;
  if (const Status wrong = MakeRequest(options, request); !wrong.ok())
    return session.Fail(attempted, wrong);
  if (options.follow) {
    // An unknown kind is most likely mistyped; without a warning, the user would wait for events
    // that never come.
    const auto known = request.kinds().empty() ? v1::ListEventsResponse()
                                               : session.collector().ListEvents(request);
    if (known.status().code() == Code::kInvalidArgument)
      session.Remark("statctl: " + known.status().message() + "; still waiting for one");
    return Follow(session, request);
  }
  const auto response = session.collector().ListEvents(request);
  if (!response.ok()) return session.Fail(attempted, response.status());
  session.Print(
      *response, [&] { return FlattenRecords(response->records()); },
      [&] {
        Page page;
        if (response->records().empty()) {
          const bool all = options.kinds.empty() && options.ranks.empty() && !options.since_step;
          page.AddSentence("No events " + std::string(all ? "" : "of that selection ") + "in " +
                           Printable(options.run) + ".");
        } else {
          page.AddTable(EventTable(response->records()));
        }
        return page;
      });
  return kExitSame;
}

}  // namespace statcollect::client
