// Alarms and other events of a run.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_EVENTS_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_EVENTS_H_

#include <algorithm>

#include "server/query/answers/leaf.h"

namespace statcollect::query {

struct EventsRequest {
  std::string run;
  std::vector<std::uint32_t> ranks;         // empty: all
  std::vector<std::string> kinds;           // empty: all
  std::optional<std::uint64_t> since_step;  // absent: all
  bool Wants(std::uint32_t rank, const EventRecord& event) const {
    const auto has = [](const auto& wanted, const auto& value) {
      return wanted.empty() || std::find(wanted.begin(), wanted.end(), value) != wanted.end();
    };
    return has(ranks, rank) && has(kinds, event.kind) && event.step >= since_step.value_or(0);
  }
};

// Adds: too many kinds.
Result<EventsRequest> FromWire(const v1::ListEventsRequest& request);

// `attempt`: launch of the run, from 1.
void FillEvent(const std::string& run, std::uint32_t attempt, std::uint32_t rank,
               const EventRecord& event, v1::EventRow& out);

// From all attempts, including superseded steps, sorted by rank, attempt, step. kInvalidArgument: a
// kind that neither the run nor anybody else has (gives the closest).
Status ListEvents(const Context& context, const EventsRequest& request,
                  v1::ListEventsResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_EVENTS_H_
