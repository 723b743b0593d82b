// The unary queries that answer with a message themselves: a new one is a line of this table, and
// an #include.
#ifndef STATCOLLECT_SERVER_API_LEAF_QUERIES_H_
#define STATCOLLECT_SERVER_API_LEAF_QUERIES_H_

#include "server/query/answers/captures.h"
#include "server/query/answers/config.h"
#include "server/query/answers/curves.h"
#include "server/query/answers/density.h"
#include "server/query/answers/events.h"
#include "server/query/answers/exponents.h"
#include "server/query/answers/losses.h"
#include "server/query/answers/memory.h"
#include "server/query/answers/noise.h"
#include "server/query/answers/propose_map.h"
#include "server/query/answers/runs.h"
#include "server/query/answers/scalars.h"
#include "server/query/answers/series.h"
#include "server/query/answers/stat_map.h"
#include "server/query/answers/tokens.h"
#include "server/query/answers/top.h"
#include "server/query/answers/weights.h"
#include "server/query/answers/zoom.h"

// LEAF(method, response, pool): method of the service Query, and function in statcollect::query,
// whose header has FromWire for v1::<method>Request; its answer; the pool of the service whose
// threads answer it.
#define STATCOLLECT_LEAF_QUERIES(LEAF)            \
  LEAF(GetRun, GetRunResponse, details_)          \
  LEAF(GetSeries, GetSeriesResponse, pool_)       \
  LEAF(GetCurves, GetCurvesResponse, pool_)       \
  LEAF(ListScalars, ListScalarsResponse, pool_)   \
  LEAF(ListLosses, ListLossesResponse, details_)  \
  LEAF(ListEvents, ListEventsResponse, pool_)     \
  LEAF(ListMemory, ListMemoryResponse, pool_)     \
  LEAF(ListDensity, ListDensityResponse, pool_)   \
  LEAF(GetTop, GetTopResponse, pool_)             \
  LEAF(GetStatMap, GetStatMapResponse, pool_)     \
  LEAF(GetNoise, NoiseProfile, pool_)             \
  LEAF(GetWeights, GetWeightsResponse, pool_)     \
  LEAF(GetZoom, GetZoomResponse, pool_)           \
  LEAF(GetTokens, GetTokensResponse, pool_)       \
  LEAF(ProposeMap, ProposeMapResponse, pool_)     \
  LEAF(CompareConfig, ConfigReport, quick_)       \
  LEAF(ListCaptures, ListCapturesResponse, pool_) \
  LEAF(ListExponents, ListExponentsResponse, pool_)

#endif  // STATCOLLECT_SERVER_API_LEAF_QUERIES_H_
