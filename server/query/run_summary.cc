#include "server/query/run_summary.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace statcollect::query {
namespace {

// Distinct steps. Ordinarily (one attempt, all ranks begin together) the ranks' tallies tell;
// otherwise the steps are read.
Status CountSteps(const RunView& view, RunSummary& summary) {
  bool plain = view.attempts().size() == 1;
  std::optional<std::uint64_t> begin;
  for (std::size_t i = 0; i < view.attempts().size(); ++i) {
    for (const auto& [rank, meta] : view.ranks(i)) {
      if (!meta.first_step || !meta.last_step) continue;
      plain = plain && meta.steps > 0 && (!begin || *begin == *meta.first_step);
      begin = meta.first_step;
      summary.steps = std::max(summary.steps, meta.steps);
    }
  }
  if (const auto span = view.StepSpan()) {
    summary.first_step = span->first;
    summary.last_step = span->last;
  }
  if (plain) return Status::Ok();
  STATCOLLECT_ASSIGN_OR_RETURN(auto steps, view.Steps(StepSet()));
  summary.steps = steps.size();
  return Status::Ok();
}

}  // namespace

RankSet RanksThatRecord(const AttemptMeta& attempt,
                        const std::map<std::uint32_t, RankMeta>& ranks) {
  RankSet all;
  for (const auto& [rank, meta] : ranks) {
    const auto of = RankSet::Parse(meta.info.ranks, attempt.world_size);
    if (of.ok()) all.Add(*of);
  }
  return all.count() > 0 ? all : *RankSet::Parse("", attempt.world_size);
}

std::string StateOf(bool open, bool finished) {
  return open ? "running" : finished ? "finished" : "interrupted";
}

Result<RunSummary> Summarise(const RunView& view, const IsStreamOpen& is_stream_open) {
  const std::size_t newest = view.attempts().size() - 1;
  RunSummary summary;
  summary.run = view.run();
  summary.attempts = static_cast<std::uint32_t>(view.attempts().size());
  summary.world_size = view.attempts()[newest].world_size;
  summary.ranks = static_cast<std::uint32_t>(view.ranks(newest).size());
  summary.start_unix_nanos = view.attempts()[newest].start_unix_nanos;
  const RankSet expected = RanksThatRecord(view.attempts()[newest], view.ranks(newest));
  summary.ranks_expected = expected.count();
  bool open = false, finished = summary.ranks >= summary.ranks_expected;
  for (std::size_t i = 0; i <= newest; ++i) {
    for (const auto& [rank, meta] : view.ranks(i)) {
      summary.records += meta.records;
      summary.end_unix_nanos = std::max(summary.end_unix_nanos, meta.last_write_unix_nanos);
      for (const auto& [cause, count] : meta.dropped) summary.dropped += count;
      if (i < newest) continue;
      open = open || (is_stream_open && is_stream_open(view.attempts()[i].id, rank));
      const std::uint64_t last = meta.last_step.value_or(0);
      summary.settled_step = std::min(summary.settled_step.value_or(last), last);
      finished = finished && meta.finished;
    }
  }
  summary.state = StateOf(open, finished);
  STATCOLLECT_RETURN_IF_ERROR(CountSteps(view, summary));
  return summary;
}

}  // namespace statcollect::query
