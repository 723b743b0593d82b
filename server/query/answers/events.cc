#include "server/query/answers/events.h"

#include <cstddef>
#include <set>

#include "server/query/answers/message_parts.h"
#include "server/query/each_record.h"
#include "server/query/event_kinds.h"

namespace statcollect::query {
namespace {

constexpr int kEventKindsMax = 256;

}  // namespace

Result<EventsRequest> FromWire(const v1::ListEventsRequest& request) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto wanted, SelectionFromWire<EventsRequest>(request));
  if (request.kinds_size() > kEventKindsMax) {
    return Invalid("query: " + std::to_string(request.kinds_size()) +
                   " kinds of event named; expected at most " + std::to_string(kEventKindsMax));
  }
  wanted.kinds.assign(request.kinds().begin(), request.kinds().end());
  if (request.has_since_step()) wanted.since_step = request.since_step();
  return wanted;
}

void FillEvent(const std::string& run, std::uint32_t attempt, std::uint32_t rank,
               const EventRecord& event, v1::EventRow& out) {
  out.set_run(run);
  out.set_rank(rank);
  out.set_step(event.step);
  out.set_kind(event.kind);
  out.set_text(event.text);
  out.set_unix_nanos(event.unix_nanos);
  out.mutable_fields()->insert(event.fields.begin(), event.fields.end());
  out.set_origin(event.from_collector ? "collector" : "agent");
  out.set_attempt(attempt);
}

Status ListEvents(const Context& context, const EventsRequest& request,
                  v1::ListEventsResponse& out) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(context.store, request.run));
  std::set<std::string> kinds;
  for (const std::uint32_t rank : view.AllRanks()) {
    if (!IsWanted(request.ranks, rank)) continue;
    for (std::size_t attempt = 0; attempt < view.attempts().size(); ++attempt) {
      if (!view.ranks(attempt).contains(rank)) continue;
      const AttemptMeta& launch = view.attempts()[attempt];
      Visitor<EventRecord> visitor;
      visitor.take = [&](const EventRecord& event) {
        if (kinds.size() < kNamesMax) kinds.insert(event.kind);
        if (!request.Wants(rank, event)) return Status::Ok();
        if (IsFull(out.records())) return TooManyRows("events");
        FillEvent(request.run, launch.number, rank, event, *out.add_records());
        return Status::Ok();
      };
      STATCOLLECT_RETURN_IF_ERROR(context.store.Visit(launch.id, rank, {}, visitor));
    }
  }
  if (!out.records().empty()) return Status::Ok();
  return CheckEventKinds(request.run, request.kinds, kinds);
}

}  // namespace statcollect::query
