#include "server/query/compare/detailed_comparison.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "server/query/compare/pair_judge.h"
#include "server/query/compare/paired_step.h"

namespace statcollect::query {
namespace {

// The last activation of a stage and micro-batch that agrees.
struct Agreeing {
  const TensorDef* def = nullptr;
  double distance = 0;
};

class DetailedComparison {
 public:
  using Observations = std::vector<Observation>;  // of a step, in the order of execution

  // All references must outlive it.
  DetailedComparison(const DiffContext& context, const Observations& a, const Observations& b,
                     RankStepFindings& to)
      : context_(context),
        alignment_(*to.alignment),
        judge_(context, to),
        a_(a),
        b_(b),
        to_(to),
        paired_(alignment_, a, b, PairedStep::Kinds::kRequested),
        order_a_(a),
        order_b_(b) {}

  Status Run() {
    if (context_.limits.WantsRows(to_.step)) to_.rows.reserve(to_.tally.diverged);
    for (const RecordPair& pair : paired_.pairs()) ComparePair(pair);
    STATCOLLECT_RETURN_IF_ERROR(judge_.status());
    for (const LoneRecord& lone : paired_.only_a())
      AddMissing(lone.record, /*in_a=*/false, PlaceOf(lone.record));
    AddMissingInA();
    NoteExtraOutputs();
    if (context_.limits.WantsOrder(to_.step)) CompareOrder();
    const bool trained_a = order_a_.HasTraining(), trained_b = order_b_.HasTraining();
    to_.only_update_in_a = !trained_a && trained_b && HasUpdate(a_);
    to_.only_update_in_b = !trained_b && trained_a && HasUpdate(b_);
    to_.trace = std::move(trace_);  // also if all values agree: which passes both runs made
    return Status::Ok();
  }

 private:
  struct Pair {
    const Observation* a = nullptr;
    const Observation* b = nullptr;
    Comparison comparison;
  };

  static bool HasUpdate(const Observations& side) {
    return std::any_of(side.begin(), side.end(), [](const Observation& seen) {
      return StageOf(seen.def->key) == Stage::kOptimizer;
    });
  }

  ReportOrder PlaceOf(const Observation& of_a) const { return order_a_.PlaceOf(of_a, to_.ranks.a); }

  Divergence NewRow(const TensorDef& def, const ReportOrder& place) const {
    Divergence row = MakeRow(def, to_.step, to_.ranks.a);
    row.segment = place.segment;
    row.given_late = row.stage == Stage::kBatch && place.stage != row.stage;
    if (to_.ranks.b != to_.ranks.a) row.rank_b = to_.ranks.b;
    return row;
  }

  void ComparePair(const RecordPair& both) {
    const TensorDef& def = alignment_.a().activations[both.id_a()];
    const Stage stage = alignment_.traits_a(def.id).stage;
    const Pair pair{&both.a, &both.b, judge_(both.a, both.b, def.id, /*interval=*/true)};
    if (pair.comparison.agreement != Agreement::kIncomparable) AddRow(pair, def, stage);
    if (stage != Stage::kForward) return;
    if (def.depth == 1) trace_.root = def.key.name;
    trace_.rank = to_.ranks.a;
    trace_.points.push_back({&def.key, pair.comparison.agreement == Agreement::kDiverged});
    if (def.key.kind != Kind::kBuffer)
      forward_.push_back(pair);  // recorded when its change is noticed
  }

  void AddRow(const Pair& pair, const TensorDef& def, Stage stage) {
    const TensorKey& key = def.key;
    const Comparison& comparison = pair.comparison;
    Agreeing& previous = agreeing_[{stage, key.micro_batch, key.mode}];
    const bool diverged = comparison.agreement == Agreement::kDiverged;
    const ReportOrder place = PlaceOf(*pair.a);
    const bool bitwise = comparison.agreement != Agreement::kIdentical &&
                         context_.limits.WantsBitwise(to_.step) &&
                         !(to_.first_bitwise && to_.first_bitwise->place < place);
    if (bitwise || (diverged && context_.limits.WantsRows(to_.step))) {
      const bool kept = diverged && context_.limits.WantsRows(to_.step);
      std::optional<Divergence> alone;
      if (kept) to_.rows.push_back({place, NewRow(def, place)});
      Divergence& row = kept ? to_.rows.back().row : alone.emplace(NewRow(def, place));
      FillPair(row, comparison, *pair.a, *pair.b);
      if (previous.def != nullptr) {
        row.previous = previous.def->key.name;
        row.previous_distance = previous.distance;
      }
      if (bitwise) to_.first_bitwise = PlacedRow{place, row};
    }
    if (!diverged) previous = {&def, comparison.distance ? comparison.distance->value : 0.0};
  }

  void AddMissing(const Observation& seen, bool in_a, const ReportOrder& place) {
    const std::uint32_t id = seen.def->id;
    if (in_a ? alignment_.HasB(id, Alignment::kMissingSeen)
             : alignment_.HasA(id, Alignment::kMissingSeen))
      return;
    const ActivationTraits& traits = in_a ? alignment_.traits_b(id) : alignment_.traits_a(id);
    const std::uint32_t other = in_a ? alignment_.a_of(id) : alignment_.b_of(id);
    Divergence row = NewRow(*seen.def, place);
    row.reason = in_a ? Reason::kMissingInA : Reason::kMissingInB;
    (in_a ? row.b : row.a) = MakeSide(seen);
    to_.missing.push_back({.placed = {place, std::move(row)},
                           .in_a = in_a,
                           .defined = traits.grouped || other != Alignment::kNone,
                           .label = Label(seen.def->key),
                           .id = id});
  }

  // At what it is behind, or as much later in the step as B ran it.
  void AddMissingInA() {
    std::uint32_t after = 0;
    for (const auto& [left, behind] : paired_.only_b()) {
      const Spot of_a = behind ? order_a_.At(behind->a) : Spot();
      const Spot of_b = behind ? order_b_.At(behind->b) : Spot();
      const std::uint64_t position = behind ? behind->a + 1ull : 0;
      ReportOrder place = order_a_.PlaceAt(Behind(of_a, of_b, order_b_.At(left.order)), position,
                                           left, order_b_, to_.ranks.a);
      if (!alignment_.traits_b(left.def->id).grouped) place.after = ++after;
      AddMissing(left, /*in_a=*/true, place);
    }
  }

  // Of a module, in a micro-batch: its outputs or their gradients.
  using Call = std::tuple<std::string_view, Kind, std::uint32_t, std::uint32_t, Mode>;
  static Call CallOf(const TensorKey& key) {
    return {key.name, key.kind, key.micro_batch, key.call, key.mode};
  }
  static bool IsOfOutput(const TensorKey& key) {
    return key.kind == Kind::kOutput || key.kind == Kind::kGradOutput;
  }

  void NoteExtraOutputs() {
    if (to_.missing.empty()) return;
    std::set<Call> of_a, of_b;  // those of which both sides have something
    for (const RecordPair& pair : paired_.pairs()) {
      if (pair.group != nullptr || !IsOfOutput(pair.a.def->key)) continue;
      of_a.insert(CallOf(pair.a.def->key));
      of_b.insert(CallOf(pair.b.def->key));
    }
    for (MissingRecord& missing : to_.missing) {
      const RankCatalogue& having = missing.in_a ? alignment_.b() : alignment_.a();
      const TensorKey& key = having.activations[missing.id].key;
      missing.extra = IsOfOutput(key) && (missing.in_a ? of_b : of_a).contains(CallOf(key));
    }
  }

  // As far behind `of_a` as `now` is behind `of_b`, in B.
  static Spot Behind(const Spot& of_a, const Spot& of_b, const Spot& now) {
    if (now.segment > of_b.segment) return {of_a.segment + now.segment - of_b.segment, now.pass};
    return {of_a.segment, of_a.pass + now.pass - of_b.pass};
  }

  // Within each forward pass, in A's order: the first activation that B ran after one of its
  // successors.
  void CompareOrder() {
    std::map<std::pair<std::uint32_t, Mode>, const Pair*>
        earliest;  // in B, among what follows in A
    const Pair *first = nullptr, *behind = nullptr;
    for (auto pair = forward_.rbegin(); pair != forward_.rend(); ++pair) {
      const TensorKey& key = pair->a->def->key;
      const Pair*& after = earliest[{key.micro_batch, key.mode}];
      if (after != nullptr && after->b->order < pair->b->order) {
        first = &*pair;
        behind = after;
      }
      if (after == nullptr || pair->b->order < after->b->order) after = &*pair;
    }
    if (first == nullptr) return;
    const ReportOrder place = PlaceOf(*first->a);
    Divergence row = NewRow(*first->a->def, place);
    row.reason = Reason::kOrder;
    row.a = MakeSide(*first->a);
    row.b = MakeSide(*first->b);
    const Reason reason = first->comparison.reason;
    const bool keeps = reason == Reason::kShape || reason == Reason::kDType;
    to_.out_of_place = OutOfPlace{.placed = {place, std::move(row)},
                                  .agreement = first->comparison.agreement,
                                  .keeps_reason = keeps,
                                  .behind = behind->a->def->key};
  }

  const DiffContext& context_;
  const Alignment& alignment_;
  PairJudge judge_;
  const Observations& a_;
  const Observations& b_;
  RankStepFindings& to_;
  const PairedStep paired_;
  std::map<std::tuple<Stage, std::uint32_t, Mode>, Agreeing> agreeing_;
  std::vector<Pair> forward_;
  ForwardTrace trace_;
  const StepOrder order_a_, order_b_;
};

}  // namespace

Status CompareInDetail(const DiffContext& context, const std::vector<Observation>& a,
                       const std::vector<Observation>& b, RankStepFindings& to) {
  return DetailedComparison(context, a, b, to).Run();
}

}  // namespace statcollect::query
