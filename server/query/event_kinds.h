// The kinds of events there are, to tell a mistyped one from one that has not happened.
#ifndef STATCOLLECT_SERVER_QUERY_EVENT_KINDS_H_
#define STATCOLLECT_SERVER_QUERY_EVENT_KINDS_H_

#include <set>
#include <string>
#include <vector>

#include "common/status.h"

namespace statcollect::query {

// Those that the agent and the collector's alarms write, by name. A program may log others (log_event).
const std::vector<std::string>& KnownEventKinds();

// kInvalidArgument names the first of `wanted` that is neither known nor among those that the run has, the
// one that was probably meant, and all there are.
Status CheckEventKinds(const std::string& run, const std::vector<std::string>& wanted,
                       const std::set<std::string>& in_run);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_EVENT_KINDS_H_
