// Histograms of binary exponents, and what narrower formats would lose (docs/exponents.md).
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_EXPONENTS_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_EXPONENTS_H_

#include "server/query/answers/leaf.h"
#include "server/query/captures/exponents.h"

namespace statcollect::query {

struct ExponentsRequest {
  ExponentsSelection of;
  DType format = DType::kUnspecified;  // one of kNarrowFormats; kUnspecified: all four
  bool summary = false;    // one row per tensor: the step in which the format loses most
  double lost_min = 0.01;  // share from which `since_step` counts
};

// Adds: a format that is not narrow, and lost_min.
Result<ExponentsRequest> FromWire(const v1::ListExponentsRequest& request);

// Sorted by activation, kind, path, rank, step; a summary by the share lost, largest first, then as
// above. Memory: the rows of the answer. kNotFound: no such run, or the selection has none of the
// activation (says where there are some, or gives the closest names that have).
Status ListExponents(const Context& context, const ExponentsRequest& request,
                     v1::ListExponentsResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_EXPONENTS_H_
