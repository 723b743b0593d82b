// What the cross-rank check of a run says around the root of a diff.
#ifndef STATCOLLECT_SERVER_QUERY_RANKS_DIFFERING_REPLICAS_H_
#define STATCOLLECT_SERVER_QUERY_RANKS_DIFFERING_REPLICAS_H_

#include <stop_token>

#include "common/status.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// Adds a cause for each run whose replicas hold other weights, gradients or optimizer states than
// each other in the root's step, or did so in the step before; none if a cause says so already, or
// both runs differ alike. `a`, `b`: the runs as their ranks recorded them. Cost: reads these two
// steps of all ranks; nothing of a run of one rank.
Status AddDifferingReplicas(RunView& a, RunView& b, const std::stop_token& stop, Root& root);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RANKS_DIFFERING_REPLICAS_H_
