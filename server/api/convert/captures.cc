#include "server/api/convert.h"

#include "common/choice.h"
#include "common/names.h"
#include "server/api/convert/parts.h"

namespace statcollect::api {
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
    if (!mode)
      return Invalid("query: mode: " + NotOneOf(request.mode(), {"train", "eval", "init"}));
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

}  // namespace statcollect::api
