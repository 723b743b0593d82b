// Ranks first: a diff's answer about replicas that differ inside one of its runs.
#ifndef STATCOLLECT_SERVER_QUERY_RANKS_DIFFERING_REPLICAS_H_
#define STATCOLLECT_SERVER_QUERY_RANKS_DIFFERING_REPLICAS_H_

#include <stop_token>

#include "common/status.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// Checks weights, gradients and optimizer states of both runs as `statctl ranks` does, up to the
// root's step, or to the last compared one. If those of one run part before the root, or there is
// none, that is the root; otherwise it is one of the causes. Nothing if a cause says so already, or
// both runs differ alike. Replicas are those that a placement, the configuration or equal bits
// before call so; a root needs more than rounding between them.
// `a`, `b`: the runs as their ranks recorded them. Cost: reads two steps of all ranks; as many more
// as it takes to bisect the others if they differ already in the first of the two.
Status CheckReplicas(RunView& a, RunView& b, const DiffRequest& request,
                     const std::stop_token& stop, DiffReport& report);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RANKS_DIFFERING_REPLICAS_H_
