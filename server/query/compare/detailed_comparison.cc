#include "server/query/compare/detailed_comparison.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "server/query/compare/fused_pair.h"
#include "server/query/compare/pair_judge.h"

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
        order_a_(a),
        order_b_(b) {}

  Status Run() {
    if (context_.limits.WantsRows(to_.step)) to_.rows.reserve(to_.tally.diverged);
    Index(a_, alignment_.a(), by_id_a_);
    Index(b_, alignment_.b(), by_id_b_);
    for (const Observation& seen : a_) {
      const ActivationTraits& traits = alignment_.traits_a(seen.def->id);
      const AlignedGroup* const group = alignment_.GroupAt(seen.def->id);
      if (group != nullptr) CompareGroup(*group);  // in A's order
      if (!traits.wanted || traits.grouped) continue;
      const std::uint32_t other = alignment_.b_of(seen.def->id);
      const Observation* const b = other == Alignment::kNone ? nullptr : by_id_b_[other];
      if (b == nullptr) {
        AddMissing(seen, /*in_a=*/false, other != Alignment::kNone, PlaceOf(seen));
        continue;
      }
      position_of_b_[b] = seen.order + 1ull;
      ComparePair(seen, *b, *seen.def);
    }
    for (const AlignedGroup& group : alignment_.groups()) {
      if (by_id_a_[group.a.front()] == nullptr) CompareGroup(group);
    }
    STATCOLLECT_RETURN_IF_ERROR(judge_.status());
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

  static void Index(const Observations& side, const RankCatalogue& catalogue,
                    std::vector<const Observation*>& by_id) {
    by_id.assign(catalogue.activations.size(), nullptr);
    for (const Observation& seen : side) by_id[seen.def->id] = &seen;
  }

  static bool HasUpdate(const Observations& side) {
    return std::any_of(side.begin(), side.end(), [](const Observation& seen) {
      return StageOf(seen.def->key) == Stage::kOptimizer;
    });
  }

  ReportOrder PlaceOf(const Observation& of_a) const {
    return order_a_.PlaceOf(of_a.def->key, of_a.order, to_.ranks.a);
  }

  Divergence NewRow(const TensorDef& def, const ReportOrder& place) const {
    Divergence row = MakeRow(def, to_.step, to_.ranks.a);
    row.segment = place.segment;
    if (to_.ranks.b != to_.ranks.a) row.rank_b = to_.ranks.b;
    return row;
  }

  void ComparePair(const Observation& a, const Observation& b, const TensorDef& def) {
    const Stage stage = alignment_.traits_a(def.id).stage;
    const Pair pair{&a, &b, judge_(a, b, def.id, /*interval=*/true)};
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
      SetComparison(row, comparison);
      row.a = MakeSide(*pair.a);
      row.b = MakeSide(*pair.b);
      if (pair.b->def != nullptr && pair.b->def->key.name != key.name)
        row.activation_b = pair.b->def->key.name;
      if (previous.def != nullptr) {
        row.previous = previous.def->key.name;
        row.previous_distance = previous.distance;
      }
      if (bitwise) to_.first_bitwise = PlacedRow{place, row};
    }
    if (!diverged) previous = {&def, comparison.distance ? comparison.distance->value : 0.0};
  }

  // The parts of a side that the step has; nothing if it lacks some.
  static std::vector<const Observation*> Parts(const std::vector<std::uint32_t>& ids,
                                               const std::vector<const Observation*>& by_id) {
    std::vector<const Observation*> parts;
    for (const std::uint32_t id : ids) {
      if (by_id[id] != nullptr) parts.push_back(by_id[id]);
    }
    return parts;
  }
  static std::vector<Observation> Copies(const std::vector<const Observation*>& parts) {
    std::vector<Observation> copies;
    for (const Observation* part : parts) copies.push_back(*part);
    return copies;
  }

  void CompareGroup(const AlignedGroup& group) {
    if (!alignment_.traits_a(group.a.front()).wanted) return;
    const auto a = Parts(group.a, by_id_a_), b = Parts(group.b, by_id_b_);
    const bool whole = a.size() == group.a.size() && b.size() == group.b.size();
    for (const Observation* part : b)
      position_of_b_[part] = a.empty() ? 0 : a.front()->order + 1ull;
    if (whole) {
      const FusedPair& fused = fused_.emplace_back(Fuse(group.relation, Copies(a), Copies(b)));
      const Observation& seen_a = observations_.emplace_back(fused.a.observation(a.front()->order));
      const Observation& seen_b = observations_.emplace_back(fused.b.observation(b.front()->order));
      return ComparePair(seen_a, seen_b, *a.front()->def);
    }
    // Some part is missing, so the others have nothing to be compared with.
    for (const Observation* part : a) AddMissing(*part, false, true, PlaceOf(*part));
    for (const Observation* part : b) {
      const Spot spot = a.empty() ? order_b_.At(part->order) : order_a_.At(a.front()->order);
      const std::uint64_t position = a.empty() ? 0 : a.front()->order + 1ull;
      AddMissing(
          *part, true, true,
          order_a_.PlaceAt(spot, position, part->def->key, order_b_, part->order, to_.ranks.a));
    }
  }

  void AddMissing(const Observation& seen, bool in_a, bool defined, const ReportOrder& place) {
    const std::uint32_t id = seen.def->id;
    if (in_a ? alignment_.HasB(id, Alignment::kMissingSeen)
             : alignment_.HasA(id, Alignment::kMissingSeen))
      return;
    Divergence row = NewRow(*seen.def, place);
    row.reason = in_a ? Reason::kMissingInA : Reason::kMissingInB;
    (in_a ? row.b : row.a) = MakeSide(seen);
    to_.missing.push_back({.placed = {place, std::move(row)},
                           .in_a = in_a,
                           .defined = defined,
                           .label = Label(seen.def->key),
                           .id = id});
  }

  // Behind the last matched one before it, or as much later in the step as B ran it.
  void AddMissingInA() {
    std::uint64_t position = 0;
    std::uint32_t after = 0;
    Spot of_a, of_b;
    for (const Observation& left : b_) {
      const ActivationTraits& traits = alignment_.traits_b(left.def->id);
      const Spot now = order_b_.At(left.order);
      const auto matched = position_of_b_.find(&left);
      if (matched != position_of_b_.end()) {
        position = matched->second;
        of_a = position == 0 ? Spot() : order_a_.At(static_cast<std::uint32_t>(position - 1));
        of_b = position == 0 ? Spot() : now;
      }
      if (matched != position_of_b_.end() || !traits.wanted || traits.grouped) continue;
      ReportOrder place = order_a_.PlaceAt(Behind(of_a, of_b, now), position, left.def->key,
                                           order_b_, left.order, to_.ranks.a);
      place.after = ++after;
      AddMissing(left, /*in_a=*/true, alignment_.a_of(left.def->id) != Alignment::kNone, place);
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
    for (const Observation& seen : a_) {
      const std::uint32_t other = alignment_.b_of(seen.def->id);
      if (!IsOfOutput(seen.def->key) || other == Alignment::kNone || by_id_b_[other] == nullptr)
        continue;
      of_a.insert(CallOf(seen.def->key));
      of_b.insert(CallOf(by_id_b_[other]->def->key));
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
  std::vector<const Observation*> by_id_a_, by_id_b_;
  std::map<const Observation*, std::uint64_t> position_of_b_;  // in A's order, of what is matched
  std::map<std::tuple<Stage, std::uint32_t, Mode>, Agreeing> agreeing_;
  std::vector<Pair> forward_;
  ForwardTrace trace_;
  std::deque<FusedPair> fused_;
  std::deque<Observation> observations_;
  const StepOrder order_a_, order_b_;
};

}  // namespace

Status CompareInDetail(const DiffContext& context, const std::vector<Observation>& a,
                       const std::vector<Observation>& b, RankStepFindings& to) {
  return DetailedComparison(context, a, b, to).Run();
}

}  // namespace statcollect::query
