#include "server/api/convert.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>

#include "common/names.h"
#include "proto/convert.h"
#include "server/api/tensor_row.h"

namespace statcollect::api {
namespace {

constexpr int kRanksMax = 1 << 20;
constexpr int kEventKindsMax = 256;
constexpr std::size_t kStepsTextBytesMax = 64 * 1024;

// The enumerations have the same numbers on both sides; a value added on one side only shows here.
static_assert(static_cast<int>(query::Verdict::kIncomparable) == v1::Verdict_MAX);
static_assert(static_cast<int>(query::Stage::kOptimizer) == v1::Stage_MAX);
static_assert(static_cast<int>(query::Reason::kBitwise) == v1::Reason_MAX);
static_assert(static_cast<int>(query::DistanceKind::kStatistics) == v1::DistanceKind_MAX);
static_assert(kKindCount == v1::Kind_ARRAYSIZE);

Status Invalid(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

// --- questions

template <typename Request>
Result<std::vector<std::uint32_t>> Ranks(const Request& request) {
  return RanksFromWire(request.ranks());
}

template <typename Request>
Status CheckSteps(const Request& request) {
  return CheckStepsFromWire(request.steps());
}

Result<Kind> KindFromWire(int kind) {
  if (kind < 0 || kind >= kKindCount) {
    return Invalid("query: kind " + std::to_string(kind) + " is unknown to this collector; expected 1.." +
                   std::to_string(kKindCount - 1) + " or 0 for all; upgrade statcollectord");
  }
  return static_cast<Kind>(kind);
}

// --- answers

template <typename T, typename Set>
void Copy(const std::optional<T>& value, Set&& set) {
  if (value) set(*value);
}

void Fill(const query::RunSummary& from, v1::RunSummary& to) {
  to.set_run(from.run);
  to.set_attempts(from.attempts);
  to.set_world_size(from.world_size);
  to.set_ranks(from.ranks);
  to.set_records(from.records);
  to.set_steps(from.steps);
  Copy(from.first_step, [&](auto step) { to.set_first_step(step); });
  Copy(from.last_step, [&](auto step) { to.set_last_step(step); });
  to.set_start_unix_nanos(from.start_unix_nanos);
  to.set_end_unix_nanos(from.end_unix_nanos);
  to.set_state(from.state);
  to.set_dropped(from.dropped);
}

void Fill(const query::RankInfo& from, v1::RankInfo& to) {
  to.set_rank(from.rank);
  to.set_local_rank(from.local_rank);
  to.set_host(from.host);
  to.set_pid(from.pid);
  to.set_state(from.state);
  to.set_records(from.records);
  to.set_stat_records(from.stat_records);
  Copy(from.first_step, [&](auto step) { to.set_first_step(step); });
  Copy(from.last_step, [&](auto step) { to.set_last_step(step); });
  to.set_steps(from.steps);
  to.set_durable_seq(from.durable_seq);
  for (const auto& [cause, count] : from.dropped) (*to.mutable_dropped())[cause] = count;
}

void Fill(const query::AttemptInfo& from, v1::AttemptInfo& to) {
  to.set_attempt(from.attempt);
  to.set_start_unix_nanos(from.start_unix_nanos);
  for (const query::RankInfo& rank : from.ranks) Fill(rank, *to.add_ranks());
}

void Fill(const query::EventRow& from, v1::EventRow& to) {
  to.set_run(from.run);
  to.set_rank(from.rank);
  to.set_step(from.step);
  to.set_kind(from.kind);
  to.set_text(from.text);
  to.set_unix_nanos(from.unix_nanos);
  for (const auto& [key, value] : from.fields) (*to.mutable_fields())[key] = value;
  to.set_origin(from.from_collector ? "collector" : "agent");
  to.set_attempt(from.attempt);
}

void Fill(const query::ObservationSide& from, v1::ObservationSide& to) {
  Copy(from.min, [&](double value) { to.set_min(value); });
  Copy(from.max, [&](double value) { to.set_max(value); });
  Copy(from.mean, [&](double value) { to.set_mean(value); });
  Copy(from.std, [&](double value) { to.set_std(value); });
  Copy(from.l1, [&](double value) { to.set_l1(value); });
  Copy(from.l2, [&](double value) { to.set_l2(value); });
  Copy(from.nan, [&](std::uint64_t value) { to.set_nan(value); });
  Copy(from.pos_inf, [&](std::uint64_t value) { to.set_pos_inf(value); });
  Copy(from.neg_inf, [&](std::uint64_t value) { to.set_neg_inf(value); });
  Copy(from.inf, [&](std::uint64_t value) { to.set_inf(value); });
  Copy(from.zero, [&](std::uint64_t value) { to.set_zero(value); });
  Copy(from.neg, [&](std::uint64_t value) { to.set_neg(value); });
  Copy(from.pos, [&](std::uint64_t value) { to.set_pos(value); });
  Copy(from.numel, [&](std::uint64_t value) { to.set_numel(value); });
  Copy(from.hash, [&](std::uint64_t value) { to.set_hash(value); });
  Copy(from.value, [&](double value) { to.set_value(value); });
  to.set_dtype(from.dtype);
  to.mutable_shape()->Add(from.shape.begin(), from.shape.end());
  to.set_hash_kind(from.hash_kind);
  to.mutable_untrusted()->Add(from.untrusted.begin(), from.untrusted.end());
}

// Row: v1::Divergence or v1::Root, which begins with the same fields.
template <typename Row>
void Fill(const query::Divergence& from, Row& to) {
  to.set_step(from.step);
  to.set_micro_batch(from.micro_batch);
  to.set_rank(from.rank);
  to.set_stage(static_cast<v1::Stage>(from.stage));
  to.set_kind(static_cast<v1::Kind>(from.kind));
  to.set_activation(from.activation);
  to.set_output_path(from.output_path);
  to.set_call(from.call);
  to.set_reason(static_cast<v1::Reason>(from.reason));
  Copy(from.distance, [&](double value) { to.set_distance(value); });
  Copy(from.distance_low, [&](double value) { to.set_distance_low(value); });
  Copy(from.distance_high, [&](double value) { to.set_distance_high(value); });
  to.set_distance_kind(static_cast<v1::DistanceKind>(from.distance_kind));
  Copy(from.tolerance, [&](double value) { to.set_tolerance(value); });
  Copy(from.times_noise, [&](double value) { to.set_times_noise(value); });
  to.set_origin(from.origin);
  Copy(from.a, [&](const auto& side) { Fill(side, *to.mutable_a()); });
  Copy(from.b, [&](const auto& side) { Fill(side, *to.mutable_b()); });
  to.set_class_name(from.class_name);
  to.set_mode(from.mode);
  to.set_previous(from.previous);
  Copy(from.previous_distance, [&](double value) { to.set_previous_distance(value); });
  to.set_activation_b(from.activation_b);
  Copy(from.rank_b, [&](std::uint32_t rank) { to.set_rank_b(rank); });
}

void Fill(const query::Cause& from, v1::Cause& to) {
  to.set_rule(from.rule);
  to.set_text(from.text);
  to.set_confidence(std::string(query::Name(from.confidence)));
  to.set_key(from.key);
  to.set_a(from.a);
  to.set_b(from.b);
}

void Fill(const query::Root& from, v1::Root& to) {
  Fill(from.at, to);
  to.set_confidence(std::string(query::Name(from.confidence)));
  to.mutable_because()->Add(from.because.begin(), from.because.end());
  for (const query::Divergence& row : from.alternatives) Fill(row, *to.add_alternatives());
  Copy(from.cause, [&](const query::Cause& cause) { Fill(cause, *to.mutable_cause()); });
  Copy(from.times_expected, [&](double value) { to.set_times_expected(value); });
  Copy(from.agreeing, [&](std::uint64_t value) { to.set_agreeing(value); });
  Copy(from.above_tolerance, [&](std::uint64_t value) { to.set_above_tolerance(value); });
}

void Fill(const query::DiffInputs& from, v1::DiffInputs& to) {
  for (const query::ConfigDifference& difference : from.config) {
    v1::ConfigDifference& added = *to.add_config();
    added.set_key(difference.key);
    Copy(difference.a, [&](const std::string& value) { added.set_a(value); });
    Copy(difference.b, [&](const std::string& value) { added.set_b(value); });
  }
  to.set_weights(from.weights);
  to.set_batches(from.batches);
}

void Fill(const query::Compared& from, v1::Compared& to) {
  to.set_records(from.records);
  to.set_identical(from.identical);
  to.set_within_tolerance(from.within_tolerance);
  to.set_diverged(from.diverged);
}

void Fill(const query::Spread& from, v1::Spread& to) {
  to.set_activations(from.activations);
  to.set_activations_total(from.activations_total);
  to.set_steps(from.steps);
  to.mutable_ranks()->Add(from.ranks.begin(), from.ranks.end());
  to.mutable_ranks_b()->Add(from.ranks_b.begin(), from.ranks_b.end());
}

}  // namespace

Result<std::vector<std::uint32_t>> RanksFromWire(
    const google::protobuf::RepeatedField<std::uint32_t>& ranks) {
  if (ranks.size() > kRanksMax) {
    return Invalid("query: " + std::to_string(ranks.size()) + " ranks named; expected at most " +
                   std::to_string(kRanksMax) + "; name none to mean all");
  }
  return std::vector<std::uint32_t>(ranks.begin(), ranks.end());
}

Result<std::vector<Kind>> KindsFromWire(const google::protobuf::RepeatedField<int>& kinds) {
  std::vector<Kind> wanted;
  for (const int kind : kinds) {
    auto known = KindFromWire(kind);
    if (!known.ok()) return known.status();
    if (*known != Kind::kUnspecified) wanted.push_back(*known);
  }
  return wanted;
}

Status CheckStepsFromWire(const std::string& steps) {
  if (steps.size() <= kStepsTextBytesMax) return Status::Ok();
  return Invalid("query: the set of steps takes " + std::to_string(steps.size()) +
                 " bytes; expected at most " + std::to_string(kStepsTextBytesMax) +
                 "; use ranges such as 0-99,every=10");
}

void ToWire(const query::ObservationSide& side, v1::ObservationSide& out) { Fill(side, out); }

Result<std::string> FromWire(const v1::GetRunRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  return request.run();
}

namespace {

constexpr int kRepeatsMax = 64;

Result<std::vector<std::string>> RunsFromWire(const char* field,
                                              const google::protobuf::RepeatedPtrField<std::string>& runs) {
  if (runs.size() > kRepeatsMax) {
    return Invalid(std::string(field) + ": found " + std::to_string(runs.size()) +
                   " runs; expected at most " + std::to_string(kRepeatsMax));
  }
  for (const std::string& run : runs) STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(run));
  return std::vector<std::string>(runs.begin(), runs.end());
}

}  // namespace

Result<query::DiffRequest> FromWire(const v1::DiffRequest& request) {
  for (const auto& [field, run] : {std::pair("run_a", &request.run_a()), {"run_b", &request.run_b()}}) {
    if (run->empty()) {
      return Invalid(
          std::string("diff: ") + field +
          " is missing; expected the names of two runs, run_a and run_b; runs lists those there are");
    }
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(*run));
  }
  STATCOLLECT_RETURN_IF_ERROR(CheckSteps(request));
  auto ranks = Ranks(request);
  if (!ranks.ok()) return ranks.status();
  query::DiffRequest wanted{.run_a = request.run_a(), .run_b = request.run_b(), .exact = request.exact()};
  if (request.has_tolerance()) {
    if (!std::isfinite(request.tolerance()) || request.tolerance() < 0) {
      return Invalid("diff: tolerance is " + std::to_string(request.tolerance()) +
                     "; expected a finite number of at least 0, a relative L2 distance such as 1e-3");
    }
    wanted.tolerance = request.tolerance();
  }
  wanted.ranks = *std::move(ranks);
  wanted.steps = request.steps();
  for (const int kind : request.kinds()) {
    auto known = KindFromWire(kind);
    if (!known.ok()) return known.status();
    if (*known != Kind::kUnspecified) wanted.kinds.push_back(*known);
  }
  wanted.top = request.top();
  wanted.all = request.all();
  wanted.map = request.map();
  wanted.no_alignment = request.no_alignment();
  wanted.first_only = request.first_only();
  wanted.merge_ranks = request.merge_ranks();
  auto noise = RunsFromWire("noise", request.noise());
  if (!noise.ok()) return noise.status();
  wanted.noise = *std::move(noise);
  wanted.no_noise = request.no_noise();
  return wanted;
}

Result<query::SaveNoiseRequest> FromWire(const v1::SaveNoiseRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  auto repeats = RunsFromWire("repeats", request.repeats());
  if (!repeats.ok()) return repeats.status();
  return query::SaveNoiseRequest{.run = request.run(), .repeats = *std::move(repeats)};
}

Result<std::string> FromWire(const v1::GetNoiseRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  return request.run();
}

Result<query::SeriesRequest> FromWire(const v1::GetSeriesRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("activation", request.activation()));
  STATCOLLECT_RETURN_IF_ERROR(CheckSteps(request));
  auto ranks = Ranks(request);
  if (!ranks.ok()) return ranks.status();
  auto kind = KindFromWire(request.kind());
  if (!kind.ok()) return kind.status();
  query::SeriesRequest wanted{.run = request.run(), .activation = request.activation(), .kind = *kind};
  wanted.ranks = *std::move(ranks);
  wanted.steps = request.steps();
  if (!request.output_path().empty()) wanted.output_path = request.output_path();
  return wanted;
}

Result<query::ScalarsRequest> FromWire(const v1::ListScalarsRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  if (!request.name().empty()) STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("scalar", request.name()));
  STATCOLLECT_RETURN_IF_ERROR(CheckSteps(request));
  auto ranks = Ranks(request);
  if (!ranks.ok()) return ranks.status();
  return query::ScalarsRequest{
      .run = request.run(), .name = request.name(), .ranks = *std::move(ranks), .steps = request.steps()};
}

Result<query::MemoryRequest> FromWire(const v1::ListMemoryRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  STATCOLLECT_RETURN_IF_ERROR(CheckSteps(request));
  auto ranks = Ranks(request);
  if (!ranks.ok()) return ranks.status();
  return query::MemoryRequest{.run = request.run(),
                              .ranks = *std::move(ranks),
                              .steps = request.steps(),
                              .modules = request.modules()};
}

Result<query::DensityRequest> FromWire(const v1::ListDensityRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  if (!request.input().empty()) STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("input", request.input()));
  STATCOLLECT_RETURN_IF_ERROR(CheckSteps(request));
  auto ranks = Ranks(request);
  if (!ranks.ok()) return ranks.status();
  return query::DensityRequest{
      .run = request.run(), .ranks = *std::move(ranks), .steps = request.steps(), .input = request.input()};
}

Result<query::CapturesRequest> FromWire(const v1::ListCapturesRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  if (!request.activation().empty())
    STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("activation", request.activation()));
  STATCOLLECT_RETURN_IF_ERROR(CheckSteps(request));
  auto ranks = Ranks(request);
  if (!ranks.ok()) return ranks.status();
  auto kinds = KindsFromWire(request.kinds());
  if (!kinds.ok()) return kinds.status();
  return query::CapturesRequest{.run = request.run(),
                                .activation = request.activation(),
                                .kinds = *std::move(kinds),
                                .ranks = *std::move(ranks),
                                .steps = request.steps(),
                                .request = request.request()};
}

Result<query::ReadCaptureRequest> FromWire(const v1::ReadCaptureRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("activation", request.activation()));
  const auto kind = KindFromWire(request.kind());
  if (!kind.ok()) return kind.status();
  query::ReadCaptureRequest wanted{.run = request.run(),
                                   .rank = request.rank(),
                                   .step = request.step(),
                                   .activation = request.activation(),
                                   .micro_batch = request.micro_batch(),
                                   .call = request.call()};
  if (*kind != Kind::kUnspecified) wanted.kind = *kind;
  if (request.has_output_path()) wanted.output_path = request.output_path();
  if (!request.mode().empty()) {
    const auto mode = ParseMode(request.mode());
    if (!mode)
      return Invalid("query: mode is '" + Printable(request.mode()) + "'; expected train, eval or init");
    wanted.mode = *mode;
  }
  return wanted;
}

Result<CaptureSpec> FromWire(const v1::RequestCaptureRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  const auto kind = KindFromWire(request.kind());
  if (!kind.ok()) return kind.status();
  if (request.mode() < 0 || request.mode() >= kModeCount) {
    return Invalid("capture: mode " + std::to_string(request.mode()) +
                   " is unknown to this collector; upgrade statcollectord");
  }
  CaptureSpec spec{.activation = request.activation(),
                   .micro_batch = request.micro_batch(),
                   .call = request.call(),
                   .steps_text = std::to_string(request.step())};
  if (*kind != Kind::kUnspecified) spec.kind = *kind;
  if (request.has_output_path()) spec.output_path = request.output_path();
  if (request.mode() != v1::MODE_UNSPECIFIED) spec.mode = static_cast<Mode>(request.mode());
  if (request.bytes_max() != 0) spec.bytes_max = request.bytes_max();
  return CaptureSpec::FromArguments(spec.ToArguments());  // which checks it
}

Result<query::EventsRequest> FromWire(const v1::ListEventsRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  auto ranks = Ranks(request);
  if (!ranks.ok()) return ranks.status();
  if (request.kinds_size() > kEventKindsMax) {
    return Invalid("query: " + std::to_string(request.kinds_size()) +
                   " kinds of event named; expected at most " + std::to_string(kEventKindsMax));
  }
  query::EventsRequest wanted{
      .run = request.run(),
      .ranks = *std::move(ranks),
      .kinds = {request.kinds().begin(), request.kinds().end()},
      .since_step = request.has_since_step() ? std::optional(request.since_step()) : std::nullopt};
  return wanted;
}

Result<query::RecordsRequest> FromWire(const v1::ReadRecordsRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  STATCOLLECT_RETURN_IF_ERROR(CheckSteps(request));
  auto ranks = Ranks(request);
  if (!ranks.ok()) return ranks.status();
  query::RecordsRequest wanted{.run = request.run(), .ranks = *std::move(ranks), .steps = request.steps()};
  for (const int kind : request.kinds()) {
    const auto known = KindFromWire(kind);
    if (!known.ok()) return known.status();
    if (*known != Kind::kUnspecified) wanted.kinds.push_back(*known);
  }
  wanted.sketches = request.sketches();
  wanted.samples = request.samples();
  return wanted;
}

void ToWire(const std::vector<query::RunSummary>& runs, v1::ListRunsResponse& out) {
  for (const query::RunSummary& run : runs) Fill(run, *out.add_runs());
}

void ToWire(const query::RunDetail& detail, v1::GetRunResponse& out) {
  Fill(detail.summary, *out.mutable_summary());
  for (const query::AttemptInfo& attempt : detail.attempts) Fill(attempt, *out.add_attempts());
  for (const auto& [key, value] : detail.config) (*out.mutable_config())[key] = value;
  for (const query::EventRow& event : detail.events) Fill(event, *out.add_events());
  out.set_activations(detail.activations);
  for (const query::KindCount& count : detail.kinds) {
    v1::KindCount& added = *out.add_kinds();
    added.set_kind(static_cast<v1::Kind>(count.kind));
    added.set_activations(count.activations);
  }
}

void ToWire(const query::Progress& progress, v1::Progress& out) {
  out.set_done(progress.done);
  out.set_total(progress.total);
}

void ToWire(const query::DiffReport& report, v1::DiffReport& out) {
  out.set_run_a(report.run_a);
  out.set_run_b(report.run_b);
  out.set_verdict(static_cast<v1::Verdict>(report.verdict));
  Copy(report.first, [&](const auto& row) { Fill(row, *out.mutable_first()); });
  for (const query::Divergence& row : report.diverged) Fill(row, *out.add_diverged());
  Fill(report.compared, *out.mutable_compared());
  v1::Unmatched& unmatched = *out.mutable_unmatched();
  unmatched.mutable_only_a()->Add(report.unmatched.only_a.begin(), report.unmatched.only_a.end());
  unmatched.mutable_only_b()->Add(report.unmatched.only_b.begin(), report.unmatched.only_b.end());
  Fill(report.inputs, *out.mutable_inputs());
  out.mutable_ranks()->Add(report.ranks.begin(), report.ranks.end());
  out.mutable_ranks_b()->Add(report.ranks_b.begin(), report.ranks_b.end());
  if (report.steps) {
    out.mutable_steps()->set_first(report.steps->first);
    out.mutable_steps()->set_last(report.steps->last);
  }
  out.set_message(report.message);
  Copy(report.first_bitwise, [&](const auto& row) { Fill(row, *out.mutable_first_bitwise()); });
  for (const query::Divergence& row : report.origins) Fill(row, *out.add_origins());
  Fill(report.spread, *out.mutable_spread());
  out.mutable_notes()->Add(report.notes.begin(), report.notes.end());
  for (const query::AlignedNames& names : report.aligned) {
    v1::AlignedNames& added = *out.add_aligned();
    added.set_a(names.a);
    added.set_b(names.b);
    added.set_method(names.method);
    added.set_confidence(names.confidence);
  }
  for (const query::GrowthPoint& point : report.growth.points) {
    v1::GrowthPoint& added = *out.mutable_growth()->add_points();
    added.set_step(point.step);
    added.set_diverged(point.diverged);
    Copy(point.distance, [&](double value) { added.set_distance(value); });
    Copy(point.distance_max, [&](double value) { added.set_distance_max(value); });
  }
  Copy(report.growth.factor_per_step,
       [&](double value) { out.mutable_growth()->set_factor_per_step(value); });
  if (report.noise) {
    out.mutable_noise()->mutable_runs()->Add(report.noise->runs.begin(), report.noise->runs.end());
    out.mutable_noise()->set_stored(report.noise->stored);
  }
  Copy(report.root, [&](const query::Root& root) { Fill(root, *out.mutable_root()); });
  out.set_without_hash(report.without_hash);
  if (report.explained_by_rounding) out.set_explained("rounding");
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

void ToWire(const std::vector<query::SeriesPoint>& points, v1::GetSeriesResponse& out) {
  for (const query::SeriesPoint& point : points) {
    v1::SeriesPoint& added = *out.add_records();
    added.set_run(point.run);
    added.set_rank(point.rank);
    added.set_step(point.step);
    added.set_micro_batch(point.micro_batch);
    added.set_kind(static_cast<v1::Kind>(point.kind));
    added.set_activation(point.activation);
    added.set_output_path(point.output_path);
    added.set_call(point.call);
    added.set_mode(point.mode);
    Fill(point.stats, *added.mutable_stats());
  }
}

void ToWire(const std::vector<query::ScalarRow>& rows, v1::ListScalarsResponse& out) {
  for (const query::ScalarRow& row : rows) {
    v1::ScalarRow& added = *out.add_records();
    added.set_run(row.run);
    added.set_rank(row.rank);
    added.set_step(row.step);
    added.set_micro_batch(row.micro_batch);
    added.set_name(row.name);
    added.set_value(row.value);
  }
}

namespace {

using MemoryFields = std::array<const google::protobuf::FieldDescriptor*, kMemoryQuantityCount>;

// The fields of a row, by quantity: they have its name.
const MemoryFields& FieldsOfMemory() {
  static const MemoryFields fields = [] {
    MemoryFields found{};
    for (int i = 0; i < kMemoryQuantityCount; ++i) {
      const std::string name(Name(static_cast<MemoryQuantity>(i)));
      found[static_cast<std::size_t>(i)] = v1::MemoryRow::descriptor()->FindFieldByName(name);
    }
    return found;
  }();
  return fields;
}

}  // namespace

void ToWire(const std::vector<query::MemoryRow>& rows, v1::ListMemoryResponse& out) {
  const MemoryFields& fields = FieldsOfMemory();
  const auto& reflection = *v1::MemoryRow::GetReflection();
  for (const query::MemoryRow& row : rows) {
    const MemoryRecord& record = row.record;
    v1::MemoryRow& added = *out.add_records();
    added.set_run(row.run);
    added.set_rank(row.rank);
    added.set_step(record.step);
    added.set_micro_batch(record.micro_batch);
    added.set_phase(std::string(Name(record.phase)));
    added.set_device(record.device);
    added.set_module(record.module);
    for (int i = 0; i < kMemoryQuantityCount; ++i) {
      const auto quantity = static_cast<MemoryQuantity>(i);
      if (record.Has(quantity))
        reflection.SetInt64(&added, fields[static_cast<std::size_t>(i)], record.Of(quantity));
    }
  }
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
  for (const query::CaptureRequestRow& row : report.requests) {
    const CaptureSpec& spec = row.request.spec;
    v1::CaptureRequestRow& added = *out.add_requests();
    added.set_request(row.request.id);
    added.set_activation(spec.activation);
    if (spec.kind) added.set_kind(static_cast<v1::Kind>(*spec.kind));
    if (spec.output_path) added.set_output_path(*spec.output_path);
    added.set_micro_batch(spec.micro_batch);
    added.set_call(spec.call);
    added.set_mode(std::string(Name(spec.mode)));
    added.set_step(spec.steps.last());
    added.set_bytes_max(spec.bytes_max);
    added.set_asked_unix_nanos(row.request.asked_unix_nanos);
    for (const query::CaptureRequestRank& rank : row.ranks) {
      v1::CaptureRequestRank& of = *added.add_ranks();
      of.set_rank(rank.rank);
      of.set_state(rank.state);
      of.set_why(rank.why);
      if (rank.last_step) of.set_last_step(*rank.last_step);
    }
  }
}

void ToWire(const std::vector<query::DensityRow>& rows, v1::ListDensityResponse& out) {
  for (const query::DensityRow& row : rows) {
    const DensityRecord& record = row.record;
    v1::DensityRow& added = *out.add_records();
    added.set_run(row.run);
    added.set_rank(row.rank);
    added.set_step(record.step);
    added.set_micro_batch(record.micro_batch);
    added.set_input(record.input);
    added.set_type(std::string(Name(record.type)));
    added.set_pad_index(record.pad_index);
    added.set_valid(record.valid);
    added.set_total(record.total);
    added.mutable_valid_per_sample()->Assign(record.valid_per_sample.begin(), record.valid_per_sample.end());
  }
}

void ToWire(const query::EventRow& row, v1::EventRow& out) { Fill(row, out); }

void ToWire(const std::vector<query::EventRow>& rows, v1::ListEventsResponse& out) {
  for (const query::EventRow& row : rows) Fill(row, *out.add_records());
}

void ToWire(const query::RecordsPart& part, v1::ReadRecordsResponse& out) {
  out.set_attempt(part.attempt);
  out.set_rank(part.rank);
  if (part.records.records() > 0 || !part.records.activations.empty() || !part.records.layouts.empty())
    statcollect::ToWire(part.records, part.layouts, out.mutable_records());
  ToWire(part.progress, *out.mutable_progress());
}

void ToWire(const CollectorStatus& status, v1::GetStatusResponse& out) {
  out.set_version(status.version);
  out.set_pid(status.pid);
  out.set_start_unix_nanos(status.start_unix_nanos);
  out.set_uptime_seconds(status.uptime_seconds);
  out.set_data_dir(status.data_dir);
  out.set_durability(status.fsync ? "fsync" : "process");
  out.set_state(status.state);
  out.set_runs(status.runs);
  out.set_streams_open(status.streams_open);
  out.set_streams_total(status.streams_total);
  out.set_batches_total(status.batches_total);
  out.set_records_total(status.records_total);
  out.set_bytes_total(status.bytes_total);
  out.set_duplicate_records_total(status.duplicate_records_total);
  out.set_rejected_batches_total(status.rejected_batches_total);
  out.set_commits_total(status.commits_total);
  out.set_disk_bytes(status.disk_bytes);
  out.set_disk_free_bytes(status.disk_free_bytes);
  out.set_agents_dropped_total(status.agents_dropped_total);
  out.mutable_dropped_by_cause()->insert(status.dropped_by_cause.begin(), status.dropped_by_cause.end());
  out.set_backlog_records(status.backlog_records);
  out.set_backlog_bytes(status.backlog_bytes);
  out.set_backlog_oldest_millis(status.backlog_oldest_millis);
  const RetentionStatus& retention = status.retention;
  v1::Retention& wire = *out.mutable_retention();
  wire.set_age_seconds_max(retention.age_seconds_max);
  wire.set_disk_bytes_max(retention.disk_bytes_max);
  wire.set_note(retention.note);
  wire.set_runs_removed(retention.runs_removed);
  wire.set_bytes_removed(retention.bytes_removed);
  for (const RetentionStatus::Next& next : retention.next) {
    v1::RetentionNext& added = *wire.add_next();
    added.set_run(next.run);
    added.set_last_write_unix_nanos(next.last_write_unix_nanos);
    added.set_bytes(next.bytes);
    added.set_due_unix_nanos(next.due_unix_nanos);
  }
  for (const std::string& run : retention.kept) wire.add_kept(run);
  const AlarmStatus& alarms = status.alarms;
  v1::Alarms& told = *out.mutable_alarms();
  told.set_enabled(alarms.enabled);
  told.mutable_raised()->insert(alarms.raised.begin(), alarms.raised.end());
  told.mutable_active()->insert(alarms.active.begin(), alarms.active.end());
  told.set_evaluated_records(alarms.evaluated_records);
  told.set_skipped_records(alarms.skipped_records);
  told.set_state_bytes(alarms.state_bytes);
  told.set_webhook(alarms.webhook);
  told.set_webhook_sent(alarms.webhook_sent);
  told.set_webhook_failed(alarms.webhook_failed);
  told.set_webhook_dropped(alarms.webhook_dropped);
}

}  // namespace statcollect::api
