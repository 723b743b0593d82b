// The known kinds of events, which distinguish a mistyped kind from one that has not occurred, and
// which events are alarms.
#ifndef STATCOLLECT_SERVER_QUERY_EVENT_KINDS_H_
#define STATCOLLECT_SERVER_QUERY_EVENT_KINDS_H_

#include <set>
#include <string>
#include <vector>

#include "common/records.h"
#include "common/status.h"

namespace statcollect::query {

// The kinds that the agent and the collector's alarms write, sorted by name. Programs may log
// others (log_event).
const std::vector<std::string>& KnownEventKinds();

// An alarm that a rule has raised (docs/alarms.md). Its end (alarm_cleared) and a note, such as an
// overflow, are not alarms; nor is what a program logs, whatever its fields.
bool IsAlarm(const EventRecord& event);

// kInvalidArgument names the first of `wanted` that is neither known nor among the run's own kinds,
// the closest match, and all kinds.
Status CheckEventKinds(const std::string& run, const std::vector<std::string>& wanted,
                       const std::set<std::string>& in_run);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_EVENT_KINDS_H_
