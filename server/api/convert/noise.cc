#include "server/api/convert.h"

#include "common/names.h"
#include "server/api/convert/parts.h"

namespace statcollect::api {

Result<query::SaveNoiseRequest> FromWire(const v1::SaveNoiseRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  STATCOLLECT_ASSIGN_OR_RETURN(auto repeats, RunsFromWire("repeats", request.repeats()));
  return query::SaveNoiseRequest{.run = request.run(), .repeats = std::move(repeats)};
}

Result<std::string> FromWire(const v1::GetNoiseRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  return request.run();
}

void ToWire(const query::NoiseSummary& noise, v1::NoiseProfile& out) {
  out.set_run(noise.run);
  out.mutable_repeats()->Add(noise.repeats.begin(), noise.repeats.end());
  out.set_saved_unix_nanos(noise.saved_unix_nanos);
  out.set_steps(noise.steps);
  out.set_last_step(noise.last_step);
  out.set_activations(noise.activations);
  out.set_activations_total(noise.activations_total);
  for (const query::NoiseRow& row : noise.records) {
    v1::NoiseRow& added = *out.add_records();
    added.set_kind(static_cast<v1::Kind>(row.kind));
    added.set_activation(row.activation);
    added.set_output_path(row.output_path);
    added.set_micro_batch(row.micro_batch);
    added.set_first(row.first);
    added.set_last(row.last);
  }
}

}  // namespace statcollect::api
