#include "server/query/answers/noise.h"

#include <array>
#include <functional>

#include "server/query/answers/message_parts.h"
#include "server/query/noise/noise_profile.h"
#include "server/query/noise/noise_store.h"
#include "server/query/run_view.h"

namespace statcollect::query {
namespace {

using Ages = std::array<float, NoiseProfile::kAges>;

// `last`: the age of the profile's last step.
void AddRow(const TensorKey& key, const Ages& ages, std::size_t last, v1::NoiseProfile& out) {
  if (!(ages[last] > 0)) return;
  v1::NoiseRow& row = *out.add_records();
  row.set_kind(static_cast<v1::Kind>(key.kind));
  row.set_activation(key.name);
  row.set_output_path(key.output_path);
  row.set_micro_batch(key.micro_batch);
  row.set_first(static_cast<double>(ages[0]));
  row.set_last(static_cast<double>(ages[last]));
}

}  // namespace

void ToWire(const std::string& run, const NoiseProfile& profile, v1::NoiseProfile& out) {
  out.set_run(run);
  out.mutable_repeats()->Add(profile.runs.begin(), profile.runs.end());
  out.set_saved_unix_nanos(profile.saved_unix_nanos);
  out.set_steps(profile.steps);
  out.set_last_step(profile.last_step);
  out.set_activations_total(profile.activations.size());
  const std::size_t last = NoiseProfile::AgeOf(profile.last_step);
  for (const auto& [key, ages] : profile.activations) AddRow(key, ages, last, out);
  out.set_activations(static_cast<std::uint64_t>(out.records_size()));
  for (const auto& [loss, ages] : profile.losses)
    AddRow({.name = loss.first, .micro_batch = loss.second}, ages, last, out);
  auto& rows = *out.mutable_records();
  SortBy(rows, [](const v1::NoiseRow& row) { return -row.last(); });
  const int most = kNoiseRowsMax;
  if (rows.size() > most) rows.DeleteSubrange(most, rows.size() - most);
}

Result<std::string> FromWire(const v1::GetNoiseRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  return request.run();
}

Result<SaveNoiseRequest> FromWire(const v1::SaveNoiseRequest& request) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto wanted, SelectionFromWire<SaveNoiseRequest>(request));
  STATCOLLECT_ASSIGN_OR_RETURN(wanted.repeats, RunsFromWire("repeats", request.repeats()));
  return wanted;
}

Status GetNoise(const Context& context, const std::string& run, v1::NoiseProfile& out) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto view, RunView::Open(context.store, run));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto profile, StoredNoise(context.store, run));
  ToWire(run, profile, out);
  return Status::Ok();
}

Status DeleteNoise(const Context& context, const std::string& run,
                   v1::DeleteNoiseResponse& /*out*/) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto view, RunView::Open(context.store, run));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto stored, StoredNoise(context.store, run));
  return context.store.PutDocument(run, kNoiseDocument, std::nullopt);
}

}  // namespace statcollect::query
