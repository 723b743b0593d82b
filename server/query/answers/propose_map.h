// Finds pairs of names of two runs by what their tensors hold, for runs whose names share nothing.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_PROPOSE_MAP_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_PROPOSE_MAP_H_

#include "server/query/answers/leaf.h"

namespace statcollect::query {

struct ProposeMapRequest {
  std::string run_a, run_b;
};

Result<ProposeMapRequest> FromWire(const v1::ProposeMapRequest& request);

// Pairs the names that only one of the runs has, using the first two steps that both have, of the
// lowest rank that both have: first by equal bits, then by distance among tensors of equal kind and
// shape. Names with the same bits are told apart by what later records of them hold, then by the
// order of definition between pairs that are certain. Runs that are cut up differently are put
// together first, as for a diff. Cost: n log n, and at most 256 distances for each name.
// kNotFound: no step in common.
Status ProposeMap(const Context& context, const ProposeMapRequest& request,
                  v1::ProposeMapResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_PROPOSE_MAP_H_
