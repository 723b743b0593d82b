// A loss that each rank averages over its own part of the batch.
#ifndef STATCOLLECT_SERVER_QUERY_RANKS_OWN_MEANS_H_
#define STATCOLLECT_SERVER_QUERY_RANKS_OWN_MEANS_H_

#include <stop_token>

#include "common/status.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// Of a root at a loss: adds a cause if the gradient next to the loss is a constant on each rank,
// the same on all ranks of A, and not on those of B: each rank has divided by a number of its own,
// such as that of its tokens. Ranks of different samples are data-parallel, so that their gradients
// are averaged. `a`, `b`: the runs as their ranks recorded them. Cost: reads the root's step of all
// ranks.
Status AddOwnMeans(RunView& a, RunView& b, const std::stop_token& stop, DiffReport& report);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RANKS_OWN_MEANS_H_
