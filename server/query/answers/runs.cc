#include "server/query/answers/runs.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/names.h"
#include "common/twin_name.h"
#include "server/query/answers/events.h"
#include "server/query/run_summary.h"
#include "server/query/run_view.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kEventsShown = 100;

void FillRank(std::uint32_t rank, const RankMeta& meta, bool open, v1::RankInfo& out) {
  out.set_rank(rank);
  out.set_local_rank(meta.info.local_rank);
  out.set_host(meta.info.host);
  out.set_pid(meta.info.pid);
  out.set_state(StateOf(open, meta.finished));
  out.set_records(meta.records);
  out.set_stat_records(meta.stat_records);
  if (meta.first_step) out.set_first_step(*meta.first_step);
  if (meta.last_step) out.set_last_step(*meta.last_step);
  out.set_steps(meta.steps);
  out.set_durable_seq(meta.durable_seq);
  out.mutable_dropped()->insert(meta.dropped.begin(), meta.dropped.end());
}

void FillAttempt(const AttemptMeta& attempt, const std::map<std::uint32_t, RankMeta>& ranks,
                 const RankLinks& links, v1::AttemptInfo& out) {
  out.set_attempt(attempt.number);
  out.set_start_unix_nanos(attempt.start_unix_nanos);
  for (const auto& [rank, meta] : ranks)
    FillRank(rank, meta, links.is_open && links.is_open(attempt.id, rank), *out.add_ranks());
}

// Of one rank of the newest launch.
Status AddEvents(const Context& context, const RunView& view, std::uint32_t rank,
                 v1::GetRunResponse& out) {
  const AttemptMeta& newest = view.attempts().back();
  // Events of the collector come first, so that frequent events of agents do not crowd them out.
  std::vector<EventRecord> own, agents;
  Visitor<EventRecord> visitor;
  visitor.take = [&](EventRecord event) {
    auto& shown = event.from_collector ? own : agents;
    if (shown.size() < kEventsShown) shown.push_back(std::move(event));
    return Status::Ok();
  };
  STATCOLLECT_RETURN_IF_ERROR(context.store.Visit(newest.id, rank, {}, visitor));
  for (const auto* shown : {&own, &agents}) {
    for (const EventRecord& event : *shown) {
      if (static_cast<std::size_t>(out.events_size()) < kEventsShown)
        FillEvent(view.run(), newest.number, rank, event, *out.add_events());
    }
  }
  return Status::Ok();
}

}  // namespace

void ToWire(const RunSummary& from, v1::RunSummary& to) {
  to.set_run(from.run);
  to.set_attempts(from.attempts);
  to.set_world_size(from.world_size);
  to.set_ranks_expected(from.ranks_expected);
  to.set_ranks(from.ranks);
  to.set_records(from.records);
  to.set_steps(from.steps);
  if (from.first_step) to.set_first_step(*from.first_step);
  if (from.last_step) to.set_last_step(*from.last_step);
  to.set_start_unix_nanos(from.start_unix_nanos);
  to.set_end_unix_nanos(from.end_unix_nanos);
  to.set_state(from.state);
  to.set_dropped(from.dropped);
  to.set_twin_of(std::string(BaseOfTwin(from.run)));
}

Status ListRuns(const Context& context, const RunsRequest& /*request*/, v1::ListRunsResponse& out) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto runs, context.store.ListRuns());
  for (const std::string& run : runs) {
    const auto view = RunView::Open(context.store, run);
    if (!view.ok() && view.status().code() == Code::kNotFound) continue;  // removed meanwhile
    if (!view.ok()) return view.status();
    STATCOLLECT_ASSIGN_OR_RETURN(const auto summary, Summarise(*view, context.links.is_open));
    ToWire(summary, *out.add_runs());
  }
  return Status::Ok();
}

Result<std::string> FromWire(const v1::GetRunRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  return request.run();
}

Status GetRun(const Context& context, const std::string& run, v1::GetRunResponse& out) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(context.store, run));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto summary, Summarise(view, context.links.is_open));
  ToWire(summary, *out.mutable_summary());
  const std::size_t newest = view.attempts().size() - 1;
  for (std::size_t i = 0; i <= newest; ++i)
    FillAttempt(view.attempts()[i], view.ranks(i), context.links, *out.add_attempts());
  for (const auto& [rank, meta] : view.ranks(newest))
    STATCOLLECT_RETURN_IF_ERROR(AddEvents(context, view, rank, out));
  if (view.ranks(newest).empty()) return Status::Ok();
  const auto& [rank, meta] = *view.ranks(newest).begin();
  out.mutable_config()->insert(meta.info.config.begin(), meta.info.config.end());
  STATCOLLECT_ASSIGN_OR_RETURN(auto catalogue, view.Catalogue(newest, rank));
  out.set_activations(catalogue->activations.size());
  std::map<Kind, std::uint64_t> kinds;
  for (const TensorDef& def : catalogue->activations) ++kinds[def.key.kind];
  for (const auto& [kind, count] : kinds) {
    v1::KindCount& added = *out.add_kinds();
    added.set_kind(static_cast<v1::Kind>(kind));
    added.set_activations(count);
  }
  return Status::Ok();
}

}  // namespace statcollect::query
