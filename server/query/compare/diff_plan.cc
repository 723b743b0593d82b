#include "server/query/compare/diff_plan.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "common/names.h"
#include "common/step_set.h"
#include "common/text.h"
#include "server/query/compare/alignment.h"
#include "server/query/settings/recording_policy.h"
#include "server/query/settings/source.h"

namespace statcollect::query {
namespace {

using Steps = std::map<std::uint64_t, std::size_t>;

std::string RangeOf(const Steps& steps) {
  return steps.empty()
             ? std::string("none")
             : std::to_string(steps.begin()->first) + ".." + std::to_string(steps.rbegin()->first);
}

void ChooseKinds(const DiffRequest& request, DiffPlan& plan) {
  plan.losses = request.kinds.empty() && !request.merge_ranks;
  plan.wanted = request.kinds.empty() ? Alignment::Options::OfEveryKind().wanted : plan.wanted;
  for (const Kind kind : request.kinds) plan.wanted[static_cast<std::size_t>(kind)] = true;
}

void ChooseRanks(const RunView& a, const RunView& b, const DiffRequest& request, DiffPlan& plan) {
  const auto ranks_a = a.AllRanks(), ranks_b = b.AllRanks();
  std::vector<std::uint32_t> common;
  std::set_intersection(ranks_a.begin(), ranks_a.end(), ranks_b.begin(), ranks_b.end(),
                        std::back_inserter(common));
  for (const std::uint32_t rank : common) plan.ranks.push_back({rank, rank});
  std::string lacking;
  if (!request.ranks.empty()) {
    std::set<std::uint32_t> asked(request.ranks.begin(), request.ranks.end());
    std::erase_if(plan.ranks, [&](const RankPair& rank) { return asked.erase(rank.a) == 0; });
    if (!asked.empty()) lacking = "; not both have " + RanksText(asked) + ", which was asked for";
    common.clear();
    for (const RankPair& rank : plan.ranks) common.push_back(rank.a);
  }
  const std::string both = RanksText(common) + " in both (" + std::to_string(common.size()) + ")";
  const std::string has =
      a.run() + " has " + RanksText(ranks_a) + ", " + b.run() + " has " + RanksText(ranks_b);
  if (common.empty()) {
    plan.checks.push_back({Premise::kRanks, false, "none in both"});
    plan.incomparable =
        "no rank in common" +
        std::string(request.ranks.empty() ? "" : " among the requested ones") + ": " + has +
        (request.ranks.empty() ? "; --merge-ranks compares replicas whatever their ranks"
                               : "; ask for ranks that both have");
  } else if (ranks_a != ranks_b) {
    plan.checks.push_back(
        {Premise::kRanks, false,
         both + lacking + "; " + has + " (--merge-ranks compares replicas whatever their number)"});
  } else {
    plan.checks.push_back({Premise::kRanks, lacking.empty(), both + lacking});
  }
}

// Replicas instead of ranks of one number, and of kinds those that replicas have in common.
Status ChooseReplicas(RunView& a, RunView& b, const DiffRequest& request, DiffPlan& plan) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto merged, MergeRanks(a, b, plan.steps));
  plan.notes.insert(plan.notes.end(), merged.notes.begin(), merged.notes.end());
  plan.incomparable = merged.incomparable;
  plan.ranks = std::move(merged.pairs);
  if (!request.ranks.empty()) {
    const std::set<std::uint32_t> asked(request.ranks.begin(), request.ranks.end());
    std::erase_if(plan.ranks, [&](const RankPair& pair) { return !asked.contains(pair.a); });
  }
  if (plan.incomparable.empty() && plan.ranks.empty())
    plan.incomparable = "none of the requested ranks is in " + a.run() + ", which has " +
                        RanksText(a.AllRanks()) + "; ask for some of these";
  plan.checks.push_back({Premise::kRanks, !plan.ranks.empty(),
                         std::to_string(plan.ranks.size()) + " pairs of replicas"});
  bool any = false;
  for (std::size_t kind = 0; kind < kKindCount; ++kind) {
    plan.wanted[kind] = plan.wanted[kind] && merged.replicated[kind];
    any = any || plan.wanted[kind];
  }
  if (plan.incomparable.empty() && !any)
    plan.incomparable =
        "none of the requested kinds is equal on replicas; with merged ranks, ask for weights, "
        "their gradients and optimizer state";
  return Status::Ok();
}

StepAttempts InCommon(const Steps& steps_a, const Steps& steps_b) {
  StepAttempts common;
  for (const auto& [step, attempt] : steps_a) {
    const auto other = steps_b.find(step);
    if (other != steps_b.end())
      common.emplace_hint(common.end(), step, std::pair(attempt, other->second));
  }
  return common;
}

// "base has 0..7, ort has none"
std::string StepsOfBoth(const RunView& a, const Steps& steps_a, const RunView& b,
                        const Steps& steps_b) {
  return a.run() + " has " + RangeOf(steps_a) + ", " + b.run() + " has " + RangeOf(steps_b);
}

Status ChooseSteps(const RunView& a, const RunView& b, const DiffRequest& request,
                   const StepSet& wanted, DiffPlan& plan) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto steps_a, a.Steps(wanted));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto steps_b, b.Steps(wanted));
  plan.steps = InCommon(steps_a, steps_b);
  const std::string has = StepsOfBoth(a, steps_a, b, steps_b);
  if (plan.steps.empty()) {
    plan.checks.push_back({Premise::kSteps, false, "none in both"});
    if (request.steps.empty()) {
      plan.incomparable = "no step in common: " + has +
                          "; record the same steps of both (a launch that continues counts on "
                          "where its checkpoint ended)";
      return Status::Ok();
    }
    STATCOLLECT_ASSIGN_OR_RETURN(const auto all_a, a.Steps(StepSet()));
    STATCOLLECT_ASSIGN_OR_RETURN(const auto all_b, b.Steps(StepSet()));
    plan.incomparable = "no step in common among the requested ones, " + request.steps + ": " +
                        StepsOfBoth(a, all_a, b, all_b) + "; ask for steps that both have";
    return Status::Ok();
  }
  std::string both = std::to_string(plan.steps.begin()->first) + ".." +
                     std::to_string(plan.steps.rbegin()->first) + " in both (" +
                     std::to_string(plan.steps.size()) + ")";
  const bool all = steps_a.size() + steps_b.size() == 2 * plan.steps.size();
  plan.checks.push_back({Premise::kSteps, all, all ? std::move(both) : both + "; " + has});
  return Status::Ok();
}

Status FindStored(const RunView& a, const RunView& b, const DiffRequest& request, DiffPlan& plan) {
  plan.stored = plan.steps;
  if (request.steps.empty() || plan.steps.empty()) return Status::Ok();
  STATCOLLECT_ASSIGN_OR_RETURN(const auto steps_a, a.Steps(StepSet()));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto steps_b, b.Steps(StepSet()));
  plan.stored = InCommon(steps_a, steps_b);
  return Status::Ok();
}

void ReadCataloguesOf(RunView& a, RunView& b, const DiffPlan& plan) {
  std::set<std::tuple<RunView*, std::size_t, std::uint32_t>> wanted;
  std::set<std::pair<std::size_t, std::size_t>> attempts;
  for (const auto& [step, of] : plan.steps) attempts.insert(of);
  for (const auto& [of_a, of_b] : attempts) {
    for (const RankPair& rank : plan.ranks) {
      wanted.emplace(&a, of_a, rank.a);
      wanted.emplace(&b, of_b, rank.b);
    }
  }
  std::vector<RankOfRun> all;
  for (const auto& [view, attempt, rank] : wanted)
    all.push_back({.view = view, .attempt = attempt, .rank = rank});
  ReadCatalogues(all);
}

Status FindKinds(RunView& view, const std::vector<RankPair>& ranks, std::uint32_t RankPair::*side,
                 const std::set<std::size_t>& attempts, std::array<bool, kKindCount>& present,
                 RecordedKinds& recorded) {
  for (const std::size_t attempt : attempts) {
    for (const RankPair& rank : ranks) {
      STATCOLLECT_ASSIGN_OR_RETURN(auto catalogue, view.Catalogue(attempt, rank.*side));
      for (const TensorDef& def : catalogue->activations) {
        const auto kind = static_cast<std::size_t>(def.key.kind);
        present[kind] = true;
        recorded.modes[kind][static_cast<std::size_t>(def.key.mode)] = true;
      }
    }
  }
  recorded.tool = ToolOf(view);
  return Status::Ok();
}

// Reads the first rank only, because a program's watches leave out the same modules on all ranks.
void FindLeftOut(const RunView& view, const std::vector<RankPair>& ranks,
                 std::uint32_t RankPair::*side, const std::set<std::size_t>& attempts,
                 DiffPlan& plan) {
  for (const std::size_t attempt : attempts) {
    const auto meta =
        ranks.empty() ? view.ranks(attempt).end() : view.ranks(attempt).find(ranks[0].*side);
    if (meta == view.ranks(attempt).end()) continue;
    const std::string left_out = RecordingPolicy(meta->second.info.config).LeavesOut();
    if (left_out.empty()) continue;
    plan.left_out += (plan.left_out.empty() ? "" : ", and ") + view.run() + " was recorded with " +
                     Printable(left_out, 1000);
    return;
  }
}

// A kind that one run never recorded was not requested there. This is not a divergence, but a note
// reports it.
Status CompareKinds(RunView& a, RunView& b, DiffPlan& plan) {
  ReadCataloguesOf(a, b, plan);
  std::set<std::size_t> attempts_a, attempts_b;
  for (const auto& [step, attempts] : plan.steps) {
    attempts_a.insert(attempts.first);
    attempts_b.insert(attempts.second);
  }
  STATCOLLECT_RETURN_IF_ERROR(
      FindKinds(a, plan.ranks, &RankPair::a, attempts_a, plan.kinds_a, plan.recorded_a));
  STATCOLLECT_RETURN_IF_ERROR(
      FindKinds(b, plan.ranks, &RankPair::b, attempts_b, plan.kinds_b, plan.recorded_b));
  FindLeftOut(a, plan.ranks, &RankPair::a, attempts_a, plan);
  FindLeftOut(b, plan.ranks, &RankPair::b, attempts_b, plan);
  for (std::size_t kind = 1; kind < kKindCount; ++kind) {
    if (plan.kinds_a[kind] == plan.kinds_b[kind] || !plan.wanted[kind]) continue;
    plan.checks.push_back({Premise::kRecording, false,
                           "only " + (plan.kinds_a[kind] ? a : b).run() + " recorded " +
                               std::string(Name(static_cast<Kind>(kind))) +
                               "; that kind was not compared"});
  }
  return Status::Ok();
}

// The policies of a run's compared ranks in these attempts, each distinct one once: ranks agree on
// their steps.
class Policies {
 public:
  Policies(const RunView& view, const std::vector<RankPair>& ranks, std::uint32_t RankPair::*side)
      : view_(view), ranks_(ranks), side_(side) {}

  const std::vector<RecordingPolicy>& Of(std::size_t attempt) {
    const auto known = by_attempt_.find(attempt);
    if (known != by_attempt_.end()) return known->second;
    std::vector<RecordingPolicy>& policies = by_attempt_[attempt];
    std::set<std::string> texts;
    for (const RankPair& rank : ranks_) {
      const auto meta = view_.ranks(attempt).find(rank.*side_);
      if (meta == view_.ranks(attempt).end()) continue;
      const Config& config = meta->second.info.config;
      const auto text = config.find("recording.full_steps");
      if (text != config.end() && texts.insert(text->second).second) policies.emplace_back(config);
    }
    return policies;
  }

 private:
  const RunView& view_;
  const std::vector<RankPair>& ranks_;
  std::uint32_t RankPair::*side_;
  std::map<std::size_t, std::vector<RecordingPolicy>> by_attempt_;
};

void FindFull(const RunView& a, const RunView& b, DiffPlan& plan) {
  Policies of_a(a, plan.ranks, &RankPair::a), of_b(b, plan.ranks, &RankPair::b);
  std::vector<std::uint64_t> full;
  bool budget = false;
  for (const auto& [step, attempts] : plan.steps) {
    const auto in_full = [step = step](const RecordingPolicy& policy) {
      return policy.InFull(step);
    };
    const auto& policies_a = of_a.Of(attempts.first);
    const auto& policies_b = of_b.Of(attempts.second);
    budget = budget || !policies_a.empty() || !policies_b.empty();
    if (std::all_of(policies_a.begin(), policies_a.end(), in_full) &&
        std::all_of(policies_b.begin(), policies_b.end(), in_full))
      full.push_back(step);
  }
  if (!budget) return;
  if (full.size() < plan.steps.size()) {
    plan.checks.push_back({Premise::kRecording, false,
                           "compared in full: " + std::to_string(full.size()) + " of " +
                               std::to_string(plan.steps.size()) + " steps" +
                               (full.empty() ? "" : " (" + DescribeSteps(full) + ")") +
                               "; in the others an overhead budget left only scalars and batches"});
  }
  plan.full = std::move(full);
}

void NoteLossesAndLife(const RunView& view, const IsStreamOpen& is_stream_open, DiffPlan& plan) {
  std::uint64_t dropped = 0;
  bool running = false;
  for (const std::uint32_t rank : view.AllRanks()) dropped += view.Dropped(rank);
  for (std::size_t i = 0; i < view.attempts().size(); ++i) {
    for (const auto& [rank, meta] : view.ranks(i)) {
      running = running || (is_stream_open && is_stream_open(view.attempts()[i].id, rank));
    }
  }
  if (dropped > 0) {
    plan.notes.push_back("agents of " + view.run() + " lost " + std::to_string(dropped) +
                         " records; missing records may be lost ones and not divergences");
  }
  if (running)
    plan.notes.push_back(view.run() + " is still running; later steps are not in this answer");
}

}  // namespace

std::optional<std::string> WhyNotRecorded(const RunView& a, const RunView& b, const DiffPlan& plan,
                                          const TensorDef& def, bool of_b, bool seen) {
  const RecordedKinds& having = of_b ? plan.recorded_b : plan.recorded_a;
  const RecordedKinds& lacking = of_b ? plan.recorded_a : plan.recorded_b;
  const std::string& run = (of_b ? a : b).run();
  const std::string kind(Name(def.key.kind));
  const auto mode = static_cast<std::size_t>(def.key.mode);
  if (!lacking.tool.empty() && having.tool.empty()) {
    const std::string dump = run + " is a dump of " + lacking.tool + ", which does not record ";
    const bool optimizer = def.key.kind == Kind::kWeight && def.key.mode == Mode::kTrain;
    if (!lacking.modes[static_cast<std::size_t>(def.key.kind)][mode])
      return dump +
             (optimizer ? "weights after an update"
                        : kind + " in mode " + std::string(Name(def.key.mode))) +
             "; not compared";
    if (def.depth == 1)
      return dump + "the model as a whole; " + Printable(def.key.name) + " was not compared";
  }
  // Some tools dump the weights at the beginning of every step; an agent records them at a launch.
  if (!having.tool.empty() && lacking.tool.empty() && seen && def.key.mode == Mode::kInit)
    return run + " has weights as of the start of a launch, the dump of " + having.tool +
           " as of the start of every step; those of later steps were not compared";
  return std::nullopt;
}

Result<DiffPlan> PlanDiff(RunView& a, RunView& b, const DiffRequest& request,
                          const IsStreamOpen& is_stream_open) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto wanted, StepSet::Parse(request.steps));
  if (request.tolerance && !(std::isfinite(*request.tolerance) && *request.tolerance >= 0)) {
    return Status(Code::kInvalidArgument,
                  "diff: tolerance is not a finite number of at least 0; expected a relative L2 "
                  "such as 1e-3");
  }
  DiffPlan plan;
  ChooseKinds(request, plan);
  if (!request.merge_ranks) ChooseRanks(a, b, request, plan);
  if (plan.incomparable.empty()) {
    STATCOLLECT_RETURN_IF_ERROR(ChooseSteps(a, b, request, wanted, plan));
    STATCOLLECT_RETURN_IF_ERROR(FindStored(a, b, request, plan));
  }
  if (plan.incomparable.empty() && request.merge_ranks)
    STATCOLLECT_RETURN_IF_ERROR(ChooseReplicas(a, b, request, plan));
  NoteLossesAndLife(a, is_stream_open, plan);
  NoteLossesAndLife(b, is_stream_open, plan);
  if (plan.incomparable.empty()) {
    FindFull(a, b, plan);
    STATCOLLECT_RETURN_IF_ERROR(CompareKinds(a, b, plan));
  }
  return plan;
}

}  // namespace statcollect::query
