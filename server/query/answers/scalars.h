// Logged losses and other scalars.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_SCALARS_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_SCALARS_H_

#include "server/query/answers/leaf.h"

namespace statcollect::query {

struct ScalarsRequest {
  std::string run;
  std::string name;                  // empty: all
  std::vector<std::uint32_t> ranks;  // empty: all
  std::string steps;
  bool by_rank = false;  // grad_norm: of each rank's part
};

Result<ScalarsRequest> FromWire(const v1::ListScalarsRequest& request);

// Sorted by name, rank, step, micro-batch. kNotFound: no such scalar (gives the closest names).
Status ListScalars(const Context& context, const ScalarsRequest& request,
                   v1::ListScalarsResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_SCALARS_H_
