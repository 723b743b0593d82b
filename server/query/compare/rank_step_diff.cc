#include "server/query/compare/rank_step_diff.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "common/loss_names.h"
#include "server/query/compare/column_diff.h"
#include "server/query/compare/detailed_comparison.h"
#include "server/query/compare/fused_pair.h"
#include "server/query/compare/loaded_step.h"
#include "server/query/compare/loss_diff.h"
#include "server/query/compare/pair_judge.h"
#include "server/query/compare/step_distances.h"

namespace statcollect::query {
namespace {

// Counts over many steps; only steps of which a report may say more are looked at in detail.
class RankScan {
 public:
  RankScan(const DiffContext& context, const RankSteps& steps)
      : context_(context),
        steps_(steps),
        cursor_a_(context.a, steps.attempt_a, steps.ranks.a, Bounds(steps)),
        cursor_b_(context.b, steps.attempt_b, steps.ranks.b, Bounds(steps)),
        columns_(context, follower_, distances_) {}

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

  // What a quick look at a step could not decide.
  struct Quick {
    bool skipped = false;       // equal blocks were not decoded, or blocks compared as columns
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
    STATCOLLECT_ASSIGN_OR_RETURN(auto alignment, CurrentAlignment());
    Quick quick;
    PairJudge judge(context_, at);
    at.alignment = alignment;
    follower_.BeginStep(at.alignment->a().activations.size());
    STATCOLLECT_RETURN_IF_ERROR(LoadStep(at, judge, quick));
    STATCOLLECT_ASSIGN_OR_RETURN(at.alignment, Define(at.step));
    follower_.MakeRoom(at.alignment->a().activations.size());
    STATCOLLECT_RETURN_IF_ERROR(CompareLoaded(at, judge, quick));
    distances_.MoveTo(at.tally);
    NoteRise(at);
    const DetailLimits& limits = context_.limits;
    const bool in_detail =
        quick.missing || (at.tally.diverged > 0 && limits.WantsRows(at.step)) ||
        (quick.not_identical && limits.WantsBitwise(at.step)) ||
        (limits.WantsOrder(at.step) && (quick.out_of_order || (quick.moved && quick.skipped)));
    const bool with_losses = (limits.WantsRows(at.step) || limits.WantsBitwise(at.step)) &&
                             LossesDiffer(at.losses_a, at.losses_b);
    in_detail_ = in_detail;
    if (quick.moved) as_columns_ = false;  // the order is looked for in what is loaded
    if (!in_detail && !with_losses) return Status::Ok();
    STATCOLLECT_RETURN_IF_ERROR(quick.skipped ? LookAgain(at, in_detail)
                                              : LookCloser(at, in_detail));
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
    STATCOLLECT_ASSIGN_OR_RETURN(const auto a,
                                 context_.a.Catalogue(steps_.attempt_a, steps_.ranks.a));
    STATCOLLECT_ASSIGN_OR_RETURN(const auto b,
                                 context_.b.Catalogue(steps_.attempt_b, steps_.ranks.b));
    return AlignmentOf(*a, *b);
  }
  const Alignment* AlignmentOf(const RankCatalogue& a, const RankCatalogue& b) {
    if (alignment_ == nullptr || &alignment_->a() != &a || &alignment_->b() != &b) {
      alignment_ = &context_.aligner.For(steps_.place, a, b);
    }
    return alignment_;
  }
  // With the definitions that the loaded blocks need.
  Result<const Alignment*> Define(std::uint64_t step) {
    STATCOLLECT_ASSIGN_OR_RETURN(
        const auto a,
        context_.a.CatalogueOf(steps_.attempt_a, steps_.ranks.a, step, loaded_a_.blocks()));
    STATCOLLECT_ASSIGN_OR_RETURN(
        const auto b,
        context_.b.CatalogueOf(steps_.attempt_b, steps_.ranks.b, step, loaded_b_.blocks()));
    return AlignmentOf(*a, *b);
  }

  // Decodes the step's blocks, except those that are equal on both sides, and those that are
  // compared as columns.
  Status LoadStep(RankStepFindings& at, PairJudge& judge, Quick& quick) {
    const Alignment& alignment = *at.alignment;
    const bool as_columns = !ExpectsDetail(at.step);
    loaded_a_.Clear();
    loaded_b_.Clear();
    numbers_a_.clear();
    for (std::uint32_t number = 0;; ++number) {
      distances_.BeginBlock(number);
      const BlockHead* const a = cursor_a_.Peek(at.step);
      const BlockHead* const b = cursor_b_.Peek(at.step);
      if (a == nullptr && b == nullptr) break;
      const bool side_by_side = a != nullptr && b != nullptr && a->activation == b->activation;
      const bool equal = side_by_side && alignment.same_ids() && a->records == b->records &&
                         a->digest == b->digest;
      if (equal && SkipEqual(*a, alignment, at)) {
        quick.skipped = true;
        continue;
      }
      if (side_by_side && !equal && as_columns && as_columns_ &&
          !as_records_.contains(a->activation)) {
        STATCOLLECT_ASSIGN_OR_RETURN(const auto compared, CompareColumns(at, judge, quick));
        if (compared) continue;
      }
      const bool take_a =
          side_by_side || b == nullptr || (a != nullptr && a->activation < b->activation);
      const bool take_b = side_by_side || !take_a;
      if (equal) to_remember_.push_back({*a, loaded_a_.blocks().size()});
      if (take_a) numbers_a_.push_back(number);
      if (take_a && !cursor_a_.Load(!equal, &loaded_a_.Add())) return cursor_a_.status();
      if (take_b && !cursor_b_.Load(!equal, &loaded_b_.Add())) return cursor_b_.status();
    }
    STATCOLLECT_RETURN_IF_ERROR(cursor_a_.status());
    STATCOLLECT_RETURN_IF_ERROR(cursor_b_.status());
    RememberContents(alignment);
    return Status::Ok();
  }

  // Whether the step is likely to be looked at in detail, for which its blocks must be loaded: like
  // the one before.
  bool ExpectsDetail(std::uint64_t step) const {
    return in_detail_ && (context_.limits.WantsRows(step) || context_.limits.WantsBitwise(step));
  }

  // The next block of each side. False: they must be loaded.
  Result<bool> CompareColumns(RankStepFindings& at, PairJudge& judge, Quick& quick) {
    const NumberColumns* const a = cursor_a_.Columns();
    const NumberColumns* const b = a == nullptr ? nullptr : cursor_b_.Columns();
    STATCOLLECT_RETURN_IF_ERROR(cursor_a_.status());
    STATCOLLECT_RETURN_IF_ERROR(cursor_b_.status());
    as_columns_ = a != nullptr && b != nullptr;
    const auto compare = [&](const Observation& of_a, const Observation& of_b, std::uint32_t id_a,
                             Stage stage) {
      ComparePair(of_a, of_b, id_a, stage, judge, at, quick);
    };
    if (!as_columns_ || !columns_.Count(*at.alignment, *a, *b, at, compare)) {
      as_records_.insert(cursor_a_.Peek(at.step)->activation);
      return false;
    }
    quick.not_identical |= at.tally.records > at.tally.identical;
    quick.skipped = true;
    cursor_a_.Skip();
    cursor_b_.Skip();
    return true;
  }

  // Equal digests of equal definitions: equal records. What stages they are of is known from an
  // earlier block of the same kind. A heat map also needs to know whose they are. False: not
  // skipped; a cursor may have failed.
  bool SkipEqual(const BlockHead& head, const Alignment& alignment, RankStepFindings& at) {
    const auto content = alignment.Known(head);
    if (!content) return false;
    const std::size_t records = head.records;  // the head moves on with the cursor
    if (!context_.cells) {
      cursor_a_.Skip();
    } else if (cursor_a_.LoadHashes(&skipped_)) {
      AddIdenticalCells(alignment, at);
    } else {
      return false;
    }
    cursor_b_.Skip();
    at.tally.records += records;
    at.tally.identical += records;
    at.tally.weights.seen += content->weights;
    at.tally.batches.seen += content->batches;
    return true;
  }

  void AddIdenticalCells(const Alignment& alignment, RankStepFindings& at) const {
    for (std::size_t i = 0; i < skipped_.activation.size(); ++i) {
      // Of a live run, and defined since the alignment was made: the next question shows it.
      if (skipped_.activation[i] >= alignment.a().activations.size()) continue;
      at.cells.push_back({.id = skipped_.activation[i],
                          .order = skipped_.order[i],
                          .of_b = false,
                          .level = kHeatIdentical});
    }
  }

  void RememberContents(const Alignment& alignment) {
    for (const auto& [head, index] : to_remember_) {
      Alignment::Content content;
      for (const std::uint32_t id : loaded_a_.blocks()[index].activation) {
        if (id >= alignment.a().activations.size()) continue;  // the alignment will be made again
        content.weights += alignment.traits_a(id).stage == Stage::kWeights ? 1 : 0;
        content.batches += alignment.traits_a(id).stage == Stage::kBatch ? 1 : 0;
      }
      if (AllHaveHashes(loaded_a_.blocks()[index], alignment.a()))
        alignment.Remember(head, content);
    }
    to_remember_.clear();
  }

  // Records without one are counted apart, one by one.
  static bool AllHaveHashes(const StatColumns& block, const RankCatalogue& catalogue) {
    return std::all_of(block.layout.begin(), block.layout.end(), [&](std::uint32_t id) {
      return id < catalogue.layouts.size() && catalogue.layouts[id].Has(Statistic::kHash);
    });
  }

  // The pairs of PairedStep, but block by block and without keeping any, because this is done for
  // every step.
  Status CompareLoaded(RankStepFindings& at, PairJudge& judge, Quick& quick) {
    const Alignment& alignment = *at.alignment;
    loaded_a_.Index(alignment.a());
    loaded_b_.Index(alignment.b());
    forward_.clear();
    for (std::size_t at_block = 0; at_block < loaded_a_.blocks().size(); ++at_block) {
      const StatColumns& block = loaded_a_.blocks()[at_block];
      distances_.BeginBlock(numbers_a_[at_block]);
      for (std::size_t i = 0; i < block.size(); ++i) {
        const std::uint32_t id = block.activation[i];
        const ActivationTraits& traits = alignment.traits_a(id);
        if (!traits.wanted || traits.grouped) continue;
        const Observation a = loaded_a_.At(block, i);
        const std::optional<Observation> b = loaded_b_.Find(alignment.b_of(id));
        if (!b) {
          NoteMissing(a, /*of_b=*/false, at, quick);
          continue;
        }
        if (traits.stage == Stage::kForward && a.def->key.kind != Kind::kBuffer) {
          quick.moved |= a.order != b->order;
          forward_.push_back({a.def, a.order, b->order});
        }
        ComparePair(a, *b, id, traits.stage, judge, at, quick);
      }
    }
    distances_.BeginBlock(~std::uint32_t{0});  // behind all
    for (const AlignedGroup& group : alignment.groups()) CompareGroup(group, judge, at, quick);
    STATCOLLECT_RETURN_IF_ERROR(judge.status());
    LookForMissingInA(at, quick);
    if (quick.moved && !quick.skipped && context_.limits.WantsOrder(at.step))
      quick.out_of_order = IsOutOfOrder();
    return Status::Ok();
  }

  void ComparePair(const Observation& a, const Observation& b, std::uint32_t id, Stage stage,
                   PairJudge& judge, RankStepFindings& at, Quick& quick) {
    const Comparison judged = judge(a, b, id, /*interval=*/false);
    at.tally.CountAgreement(judged, stage, IsGiven(stage, *a.layout, *b.layout));
    if (const auto distance = MeasuredDistance(judged)) distances_.Add(*distance);
    // Pieces of a batch, and records of other tools, have neither hash nor sketch.
    const bool hashed = a.layout->Has(Statistic::kHash) && b.layout->Has(Statistic::kHash);
    at.tally.sketches_differ |= hashed && a.sketch.size() != b.sketch.size();
    at.tally.definitions_differ |= hashed && a.layout->hash_kind != b.layout->hash_kind;
    at.alignment->MarkA(id, Alignment::kCompared);
    if (a.layout->dtype != b.layout->dtype) NoteOtherDTypes(a, b, id, at);
    if (judged.agreement == Agreement::kDiverged) at.alignment->MarkA(id, Alignment::kDiverged);
    quick.not_identical |= judged.agreement != Agreement::kIdentical;
    if (context_.cells)
      at.cells.push_back({.id = id, .order = a.order, .of_b = false, .level = HeatLevel(judged)});
    if (judged.agreement == Agreement::kIdentical || judged.agreement == Agreement::kIncomparable)
      return;
    constexpr float kUnmeasured = 1e30F;
    follower_.Note(id, judged.distance ? static_cast<float>(judged.distance->value) : kUnmeasured);
  }

  static void NoteOtherDTypes(const Observation& a, const Observation& b, std::uint32_t id,
                              RankStepFindings& at) {
    at.alignment->MarkA(id, Alignment::kOtherDType);
    if (!at.tally.other_dtypes) at.tally.other_dtypes = {a.layout->dtype, b.layout->dtype};
  }

  void CompareGroup(const AlignedGroup& group, PairJudge& judge, RankStepFindings& at,
                    Quick& quick) {
    if (!at.alignment->traits_a(group.a.front()).wanted) return;
    const auto parts_a = PartsOf(group.a, loaded_a_), parts_b = PartsOf(group.b, loaded_b_);
    if (const auto fused = FuseGroup(group, parts_a, parts_b)) {
      return ComparePair(fused->a.observation(parts_a.front().order),
                         fused->b.observation(parts_b.front().order), group.a.front(),
                         at.alignment->traits_a(group.a.front()).stage, judge, at, quick);
    }
    for (const Observation& part : parts_a) NoteMissing(part, /*of_b=*/false, at, quick);
    for (const Observation& part : parts_b) NoteMissing(part, /*of_b=*/true, at, quick);
  }

  // `of_b`: whose record it is; the other run has nothing to compare it with.
  void NoteMissing(const Observation& lone, bool of_b, RankStepFindings& at, Quick& quick) const {
    const std::uint32_t id = lone.def->id;
    quick.missing |= !(of_b ? at.alignment->HasB(id, Alignment::kMissingSeen)
                            : at.alignment->HasA(id, Alignment::kMissingSeen));
    if (context_.cells)
      at.cells.push_back({.id = id, .order = lone.order, .of_b = of_b, .level = kHeatMissing});
  }

  void LookForMissingInA(RankStepFindings& at, Quick& quick) {
    for (const StatColumns& block : loaded_b_.blocks()) {
      for (std::size_t i = 0; i < block.size(); ++i) {
        const std::uint32_t id = block.activation[i];
        const ActivationTraits& traits = at.alignment->traits_b(id);
        if (traits.wanted && !traits.grouped && !loaded_a_.Has(at.alignment->a_of(id)))
          NoteMissing(loaded_b_.At(block, i), /*of_b=*/true, at, quick);
      }
    }
  }

  // Whether B left A's order within some forward pass.
  bool IsOutOfOrder() {
    std::sort(forward_.begin(), forward_.end(),
              [](const Ordered& x, const Ordered& y) { return x.a < y.a; });
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
    STATCOLLECT_ASSIGN_OR_RETURN(const auto a,
                                 context_.a.Read(steps_.attempt_a, steps_.ranks.a, at.step));
    if (!in_detail) return LookAt(a.observations, {}, false, at);
    STATCOLLECT_ASSIGN_OR_RETURN(const auto b,
                                 context_.b.Read(steps_.attempt_b, steps_.ranks.b, at.step));
    // Read may have met more definitions.
    STATCOLLECT_ASSIGN_OR_RETURN(at.alignment, CurrentAlignment());
    return LookAt(a.observations, b.observations, true, at);
  }

  // Not in detail: only for where A's losses stand.
  Status LookAt(const std::vector<Observation>& a, const std::vector<Observation>& b,
                bool in_detail, RankStepFindings& at) {
    if (!at.losses_a.empty()) at.loss_spots = SpotsOfLosses(a, at.losses_a);
    return in_detail ? CompareInDetail(context_, a, b, at) : Status::Ok();
  }

  void SetLimits(const RankStepFindings& at) {
    if (at.first_bitwise) context_.limits.EnoughBitwise(at.step);
    if (at.out_of_place && !at.out_of_place->keeps_reason) context_.limits.EnoughOrder(at.step);
    // Rows of values: where they are many enough, no later step adds any, and origins are sought up
    // to here.
    if (at.rows.size() >= context_.limits.rows_max()) context_.limits.EnoughRows(at.step);
  }

  Status AddLosses(std::vector<RankStepFindings>& all) {
    if (!context_.losses || all.empty()) return Status::Ok();
    const StepBounds bounds{.first = all.front().step, .last = all.back().step};
    const auto add = [&](const RunView& view, std::size_t attempt, std::uint32_t rank,
                         auto member) -> Status {
      STATCOLLECT_ASSIGN_OR_RETURN(auto scalars, view.Scalars(attempt, rank, bounds));
      auto at = all.begin();
      for (ScalarRecord& scalar : scalars) {
        while (at != all.end() && at->step < scalar.step) ++at;
        if (at == all.end()) break;
        if (at->step == scalar.step && IsLoss(scalar.name))
          ((*at).*member).push_back(std::move(scalar));
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
    BlockHead head;
    std::size_t index = 0;
  };

  const DiffContext& context_;
  const RankSteps& steps_;
  BlockCursor cursor_a_, cursor_b_;
  LoadedStep loaded_a_, loaded_b_;
  HashColumns skipped_;  // of an equal block
  const Alignment* alignment_ = nullptr;
  std::vector<Ordered> forward_;
  std::vector<ToRemember> to_remember_;
  DistanceFollower follower_;
  StepDistances distances_;
  std::vector<std::uint32_t> numbers_a_;  // of the loaded blocks of A, among all of the step
  ColumnDiff columns_;
  bool as_columns_ = true;  // false: the scans have none, or the order must be looked at
  std::set<std::uint32_t> as_records_;  // first activations of blocks that do not pair off
  bool in_detail_ = true;               // the last step was looked at in detail
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

Result<std::vector<RankStepFindings>> CompareRankSteps(const DiffContext& context,
                                                       const RankSteps& steps,
                                                       const std::stop_token& stop) {
  return RankScan(context, steps).Run(stop);
}

}  // namespace statcollect::query
