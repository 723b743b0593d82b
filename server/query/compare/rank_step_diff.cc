#include "server/query/compare/rank_step_diff.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "server/query/compare/combine.h"
#include "server/query/compare/loss_diff.h"

namespace statcollect::query {
namespace {

// Judges pairs of one rank and step; looks the noise up when the first pair might need it.
class Judge {
 public:
  Judge(const DiffContext& context, const RankStepFindings& at) : context_(context), at_(at) {}

  // `id_a`: whose noise counts. `interval`: with the distance's interval. After a failure (status) noise is
  // 0.
  Comparison operator()(const Observation& a, const Observation& b, std::uint32_t id_a, bool interval) {
    Comparison comparison = Compare(a, b, context_.tolerance, context_.exact, interval);
    const bool by_size = comparison.reason == Reason::kNumeric || comparison.reason == Reason::kNonfinite;
    if (context_.noise != nullptr && by_size && comparison.agreement == Agreement::kDiverged &&
        !context_.exact)
      WeighByNoise(NoiseOf(id_a), comparison);
    return comparison;
  }
  const Status& status() const { return status_; }

 private:
  double NoiseOf(std::uint32_t id_a) {
    if (!noise_) {
      auto noise = context_.noise->At(at_.attempt_a, at_.ranks.a, at_.step);
      status_ = noise.status();
      noise_ = noise.ok() ? *std::move(noise) : std::vector<double>();
    }
    return id_a < noise_->size() ? (*noise_)[id_a] : 0;
  }

  const DiffContext& context_;
  const RankStepFindings& at_;
  Status status_;
  std::optional<std::vector<double>> noise_;
};

// --- with everything a report may say, one step at a time

// The last activation of a stage and micro-batch that agrees.
struct Agreeing {
  const TensorDef* def = nullptr;
  double distance = 0;
};

class DetailedComparison {
 public:
  using Observations = std::vector<Observation>;  // of a step, in the order of execution

  // What it borrows must outlive it.
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
    for (const AlignedGroup& group : alignment_.groups()) CompareGroup(group);
    STATCOLLECT_RETURN_IF_ERROR(judge_.status());
    AddMissingInA();
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
    return std::any_of(side.begin(), side.end(),
                       [](const Observation& seen) { return StageOf(seen.def->key) == Stage::kOptimizer; });
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
    forward_.push_back(pair);
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
      Divergence row = NewRow(def, place);
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
      if (diverged) to_.rows.push_back({place, std::move(row)});
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
  static Combined Together(const std::vector<const Observation*>& parts) {
    std::vector<Observation> copies;
    for (const Observation* part : parts) copies.push_back(*part);
    return Combine(copies);
  }

  void CompareGroup(const AlignedGroup& group) {
    const auto a = Parts(group.a, by_id_a_), b = Parts(group.b, by_id_b_);
    const bool whole = a.size() == group.a.size() && b.size() == group.b.size();
    for (const Observation* part : b) position_of_b_[part] = a.empty() ? 0 : a.front()->order + 1ull;
    if (whole) {
      const Combined& combined_a = combined_.emplace_back(Together(a));
      const Combined& combined_b = combined_.emplace_back(Together(b));
      const Observation& seen_a = observations_.emplace_back(combined_a.observation(a.front()->order));
      const Observation& seen_b = observations_.emplace_back(combined_b.observation(b.front()->order));
      return ComparePair(seen_a, seen_b, *a.front()->def);
    }
    // Some part is missing: what is there has nothing to stand for.
    for (const Observation* part : a) AddMissing(*part, false, true, PlaceOf(*part));
    for (const Observation* part : b) {
      const Spot spot = a.empty() ? order_b_.At(part->order) : order_a_.At(a.front()->order);
      const std::uint64_t position = a.empty() ? 0 : a.front()->order + 1ull;
      AddMissing(*part, true, true,
                 order_a_.PlaceAt(spot, position, part->def->key, order_b_, part->order, to_.ranks.a));
    }
  }

  void AddMissing(const Observation& seen, bool in_a, bool defined, const ReportOrder& place) {
    const std::uint32_t id = seen.def->id;
    if (in_a ? alignment_.HasB(id, Alignment::kMissingSeen) : alignment_.HasA(id, Alignment::kMissingSeen))
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
      ReportOrder place = order_a_.PlaceAt(Behind(of_a, of_b, now), position, left.def->key, order_b_,
                                           left.order, to_.ranks.a);
      place.after = ++after;
      AddMissing(left, /*in_a=*/true, alignment_.a_of(left.def->id) != Alignment::kNone, place);
    }
  }

  // As far behind `of_a` as `now` is behind `of_b`, in B.
  static Spot Behind(const Spot& of_a, const Spot& of_b, const Spot& now) {
    if (now.segment > of_b.segment) return {of_a.segment + now.segment - of_b.segment, now.pass};
    return {of_a.segment, of_a.pass + now.pass - of_b.pass};
  }

  // Within each forward pass, in A's order: the first activation that B ran after one of its successors.
  void CompareOrder() {
    std::map<std::pair<std::uint32_t, Mode>, const Observation*> earliest;  // of B, among what follows in A
    const Pair* first = nullptr;
    for (auto pair = forward_.rbegin(); pair != forward_.rend(); ++pair) {
      const TensorKey& key = pair->a->def->key;
      const Observation*& after = earliest[{key.micro_batch, key.mode}];
      if (after != nullptr && after->order < pair->b->order) first = &*pair;
      if (after == nullptr || pair->b->order < after->order) after = pair->b;
    }
    if (first == nullptr) return;
    const ReportOrder place = PlaceOf(*first->a);
    Divergence row = NewRow(*first->a->def, place);
    row.reason = Reason::kOrder;
    row.a = MakeSide(*first->a);
    row.b = MakeSide(*first->b);
    const Reason reason = first->comparison.reason;
    const bool keeps = reason == Reason::kShape || reason == Reason::kDType;
    to_.out_of_place = OutOfPlace{{place, std::move(row)}, first->comparison.agreement, keeps};
  }

  const DiffContext& context_;
  const Alignment& alignment_;
  Judge judge_;
  const Observations& a_;
  const Observations& b_;
  RankStepFindings& to_;
  std::vector<const Observation*> by_id_a_, by_id_b_;
  std::map<const Observation*, std::uint64_t> position_of_b_;  // in A's order, of what is matched
  std::map<std::tuple<Stage, std::uint32_t, Mode>, Agreeing> agreeing_;
  std::vector<Pair> forward_;
  ForwardTrace trace_;
  std::deque<Combined> combined_;
  std::deque<Observation> observations_;
  const StepOrder order_a_, order_b_;
};

// --- counts only, over many steps

// Blocks of one side, step by step.
class BlockCursor {
 public:
  BlockCursor(const RunView& view, std::size_t attempt, std::uint32_t rank, StepBounds steps)
      : scan_(view.Scan(attempt, rank, steps)) {
    Advance();
  }
  // The head of the next block of a step; nullptr if there is none. Goes over blocks of earlier steps.
  const BlockHead* Peek(std::uint64_t step) {
    while (there_ && scan_->head().step < step) Advance();
    return there_ && scan_->head().step == step ? &scan_->head() : nullptr;
  }
  void Skip() { Advance(); }
  bool Load(bool sketches, StatColumns* columns) {
    const bool loaded = scan_->Load(sketches, columns);
    there_ = loaded && there_;
    if (loaded) Advance();
    return loaded;
  }
  const Status& status() const { return scan_->status(); }

 private:
  void Advance() { there_ = scan_->NextHead(); }

  std::unique_ptr<StatScan> scan_;
  bool there_ = false;
};

// Blocks of one side of a step, and where each activation is in them. Keeps its memory from step to step.
class LoadedStep {
 public:
  void Clear() { count_ = 0; }
  StatColumns& Add() {
    if (count_ == blocks_.size()) blocks_.emplace_back();
    return blocks_[count_++];
  }
  std::span<const StatColumns> blocks() const { return std::span(blocks_).first(count_); }
  void Index(const RankCatalogue& catalogue) {
    catalogue_ = &catalogue;
    ++generation_;
    places_.resize(catalogue.activations.size());
    for (std::uint32_t b = 0; b < count_; ++b) {
      for (std::uint32_t i = 0; i < blocks_[b].size(); ++i)
        places_[blocks_[b].activation[i]] = {generation_, b, i};
    }
  }
  bool Has(std::uint32_t id) const { return places_[id].generation == generation_; }
  // Precondition: Has(id).
  Observation Of(std::uint32_t id) const {
    const Spot& spot = places_[id];
    return At(blocks_[spot.block], spot.index);
  }
  Observation At(const StatColumns& block, std::size_t i) const {
    return {.def = &catalogue_->activations[block.activation[i]],
            .layout = &catalogue_->layouts[block.layout[i]],
            .stats = &block.stats[i],
            .sketch = block.SketchOf(i),
            .order = block.order[i]};
  }
  // In the order of execution.
  std::vector<Observation> InOrder() const {
    std::vector<Observation> all;
    for (const StatColumns& block : blocks()) {
      for (std::size_t i = 0; i < block.size(); ++i) all.push_back(At(block, i));
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Observation& x, const Observation& y) { return x.order < y.order; });
    return all;
  }

 private:
  struct Spot {
    std::uint32_t generation = 0, block = 0, index = 0;
  };
  const RankCatalogue* catalogue_ = nullptr;
  std::vector<StatColumns> blocks_;
  std::size_t count_ = 0;
  std::vector<Spot> places_;
  std::uint32_t generation_ = 0;
};

class RankScan {
 public:
  RankScan(const DiffContext& context, const RankSteps& steps)
      : context_(context),
        steps_(steps),
        cursor_a_(context.a, steps.attempt_a, steps.ranks.a, Bounds(steps)),
        cursor_b_(context.b, steps.attempt_b, steps.ranks.b, Bounds(steps)) {}

  Result<std::vector<RankStepFindings>> Run(const std::stop_token& stop) {
    std::vector<RankStepFindings> all;
    for (const std::uint64_t step : steps_.steps) {
      RankStepFindings& at = all.emplace_back();
      at.step = step;
      at.ranks = steps_.ranks;
      at.attempt_a = steps_.attempt_a;
      at.attempt_b = steps_.attempt_b;
    }
    STATCOLLECT_RETURN_IF_ERROR(AddLosses(all));
    std::size_t done = 0;
    for (; done < all.size() && !stop.stop_requested(); ++done)
      STATCOLLECT_RETURN_IF_ERROR(CompareStep(all[done]));
    all.resize(done);
    if (!all.empty()) {
      all.back().rise.ends = true;
      if (follower_.differs()) all.back().rise.last = std::make_shared<Distances>(follower_.now());
    }
    return all;
  }

 private:
  static StepBounds Bounds(const RankSteps& steps) {
    return {.first = steps.steps.front(), .last = steps.steps.back()};
  }

  // What a quick look at a step left open.
  struct Quick {
    bool skipped = false;       // equal blocks were not decoded
    bool missing = false;       // something without counterpart that was not seen missing before
    bool moved = false;         // an order in a forward pass differs
    bool out_of_order = false;  // within a forward pass; only if nothing was skipped
    bool not_identical = false;
  };

  Status CompareStep(RankStepFindings& at) {
    const bool in_a = cursor_a_.Peek(at.step) != nullptr, in_b = cursor_b_.Peek(at.step) != nullptr;
    if (!in_a || !in_b) {
      // Died, or records elsewhere: nothing to compare.
      at.only_in_a = in_a;
      at.only_in_b = in_b;
      STATCOLLECT_RETURN_IF_ERROR(cursor_a_.status());
      return cursor_b_.status();
    }
    auto alignment = CurrentAlignment();
    if (!alignment.ok()) return alignment.status();
    Quick quick;
    STATCOLLECT_RETURN_IF_ERROR(LoadStep(at, **alignment, quick));
    auto defined = Define(at.step);
    if (!defined.ok()) return defined.status();
    at.alignment = *defined;
    follower_.BeginStep(at.alignment->a().activations.size());
    STATCOLLECT_RETURN_IF_ERROR(CompareLoaded(at, quick));
    NoteRise(at);
    const DetailLimits& limits = context_.limits;
    const bool in_detail =
        quick.missing || (at.tally.diverged > 0 && limits.WantsRows(at.step)) ||
        (quick.not_identical && limits.WantsBitwise(at.step)) ||
        (limits.WantsOrder(at.step) && (quick.out_of_order || (quick.moved && quick.skipped)));
    const bool with_losses =
        (limits.WantsRows(at.step) || limits.WantsBitwise(at.step)) && LossesDiffer(at.losses_a, at.losses_b);
    if (!in_detail && !with_losses) return Status::Ok();
    STATCOLLECT_RETURN_IF_ERROR(quick.skipped ? LookAgain(at, in_detail) : LookCloser(at, in_detail));
    if (with_losses) context_.limits.EnoughBitwise(at.step);
    SetLimits(at);
    return Status::Ok();
  }

  void NoteRise(RankStepFindings& at) {
    at.rise.differs = follower_.differs() || LossesDiffer(at.losses_a, at.losses_b);
    at.rise.rise = follower_.Rise();
    if (follower_.differs() && at.step == steps_.steps.front())
      at.rise.first = std::make_shared<Distances>(follower_.now());
  }

  Result<const Alignment*> CurrentAlignment() {
    auto a = context_.a.Catalogue(steps_.attempt_a, steps_.ranks.a);
    auto b = context_.b.Catalogue(steps_.attempt_b, steps_.ranks.b);
    if (!a.ok()) return a.status();
    if (!b.ok()) return b.status();
    return AlignmentOf(**a, **b);
  }
  const Alignment* AlignmentOf(const RankCatalogue& a, const RankCatalogue& b) {
    if (alignment_ == nullptr || &alignment_->a() != &a || &alignment_->b() != &b) {
      alignment_ = &context_.aligner.For(steps_.place, a, b);
    }
    return alignment_;
  }
  // With the definitions that the loaded blocks need.
  Result<const Alignment*> Define(std::uint64_t step) {
    auto a = context_.a.CatalogueOf(steps_.attempt_a, steps_.ranks.a, step, loaded_a_.blocks());
    auto b = context_.b.CatalogueOf(steps_.attempt_b, steps_.ranks.b, step, loaded_b_.blocks());
    if (!a.ok()) return a.status();
    if (!b.ok()) return b.status();
    return AlignmentOf(**a, **b);
  }

  // Decodes the step's blocks, but for those that are equal on both sides.
  Status LoadStep(RankStepFindings& at, const Alignment& alignment, Quick& quick) {
    loaded_a_.Clear();
    loaded_b_.Clear();
    while (true) {
      const BlockHead* const a = cursor_a_.Peek(at.step);
      const BlockHead* const b = cursor_b_.Peek(at.step);
      if (a == nullptr && b == nullptr) break;
      const bool side_by_side = a != nullptr && b != nullptr && a->activation == b->activation;
      const bool equal =
          side_by_side && alignment.same_ids() && a->records == b->records && a->digest == b->digest;
      if (equal && SkipEqual(*a, alignment, at.tally)) {
        quick.skipped = true;
        continue;
      }
      const bool take_a = side_by_side || b == nullptr || (a != nullptr && a->activation < b->activation);
      const bool take_b = side_by_side || !take_a;
      if (equal) to_remember_.push_back({a->activation, a->records, loaded_a_.blocks().size()});
      if (take_a && !cursor_a_.Load(!equal, &loaded_a_.Add())) return cursor_a_.status();
      if (take_b && !cursor_b_.Load(!equal, &loaded_b_.Add())) return cursor_b_.status();
    }
    STATCOLLECT_RETURN_IF_ERROR(cursor_a_.status());
    STATCOLLECT_RETURN_IF_ERROR(cursor_b_.status());
    RememberContents(alignment);
    return Status::Ok();
  }

  // Equal digests of equal definitions: equal records. What stages they are of is known from an earlier block
  // that began with the same activation and had as many.
  bool SkipEqual(const BlockHead& head, const Alignment& alignment, Tally& tally) {
    const auto content = alignment.Known(head.activation, head.records);
    if (!content) return false;
    tally.records += head.records;
    tally.identical += head.records;
    tally.weights_seen |= content->weights;
    tally.batches_seen |= content->batches;
    cursor_a_.Skip();
    cursor_b_.Skip();
    return true;
  }

  void RememberContents(const Alignment& alignment) {
    for (const auto& [activation, records, index] : to_remember_) {
      Alignment::Content content;
      for (const std::uint32_t id : loaded_a_.blocks()[index].activation) {
        if (id >= alignment.a().activations.size()) continue;  // then the alignment is made anew
        content.weights |= alignment.traits_a(id).stage == Stage::kWeights;
        content.batches |= alignment.traits_a(id).stage == Stage::kBatch;
      }
      if (AllHaveHashes(loaded_a_.blocks()[index], alignment.a()))
        alignment.Remember(activation, records, content);
    }
    to_remember_.clear();
  }

  // Records without one are counted apart, one by one.
  static bool AllHaveHashes(const StatColumns& block, const RankCatalogue& catalogue) {
    return std::all_of(block.layout.begin(), block.layout.end(), [&](std::uint32_t id) {
      return id < catalogue.layouts.size() && catalogue.layouts[id].Has(Statistic::kHash);
    });
  }

  Status CompareLoaded(RankStepFindings& at, Quick& quick) {
    const Alignment& alignment = *at.alignment;
    loaded_a_.Index(alignment.a());
    loaded_b_.Index(alignment.b());
    Judge judge(context_, at);
    std::uint64_t matched = 0;
    forward_.clear();
    for (const StatColumns& block : loaded_a_.blocks()) {
      for (std::size_t i = 0; i < block.size(); ++i) {
        const std::uint32_t id = block.activation[i];
        const ActivationTraits& traits = alignment.traits_a(id);
        if (!traits.wanted || traits.grouped) continue;
        const std::uint32_t other = alignment.b_of(id);
        if (other == Alignment::kNone || !loaded_b_.Has(other)) {
          quick.missing |= !alignment.HasA(id, Alignment::kMissingSeen);
          continue;
        }
        ++matched;
        const Observation a = loaded_a_.At(block, i), b = loaded_b_.Of(other);
        if (traits.stage == Stage::kForward) {
          quick.moved |= a.order != b.order;
          forward_.push_back({a.def, a.order, b.order});
        }
        ComparePair(a, b, id, traits.stage, judge, at, quick);
      }
    }
    for (const AlignedGroup& group : alignment.groups()) CompareGroup(group, judge, at, quick);
    STATCOLLECT_RETURN_IF_ERROR(judge.status());
    LookForMissingInA(alignment, matched, quick);
    if (quick.moved && !quick.skipped && context_.limits.WantsOrder(at.step))
      quick.out_of_order = IsOutOfOrder();
    return Status::Ok();
  }

  void ComparePair(const Observation& a, const Observation& b, std::uint32_t id, Stage stage, Judge& judge,
                   RankStepFindings& at, Quick& quick) {
    const Comparison judged = judge(a, b, id, /*interval=*/false);
    at.tally.Count(judged, stage);
    at.tally.sketches_differ |= a.sketch.size() != b.sketch.size();
    at.tally.definitions_differ |= a.layout->hash_kind != b.layout->hash_kind &&
                                   a.layout->Has(Statistic::kHash) && b.layout->Has(Statistic::kHash);
    at.alignment->MarkA(id, Alignment::kCompared);
    if (judged.agreement == Agreement::kDiverged) at.alignment->MarkA(id, Alignment::kDiverged);
    quick.not_identical |= judged.agreement != Agreement::kIdentical;
    if (judged.agreement == Agreement::kIdentical || judged.agreement == Agreement::kIncomparable) return;
    constexpr float kUnmeasured = 1e30F;
    follower_.Note(id, judged.distance ? static_cast<float>(judged.distance->value) : kUnmeasured);
  }

  void CompareGroup(const AlignedGroup& group, Judge& judge, RankStepFindings& at, Quick& quick) {
    std::vector<Observation> parts_a, parts_b;
    const auto gather = [](const auto& ids, const LoadedStep& loaded, std::vector<Observation>& parts) {
      for (const std::uint32_t id : ids) {
        if (loaded.Has(id)) parts.push_back(loaded.Of(id));
      }
    };
    gather(group.a, loaded_a_, parts_a);
    gather(group.b, loaded_b_, parts_b);
    if (parts_a.size() == group.a.size() && parts_b.size() == group.b.size()) {
      const Combined a = Combine(parts_a), b = Combine(parts_b);
      return ComparePair(a.observation(0), b.observation(0), group.a.front(),
                         at.alignment->traits_a(group.a.front()).stage, judge, at, quick);
    }
    for (const Observation& part : parts_a)
      quick.missing |= !at.alignment->HasA(part.def->id, Alignment::kMissingSeen);
    for (const Observation& part : parts_b)
      quick.missing |= !at.alignment->HasB(part.def->id, Alignment::kMissingSeen);
  }

  void LookForMissingInA(const Alignment& alignment, std::uint64_t matched, Quick& quick) {
    std::uint64_t wanted = 0;
    for (const StatColumns& block : loaded_b_.blocks()) {
      for (const std::uint32_t id : block.activation) {
        const ActivationTraits& traits = alignment.traits_b(id);
        wanted += traits.wanted && !traits.grouped ? 1 : 0;
      }
    }
    if (wanted == matched) return;
    for (const StatColumns& block : loaded_b_.blocks()) {
      for (const std::uint32_t id : block.activation) {
        const ActivationTraits& traits = alignment.traits_b(id);
        if (!traits.wanted || traits.grouped) continue;
        const std::uint32_t other = alignment.a_of(id);
        if (other != Alignment::kNone && loaded_a_.Has(other)) continue;
        quick.missing |= !alignment.HasB(id, Alignment::kMissingSeen);
      }
    }
  }

  // Whether B left A's order within some forward pass.
  bool IsOutOfOrder() {
    std::sort(forward_.begin(), forward_.end(), [](const Ordered& x, const Ordered& y) { return x.a < y.a; });
    std::map<std::pair<std::uint32_t, Mode>, std::uint32_t> latest;
    const TensorKey* key = nullptr;
    std::uint32_t* last = nullptr;
    for (const Ordered& one : forward_) {
      const TensorKey& now = one.def->key;
      if (key == nullptr || now.micro_batch != key->micro_batch || now.mode != key->mode) {
        last = &latest.try_emplace({now.micro_batch, now.mode}, 0).first->second;
        key = &now;
      }
      if (one.b + 1 < *last) return true;
      *last = std::max(*last, one.b + 1);
    }
    return false;
  }

  // At what is loaded: all of the step.
  Status LookCloser(RankStepFindings& at, bool in_detail) {
    return LookAt(loaded_a_.InOrder(), in_detail ? loaded_b_.InOrder() : std::vector<Observation>(),
                  in_detail, at);
  }

  // At all of the step, of which equal blocks were not decoded.
  Status LookAgain(RankStepFindings& at, bool in_detail) {
    const auto a = context_.a.Read(steps_.attempt_a, steps_.ranks.a, at.step);
    if (!a.ok()) return a.status();
    if (!in_detail) return LookAt(a->observations, {}, false, at);
    const auto b = context_.b.Read(steps_.attempt_b, steps_.ranks.b, at.step);
    if (!b.ok()) return b.status();
    auto defined = CurrentAlignment();  // Read may have met more definitions
    if (!defined.ok()) return defined.status();
    at.alignment = *defined;
    return LookAt(a->observations, b->observations, true, at);
  }

  // Not in detail: only for where A's losses stand.
  Status LookAt(const std::vector<Observation>& a, const std::vector<Observation>& b, bool in_detail,
                RankStepFindings& at) {
    if (!at.losses_a.empty()) at.loss_spots = SpotsOfLosses(a, at.losses_a);
    return in_detail ? DetailedComparison(context_, a, b, at).Run() : Status::Ok();
  }

  void SetLimits(const RankStepFindings& at) {
    if (at.first_bitwise) context_.limits.EnoughBitwise(at.step);
    if (at.out_of_place && !at.out_of_place->keeps_reason) context_.limits.EnoughOrder(at.step);
    // Rows of values: where they are many enough, no later step adds any, and origins are sought up to here.
    if (at.rows.size() >= context_.limits.rows_max()) context_.limits.EnoughRows(at.step);
  }

  Status AddLosses(std::vector<RankStepFindings>& all) {
    if (!context_.losses || all.empty()) return Status::Ok();
    const StepBounds bounds{.first = all.front().step, .last = all.back().step};
    const auto add = [&](const RunView& view, std::size_t attempt, std::uint32_t rank,
                         auto member) -> Status {
      auto scalars = view.Scalars(attempt, rank, bounds);
      if (!scalars.ok()) return scalars.status();
      auto at = all.begin();
      for (ScalarRecord& scalar : *scalars) {
        while (at != all.end() && at->step < scalar.step) ++at;
        if (at == all.end()) break;
        if (at->step == scalar.step && IsLoss(scalar.name)) ((*at).*member).push_back(std::move(scalar));
      }
      return Status::Ok();
    };
    STATCOLLECT_RETURN_IF_ERROR(
        add(context_.a, steps_.attempt_a, steps_.ranks.a, &RankStepFindings::losses_a));
    return add(context_.b, steps_.attempt_b, steps_.ranks.b, &RankStepFindings::losses_b);
  }

  struct Ordered {
    const TensorDef* def = nullptr;
    std::uint32_t a = 0, b = 0;
  };
  struct ToRemember {
    std::uint32_t activation = 0;
    std::size_t records = 0, index = 0;
  };

  const DiffContext& context_;
  const RankSteps& steps_;
  BlockCursor cursor_a_, cursor_b_;
  LoadedStep loaded_a_, loaded_b_;
  const Alignment* alignment_ = nullptr;
  std::vector<Ordered> forward_;
  std::vector<ToRemember> to_remember_;
  DistanceFollower follower_;
};

}  // namespace

void SetComparison(Divergence& row, const Comparison& comparison) {
  row.reason = comparison.reason;
  row.tolerance = comparison.tolerance;
  row.times_noise = comparison.times_noise;
  if (!comparison.distance) return;
  row.distance = comparison.distance->value;
  row.distance_kind = comparison.distance->kind;
  if (comparison.distance->kind == DistanceKind::kSketch) {
    row.distance_low = comparison.distance->low;
    row.distance_high = comparison.distance->high;
  }
}

void Tally::Count(const Comparison& comparison, Stage stage) {
  if (comparison.agreement == Agreement::kIncomparable) {
    ++incomparable;
    return;
  }
  const bool same = comparison.agreement == Agreement::kIdentical;
  ++records;
  identical += same ? 1 : 0;
  within_tolerance += comparison.agreement == Agreement::kWithinTolerance ? 1 : 0;
  diverged += comparison.agreement == Agreement::kDiverged ? 1 : 0;
  without_hash += same && comparison.without_hash ? 1 : 0;
  const bool is_input = stage == Stage::kWeights || stage == Stage::kBatch;
  if (comparison.agreement == Agreement::kDiverged && comparison.reason == Reason::kNumeric && !is_input) {
    ++numeric;
    by_statistics += comparison.distance && comparison.distance->kind == DistanceKind::kStatistics ? 1 : 0;
  }
  weights_seen |= stage == Stage::kWeights;
  batches_seen |= stage == Stage::kBatch;
  const bool unproven = comparison.agreement == Agreement::kWithinTolerance && comparison.without_hash;
  weights_unproven |= stage == Stage::kWeights && unproven;
  weights_differ |= stage == Stage::kWeights && !same && !unproven;
  batches_differ |= stage == Stage::kBatch && !same;
  if (!comparison.distance || !(comparison.distance->value > 0) || std::isinf(comparison.distance->value))
    return;
  AddDistance(comparison.distance->value);
}

// Products instead of logarithms, as long as they neither overflow nor underflow.
void Tally::AddDistance(double distance) {
  constexpr double kSmallest = 1e-100, kLargest = 1e100;
  ++distances;
  distance_max = std::max(distance_max, distance);
  if (!(distance > kSmallest && distance < kLargest)) {
    distance_log_sum += std::log(distance);
    return;
  }
  distance_product *= distance;
  if (distance_product > kSmallest && distance_product < kLargest) return;
  distance_log_sum += std::log(distance_product);
  distance_product = 1;
}

double Tally::DistanceLogSum() const { return distance_log_sum + std::log(distance_product); }

void Tally::Add(const Tally& other) {
  records += other.records;
  identical += other.identical;
  within_tolerance += other.within_tolerance;
  diverged += other.diverged;
  incomparable += other.incomparable;
  without_hash += other.without_hash;
  numeric += other.numeric;
  by_statistics += other.by_statistics;
  weights_unproven |= other.weights_unproven;
  weights_seen |= other.weights_seen;
  weights_differ |= other.weights_differ;
  batches_seen |= other.batches_seen;
  batches_differ |= other.batches_differ;
  sketches_differ |= other.sketches_differ;
  definitions_differ |= other.definitions_differ;
  distances += other.distances;
  distance_log_sum += other.DistanceLogSum();
  distance_max = std::max(distance_max, other.distance_max);
}

Result<std::vector<RankStepFindings>> CompareRankSteps(const DiffContext& context, const RankSteps& steps,
                                                       const std::stop_token& stop) {
  return RankScan(context, steps).Run(stop);
}

}  // namespace statcollect::query
