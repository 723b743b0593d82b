#include "server/api/convert.h"

#include "proto/convert.h"
#include "server/api/convert/parts.h"

namespace statcollect::api {

Result<query::RecordsRequest> FromWire(const v1::ReadRecordsRequest& request) {
  auto wanted = SelectionFromWire<query::RecordsRequest>(request);
  if (!wanted.ok()) return wanted;
  wanted->sketches = request.sketches();
  wanted->samples = request.samples();
  wanted->whole = request.whole();
  return wanted;
}

void ToWire(const query::RecordsPart& part, v1::ReadRecordsResponse& out) {
  out.set_attempt(part.attempt);
  out.set_rank(part.rank);
  out.mutable_ranks()->Assign(part.ranks.begin(), part.ranks.end());
  if (part.records.records() > 0 || !part.records.activations.empty() ||
      !part.records.layouts.empty())
    statcollect::ToWire(part.records, part.layouts, out.mutable_records());
  ToWire(part.progress, *out.mutable_progress());
}

}  // namespace statcollect::api
