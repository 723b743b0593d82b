// What each query of this room has: a request, FromWire, and a function of the type Leaf
// (context.h).
//
// FromWire checks what a client sends. kInvalidArgument: names that no run or tensor can have,
// kinds that this build does not know, more ranks than a run can have, and what the query's header
// adds ("Adds: ...").
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_LEAF_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_LEAF_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/records.h"
#include "common/status.h"
#include "server/query/context.h"
#include "statcollect/v1/query.pb.h"

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_LEAF_H_
