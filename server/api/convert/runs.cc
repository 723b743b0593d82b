#include "server/api/convert.h"

#include "common/names.h"
#include "common/twin_name.h"
#include "server/api/convert/parts.h"

namespace statcollect::api {
namespace {

constexpr int kEventKindsMax = 256;

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

}  // namespace

void ToWire(const query::RunSummary& from, v1::RunSummary& to) {
  to.set_run(from.run);
  to.set_attempts(from.attempts);
  to.set_world_size(from.world_size);
  to.set_ranks_expected(from.ranks_expected);
  to.set_ranks(from.ranks);
  to.set_records(from.records);
  to.set_steps(from.steps);
  Copy(from.first_step, [&](auto step) { to.set_first_step(step); });
  Copy(from.last_step, [&](auto step) { to.set_last_step(step); });
  to.set_start_unix_nanos(from.start_unix_nanos);
  to.set_end_unix_nanos(from.end_unix_nanos);
  to.set_state(from.state);
  to.set_dropped(from.dropped);
  to.set_twin_of(std::string(BaseOfTwin(from.run)));
}

Result<std::string> FromWire(const v1::GetRunRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  return request.run();
}

Result<query::EventsRequest> FromWire(const v1::ListEventsRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  STATCOLLECT_ASSIGN_OR_RETURN(auto ranks, RanksFromWire(request.ranks()));
  if (request.kinds_size() > kEventKindsMax) {
    return Invalid("query: " + std::to_string(request.kinds_size()) +
                   " kinds of event named; expected at most " + std::to_string(kEventKindsMax));
  }
  query::EventsRequest wanted{
      .run = request.run(),
      .ranks = std::move(ranks),
      .kinds = {request.kinds().begin(), request.kinds().end()},
      .since_step = request.has_since_step() ? std::optional(request.since_step()) : std::nullopt};
  return wanted;
}

void ToWire(const std::vector<query::RunSummary>& runs, v1::ListRunsResponse& out) {
  for (const query::RunSummary& run : runs) ToWire(run, *out.add_runs());
}

void ToWire(const query::RunDetail& detail, v1::GetRunResponse& out) {
  ToWire(detail.summary, *out.mutable_summary());
  for (const query::AttemptInfo& attempt : detail.attempts) Fill(attempt, *out.add_attempts());
  for (const auto& [key, value] : detail.config) (*out.mutable_config())[key] = value;
  for (const query::EventRow& event : detail.events) ToWire(event, *out.add_events());
  out.set_activations(detail.activations);
  for (const query::KindCount& count : detail.kinds) {
    v1::KindCount& added = *out.add_kinds();
    added.set_kind(static_cast<v1::Kind>(count.kind));
    added.set_activations(count.activations);
  }
}

void ToWire(const query::EventRow& row, v1::EventRow& out) {
  out.set_run(row.run);
  out.set_rank(row.rank);
  out.set_step(row.step);
  out.set_kind(row.kind);
  out.set_text(row.text);
  out.set_unix_nanos(row.unix_nanos);
  for (const auto& [key, value] : row.fields) (*out.mutable_fields())[key] = value;
  out.set_origin(row.from_collector ? "collector" : "agent");
  out.set_attempt(row.attempt);
}

void ToWire(const std::vector<query::EventRow>& rows, v1::ListEventsResponse& out) {
  for (const query::EventRow& row : rows) ToWire(row, *out.add_records());
}

}  // namespace statcollect::api
