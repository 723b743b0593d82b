// The fraction of each input that is not padding.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_DENSITY_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_DENSITY_H_

#include "server/query/answers/leaf.h"

namespace statcollect::query {

struct DensityRequest {
  std::string run;
  std::vector<std::uint32_t> ranks;  // empty: all
  std::string steps;
  std::string input;  // empty: all
};

Result<DensityRequest> FromWire(const v1::ListDensityRequest& request);

// Sorted by rank, step and time; each step from the newest attempt that has it. kNotFound: no such
// input.
Status ListDensity(const Context& context, const DensityRequest& request,
                   v1::ListDensityResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_DENSITY_H_
