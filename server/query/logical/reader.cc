// The part of LogicalRun that answers what a RunView asks.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "server/query/logical/logical_run.h"
#include "server/query/logical/logical_scan.h"
#include "server/query/loss_names.h"

namespace statcollect::query {

const std::vector<LogicalRun::Member>& LogicalRun::MembersOf(AttemptId attempt) {
  static const std::vector<Member> kNone;
  const Attempt* const found = Find(attempt);
  return found == nullptr ? kNone : found->members;
}

Result<std::map<std::uint32_t, RankMeta>> LogicalRun::Ranks(AttemptId attempt) {
  const Attempt* const found = Find(attempt);
  std::map<std::uint32_t, RankMeta> merged;
  if (found == nullptr || found->ranks.empty()) return merged;
  RankMeta whole = found->ranks.begin()->second;
  for (auto of = std::next(found->ranks.begin()); of != found->ranks.end(); ++of) {
    const RankMeta& meta = of->second;
    whole.records += meta.records;
    whole.stat_records += meta.stat_records;
    for (const auto& [cause, count] : meta.dropped) whole.dropped[cause] += count;
    whole.last_write_unix_nanos = std::max(whole.last_write_unix_nanos, meta.last_write_unix_nanos);
    whole.finished = whole.finished && meta.finished;
    if (meta.first_step)
      whole.first_step = std::min(whole.first_step.value_or(*meta.first_step), *meta.first_step);
    if (meta.last_step)
      whole.last_step = std::max(whole.last_step.value_or(*meta.last_step), *meta.last_step);
  }
  whole.steps = 0;  // not known to be without gaps
  whole.info.rank = 0;
  merged.emplace(0, std::move(whole));
  return merged;
}

Result<std::vector<TensorDef>> LogicalRun::Activations(AttemptId attempt, std::uint32_t) {
  ReaderLock lock(mutex_);
  Attempt* const found = Find(attempt);
  if (found == nullptr) return std::vector<TensorDef>();
  return found->activations;
}

Result<std::vector<Layout>> LogicalRun::Layouts(AttemptId attempt, std::uint32_t) {
  MutexLock lock(plans_mutex_);
  Attempt* const found = Find(attempt);
  if (found == nullptr) return std::vector<Layout>();
  return found->layouts;
}

std::unique_ptr<StatScan> LogicalRun::ScanStats(AttemptId attempt, std::uint32_t, StepBounds steps) {
  return std::make_unique<LogicalScan>(*this, Find(attempt), steps);
}

Result<std::vector<StatPoint>> LogicalRun::ActivationSeries(AttemptId attempt_id, std::uint32_t,
                                                            std::uint32_t activation, StepBounds steps) {
  struct OfRank {
    const Member* member = nullptr;
    std::uint32_t id = 0;
    std::vector<StatPoint> points;
  };
  std::vector<OfRank> read;
  Attempt* const attempt = Find(attempt_id);
  if (attempt == nullptr) return std::vector<StatPoint>();
  {
    ReaderLock lock(mutex_);
    for (const Member& member : attempt->members) {
      for (std::uint32_t id = 0; id < member.logical.size(); ++id) {
        if (member.logical[id] == activation) read.push_back({.member = &member, .id = id, .points = {}});
      }
    }
  }
  for (OfRank& of : read) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto points,
                                 store_.ActivationSeries(attempt_id, of.member->rank, of.id, steps));
    of.points = std::move(points);
  }
  const bool grown = std::any_of(read.begin(), read.end(), [&](const OfRank& of) {
    ReaderLock lock(mutex_);
    return std::any_of(of.points.begin(), of.points.end(),
                       [&](const StatPoint& point) { return point.layout >= of.member->layouts.size(); });
  });
  if (grown) STATCOLLECT_RETURN_IF_ERROR(ReadDefinitionsAgain(*attempt));
  std::map<std::uint64_t, std::vector<Part>> by_step;
  ReaderLock lock(mutex_);
  for (const OfRank& of : read) {
    for (const StatPoint& point : of.points) {
      if (point.layout < of.member->layouts.size())
        by_step[point.step].push_back(MakePart(*of.member, of.id, point.layout, &point.stats, point.order));
    }
  }
  std::vector<StatPoint> points;
  Step scratch;
  std::vector<double> no_sketch;
  std::vector<std::uint32_t> differing;
  for (auto& [step, parts] : by_step) {
    const std::uint32_t order = parts.front().order;
    const Parts of_step(activation, std::move(parts));
    const MergePlan& plan = PlanOf(*attempt, of_step, scratch);
    StatPoint& point =
        points.emplace_back(StatPoint{.step = step, .layout = plan.layout.id, .order = order, .stats = {}});
    statcollect::query::Merge(plan, of_step.second, &point.stats, &no_sketch, &differing);
  }
  return points;
}

Status LogicalRun::ReadDefinitionsAgain(Attempt& attempt) {
  WriterLock lock(mutex_);
  STATCOLLECT_RETURN_IF_ERROR(Grow(attempt));
  Define(attempt);
  return Status::Ok();
}

Result<std::vector<std::uint64_t>> LogicalRun::StatSteps(AttemptId attempt, std::uint32_t, StepBounds steps) {
  std::set<std::uint64_t> all;
  for (const Member& member : MembersOf(attempt)) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto of, store_.StatSteps(attempt, member.rank, steps));
    all.insert(of.begin(), of.end());
  }
  return std::vector<std::uint64_t>(all.begin(), all.end());
}

Result<std::optional<std::uint64_t>> LogicalRun::FirstStatStep(AttemptId attempt, std::uint32_t,
                                                               StepBounds steps) {
  std::optional<std::uint64_t> first;
  for (const Member& member : MembersOf(attempt)) {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto of, store_.FirstStatStep(attempt, member.rank, steps));
    if (of) first = std::min(first.value_or(*of), *of);
  }
  return first;
}

// A scalar that is the same on all ranks stays; losses are averaged over ranks and, if those are one batch,
// micro-batches; others are each rank's own.
Result<std::vector<ScalarRecord>> LogicalRun::Scalars(AttemptId attempt, std::uint32_t, StepBounds steps) {
  struct Values {
    std::uint64_t place = 0;  // of the first
    std::vector<double> all;
  };
  std::map<std::tuple<std::uint64_t, std::string, std::uint32_t>, Values> gathered;
  std::uint64_t place = 0;
  for (const Member& member : MembersOf(attempt)) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto of, store_.Scalars(attempt, member.rank, steps));
    for (ScalarRecord& scalar : of) {
      Values& values = gathered[{scalar.step, std::move(scalar.name), fold_ ? 0 : scalar.micro_batch}];
      if (values.all.empty()) values.place = place++;
      values.all.push_back(scalar.value);
    }
  }
  std::vector<std::pair<std::uint64_t, ScalarRecord>> merged;
  for (const auto& [key, values] : gathered) {
    const auto& [step, name, micro_batch] = key;
    const bool equal =
        std::all_of(values.all.begin(), values.all.end(), [first = values.all.front()](double x) {
          return x == first || (std::isnan(x) && std::isnan(first));
        });
    if (!equal && !IsLoss(name)) continue;
    double value = values.all.front();
    if (!equal) {
      value = 0;
      for (const double x : values.all) value += x / static_cast<double>(values.all.size());
    }
    merged.emplace_back(values.place, ScalarRecord{name, step, micro_batch, value});
  }
  std::sort(merged.begin(), merged.end(), [](const auto& x, const auto& y) {
    return std::pair(x.second.step, x.first) < std::pair(y.second.step, y.first);
  });
  std::vector<ScalarRecord> records;
  for (auto& [at, scalar] : merged) records.push_back(std::move(scalar));
  return records;
}

Result<std::vector<EventRecord>> LogicalRun::Events(AttemptId attempt, std::uint32_t) {
  std::vector<EventRecord> all;
  for (const Member& member : MembersOf(attempt)) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto of, store_.Events(attempt, member.rank));
    std::move(of.begin(), of.end(), std::back_inserter(all));
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& x, const auto& y) { return x.step < y.step; });
  return all;
}

// A step has ended once it has on every rank.
Result<std::vector<StepRecord>> LogicalRun::StepEnds(AttemptId attempt, std::uint32_t, StepBounds steps) {
  std::map<std::uint64_t, std::pair<std::size_t, StepRecord>> ended;  // by step, with the number of ranks
  const Attempt* const found = Find(attempt);
  if (found == nullptr) return std::vector<StepRecord>();
  for (const Member& member : found->members) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto of, store_.StepEnds(attempt, member.rank, steps));
    for (const StepRecord& end : of) {
      auto& [ranks, record] = ended[end.step];
      if (ranks++ == 0) record = end;
    }
  }
  std::vector<StepRecord> all;
  for (const auto& [step, end] : ended) {
    if (end.first == found->members.size()) all.push_back(end.second);
  }
  return all;
}

}  // namespace statcollect::query
