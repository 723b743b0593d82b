#include "server/query/diff/diff.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "common/names.h"
#include "common/text.h"
#include "server/query/compare/diff_plan.h"
#include "server/query/compare/loss_diff.h"
#include "server/query/compare/rank_step_diff.h"
#include "server/query/diff/align_by_order.h"
#include "server/query/diff/diff_scan.h"
#include "server/query/diff/heat_map.h"
#include "server/query/diff/loaded_weights.h"
#include "server/query/diff/lone_tensors.h"
#include "server/query/diff/report_parts.h"
#include "server/query/settings/config_diff.h"
#include "server/query/settings/recorded_config.h"
#include "server/query/settings/recording_policy.h"
#include "server/query/settings/source.h"
#include "server/query/verdict/verdict.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kUnmatchedMax = 10'000;

std::uint64_t RowsMax(const DiffRequest& request) {
  return request.all ? kDivergedRowsMax : request.top > 0 ? request.top : kTopDefault;
}

// Under which a missing record counts once, whatever launches there are.
std::string CountedAs(const MissingRecord& missing, const RankStepFindings& at) {
  return (missing.in_a ? "a" : "b") + std::to_string(at.ranks.a) + ":" +
         std::to_string(at.ranks.b) + " " + missing.label;
}

const char* InputText(const GivenPairs& pairs) {
  return pairs.differ > 0                        ? "differ"
         : pairs.seen == 0 || pairs.unproven > 0 ? "unknown"
                                                 : "identical";
}

// Builds the report from the findings, step by step in order.
class ReportBuilder {
 public:
  ReportBuilder(RunView& a, RunView& b, const DiffRequest& request, const DiffPlan& plan,
                const DiffContext& context)
      : a_(a),
        b_(b),
        request_(request),
        plan_(plan),
        context_(context),
        losses_(context),
        loaded_(context),
        rows_max_(RowsMax(request)) {
    report_.run_a = a.run();
    report_.run_b = b.run();
  }

  Status Take(StepResult result);
  bool diverged() const { return report_.first.has_value(); }
  const StepsToJudge& steps_to_judge() const { return steps_to_judge_; }
  const Tally& tally() const { return tally_; }
  const FirstMissing& first_missing() const { return first_missing_; }
  DiffReport Conclude();  // once

 private:
  Status TakeMissing(RankStepFindings& at);
  // Whether a side's step is stored whole; looked up once, when something is missing in it.
  struct Completeness {
    std::optional<bool> a, b;
  };
  Result<bool> IsComplete(bool of_a, const RankStepFindings& at, Completeness& known);
  // The policy of the side that lacks a record.
  const RecordingPolicy& PolicyOf(bool of_a, const RankStepFindings& at);
  Result<bool> IsCertainlyMissing(const MissingRecord& missing, const RankStepFindings& at,
                                  Completeness& known);
  void TakeOutOfPlace(RankStepFindings& at);
  void NoteOrder(const RankStepFindings& at);
  void AddUnpairedStep(const RankStepFindings& at);
  void NoteOnlyUpdate(bool in_a, const RankStepFindings& at);
  void TakeRows(std::vector<PlacedRow*> placed, const std::vector<ForwardTrace>& traces);
  void MarkStepOrigins(std::span<Divergence* const> rows, const std::vector<ForwardTrace>& traces);
  void AddGrowth(std::uint64_t step, const Tally& tally);
  void NoteUnmatched(const std::string& label, bool only_a);
  void CountSpread();
  void CheckPremises();
  void AddNotes();
  void ConcludeIncomparable(std::string message);

  RunView& a_;
  RunView& b_;
  const DiffRequest& request_;
  const DiffPlan& plan_;
  const DiffContext& context_;
  DiffReport report_;
  Tally tally_, first_step_;
  std::size_t both_ = 0, other_dtypes_ = 0;  // tensors of both runs; of these, of two dtypes
  StepsToJudge steps_to_judge_;
  LossDiff losses_;
  LoadedWeights loaded_;
  FirstMissing first_missing_;
  const std::uint64_t rows_max_;
  std::set<std::string> unmatched_a_, unmatched_b_;
  // As CountedAs says: those that diverged, and those that are returned beside others.
  std::unordered_set<std::string> missing_counted_, extra_;
  std::set<std::string> missing_names_, diverged_losses_;
  LoneTensors lone_;
  std::set<std::uint32_t> diverged_ranks_, diverged_ranks_b_;
  std::set<std::string> incomplete_;  // notes
  std::set<std::string> not_asked_;   // of what the runs were asked to record
  struct UnpairedSteps {
    std::uint64_t count = 0, last = 0;
  };
  std::map<std::pair<bool, std::uint32_t>, UnpairedSteps>
      unpaired_steps_;  // only in A; rank that lacks them
  std::vector<GrowthPoint> growth_;
  std::map<std::tuple<bool, std::size_t, std::uint32_t>, RecordingPolicy>
      policies_;  // of A, attempt, rank
  bool only_update_noted_a_ = false, only_update_noted_b_ = false;
  std::string order_note_;  // of the first rank that leaves A's order
  bool uncertain_missing_ = false, cut_ = false, values_diverged_ = false;
};

Status ReportBuilder::Take(StepResult result) {
  std::vector<PlacedRow*> rows;
  std::vector<ForwardTrace> traces;
  std::optional<PlacedRow> bitwise;
  Tally tally;
  const bool order_noted = !order_note_.empty();  // in an earlier step
  for (std::size_t place = 0; place < result.ranks.size(); ++place) {
    RankStepFindings& at = result.ranks[place];
    STATCOLLECT_RETURN_IF_ERROR(losses_.Compare(at));
    at.rise.records = at.tally.records;
    steps_to_judge_.Take(result.step, place, at.rise);
    if (!order_noted) TakeOutOfPlace(at);
    if (!at.missing.empty()) STATCOLLECT_RETURN_IF_ERROR(loaded_.Compare(at));
    STATCOLLECT_RETURN_IF_ERROR(TakeMissing(at));
    if (at.tally.diverged > 0) {
      diverged_ranks_.insert(at.ranks.a);
      diverged_ranks_b_.insert(at.ranks.b);
    }
    if ((at.only_in_a || at.only_in_b) && PolicyOf(/*of_a=*/at.only_in_b, at).InFull(at.step))
      AddUnpairedStep(at);
    if (at.only_update_in_a) NoteOnlyUpdate(/*in_a=*/true, at);
    if (at.only_update_in_b) NoteOnlyUpdate(/*in_a=*/false, at);
    for (const PlacedRow& placed : at.rows) {
      if (placed.row.stage == Stage::kLoss) diverged_losses_.insert(placed.row.activation);
    }
    tally.Add(at.tally);
    for (PlacedRow& placed : at.rows) rows.push_back(&placed);
    if (at.trace) traces.push_back(*std::move(at.trace));
    if (at.first_bitwise && !(bitwise && bitwise->place < at.first_bitwise->place))
      bitwise = std::move(at.first_bitwise);
  }
  tally_.Add(tally);
  if (result.step == plan_.steps.begin()->first) first_step_ = tally;
  if (!report_.first_bitwise && bitwise) {
    report_.first_bitwise = std::move(bitwise->row);
    if (report_.first_bitwise->reason == Reason::kUnspecified)
      report_.first_bitwise->reason = Reason::kBitwise;
  }
  AddGrowth(result.step, tally);
  if (tally.diverged > 0) ++report_.spread.steps;
  TakeRows(std::move(rows), traces);
  if (values_diverged_ && report_.diverged.size() >= rows_max_)
    context_.limits.EnoughRows(result.step);
  return Status::Ok();
}

void ReportBuilder::TakeRows(std::vector<PlacedRow*> placed,
                             const std::vector<ForwardTrace>& traces) {
  if (placed.empty()) return;
  std::stable_sort(placed.begin(), placed.end(),
                   [](const PlacedRow* x, const PlacedRow* y) { return x->place < y->place; });
  std::vector<Divergence*> rows;  // thousands, of which few are reported
  rows.reserve(placed.size());
  for (PlacedRow* const one : placed) rows.push_back(&one->row);
  MarkStepOrigins(rows, traces);
  for (Divergence* const one : rows) {
    Divergence& row = *one;
    if (!row.origin) {
      row.previous.clear();
      row.previous_distance.reset();
    }
    if (report_.diverged.size() < rows_max_) {
      report_.diverged.push_back(std::move(row));
    } else if (request_.all) {
      cut_ = true;
    }
  }
}

// Origins are sought in the first step whose values differ: weights carry them into every later
// step. What differs in structure only (missing, reordered) explains nothing later; the first
// answer is an origin by definition.
void ReportBuilder::MarkStepOrigins(std::span<Divergence* const> rows,
                                    const std::vector<ForwardTrace>& traces) {
  if (!values_diverged_ && !std::all_of(rows.begin(), rows.end(),
                                        [](const Divergence* row) { return IsStructural(*row); })) {
    values_diverged_ = true;
    MarkOrigins(rows, traces);
  }
  if (!report_.first) {
    rows.front()->origin = true;
    report_.first = *rows.front();
  }
  std::set<std::tuple<Stage, Kind, std::string, std::string>> reported;
  for (const Divergence* const one : rows) {
    const Divergence& row = *one;
    if (!row.origin || report_.origins.size() >= kTopDefault) continue;
    if (reported.insert({row.stage, row.kind, row.activation, row.output_path}).second)
      report_.origins.push_back(row);
  }
}

// Another order explains other values: it takes the place of their reason. Another shape or dtype
// stays. Where values agree, nothing depends on the order, and it is only noted, unless the request
// is exact. Only in the first step that leaves the order.
void ReportBuilder::TakeOutOfPlace(RankStepFindings& at) {
  if (!at.out_of_place) return;
  const auto& [placed, agreement, keeps_reason, behind] = *at.out_of_place;
  if (keeps_reason && agreement == Agreement::kDiverged) return;
  NoteOrder(at);
  if (agreement == Agreement::kDiverged) {
    for (PlacedRow& row : at.rows) {
      if (row.place == placed.place) row.row.reason = Reason::kOrder;
    }
    return;
  }
  if (!request_.exact) return;
  --(agreement == Agreement::kIdentical ? at.tally.identical : at.tally.within_tolerance);
  ++at.tally.diverged;
  at.rows.push_back(placed);
}

void ReportBuilder::NoteOrder(const RankStepFindings& at) {
  if (!order_note_.empty()) return;
  const auto named = [](const std::string& name, std::uint32_t call) {
    return Printable(name) + (call == 0 ? "" : " call " + std::to_string(call));
  };
  const OutOfPlace& moved = *at.out_of_place;
  const Divergence& row = moved.placed.row;
  order_note_ = b_.run() + " runs modules in a different order than " + a_.run() + ": at step " +
                std::to_string(at.step) + ", rank " + std::to_string(at.ranks.a) + ", " +
                named(row.activation, row.call) + " runs after " +
                named(moved.behind.name, moved.behind.call) + " instead of before it";
  if (moved.agreement != Agreement::kDiverged && !request_.exact)
    order_note_ += ". Its values agree, so this is not counted as a divergence (--exact counts it)";
}

// Merged ranks: one rank may lack a step in several pairs.
void ReportBuilder::AddUnpairedStep(const RankStepFindings& at) {
  UnpairedSteps& unpaired = unpaired_steps_[{at.only_in_a, at.only_in_a ? at.ranks.b : at.ranks.a}];
  if (unpaired.count == 0 || unpaired.last != at.step) ++unpaired.count;
  unpaired.last = at.step;
}

// The first one of each run. Not if the rank lost records, of which the pass may be one.
void ReportBuilder::NoteOnlyUpdate(bool in_a, const RankStepFindings& at) {
  const RunView &run = in_a ? a_ : b_, &other = in_a ? b_ : a_;
  const std::uint32_t rank = in_a ? at.ranks.a : at.ranks.b;
  const auto& kinds = in_a ? plan_.kinds_a : plan_.kinds_b;
  bool& noted = in_a ? only_update_noted_a_ : only_update_noted_b_;
  if (noted || !kinds[static_cast<std::size_t>(Kind::kOutput)] || run.Dropped(rank) > 0) return;
  noted = true;
  incomplete_.insert(
      run.run() + " made an update without a forward pass in step " + std::to_string(at.step) +
      " on rank " + std::to_string(rank) + ", where " + other.run() +
      " made one: the optimizer's step() was called again, or no batch came before it");
}

// One row and one count for an identity and rank, at the first step without it.
Status ReportBuilder::TakeMissing(RankStepFindings& at) {
  Completeness known;
  for (MissingRecord& missing : at.missing) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto certain, IsCertainlyMissing(missing, at, known));
    if (!certain) continue;
    std::string counted = CountedAs(missing, at);
    if (extra_.contains(counted) || !missing_counted_.insert(std::move(counted)).second) continue;
    ++at.tally.records;
    ++at.tally.diverged;
    const Divergence& row = missing.placed.row;
    first_missing_.Note(missing.placed);
    missing_names_.insert(SpreadName(row.kind, row.activation, row.output_path));
    lone_.Add(missing);
    at.rows.push_back(std::move(missing.placed));
  }
  return Status::Ok();
}

Result<bool> ReportBuilder::IsComplete(bool of_a, const RankStepFindings& at, Completeness& known) {
  std::optional<bool>& complete = of_a ? known.a : known.b;
  if (complete) return *complete;
  auto found = of_a ? a_.IsComplete(at.attempt_a, at.ranks.a, at.step)
                    : b_.IsComplete(at.attempt_b, at.ranks.b, at.step);
  if (found.ok()) complete = *found;
  return found;
}

const RecordingPolicy& ReportBuilder::PolicyOf(bool of_a, const RankStepFindings& at) {
  const std::size_t attempt = of_a ? at.attempt_a : at.attempt_b;
  const std::uint32_t rank = of_a ? at.ranks.a : at.ranks.b;
  const std::tuple key(of_a, attempt, rank);
  const auto known = policies_.find(key);
  if (known != policies_.end()) return known->second;
  const auto& ranks = (of_a ? a_ : b_).ranks(attempt);
  const auto meta = ranks.find(rank);
  return policies_
      .emplace(key, RecordingPolicy(meta == ranks.end() ? Config() : meta->second.info.config))
      .first->second;
}

// Notes what is missing; whether it counts as a divergence: not if the other side may have had it
// (its agent lost records and has once recorded it, or it is still writing the step) or was never
// asked for the kind.
Result<bool> ReportBuilder::IsCertainlyMissing(const MissingRecord& missing,
                                               const RankStepFindings& at, Completeness& known) {
  const bool in_a = missing.in_a;
  const RunView& view = in_a ? a_ : b_;
  const std::uint32_t rank = in_a ? at.ranks.a : at.ranks.b;
  STATCOLLECT_ASSIGN_OR_RETURN(auto complete, IsComplete(in_a, at, known));
  if (!complete) {
    incomplete_.insert("step " + std::to_string(at.step) + " of " + view.run() +
                       " was not finished on rank " + std::to_string(rank) +
                       "; records missing there were not counted");
    return false;
  }
  const Kind kind = missing.placed.row.kind;
  if (loaded_.IsLoaded(missing, at)) {
    incomplete_.insert((in_a ? b_ : a_).run() + " was launched again at step " +
                       std::to_string(at.step) +
                       "; weights as loaded there that have no counterpart in " + view.run() +
                       " were not compared");
    return false;
  }
  if (loaded_.IsBeforeLaunch(missing, at)) {
    incomplete_.insert(view.run() + " was launched again at step " + std::to_string(at.step) +
                       "; what " + (in_a ? b_ : a_).run() +
                       " evaluated before that step was not compared");
    return false;
  }
  const RankCatalogue& having = in_a ? at.alignment->b() : at.alignment->a();
  const TensorDef& def = having.activations[missing.id];
  const auto left_out = PolicyOf(in_a, at).WhyNot(def, at.step);
  if (left_out && !left_out->text.empty()) {
    not_asked_.insert(view.run() + " was recorded with " + Printable(left_out->text, 1000) + ", " +
                      (in_a ? b_ : a_).run() +
                      " was not: what only one of them was asked to record was not compared");
  }
  if (left_out && left_out->of_the_step) return false;  // it may be missing in another step
  NoteUnmatched(missing.label, /*only_a=*/!in_a);
  if (in_a) {
    at.alignment->MarkB(missing.id, Alignment::kMissingSeen);
  } else {
    at.alignment->MarkA(missing.id, Alignment::kMissingSeen);
  }
  if (left_out || !(in_a ? plan_.kinds_a : plan_.kinds_b)[static_cast<std::size_t>(kind)])
    return false;
  if (auto why = WhyNotRecorded(a_, b_, plan_, def, /*of_b=*/in_a, missing.defined)) {
    incomplete_.insert(*std::move(why));
    return false;
  }
  if (missing.extra) {
    // It stays one where a later launch lacks what it is returned beside.
    extra_.insert(CountedAs(missing, at));
    incomplete_.insert("some modules return an output in " + (in_a ? b_ : a_).run() +
                       " that they do not return in " + view.run() +
                       ", beside others that both return; these outputs were not compared");
    return false;
  }
  const bool maybe_lost = missing.defined && view.Dropped(rank) > 0;
  uncertain_missing_ = uncertain_missing_ || maybe_lost;
  return !maybe_lost;
}

void ReportBuilder::NoteUnmatched(const std::string& label, bool only_a) {
  auto& known = only_a ? unmatched_a_ : unmatched_b_;
  auto& list = only_a ? report_.unmatched.only_a : report_.unmatched.only_b;
  if (known.contains(label)) return;
  if (known.size() >= kUnmatchedMax) {
    cut_ = true;
    return;
  }
  known.insert(label);
  list.push_back(label);
}

void ReportBuilder::AddGrowth(std::uint64_t step, const Tally& tally) {
  if (growth_.empty() && tally.distances == 0 && tally.diverged == 0) return;
  GrowthPoint point{.step = step, .diverged = tally.diverged, .distance = {}, .distance_max = {}};
  if (tally.distances > 0) {
    point.distance = std::exp(tally.DistanceLogSum() / static_cast<double>(tally.distances));
    point.distance_max = tally.distance_max;
  }
  growth_.push_back(point);
}

void ReportBuilder::CountSpread() {
  std::unordered_set<std::string> compared, diverged, of_two_dtypes;
  for (const Aligner::Entry& entry : context_.aligner.all()) {
    const Alignment& alignment = *entry.alignment;
    for (const TensorDef& def : alignment.a().activations) {
      if (!alignment.HasA(def.id, Alignment::kCompared)) continue;
      std::string name = SpreadName(def.key.kind, def.key.name, def.key.output_path);
      if (alignment.HasA(def.id, Alignment::kOtherDType)) of_two_dtypes.insert(name);
      (alignment.HasA(def.id, Alignment::kDiverged) ? diverged : compared).insert(std::move(name));
    }
  }
  for (const Divergence& row : report_.diverged) {  // moved, although its values agree
    if (row.reason == Reason::kOrder)
      diverged.insert(SpreadName(row.kind, row.activation, row.output_path));
  }
  compared.insert(diverged.begin(), diverged.end());
  both_ = compared.size();
  other_dtypes_ = of_two_dtypes.size();
  diverged.insert(missing_names_.begin(), missing_names_.end());
  compared.insert(missing_names_.begin(), missing_names_.end());
  report_.spread.activations = diverged.size() + diverged_losses_.size();
  report_.spread.activations_total = compared.size() + losses_.compared().size();
  report_.spread.ranks.assign(diverged_ranks_.begin(), diverged_ranks_.end());
  if (request_.merge_ranks)
    report_.spread.ranks_b.assign(diverged_ranks_b_.begin(), diverged_ranks_b_.end());
}

void ReportBuilder::CheckPremises() {
  auto& checks = report_.comparable;
  const auto add = [&](Premise premise, std::string detail) {
    checks.push_back({premise, false, std::move(detail)});
  };
  for (const auto& [where, steps] : unpaired_steps_) {
    add(Premise::kSteps, "rank " + std::to_string(where.second) + " of " +
                             (where.first ? b_ : a_).run() + " has no statistics in " +
                             std::to_string(steps.count) + (steps.count == 1 ? " step" : " steps") +
                             " in which " + (where.first ? a_ : b_).run() +
                             " has some; they were not compared");
  }
  checks.push_back(CheckTensors(report_, both_, losses_.compared().size()));
  const std::uint64_t step = plan_.steps.begin()->first;
  // Of a kind that was compared in no step there is nothing to say.
  const auto check_given = [&](Premise premise, const GivenPairs& pairs, Kind kind) {
    const auto i = static_cast<std::size_t>(kind);
    if (pairs.seen > 0 || (plan_.wanted[i] && plan_.kinds_a[i] && plan_.kinds_b[i]))
      checks.push_back(CheckGiven(premise, pairs, step));
  };
  check_given(Premise::kWeights, first_step_.weights, Kind::kWeight);
  check_given(Premise::kBatches, first_step_.batches, Kind::kBatch);
  checks.push_back(CheckDTypes(tally_, other_dtypes_, both_));
  for (const std::string& one : not_asked_) add(Premise::kRecording, one);
  if (tally_.sketches_differ) {
    add(Premise::kRecording,
        "the runs keep sketches of different widths (sketch= of init; 0: none), which cannot be "
        "compared: distances come from extremes, mean and norms instead, and a change that leaves "
        "these as they are is not seen");
  }
  if (tally_.definitions_differ) {
    add(Premise::kRecording,
        "the runs have hashes of different kinds or definitions, which were not compared, and "
        "neither were their sketches: identical means here that every recorded statistic is equal");
  }
}

void ReportBuilder::AddNotes() {
  auto& notes = report_.notes;
  if (uncertain_missing_) {
    notes.push_back(
        "records missing on a rank that lost some are listed as unmatched and not counted as "
        "diverged");
  }
  if (tally_.incomparable > 0) {
    notes.push_back(std::to_string(tally_.incomparable) +
                    " pairs of records have no statistic in common and were not compared");
  }
  if (tally_.without_hash > 0) {
    notes.push_back(std::to_string(tally_.without_hash) +
                    " records count as identical because every statistic that both runs recorded "
                    "is equal; without a content hash their bits are not known");
  }
  if (cut_)
    notes.push_back("some lists were cut; narrow the query with --steps, --rank or --kinds");
  for (const std::string& name : losses_.OnlyInA())
    NoteUnmatched("scalar " + name, /*only_a=*/true);
  for (const std::string& name : losses_.OnlyInB())
    NoteUnmatched("scalar " + name, /*only_a=*/false);
  if (losses_.factor()) notes.push_back(losses_.FactorText(a_.run(), b_.run()));
  if (losses_.alone() > 0) {
    notes.push_back(Counted(losses_.alone(), "value") + " of losses in only one run: not compared");
  }
  if (!order_note_.empty()) notes.push_back(order_note_);
  notes.insert(notes.end(), loaded_.notes().begin(), loaded_.notes().end());
  notes.insert(notes.end(), incomplete_.begin(), incomplete_.end());
}

DiffReport ReportBuilder::Conclude() {
  report_.compared = {.records = tally_.records,
                      .identical = tally_.identical,
                      .within_tolerance = tally_.within_tolerance,
                      .diverged = tally_.diverged};
  report_.without_hash = tally_.without_hash;
  report_.inputs.weights = InputText(tally_.weights);
  report_.inputs.batches = InputText(tally_.batches);
  std::set<std::tuple<std::string, std::string>> aligned;
  for (const Aligner::Entry& entry : context_.aligner.all()) {
    for (const AlignedNames& names : entry.alignment->renamed()) {
      if (aligned.insert({names.a, names.b}).second) report_.aligned.push_back(names);
    }
  }
  CountSpread();
  AddNotes();
  CheckPremises();
  report_.growth = SummariseGrowth(growth_);
  const bool unmatched = !report_.unmatched.only_a.empty() || !report_.unmatched.only_b.empty();
  const bool compared = tally_.records > missing_counted_.size();
  if (const std::string other = lone_.WhyOtherModels(context_.aligner, a_.run(), b_.run());
      !other.empty()) {
    ConcludeIncomparable(other);
  } else if (!compared) {
    ConcludeIncomparable(
        unmatched
            ? "no activation in common: nothing that the runs recorded has the same name, kind "
              "and position in both; say which names belong together with --map (statctl map "
              "propose " +
                  a_.run() + " " + b_.run() + " finds a map)"
            : "no record in common in the requested ranks, steps and kinds; statctl show " +
                  a_.run() + " and statctl show " + b_.run() + " list what was recorded");
  } else if (report_.first) {
    report_.verdict = Verdict::kDiverged;
  } else if (report_.compared.identical == report_.compared.records && !unmatched &&
             unpaired_steps_.empty()) {
    report_.verdict = Verdict::kIdentical;
  } else {
    report_.verdict = Verdict::kWithinTolerance;
  }
  return std::move(report_);
}

// Nothing was compared: unmatched tensors stay listed but are not a divergence.
void ReportBuilder::ConcludeIncomparable(std::string message) {
  report_.verdict = Verdict::kIncomparable;
  report_.first.reset();
  report_.first_bitwise.reset();
  report_.diverged.clear();
  report_.origins.clear();
  report_.compared = {};
  report_.spread = {};
  report_.growth = {};
  report_.message = std::move(message);
}

void CompareConfiguration(const RunView& a, const RunView& b, DiffReport& report) {
  const RecordedConfigs configs = ReadConfigs(a, b);
  report.inputs.config = CompareConfig(configs.a, configs.b);
  CheckSettings(configs, report);
}

void AddPlan(const DiffPlan& plan, bool merged, DiffReport& report) {
  for (const RankPair& ranks : plan.ranks) {
    if (report.ranks.empty() || report.ranks.back() != ranks.a) report.ranks.push_back(ranks.a);
    if (merged) report.ranks_b.push_back(ranks.b);
  }
  std::sort(report.ranks_b.begin(), report.ranks_b.end());
  report.ranks_b.erase(std::unique(report.ranks_b.begin(), report.ranks_b.end()),
                       report.ranks_b.end());
  report.comparable.insert(report.comparable.begin(), plan.checks.begin(), plan.checks.end());
  report.notes.insert(report.notes.begin(), plan.notes.begin(), plan.notes.end());
  if (!plan.steps.empty())
    report.steps =
        StepRange{.first = plan.steps.begin()->first, .last = plan.steps.rbegin()->first};
}

void NoteEnd(const DiffRequest& request, DiffReport& report) {
  if (!request.first_only || !report.first) return;
  report.notes.push_back("ended at the first step that diverged; later steps were not compared");
  report.steps->last = report.first->step;
}

void TakeCells(StepResult& step, HeatMapBuilder& heat) {
  for (RankStepFindings& at : step.ranks) {
    heat.Take(at);
    at.cells = {};
  }
}

}  // namespace

Result<DiffReport> DiffRuns(RunView& a, RunView& b, const DiffRequest& request,
                            const IsStreamOpen& is_stream_open, NoiseFloor* noise,
                            const Twins* twins, const OnProgress& progress,
                            const std::stop_token& stop) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto names, NameMap::Parse(request.map));
  STATCOLLECT_ASSIGN_OR_RETURN(auto plan, PlanDiff(a, b, request, is_stream_open));
  DiffReport report;
  if (plan.incomparable.empty()) {
    Aligner aligner({.wanted = plan.wanted, .names = &names});
    DetailLimits limits(RowsMax(request));
    const DiffContext context{.a = a,
                              .b = b,
                              .tolerance = request.tolerance,
                              .exact = request.exact,
                              .losses = plan.losses,
                              .aligner = aligner,
                              .limits = limits,
                              .noise = noise,
                              .noise_allows = twins == nullptr || !MayExplain(request),
                              .logical = request.logical,
                              .loss_factors = request.loss_factors,
                              .near_ties = request.near_ties,
                              .cells = request.heat_map_columns > 0};
    if (!request.no_alignment) STATCOLLECT_RETURN_IF_ERROR(AlignByOrder(context, plan, stop));
    ReportBuilder builder(a, b, request, plan, context);
    std::optional<HeatMapBuilder> heat;
    if (context.cells) heat.emplace(plan, request.heat_map_columns, request.heat_map_rows);
    const auto take = [&](StepResult step) -> Result<bool> {
      if (heat) TakeCells(step, *heat);
      STATCOLLECT_RETURN_IF_ERROR(builder.Take(std::move(step)));
      return !(request.first_only && builder.diverged());
    };
    STATCOLLECT_RETURN_IF_ERROR(ScanSteps(context, plan, take, progress, stop));
    report = builder.Conclude();
    std::optional<std::uint64_t> last_step;
    if (request.first_only && report.first) last_step = report.first->step;
    const RootQuestion question{.context = context,
                                .plan = plan,
                                .steps = builder.steps_to_judge(),
                                .missing = builder.first_missing(),
                                .last_step = last_step,
                                .twins = twins};
    STATCOLLECT_RETURN_IF_ERROR(JudgeReport(question, request, builder.tally(), report, stop));
    AddBracket(plan, report);
    if (heat && report.verdict != Verdict::kIncomparable) report.heat_map = heat->Make(report);
    AddMapNotes(names, aligner, report, a.run(), b.run());
  } else {
    report.verdict = Verdict::kIncomparable;
    report.message = plan.incomparable;
  }
  report.run_a = a.run();
  report.run_b = b.run();
  report.source_a = SourceOf(a);
  report.source_b = SourceOf(b);
  AddPlan(plan, request.merge_ranks, report);
  CompareConfiguration(a, b, report);
  NoteEnd(request, report);
  return report;
}

}  // namespace statcollect::query
