#include "server/query/ranks/ranks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "common/enum_names.h"
#include "common/text.h"
#include "server/query/logical/one_run.h"
#include "server/query/ranks/batches.h"
#include "server/query/ranks/finding_list.h"
#include "server/query/ranks/frozen.h"
#include "server/query/ranks/group_step.h"
#include "server/query/ranks/losses.h"
#include "server/query/ranks/missing.h"
#include "server/query/ranks/nonfinite.h"
#include "server/query/ranks/outliers.h"
#include "server/query/ranks/replica_check.h"
#include "server/query/ranks/scan.h"
#include "server/query/ranks/sentence.h"
#include "server/query/settings/rank_differences.h"

namespace statcollect::query {
namespace {

// One answer. All checks run on the calling thread, step by step and group by group.
class RankCheck {
 public:
  RankCheck(RunView& view, const RanksRequest& request, const MissingCheck::IsStreamOpen& is_open,
            std::size_t threads)
      : view_(view),
        request_(request),
        threads_(threads),
        findings_(keys_),
        frozen_(keys_, findings_),
        replicas_(request, layout_, frozen_, keys_, findings_),
        missing_(view, is_open, layout_, keys_, findings_),
        batches_(keys_, findings_),
        outliers_(keys_, findings_),
        losses_(view, report_.ranks, batches_, findings_) {
    report_.run = view.run();
  }

  Result<RanksReport> Run(const std::function<void(const Progress&)>& progress,
                          const std::stop_token& stop) {
    STATCOLLECT_RETURN_IF_ERROR(Choose());
    Progress done{.done = 0, .total = steps_.size() * report_.ranks.size()};
    GroupCollector collector(request_, report_.groups, keys_);
    const auto take = [&](RankStep& read) -> Status {
      if (stop.stop_requested()) return {Code::kCancelled, "ranks: cancelled"};
      ++done.done;
      if (progress) progress(done);
      STATCOLLECT_RETURN_IF_ERROR(read.status);
      const GroupStep* const complete = collector.Add(read);
      return complete != nullptr ? CheckGroup(*complete) : Status::Ok();
    };
    STATCOLLECT_RETURN_IF_ERROR(
        RankStepReader(view_, steps_, report_.groups, threads_).Run(take, stop));
    Conclude();
    return std::move(report_);
  }

 private:
  // Which steps, ranks and groups.
  Status Choose();
  void ChooseRanks();
  Status ReadLayout();
  Status CheckGroup(const GroupStep& at);
  void Conclude();
  std::string WhyIncomparable() const;

  RunView& view_;
  const RanksRequest& request_;
  const std::size_t threads_;
  RanksReport report_;
  ReplicaLayout layout_;
  bool has_parts_ = false;  // placements tell which part of a tensor a rank holds
  std::map<std::uint64_t, std::size_t> steps_;  // and their attempts
  KeyTable keys_;
  FindingList findings_;
  FrozenCheck frozen_;
  ReplicaCheck replicas_;
  MissingCheck missing_;
  BatchCheck batches_;
  OutlierCheck outliers_;
  LossCheck losses_;
};

Status RankCheck::Choose() {
  if (request_.tolerance && !(std::isfinite(*request_.tolerance) && *request_.tolerance >= 0)) {
    return {Code::kInvalidArgument,
            "ranks: tolerance is not a finite number of at least 0; expected a relative L2 such as "
            "1e-6"};
  }
  STATCOLLECT_ASSIGN_OR_RETURN(const auto wanted, StepSet::Parse(request_.steps));
  ChooseRanks();
  STATCOLLECT_ASSIGN_OR_RETURN(steps_, view_.Steps(wanted));
  if (!steps_.empty())
    report_.steps = {{.first = steps_.begin()->first, .last = steps_.rbegin()->first}};
  STATCOLLECT_RETURN_IF_ERROR(ReadLayout());
  if (request_.ranks.empty()) missing_.CheckRanks(report_.steps ? report_.steps->first : 0);
  for (const std::string& difference : DifferencesBetweenRanks(view_))
    findings_.Note("the ranks' configurations differ: " + difference);
  return Status::Ok();
}

void RankCheck::ChooseRanks() {
  report_.ranks = view_.AllRanks();
  if (request_.ranks.empty()) return;
  std::set<std::uint32_t> asked(request_.ranks.begin(), request_.ranks.end());
  std::erase_if(report_.ranks, [&](std::uint32_t rank) { return asked.erase(rank) == 0; });
  if (asked.empty()) return;
  findings_.Note(RanksNamed("rank", Ranks(asked.begin(), asked.end())) +
                 " requested, but not in the run");
}

Status RankCheck::ReadLayout() {
  STATCOLLECT_ASSIGN_OR_RETURN(has_parts_, HoldsParts(view_));
  layout_ = FindReplicas(view_);
  for (const std::string& note : layout_.notes) findings_.Note(note);
  if (!has_parts_) {
    for (const std::string& note : layout_.sharded) findings_.Note(note);
  }
  for (Ranks group : layout_.groups) {
    std::erase_if(group, [&](std::uint32_t rank) {
      return !std::binary_search(report_.ranks.begin(), report_.ranks.end(), rank);
    });
    if (!group.empty()) report_.groups.push_back(std::move(group));
  }
  return Status::Ok();
}

Status RankCheck::CheckGroup(const GroupStep& at) {
  if (at.reference) {
    replicas_.Check(at);
    missing_.Check(at);
    batches_.Check(at);
    FindNonfinite(at, keys_, findings_);
    outliers_.Check(at);
    frozen_.Follow(at);
  }
  return request_.kinds.empty() ? losses_.Check(at) : Status::Ok();
}

void RankCheck::Conclude() {
  report_.message = replicas_.Conclude(view_.attempts().back().world_size);
  report_.compared = replicas_.compared();
  frozen_.Conclude(report_.steps);
  batches_.Conclude();
  outliers_.Conclude(report_.groups);
  missing_.Conclude(steps_);
  report_.findings = findings_.TakeFindings(request_.top == 0 ? kFindingsDefault : request_.top);
  report_.notes = findings_.TakeNotes();
  if (!report_.findings.empty()) {
    report_.verdict = RanksVerdict::kInconsistent;
    report_.message.clear();
  } else if (report_.compared.records > 0) {
    report_.verdict = RanksVerdict::kConsistent;
  } else {
    report_.verdict = RanksVerdict::kIncomparable;
    if (report_.message.empty()) report_.message = WhyIncomparable();
  }
}

std::string RankCheck::WhyIncomparable() const {
  if (steps_.empty()) return "none of the requested steps; the run has " + view_.StepSpanText();
  if (has_parts_)
    return "no two ranks hold the same part of a weight, gradient or state, so there are no "
           "replicas to compare; what else was checked (batches, losses, NaN, outliers, frozen "
           "weights, missing records) shows nothing";
  const bool alone = std::all_of(report_.groups.begin(), report_.groups.end(),
                                 [](const Ranks& group) { return group.size() < 2; });
  if (alone && report_.groups.size() == 1)
    return "the run has one rank, which has no replica to agree with";
  if (alone) return "no two ranks are replicas of each other";
  return "no weight, gradient or optimizer state was recorded on two ranks; watch the optimizer "
         "(statagent.watch(model, optimizer=...))";
}

}  // namespace

std::string_view Name(RankReason reason) {
  static constexpr std::array<std::string_view, 14> kNames = {
      "unspecified",  "weights_differ", "state_differs",      "gradients_differ", "shape_differs",
      "same_batch",   "frozen_weight",  "loss_differs",       "nonfinite",        "outlier",
      "missing_rank", "missing_step",   "missing_activation", "ended_early"};
  return NameIn(kNames, reason);
}

Result<RanksReport> CheckRanks(RunView& view, const RanksRequest& request,
                               const std::function<bool(AttemptId, std::uint32_t)>& is_stream_open,
                               const std::function<void(const Progress&)>& progress,
                               const std::stop_token& stop, std::size_t threads) {
  return RankCheck(view, request, is_stream_open, threads).Run(progress, stop);
}

}  // namespace statcollect::query
