// The list of runs, and one of them: its launches and ranks, its configuration, its first events.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_RUNS_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_RUNS_H_

#include "server/query/answers/leaf.h"
#include "server/query/reports.h"

namespace statcollect::query {

void ToWire(const RunSummary& run, v1::RunSummary& out);

struct RunsRequest {};

// All runs, by name.
Status ListRuns(const Context& context, const RunsRequest& request, v1::ListRunsResponse& out);

// The run's name.
Result<std::string> FromWire(const v1::GetRunRequest& request);

// Its events are the first of the newest launch: the collector's, then the agents'.
Status GetRun(const Context& context, const std::string& run, v1::GetRunResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_RUNS_H_
