#include "server/query/verdict/verdict.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "common/names.h"
#include "server/query/cause/cause.h"
#include "server/query/compare/roundoff.h"
#include "server/query/compare/step_order.h"
#include "server/query/verdict/because.h"
#include "server/query/verdict/noise_jumps.h"

namespace statcollect::query {
namespace {

bool ByStatistics(const std::optional<Divergence>& row) {
  return row && row->kind != Kind::kUnspecified &&
         row->distance_kind == DistanceKind::kStatistics && row->reason != Reason::kNonfinite;
}

// Why rounding cannot be distinguished from a bug here; null if it can.
const char* WhyNotKnown(const RootQuestion& question, const DiffRequest& request,
                        const Tally& tally, const DiffReport& report) {
  if (request.merge_ranks)
    return "with --merge-ranks only parameters are compared, so rounding was not distinguished "
           "from bugs";
  if (!request.kinds.empty())
    return "with --kinds what a tensor was computed from may be missing, so rounding was not "
           "distinguished from bugs";
  const bool statistics = ByStatistics(report.first) || ByStatistics(report.first_bitwise);
  if (statistics && !tally.by_sketch)
    return "the records have statistics but no sketches, so rounding was not distinguished from "
           "bugs";
  if (question.steps.empty() && report.first && report.first->stage == Stage::kLoss)
    return "only losses were recorded where the runs differ, so rounding was not distinguished "
           "from bugs";
  return nullptr;
}

bool SameTensor(const Divergence& x, const Divergence& y) {
  const auto identity = [](const Divergence& row) {
    return std::tie(row.step, row.micro_batch, row.rank, row.stage, row.kind, row.activation,
                    row.output_path, row.call, row.mode);
  };
  return identity(x) == identity(y);
}

// Whether it is a batch of real numbers before which the runs differ: the model may have computed
// it, in an earlier step as in a rollout, or in this one. The model of rounding has judged it then.
bool MayFollow(const DiffReport& report, const Divergence& row) {
  const auto is_real = [](const std::optional<ObservationSide>& side) {
    const auto dtype = side ? ParseDType(side->dtype) : std::nullopt;
    return dtype && IsFloat(*dtype);
  };
  return row.stage == Stage::kBatch && row.reason == Reason::kNumeric && is_real(row.a) &&
         is_real(row.b) && report.first_bitwise &&
         (report.first_bitwise->step < row.step ||
          (row.given_late && !SameTensor(*report.first_bitwise, row)));
}

// What only one run has, and training need not depend on, has no effect in a step in which
// everything that both have is explained, the gradients of the weights among it: in the steps
// before the root that the values tell, or in all.
class WithoutNeed {
 public:
  WithoutNeed(const RootQuestion& question, const DiffRequest& request, bool known,
              const std::optional<JudgedRoot>& of_values) {
    constexpr auto kGradients = static_cast<std::size_t>(Kind::kWeightGrad);
    if (!known || request.exact || request.tolerance || !question.plan.kinds_a[kGradients] ||
        !question.plan.kinds_b[kGradients])
      return;
    end_ = of_values ? of_values->step : ~std::uint64_t{0};
    for (const auto& [step, count] : question.missing.idle) count_ += step < end_ ? count : 0;
  }
  bool Has(const Divergence& row) const { return IsIdle(row) && row.step < end_; }
  // The first row about something that only one run has, without these.
  const Divergence* FirstOther(const FirstMissing& missing) const {
    const auto idle = missing.idle_at.lower_bound(end_);
    const PlacedRow* first = missing.other ? &*missing.other : nullptr;
    if (idle != missing.idle_at.end() &&
        (first == nullptr || idle->first < first->row.step ||
         (idle->first == first->row.step && idle->second.place < first->place)))
      first = &idle->second;
    return first == nullptr ? nullptr : &first->row;
  }
  std::uint64_t count() const { return count_; }

 private:
  std::uint64_t end_ = 0;  // later rows count
  std::uint64_t count_ = 0;
};

// The first row that no rounding explains: an input, or one that differs in more than values.
// Values of modules that ran in another order were judged like others, unless `order_counts`, and
// so were other rows of `data_dependent` tensors, and of experts behind near ties.
const Divergence* FirstHard(const DiffReport& report, bool order_counts,
                            const std::set<std::string>& data_dependent, const NearTies& ties,
                            const WithoutNeed& idle) {
  const auto is_behind_tie = [&](const Divergence& one) {
    const auto of_step = ties.find(one.step);
    return !order_counts && of_step != ties.end() &&
           std::any_of(of_step->second.begin(), of_step->second.end(),
                       [&](const NearTie& tie) { return IsWithin(tie, one.activation); });
  };
  const auto row =
      std::find_if(report.diverged.begin(), report.diverged.end(), [&](const Divergence& one) {
        const bool rows =
            one.reason == Reason::kShape &&
            (data_dependent.contains(SpreadName(one.kind, one.activation, one.output_path)) ||
             is_behind_tie(one));
        const bool values = one.reason == Reason::kNumeric || one.reason == Reason::kBitwise ||
                            rows || (one.reason == Reason::kOrder && !order_counts);
        return !idle.Has(one) &&
               ((IsInput(one.stage) && (order_counts || !MayFollow(report, one))) || !values);
      });
  return row == report.diverged.end() ? nullptr : &*row;
}

// Its row among those above their tolerance; null if it is not there.
const Divergence* RowAmong(const DiffReport& report, const Divergence& one) {
  const auto row = std::find_if(report.diverged.begin(), report.diverged.end(),
                                [&](const Divergence& other) { return SameTensor(one, other); });
  return row == report.diverged.end() ? nullptr : &*row;
}

// A gradient that one run lacks does not count in the norm there, so clipping gives all others a
// factor, also those that stand before it.
bool ClippingSpreads(const Divergence& missing, const Divergence& root) {
  return root.stage == Stage::kGrad && missing.step == root.step &&
         missing.segment == root.segment && missing.rank == root.rank;
}

// Whether such a row stands before the root, or is about the same tensor. Rows are in order; those
// that are not listed come after those that are.
bool ComesFirst(const DiffReport& report, const Divergence& hard, const Divergence& root) {
  if (const Divergence* row = RowAmong(report, root)) {
    const Divergence* listed = RowAmong(report, hard);
    return listed != nullptr && listed <= row;
  }
  const auto when = [](const Divergence& one) {
    return std::tuple(one.step, one.segment, one.stage);
  };
  return when(hard) < when(root);
}

// What may be the root, of which ChooseRoot takes one. Borrows rows of the report.
struct RootCandidates {
  // The first row that no rounding explains: an input, or one that differs in more than values.
  const Divergence* hard = nullptr;
  // The first gradient of a weight that one run lacks.
  const Divergence* lacked_gradient = nullptr;
  // The first difference of values that the model of rounding does not explain.
  const std::optional<JudgedRoot>& of_values;
  // The first row above its tolerance, and why it is the root if nothing else is; empty: it is not.
  const std::optional<Divergence>& first;
  std::string why_first;
};

struct ChosenRoot {
  Root root;
  bool of_first = false;  // for want of something better
};

Root RootAt(const Divergence& row, Confidence confidence, std::string because) {
  Root root;
  root.at = row;
  root.confidence = confidence;
  root.because.push_back(std::move(because));
  return root;
}

// A root that no rounding explains, with what the values of the same tensor have shown.
Root OfHard(const Divergence& hard, const std::optional<JudgedRoot>& of_values) {
  const bool same = of_values && SameTensor(hard, of_values->root.at);
  if (same && IsInput(hard.stage)) return of_values->root;
  Root root = RootAt(hard, Confidence::kCertain,
                     IsInput(hard.stage) ? std::string(kOfInput)
                                         : "it differs in more than the size of its values");
  if (!same) return root;
  root.agreeing = of_values->root.agreeing;
  const std::optional<Caveat>& caveat = of_values->caveat;
  if (!caveat) return root;
  root.confidence = std::max(root.confidence, caveat->most);
  root.because.push_back(caveat->text);
  return root;
}

// As the report lists it, which knows its order.
Root OfValues(const DiffReport& report, const JudgedRoot& of_values) {
  Root root = of_values.root;
  const Divergence* row = RowAmong(report, root.at);
  if (row == nullptr) return root;
  root.at.segment = row->segment;
  root.at.times_noise = row->times_noise;
  root.at.tolerance = row->tolerance;
  if (row->reason != Reason::kOrder) return root;
  root.at.reason = Reason::kOrder;
  root.confidence = of_values.caveat ? of_values.caveat->most : Confidence::kCertain;
  root.because.emplace_back("its module also ran in another order");
  return root;
}

// Pure. `report`: gives the order of rows.
std::optional<ChosenRoot> ChooseRoot(const RootCandidates& of, const DiffReport& report) {
  const std::optional<JudgedRoot>& values = of.of_values;
  if (of.hard != nullptr && (!values || ComesFirst(report, *of.hard, values->root.at)))
    return ChosenRoot{OfHard(*of.hard, values)};
  if (values && of.lacked_gradient != nullptr &&
      ClippingSpreads(*of.lacked_gradient, values->root.at))
    return ChosenRoot{OfHard(*of.lacked_gradient, values)};
  if (values) return ChosenRoot{OfValues(report, *values)};
  if (of.first && !of.why_first.empty())
    return ChosenRoot{RootAt(*of.first, Confidence::kPossible, of.why_first), /*of_first=*/true};
  return std::nullopt;
}

Status AddCause(const RootQuestion& question, Root& root, const std::stop_token& stop) {
  const auto& ranks = question.plan.ranks;
  const auto place = std::find_if(ranks.begin(), ranks.end(), [&](const RankPair& pair) {
    return pair.a == root.at.rank && pair.b == root.at.rank_b.value_or(root.at.rank);
  });
  if (place == ranks.end()) return Status::Ok();
  STATCOLLECT_ASSIGN_OR_RETURN(auto causes,
                               FindCauses({.a = question.context.a,
                                           .b = question.context.b,
                                           .root = root.at,
                                           .steps = question.plan.steps,
                                           .aligner = question.context.aligner,
                                           .place = static_cast<std::size_t>(place - ranks.begin()),
                                           .ranks = *place,
                                           .twins = question.twins},
                                          stop));
  root.causes = std::move(causes);
  return Status::Ok();
}

// A batch that is missing is moved to the pass that it was for, a loss to the term that differs.
void MoveToCause(Root& root) {
  if (root.causes.empty() || !root.causes.front().at) return;
  Cause& cause = root.causes.front();
  if (root.at.stage == Stage::kLoss) {  // it differs, and is before the place
    root.agreeing.reset();
    root.times_expected.reset();
  }
  root.at = *std::exchange(cause.at, std::nullopt);
  root.because = {std::move(cause.why_there)};
  std::erase_if(root.alternatives,
                [&](const Divergence& other) { return SameTensor(other, root.at); });
}

void NoteIdle(const FirstMissing& missing, const WithoutNeed& idle, bool has_root,
              DiffReport& report) {
  if (idle.count() == 0) return;
  const Divergence& first = missing.idle_at.begin()->second.row;
  const bool one = idle.count() == 1;
  report.notes.push_back(
      std::to_string(idle.count()) + (one ? " record exists" : " records exist") +
      " in one run only (the first: " + std::string(Name(first.kind)) + " " +
      Printable(first.activation) + "), and everything that both have agrees" +
      (has_root ? " before the root" : "") + ", so nothing depends on " + (one ? "it" : "them"));
}

// Gradients that are zero except for rounding, and Adam's updates from them, are neither the first
// divergence nor an origin if there is a different one.
void PassOverNoise(const std::set<std::string>& noise_driven, const Divergence& root,
                   DiffReport& report) {
  const auto is_noise = [&](const Divergence& row) {
    return row.reason == Reason::kNumeric && noise_driven.contains(row.activation) &&
           (row.stage == Stage::kOptimizer || row.kind == Kind::kWeightGrad);
  };
  const auto other = std::find_if_not(report.diverged.begin(), report.diverged.end(), is_noise);
  if (noise_driven.empty() || !report.first || other == report.diverged.end()) return;
  if (is_noise(root)) return;
  if (std::none_of(report.diverged.begin(), report.diverged.end(), is_noise)) return;
  for (Divergence& row : report.diverged) row.origin = row.origin && !is_noise(row);
  std::erase_if(report.origins, is_noise);
  if (is_noise(*report.first)) {
    other->origin = true;
    report.first = *other;
    if (report.origins.empty()) report.origins.push_back(*other);
  }
  constexpr std::size_t kNamed = 3;
  std::string names;
  std::size_t named = 0;
  for (const std::string& name : noise_driven) {
    if (++named <= kNamed) names += (names.empty() ? "" : ", ") + Printable(name);
  }
  if (noise_driven.size() > kNamed)
    names += " and " + std::to_string(noise_driven.size() - kNamed) + " more";
  report.notes.push_back(
      "these gradients are zero except for rounding; they and their updates are noise, not an "
      "origin: " +
      names);
}

// Where twins exist: how far they were of use.
void NoteTwins(const RootQuestion& question, const Judgement& answer, DiffReport& report) {
  if (question.twins == nullptr) return;
  const bool repeats = !question.twins->all().front().perturbed;
  const std::string them = repeats ? "the repeats" : "the twins";
  if (answer.measured == Measured::kUnmoved) {
    report.twins_unmoved = true;
    report.notes.push_back(them + " are equal to " + question.context.a.run() +
                           " bit for bit, so " +
                           (repeats ? "they show no noise" : "noise did not reach the model") +
                           "; rounding was judged without them");
  } else if (answer.measured == Measured::kInPart) {
    report.notes.push_back(them + " end at step " +
                           std::to_string(question.twins->steps().rbegin()->first) +
                           "; later steps were judged without them");
  }
}

// What comes before the root differs by rounding or not at all, and what comes after a root below
// its tolerance is computed from it: neither is an origin. The root is the first one.
// Precondition: there is a root.
void BeginOriginsAtRoot(DiffReport& report) {
  const Divergence& root = report.root->at;
  const Divergence* const at = RowAmong(report, root);
  const auto comes_before = [&](const Divergence& one) {
    if (at == nullptr) return true;
    const Divergence* const listed = RowAmong(report, one);
    return listed == nullptr ? one.step < root.step : listed < at;
  };
  std::erase_if(report.origins, comes_before);
  if (report.origins.empty() || !SameTensor(report.origins.front(), root))
    report.origins.insert(report.origins.begin(), root);
  report.origins.resize(std::min<std::size_t>(report.origins.size(), kTopDefault));
  for (Divergence& row : report.diverged) {
    if (at == nullptr || &row < at) row.origin = false;
    if (&row == at) row.origin = true;
  }
  if (report.first) report.first->origin = report.first->origin && !comes_before(*report.first);
}

// Without content hashes equal statistics are all that is known of what comes before.
void SayWhatIsKnownOfBits(const Tally& tally, Root& root) {
  if (tally.without_hash == 0) return;
  std::replace(root.because.begin(), root.because.end(), std::string(kAllBitsAgree),
               std::string(kAllStatisticsAgree));
}

// Without twins nobody knows whether rounding sends a row to another expert: only after equal bits
// it cannot.
void DoubtOtherRows(const Judgement& answer, DiffReport& report) {
  Root& root = *report.root;
  const bool after_equal_bits =
      root.agreeing || (report.first_bitwise && SameTensor(*report.first_bitwise, root.at));
  if (after_equal_bits || root.times_expected ||
      !answer.unjudged_rows.contains(
          SpreadName(root.at.kind, root.at.activation, root.at.output_path)))
    return;
  root.confidence = Confidence::kPossible;
  root.because.emplace_back(
      "its rows depend on the data, so rounding may have sent one elsewhere; twins or recorded "
      "choices of the router would tell");
}

// Notes what is known of the differences beside the root.
void NoteAll(const RootQuestion& question, const Judgement& answer, const WithoutNeed& idle,
             const std::optional<ChosenRoot>& chosen, const char* unknown, DiffReport& report) {
  NoteIdle(question.missing, idle, chosen && !chosen->of_first, report);
  const auto& found = answer.found;
  // Of the root by values; another tensor has none.
  const bool of_root =
      found && found->caveat && chosen && SameTensor(chosen->root.at, found->root.at);
  if (of_root) report.notes.push_back(found->caveat->text);
  if (answer.differ_before && !(of_root && found->caveat->text == answer.differ_before->Text()))
    report.notes.push_back(answer.differ_before->Text());
  if (unknown == nullptr) NoteTwins(question, answer, report);
  if (answer.without_effect && !found) report.notes.push_back(answer.without_effect->Text());
  if (answer.loss_scales)
    report.notes.push_back(
        answer.loss_scales->Text(question.context.a.run(), question.context.b.run()));
  if (unknown != nullptr) report.notes.emplace_back(unknown);
}

// The first step with a row above its tolerance that counts.
std::optional<std::uint64_t> FirstAboveTolerance(const DiffReport& report,
                                                 const WithoutNeed& idle) {
  if (report.first && !idle.Has(*report.first)) return report.first->step;
  const auto counts = std::find_if(report.diverged.begin(), report.diverged.end(),
                                   [&](const Divergence& row) { return !idle.Has(row); });
  return counts == report.diverged.end() ? std::nullopt : std::optional(counts->step);
}

// Weights that differ before the compared steps explain what follows from them, but the reason of
// their own difference is unknown.
std::string WhyFirst(const Judgement& answer, const char* unknown, bool values_only) {
  if (answer.differ_before) return answer.differ_before->Text();
  if (unknown != nullptr) return "it is the first difference above its tolerance";
  return values_only ? std::string() : "some later differences are not in the size of values";
}

}  // namespace

Status JudgeReport(const RootQuestion& question, const DiffRequest& request, const Tally& tally,
                   DiffReport& report, const std::stop_token& stop) {
  const bool differs = report.first || report.first_bitwise;
  if (report.verdict == Verdict::kIncomparable || !differs) return Status::Ok();
  const char* const unknown = WhyNotKnown(question, request, tally, report);
  Judgement answer;
  if (unknown == nullptr) {
    STATCOLLECT_ASSIGN_OR_RETURN(answer, FindRoot(question, stop));
  }
  if (answer.found) PassOverNoise(answer.noise_driven, answer.found->root.at, report);
  const WithoutNeed idle(question, request, unknown == nullptr, answer.found);
  const std::uint64_t rounded =
      tally.numeric + (answer.data_dependent.empty() && !AnyElsewhere(question.context.near_ties)
                           ? 0
                           : tally.reshaped);
  // With `exact`, different bits diverge, too; they are still differences in the size of values.
  const bool values_only = tally.diverged == rounded + idle.count();
  RootCandidates candidates{.of_values = answer.found,
                            .first = report.first,
                            .why_first = WhyFirst(answer, unknown, values_only || request.exact)};
  candidates.hard = FirstHard(report, request.exact || unknown != nullptr, answer.data_dependent,
                              question.context.near_ties, idle);
  if (candidates.hard == nullptr) candidates.hard = idle.FirstOther(question.missing);
  if (question.missing.gradient) candidates.lacked_gradient = &question.missing.gradient->row;
  const auto chosen = ChooseRoot(candidates, report);
  NoteAll(question, answer, idle, chosen, unknown, report);
  if (chosen) {
    report.root = chosen->root;
    SayWhatIsKnownOfBits(tally, *report.root);
    DoubtOtherRows(answer, report);
    report.root->above_tolerance = FirstAboveTolerance(report, idle);
    STATCOLLECT_RETURN_IF_ERROR(AddCause(question, *report.root, stop));
    MoveToCause(*report.root);
    BeginOriginsAtRoot(report);
    return Status::Ok();
  }
  if (request.tolerance || request.exact || unknown != nullptr || !values_only ||
      answer.differ_before)
    return Status::Ok();
  report.explained_by_rounding =
      tally.numeric > 0 || idle.count() == 0 || tally.diverged != tally.numeric + idle.count();
  report.verdict = Verdict::kWithinTolerance;
  return Status::Ok();
}

}  // namespace statcollect::query
