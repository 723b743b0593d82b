// Whether the weights of one run arrived in another: a trainer's in an engine, a checkpoint's in
// the run that loaded it.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_WEIGHTS_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_WEIGHTS_H_

#include "server/query/answers/leaf.h"

namespace statcollect::query {

struct WeightsRequest {
  std::string run_a, run_b;
  std::optional<std::uint64_t> step;  // absent: the newest in which both have weights
  std::string map;                    // of names of A to names of B (NameMap); empty: none
};

// Adds: a map that cannot be parsed.
Result<WeightsRequest> FromWire(const v1::GetWeightsRequest& request);

// Compares the last record of each weight in that step, of whole tensors where a run has cut them
// over its ranks. A's ranks hold one model together; each rank of B is compared by itself. Cost:
// reads the step of both, and up to eight earlier ones of A if something is not equal. kNotFound:
// no such run, or no step in which both have weights.
Status GetWeights(const Context& context, const WeightsRequest& request,
                  v1::GetWeightsResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_WEIGHTS_H_
