// The calls of modules of which both runs have recorded the operators, compared.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_ZOOM_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_ZOOM_H_

#include "server/query/answers/leaf.h"

namespace statcollect::query {

struct ZoomRequest {
  std::string run_a, run_b;
  std::string module;                // empty: every one that both have zoomed
  std::string steps;                 // as for StepSet::Parse
  std::vector<std::uint32_t> ranks;  // empty: all
};

Result<ZoomRequest> FromWire(const v1::GetZoomRequest& request);

// By step, rank, module, pass, micro-batch, call. Reads the steps in which both have zoomed
// something; there are no calls if there is none.
Status GetZoom(const Context& context, const ZoomRequest& request, v1::GetZoomResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_ZOOM_H_
