#include "common/names.h"
#include "server/api/convert.h"

namespace statcollect::api {

Result<query::ProposeMapRequest> FromWire(const v1::ProposeMapRequest& request) {
  for (const std::string* run : {&request.run_a(), &request.run_b()})
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(*run));
  return query::ProposeMapRequest{.run_a = request.run_a(), .run_b = request.run_b()};
}

void ToWire(const query::ProposeMapReport& report, v1::ProposeMapResponse& out) {
  out.set_run_a(report.run_a);
  out.set_run_b(report.run_b);
  out.mutable_steps()->Add(report.steps.begin(), report.steps.end());
  for (const query::ProposedName& one : report.records) {
    v1::ProposedName& to = *out.add_records();
    to.set_a(one.a);
    to.set_b(one.b);
    to.set_confidence(one.confidence);
    to.set_method(one.method);
    to.set_ambiguous(one.ambiguous);
    to.set_reason(one.reason);
  }
  out.mutable_only_a()->Add(report.only_a.begin(), report.only_a.end());
  out.mutable_only_b()->Add(report.only_b.begin(), report.only_b.end());
  out.mutable_notes()->Add(report.notes.begin(), report.notes.end());
  out.set_map(report.map);
}

}  // namespace statcollect::api
