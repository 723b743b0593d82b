#include "server/api/convert.h"

#include "common/choice.h"
#include "common/names.h"
#include "server/api/convert/parts.h"
#include "server/api/tensor_row.h"

namespace statcollect::api {
namespace {

void Fill(const query::CaptureRequestRow& from, v1::CaptureRequestRow& to) {
  const CaptureSpec& spec = from.request.spec;
  to.set_request(from.request.id);
  to.set_activation(spec.activation);
  if (spec.kind) to.set_kind(static_cast<v1::Kind>(*spec.kind));
  if (spec.output_path) to.set_output_path(*spec.output_path);
  to.set_micro_batch(spec.micro_batch);
  to.set_call(spec.call);
  to.set_mode(std::string(Name(spec.mode)));
  to.set_step(spec.steps.last());
  to.set_bytes_max(spec.bytes_max);
  to.set_asked_unix_nanos(from.request.asked_unix_nanos);
  for (const query::CaptureRequestRank& rank : from.ranks) {
    v1::CaptureRequestRank& of = *to.add_ranks();
    of.set_rank(rank.rank);
    of.set_state(rank.state);
    of.set_why(rank.why);
    if (rank.last_step) of.set_last_step(*rank.last_step);
  }
}

}  // namespace

Result<query::CapturesRequest> FromWire(const v1::ListCapturesRequest& request) {
  auto wanted = SelectionFromWire<query::CapturesRequest>(request);
  if (wanted.ok()) wanted->request = request.request();
  return wanted;
}

Result<query::ReadCaptureRequest> FromWire(const v1::ReadCaptureRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("activation", request.activation()));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto kind, KindFromWire(request.kind()));
  query::ReadCaptureRequest wanted{.run = request.run(),
                                   .rank = request.rank(),
                                   .step = request.step(),
                                   .activation = request.activation(),
                                   .micro_batch = request.micro_batch(),
                                   .call = request.call()};
  if (kind != Kind::kUnspecified) wanted.kind = kind;
  if (request.has_output_path()) wanted.output_path = request.output_path();
  if (!request.mode().empty()) {
    const auto mode = ParseMode(request.mode());
    if (!mode) return Invalid("query: mode: " + NotOneOf(request.mode(), {"train", "eval", "init"}));
    wanted.mode = *mode;
  }
  return wanted;
}

Result<CaptureSpec> FromWire(const v1::RequestCaptureRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto kind, KindFromWire(request.kind()));
  if (request.mode() < 0 || request.mode() >= kModeCount) {
    return Invalid("capture: mode " + std::to_string(request.mode()) +
                   " is unknown to this collector; upgrade statcollectord");
  }
  CaptureSpec spec{.activation = request.activation(),
                   .micro_batch = request.micro_batch(),
                   .call = request.call(),
                   .steps_text = std::to_string(request.step())};
  if (kind != Kind::kUnspecified) spec.kind = kind;
  if (request.has_output_path()) spec.output_path = request.output_path();
  if (request.mode() != v1::MODE_UNSPECIFIED) spec.mode = static_cast<Mode>(request.mode());
  if (request.bytes_max() != 0) spec.bytes_max = request.bytes_max();
  return CaptureSpec::FromArguments(spec.ToArguments());  // which checks it
}

void ToWire(const query::CaptureRow& row, v1::CaptureRow& out) {
  FillTensor(row, row.step, out);
  out.set_numel(row.numel);
  out.set_elements(row.elements);
  out.set_bytes(row.bytes);
  out.set_bytes_stored(row.bytes_stored);
  out.set_complete(row.complete());
}

void ToWire(const query::CapturesReport& report, v1::ListCapturesResponse& out) {
  for (const query::CaptureRow& row : report.records) ToWire(row, *out.add_records());
  for (const query::CaptureRequestRow& row : report.requests) Fill(row, *out.add_requests());
}

}  // namespace statcollect::api
