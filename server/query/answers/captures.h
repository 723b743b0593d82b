// The captured tensors of a run, and the state of its capture requests (docs/capture.md).
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_CAPTURES_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_CAPTURES_H_

#include "server/query/answers/leaf.h"

namespace statcollect::query {

struct CaptureRow;

struct CapturesRequest {
  std::string run;
  std::string activation;            // empty: all
  std::vector<Kind> kinds;           // empty: all
  std::vector<std::uint32_t> ranks;  // empty: all
  std::string steps;                 // as for StepSet::Parse
  std::uint64_t request = 0;         // only captures of this request; 0: all
};

Result<CapturesRequest> FromWire(const v1::ListCapturesRequest& request);

void ToWire(const CaptureRow& row, v1::CaptureRow& out);

// Captures by step, rank, activation; requests of the newest launch, the oldest first. A step's
// captures come from the newest launch that has the step. Reads no values. kNotFound: no such run
// or request.
Status ListCaptures(const Context& context, const CapturesRequest& request,
                    v1::ListCapturesResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_CAPTURES_H_
