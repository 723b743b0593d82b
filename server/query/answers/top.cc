#include "server/query/answers/top.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <set>
#include <stop_token>
#include <tuple>
#include <utility>

#include "common/names.h"
#include "common/step_set.h"
#include "proto/json.h"
#include "server/query/answers/message_parts.h"
#include "server/query/answers/whole_rows.h"
#include "server/query/logical/one_run.h"
#include "server/query/rows.h"
#include "server/query/run_view.h"
#include "server/store/newest_step.h"

namespace statcollect::query {
namespace {

static_assert(static_cast<int>(TopBy::kExponentLoss) == v1::TopBy_MAX);

using IsWantedTensor = std::function<bool(const TensorKey&)>;

std::size_t RowsOf(const TopRequest& request) {
  return request.count == 0 ? kTopDefault : request.count;
}

struct Candidate {
  double value = 0;
  std::uint32_t rank = 0, order = 0;
};

// The `count` most extreme ones, in order, while they come.
class Best {
 public:
  Best(TopBy by, std::size_t count) : by_(by), count_(count) {}

  // Whether it would be among them.
  bool Takes(const Candidate& candidate) const {
    return kept_.size() < count_ || Before(candidate, kept_.back().first);
  }
  void Add(const Candidate& candidate, v1::TopRow row) {
    const auto place =
        std::upper_bound(kept_.begin(), kept_.end(), candidate,
                         [&](const Candidate& c, const auto& k) { return Before(c, k.first); });
    kept_.emplace(place, candidate, std::move(row));
    if (kept_.size() > count_) kept_.pop_back();
  }
  void MoveTo(v1::GetTopResponse& out) && {
    for (auto& [candidate, row] : kept_) *out.add_records() = std::move(row);
  }

 private:
  bool Before(const Candidate& a, const Candidate& b) const {
    if (a.value != b.value) return IsMoreExtreme(by_, a.value, b.value);
    return std::tie(a.rank, a.order) < std::tie(b.rank, b.order);
  }
  const TopBy by_;
  const std::size_t count_;
  std::vector<std::pair<Candidate, v1::TopRow>> kept_;
};

v1::TopRow MakeRow(std::uint32_t rank, std::uint64_t step, double value, const Observation& o,
                   const ObservationSide& side) {
  v1::TopRow row;
  row.set_value(value);
  row.set_rank(rank);
  row.set_step(step);
  FillKey(o.def->key, row);
  row.set_class_name(o.def->class_name);
  ToWire(side, *row.mutable_stats());
  return row;
}

Status NoSuchStep(const RunView& view, std::uint64_t step) {
  return {Code::kNotFound,
          "top of run '" + view.run() + "': no statistics in step " + std::to_string(step) +
              "; the run has " + view.StepSpanText() +
              ", some of which may not have been recorded; omit --step for the newest"};
}

// What of a step has been read: the best rows, and what the notes will say.
class TopOfStep {
 public:
  // Of the answer, step and order are set.
  TopOfStep(const TopRequest& request, const IsWantedTensor& wanted, v1::GetTopResponse& out)
      : request_(request),
        wanted_(wanted),
        out_(out),
        by_(static_cast<TopBy>(out.by())),
        best_(by_, RowsOf(request)) {}

  void Add(std::uint32_t rank, const Observation& o) {
    any_ = true;
    if (wanted_ && !wanted_(o.def->key)) return;
    const Kind kind = o.def->key.kind;
    if (!IsWanted(request_.kinds, kind) || (request_.kinds.empty() && kind == Kind::kOperator))
      return;
    if (request_.kinds.empty() && IsWholeNumber(o.layout->dtype)) {
      integers_.insert(kind);
      return;
    }
    const ObservationSide side = MakeSide(o);
    const auto value = ValueOf(by_, side, IsComplex(o.layout->dtype));
    if (!value) return;
    ++considered_;
    const Candidate candidate{.value = *value, .rank = rank, .order = o.order};
    if (best_.Takes(candidate)) best_.Add(candidate, MakeRow(rank, out_.step(), *value, o, side));
  }
  void Note(std::string note) { out_.add_notes(std::move(note)); }

  // Whether the step has observations of the requested ranks, of any kind.
  bool any() const { return any_; }
  void End() && {
    for (const Kind kind : integers_) {
      Note("integer tensors, such as token ids, are left out; with --kinds " +
           std::string(Name(kind)) + " they are in");
    }
    std::move(best_).MoveTo(out_);
    out_.set_considered(out_.considered() + considered_);
  }

 private:
  const TopRequest& request_;
  const IsWantedTensor& wanted_;
  v1::GetTopResponse& out_;
  const TopBy by_;
  Best best_;
  bool any_ = false;
  std::uint64_t considered_ = 0;
  std::set<Kind> integers_;  // whose tensors of integers were left out
};

// The requested step, or the newest with statistics.
Result<std::uint64_t> ChooseStep(RunView& view, const TopRequest& request) {
  if (request.step) return *request.step;
  STATCOLLECT_ASSIGN_OR_RETURN(auto newest, view.NewestStepWithStats());
  if (!newest)
    return Status(Code::kNotFound, "top of run '" + view.run() + "': it has no statistics yet");
  return *newest;
}

// kNotFound: no attempt has the step.
Result<std::size_t> AttemptOf(RunView& view, std::uint64_t step) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto only, StepSet::Parse(std::to_string(step)));
  STATCOLLECT_ASSIGN_OR_RETURN(auto owner, view.Steps(only));
  if (owner.empty()) return NoSuchStep(view, step);
  return owner.begin()->second;
}

Status AddRank(RunView& view, std::size_t attempt, std::uint32_t rank, std::uint64_t step,
               TopOfStep& top) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto data, view.Read(attempt, rank, step));
  for (const Observation& o : data.observations) top.Add(rank, o);
  STATCOLLECT_ASSIGN_OR_RETURN(auto complete, view.IsComplete(attempt, rank, step));
  if (!complete && !data.observations.empty()) {
    top.Note("step " + std::to_string(step) + " of rank " + std::to_string(rank) +
             " has no end: the rank died in it or is still in it");
  }
  return Status::Ok();
}

// Adds rows and notes, and sets the step. `wanted` (empty: all): whether a tensor counts.
Status FindTop(RunView& view, const TopRequest& request, const std::stop_token& stop,
               const IsWantedTensor& wanted, v1::GetTopResponse& out) {
  if (request.count > kTopCountMax) {
    return {Code::kInvalidArgument, "top: " + std::to_string(request.count) +
                                        " rows requested; expected at most " +
                                        std::to_string(kTopCountMax)};
  }
  STATCOLLECT_ASSIGN_OR_RETURN(const auto step, ChooseStep(view, request));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto attempt, AttemptOf(view, step));
  out.set_run(view.run());
  out.set_step(step);
  out.set_by(static_cast<v1::TopBy>(request.by == TopBy::kUnspecified ? TopBy::kL2 : request.by));
  TopOfStep top(request, wanted, out);
  for (const auto& [rank, meta] : view.ranks(attempt)) {
    if (stop.stop_requested()) return {Code::kCancelled, "top: cancelled"};
    if (IsWanted(request.ranks, rank))
      STATCOLLECT_RETURN_IF_ERROR(AddRank(view, attempt, rank, step, top));
  }
  for (const std::uint32_t rank : std::set(request.ranks.begin(), request.ranks.end())) {
    if (!view.ranks(attempt).contains(rank))
      top.Note("rank " + std::to_string(rank) + " was requested, but the run does not have it");
  }
  if (!top.any() && request.ranks.empty()) return NoSuchStep(view, step);
  std::move(top).End();
  return Status::Ok();
}

// The newest step with statistics that every rank of the newest launch has reached.
Result<std::optional<std::uint64_t>> NewestStepOfAll(LogicalRun& run, const RunView& by_rank) {
  const std::size_t newest = by_rank.attempts().size() - 1;
  std::optional<std::uint64_t> last;
  for (const auto& [rank, meta] : by_rank.ranks(newest)) {
    if (meta.last_step) last = std::min(last.value_or(*meta.last_step), *meta.last_step);
  }
  if (!last) return {std::nullopt};
  return NewestStep(*last, [&](StepBounds steps) {
    return run.FirstStatStep(by_rank.attempts()[newest].id, 0, steps);
  });
}

// Adds the tensors of which nothing says how they are cut, rank by rank. `out` has the whole ones.
Status AddUnknown(const LogicalRun& run, RunView& by_rank, TopRequest request,
                  const std::stop_token& stop, v1::GetTopResponse& out) {
  request.step = out.step();
  const auto is_unknown = [&](const TensorKey& key) {
    return run.cut().unknown.contains({key.kind, key.name, key.output_path});
  };
  v1::GetTopResponse parts;
  STATCOLLECT_RETURN_IF_ERROR(FindTop(by_rank, request, stop, is_unknown, parts));
  out.set_considered(out.considered() + parts.considered());
  auto& rows = *out.mutable_records();
  for (v1::TopRow& row : *parts.mutable_records()) *rows.Add() = std::move(row);
  std::stable_sort(rows.pointer_begin(), rows.pointer_end(),
                   [&](const v1::TopRow* a, const v1::TopRow* b) {
                     return IsMoreExtreme(static_cast<TopBy>(out.by()), a->value(), b->value());
                   });
  const int count = static_cast<int>(RowsOf(request));
  if (rows.size() > count) rows.DeleteSubrange(count, rows.size() - count);
  const std::size_t unknown = run.cut().unknown.size();
  out.add_notes("layout not known: " + std::to_string(unknown) +
                (unknown == 1 ? " tensor " : " tensors ") +
                "whose values differ between ranks; shown rank by rank");
  return Status::Ok();
}

// Without a step: the newest that all ranks have reached.
Status FindTopOfWhole(LogicalRun& run, RunView& by_rank, TopRequest request,
                      const std::stop_token& stop, v1::GetTopResponse& out) {
  if (!request.step) {
    STATCOLLECT_ASSIGN_OR_RETURN(request.step, NewestStepOfAll(run, by_rank));
  }
  STATCOLLECT_ASSIGN_OR_RETURN(auto whole, RunView::Open(run, by_rank.run()));
  out.add_notes("the parts of the ranks were combined; --by-rank shows each rank's");
  STATCOLLECT_RETURN_IF_ERROR(FindTop(whole, request, stop, {}, out));
  for (v1::TopRow& row : *out.mutable_records()) DescribeRanks(run, row);
  for (std::string& note : run.Notes()) out.add_notes(std::move(note));
  return run.cut().unknown.empty() ? Status::Ok()
                                   : AddUnknown(run, by_rank, std::move(request), stop, out);
}

}  // namespace

Result<TopRequest> FromWire(const v1::GetTopRequest& request) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto wanted, SelectionFromWire<TopRequest>(request));
  if (request.by() < 0 || request.by() > v1::TopBy_MAX) {
    return Status(Code::kInvalidArgument,
                  "top: number " + std::to_string(request.by()) +
                      " to order by is unknown to this collector; expected 0.." +
                      std::to_string(v1::TopBy_MAX));
  }
  if (request.by() == v1::TOP_BY_UPDATE_RATIO || request.by() == v1::TOP_BY_EXPONENT_LOSS) {
    return Status(
        Code::kInvalidArgument,
        "top: found '" + EnumText(*v1::TopBy_descriptor(), request.by()) +
            "' to order by, which only a map has; expected l2 to numel; see it in the page's view "
            "of the run, or with statctl tensor RUN NAME --stat update_ratio and --exponents");
  }
  wanted.by = static_cast<TopBy>(request.by());
  if (request.has_step()) wanted.step = request.step();
  wanted.count = request.count();
  wanted.by_rank = request.by_rank();
  return wanted;
}

Status GetTop(const Context& context, const TopRequest& request, v1::GetTopResponse& out) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(context.store, request.run));
  if (request.by_rank || !request.ranks.empty())
    return FindTop(view, request, context.stop, {}, out);
  STATCOLLECT_ASSIGN_OR_RETURN(auto whole, OpenIfCut(context.store, view));
  return whole ? FindTopOfWhole(*whole, view, request, context.stop, out)
               : FindTop(view, request, context.stop, {}, out);
}

}  // namespace statcollect::query
