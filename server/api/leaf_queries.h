// The unary queries that answer with a message themselves: a new one is a line of this table, and an #include.
#ifndef STATCOLLECT_SERVER_API_LEAF_QUERIES_H_
#define STATCOLLECT_SERVER_API_LEAF_QUERIES_H_

#include "server/query/answers/curves.h"
#include "server/query/answers/density.h"
#include "server/query/answers/events.h"
#include "server/query/answers/losses.h"
#include "server/query/answers/memory.h"
#include "server/query/answers/runs.h"
#include "server/query/answers/scalars.h"
#include "server/query/answers/series.h"
#include "server/query/answers/top.h"

// LEAF(method, pool): method of the service Query, function in statcollect::query, whose header has FromWire for
// v1::<method>Request; and the pool of the service whose threads answer it.
#define STATCOLLECT_LEAF_QUERIES(LEAF) \
  LEAF(GetRun, details_)               \
  LEAF(GetSeries, pool_)               \
  LEAF(GetCurves, pool_)               \
  LEAF(ListScalars, pool_)             \
  LEAF(ListLosses, details_)           \
  LEAF(ListEvents, pool_)              \
  LEAF(ListMemory, pool_)              \
  LEAF(ListDensity, pool_)             \
  LEAF(GetTop, pool_)

#endif  // STATCOLLECT_SERVER_API_LEAF_QUERIES_H_
