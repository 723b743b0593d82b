#include "server/query/logical/logical_run.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "common/loss_names.h"
#include "common/names.h"
#include "common/placement.h"
#include "common/saturating.h"
#include "common/shape.h"
#include "common/text.h"
#include "server/query/logical/common_order.h"
#include "server/query/logical/cut.h"
#include "server/query/logical/logical_scan.h"
#include "server/query/logical/stage.h"

namespace statcollect::query {
namespace {

constexpr int kStepsLookedAt = 2;

TensorName NameOf(const TensorDef& def) {
  return {def.key.kind, def.key.name, def.key.output_path};
}

bool IsOfBatch(Kind kind) {
  return kind == Kind::kOutput || kind == Kind::kInput || kind == Kind::kInspect ||
         kind == Kind::kBatch || IsGradientOfActivation(kind);
}

// The order of a step: stages of a pipeline follow each other forward, and the other way round
// backward.
int PhaseOf(const TensorKey& key) {
  if (key.kind == Kind::kWeight && key.mode == Mode::kInit) return 0;
  if (key.kind == Kind::kBatch) return 1;
  if (IsGradientOfActivation(key.kind)) return 3;
  if (key.kind == Kind::kWeightGrad) return 4;
  return IsOfParameter(key.kind) ? 5 : 2;
}

std::uint64_t OrderOf(const TensorKey& key, std::uint32_t stage, std::uint32_t stages,
                      std::uint32_t order) {
  const int phase = PhaseOf(key);
  const bool backward = phase == 3 || phase == 4;
  const std::uint64_t place = backward ? stages - 1 - stage : stage;
  return (static_cast<std::uint64_t>(phase) << 48) | (place << 32) | order;
}

// Keeps the memory.
void Empty(StatColumns* block) {
  block->activation.clear();
  block->layout.clear();
  block->step.clear();
  block->order.clear();
  block->stats.clear();
  block->sketch_width = 0;
  block->sketch.clear();
  block->sample_count.clear();
  block->samples.clear();
}

bool HasHash(const Part& part) { return part.layout->Has(Statistic::kHash); }

bool IsConstant(const Part& part) {
  const Layout& layout = *part.layout;
  return layout.Trusts(Statistic::kMin) && layout.Trusts(Statistic::kMax) &&
         part.stats->has_finite && part.stats->min == part.stats->max && part.stats->numel > 1;
}

bool IsCut(const Layout& layout) {
  return layout.placement && (layout.placement->pieces > 1 || !IsWhole(View(*layout.placement)));
}

}  // namespace

Result<std::unique_ptr<LogicalRun>> LogicalRun::Open(RunReader& store, const std::string& run) {
  std::unique_ptr<LogicalRun> logical(new LogicalRun(store, run));
  STATCOLLECT_RETURN_IF_ERROR(logical->Read());
  STATCOLLECT_RETURN_IF_ERROR(logical->Classify());
  return logical;
}

Status LogicalRun::Read() {
  STATCOLLECT_ASSIGN_OR_RETURN(auto attempts, store_.Attempts(run_));
  for (const AttemptMeta& meta : attempts) {
    Attempt& attempt = attempts_.emplace_back();
    attempt.id = meta.id;
    STATCOLLECT_ASSIGN_OR_RETURN(attempt.ranks, store_.Ranks(meta.id));
    for (const auto& [rank, of] : attempt.ranks) attempt.members.emplace_back().rank = rank;
    WriterLock lock(mutex_);
    STATCOLLECT_RETURN_IF_ERROR(Grow(attempt));
    FindStages(attempt);
    Define(attempt);
  }
  return Status::Ok();
}

// Stages are numbered by their lowest rank.
void LogicalRun::FindStages(Attempt& attempt) {
  std::vector<WeightNames> stages;
  for (Member& member : attempt.members) {
    WeightNames weights;
    for (const TensorDef& def : member.activations) {
      if (def.key.kind == Kind::kWeight) weights.insert(def.key.name);
    }
    auto known = std::find(stages.begin(), stages.end(), weights);
    if (known == stages.end()) {
      known = std::find_if(stages.begin(), stages.end(),
                           [&](const WeightNames& stage) { return AreOfOneStage(stage, weights); });
      attempt.other_weights = attempt.other_weights || known != stages.end();
    }
    member.stage = static_cast<std::uint32_t>(known - stages.begin());
    if (known == stages.end()) stages.push_back(std::move(weights));
  }
  attempt.stages = static_cast<std::uint32_t>(std::max<std::size_t>(stages.size(), 1));
}

Status LogicalRun::Grow(Attempt& attempt) {
  for (Member& member : attempt.members) {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto read, store_.Definitions(attempt.id, member.rank));
    member.activations = read->activations;
    for (std::size_t i = member.layouts.size(); i < read->layouts.size(); ++i)
      member.layouts.push_back(read->layouts[i]);
  }
  return Status::Ok();
}

// Gives what is new its logical id, in the order of execution.
void LogicalRun::Define(Attempt& attempt) {
  std::vector<std::tuple<std::uint64_t, std::size_t, std::uint32_t>> fresh;  // order, member, id
  for (std::size_t i = 0; i < attempt.members.size(); ++i) {
    const Member& member = attempt.members[i];
    for (auto id = static_cast<std::uint32_t>(member.logical.size());
         id < member.activations.size(); ++id) {
      const std::uint64_t order = attempt.stages == 1 ? id
                                                      : OrderOf(member.activations[id].key,
                                                                member.stage, attempt.stages, id);
      fresh.emplace_back(order, i, id);
    }
  }
  std::sort(fresh.begin(), fresh.end());
  for (Member& member : attempt.members) member.logical.resize(member.activations.size(), kHidden);
  for (const auto& [order, i, id] : fresh) {
    Member& member = attempt.members[i];
    member.logical[id] = IdOf(attempt, member, member.activations[id]);
  }
}

std::uint32_t LogicalRun::IdOf(Attempt& attempt, const Member& member, const TensorDef& def) {
  const TensorName name = NameOf(def);
  const bool in_training = def.key.mode == Mode::kTrain;
  if (IsOfParameter(def.key.kind) && tied_.contains(def.key.name)) return kHidden;
  if (hidden_.contains(name) ||
      (fold_ && !sums_ && in_training && IsGradientOfActivation(def.key.kind)))
    return kHidden;
  attempt.holders[name].insert(member.rank);
  TensorDef logical = def;
  const bool one_batch = in_training || (def.key.mode == Mode::kEval && evaluated_.contains(name));
  if (fold_ && one_batch && IsOfBatch(def.key.kind)) logical.key.micro_batch = logical.key.call = 0;
  const auto [known, is_new] =
      attempt.ids.try_emplace(logical.key, static_cast<std::uint32_t>(attempt.activations.size()));
  if (!is_new) return known->second;
  logical.id = known->second;
  attempt.activations.push_back(std::move(logical));
  return known->second;
}

void LogicalRun::Choose(std::set<TensorName> hidden, std::set<std::string> tied, bool fold,
                        std::set<TensorName> evaluated) {
  WriterLock lock(mutex_);
  hidden_ = std::move(hidden);
  tied_ = std::move(tied);
  evaluated_ = std::move(evaluated);
  fold_ = fold;
  DefineAgain();
}

void LogicalRun::ChooseAlone() {
  WriterLock lock(mutex_);
  hidden_ = cut_.unknown;
  sums_ = true;
  fold_ = cut_.batch_of_step;
  DefineAgain();
}

void LogicalRun::DefineAgain() {
  for (Attempt& attempt : attempts_) {
    attempt.activations.clear();
    attempt.ids.clear();
    attempt.holders.clear();
    attempt.plans.clear();
    for (Member& member : attempt.members) member.logical.clear();
    Define(attempt);
  }
}

// A parameter that is the same on all ranks when it is loaded is a replica, and so are its gradient
// and state: where those differ, the ranks no longer agree.
Status LogicalRun::Classify() {
  for (Attempt& attempt : attempts_) {
    cut_.trained.clear();
    cut_.evaluated.clear();
    cut_.ranks = std::max(cut_.ranks, static_cast<std::uint32_t>(attempt.members.size()));
    cut_.stages = std::max(cut_.stages, attempt.stages);
    std::set<std::string> replicated;
    STATCOLLECT_ASSIGN_OR_RETURN(auto steps, StatSteps(attempt.id, 0, {}));
    if (steps.size() > kStepsLookedAt) steps.resize(kStepsLookedAt);
    for (const std::uint64_t number : steps) {
      Step step;
      STATCOLLECT_RETURN_IF_ERROR(ReadStep(attempt, number, /*sketches=*/false, step));
      for (const auto& [id, parts] : step.parts) {
        Judge(attempt.activations[id], parts, &replicated);
        if (number == steps.front()) CountElements(attempt.activations[id], parts);
      }
    }
  }
  return Status::Ok();
}

void LogicalRun::Judge(const TensorDef& def, const std::vector<Part>& parts,
                       std::set<std::string>* replicated) {
  const TensorName name = NameOf(def);
  if (IsOfBatch(def.key.kind) && def.key.mode == Mode::kTrain) {
    cut_.micro_batches = std::max(cut_.micro_batches, SaturatingAdd(def.key.micro_batch, 1));
    const bool is_later = def.key.micro_batch > 0 && !IsGradientOfActivation(def.key.kind);
    const auto& place = parts.front().layout->placement;
    if (is_later && place && place->pieces <= 1 && MakePlan(parts).tiling == Tiling::kIncomplete)
      cut_.batch_of_step = true;
  }
  bool equal = true, placed = true, bare = true;
  TensorCut& cut = cut_.tensors[name];
  const bool first = cut.prints.empty();
  if (first) {
    const Layout& layout = *parts.front().layout;
    cut.shape = layout.shape;
    cut.whole = layout.placement ? layout.placement->global_shape : layout.shape;
  }
  std::uint64_t print = 0;
  for (const Part& part : parts) {
    const Layout& layout = *part.layout;
    print += PrintOf(part.rank, layout);
    placed = placed && layout.placement && !layout.placement->partial;
    bare = bare && !layout.placement;
    equal = equal && HasHash(part) && part.stats->hash == parts.front().stats->hash;
    if (!layout.placement) continue;
    if (IsCut(layout)) cut_.placed.insert(name);
    cut_.pieces = std::max(cut_.pieces, layout.placement->pieces);
  }
  cut.prints.insert(print);
  if (placed || (bare && parts.size() == 1)) return;
  if (bare && equal) {
    cut.perhaps_cut = (first || cut.perhaps_cut) && IsConstant(parts.front());
    if (def.key.kind == Kind::kWeight && def.key.mode == Mode::kInit)
      replicated->insert(def.key.name);
    return;
  }
  if (bare && IsOfParameter(def.key.kind) && replicated->contains(def.key.name)) return;
  cut_.unknown.insert(name);
}

void LogicalRun::CountElements(const TensorDef& def, const std::vector<Part>& parts) {
  if (!IsOfBatch(def.key.kind) || IsGradientOfActivation(def.key.kind)) return;
  const bool in_training = def.key.mode == Mode::kTrain;
  RunCut::Passes& of = (in_training ? cut_.trained : cut_.evaluated)[NameOf(def)];
  of.passes += parts.size();
  for (const Part& part : parts) of.elements += NumelOf(part.layout->shape);
}

LogicalRun::Attempt* LogicalRun::Find(AttemptId id) {
  const auto found = std::find_if(attempts_.begin(), attempts_.end(),
                                  [&](const Attempt& attempt) { return attempt.id == id; });
  return found == attempts_.end() ? nullptr : &*found;
}

StatColumns& LogicalRun::Step::NewBlock() {
  if (used == blocks.size()) blocks.emplace_back();
  return blocks[used++];
}

std::vector<Part>& LogicalRun::Step::PartsOf(std::uint32_t id) {
  if (slots.size() <= id) slots.resize(id + 1);
  if (slots[id] == 0) {
    const std::size_t place = parts.size();
    if (place == pool.size()) pool.emplace_back();
    pool[place].first = id;
    parts = std::span(pool).first(place + 1);
    slots[id] = static_cast<std::uint32_t>(place + 1);
  }
  return pool[slots[id] - 1].second;
}

void LogicalRun::Step::Clear() {
  for (auto& [id, of] : parts) {
    of.clear();
    slots[id] = 0;
  }
  parts = {};
  used = 0;
}

bool LogicalRun::IsDefined(const Member& member, const StatColumns& block) const {
  const auto below = [](const std::vector<std::uint32_t>& ids, std::size_t end) {
    return std::all_of(ids.begin(), ids.end(), [end](std::uint32_t id) { return id < end; });
  };
  return below(block.activation, member.logical.size()) &&
         below(block.layout, member.layouts.size());
}

Part LogicalRun::MakePart(const Member& member, std::uint32_t id, std::uint32_t layout,
                          const TensorStats* stats, std::uint32_t order) {
  const TensorKey& key = member.activations[id].key;
  Part part;
  part.rank = member.rank;
  part.micro_batch = key.micro_batch;
  part.call = key.call;
  part.layout = &member.layouts[layout];
  part.stats = stats;
  part.order = order;
  part.stage = member.stage;
  return part;
}

Status LogicalRun::Add(Attempt& attempt, std::size_t index, Step& step) {
  const Member& member = attempt.members[index];
  const StatColumns& block = step.blocks[step.used - 1];
  bool defined = false;
  {
    ReaderLock lock(mutex_);
    defined = IsDefined(member, block);
  }
  if (!defined) STATCOLLECT_RETURN_IF_ERROR(ReadDefinitionsAgain(attempt));
  ReaderLock lock(mutex_);
  if (!defined && !IsDefined(member, block)) {
    return {Code::kDataLoss,
            "merge the ranks of run '" + run_ + "': rank " + std::to_string(member.rank) +
                " has a record without a definition; the store is damaged; restore a checkpoint"};
  }
  for (std::size_t i = 0; i < block.size(); ++i) {
    const std::uint32_t id = member.logical[block.activation[i]];
    if (id == kHidden) continue;
    Part part =
        MakePart(member, block.activation[i], block.layout[i], &block.stats[i], block.order[i]);
    part.sketch = block.SketchOf(i);
    step.PartsOf(id).push_back(part);
  }
  return Status::Ok();
}

Status LogicalRun::ReadStep(Attempt& attempt, std::uint64_t number, bool sketches, Step& step) {
  for (std::size_t i = 0; i < attempt.members.size(); ++i) {
    const auto scan =
        store_.ScanStats(attempt.id, attempt.members[i].rank, {.first = number, .last = number});
    while (scan->NextHead() && scan->Load(sketches, &step.NewBlock()))
      STATCOLLECT_RETURN_IF_ERROR(Add(attempt, i, step));
    STATCOLLECT_RETURN_IF_ERROR(scan->status());
  }
  return Status::Ok();
}

const MergePlan& LogicalRun::PlanOf(Attempt& attempt, const Parts& parts, Step& step) {
  const auto& [id, of] = parts;
  if (step.plans.size() <= id) step.plans.resize(id + 1);
  std::shared_ptr<const MergePlan>& plan = step.plans[id];
  if (plan && Fits(*plan, of)) return *plan;
  {
    MutexLock lock(plans_mutex_);
    if (attempt.plans.size() <= id) attempt.plans.resize(id + 1);
    plan = attempt.plans[id];
  }
  if (plan && Fits(*plan, of)) return *plan;
  auto made = std::make_shared<MergePlan>(MakePlan(of, sums_));
  MutexLock lock(plans_mutex_);
  made->layout.id = Intern(attempt, made->layout);
  plan = std::move(made);
  attempt.plans[id] = plan;
  return *plan;
}

std::vector<std::pair<std::uint64_t, const LogicalRun::Parts*>> LogicalRun::InOrder(
    const Attempt& attempt, const Step& step) const {
  std::vector<std::pair<std::uint64_t, const Parts*>> ordered;
  std::vector<Ordered> records;
  ordered.reserve(step.parts.size());
  for (const Parts& parts : step.parts) {
    std::uint64_t first = ~std::uint64_t{0};
    for (const Part& part : parts.second) {
      const std::uint64_t order = attempt.stages == 1
                                      ? part.order
                                      : OrderOf(attempt.activations[parts.first].key, part.stage,
                                                attempt.stages, part.order);
      first = std::min(first, order);
      if (attempt.other_weights)
        records.push_back({part.rank, part.order, static_cast<std::uint32_t>(ordered.size())});
    }
    ordered.emplace_back(first, &parts);
  }
  if (!attempt.other_weights || attempt.stages > 1) return ordered;
  const std::vector<std::uint64_t> places = CommonOrder(records, ordered.size());
  for (std::size_t i = 0; i < places.size(); ++i) ordered[i].first = places[i];
  return ordered;
}

void LogicalRun::Merge(Attempt& attempt, std::uint64_t step_number, Step& step, Merged* merged) {
  for (StatColumns& block : merged->blocks) Empty(&block);
  merged->hashed.fill(true);
  ReaderLock lock(mutex_);
  std::vector<std::pair<std::uint64_t, const Parts*>> ordered = InOrder(attempt, step);
  std::sort(ordered.begin(), ordered.end(), [](const auto& x, const auto& y) {
    return std::pair(x.first, x.second->first) < std::pair(y.first, y.second->first);
  });
  for (const auto& [order, parts] : ordered) {
    MergeInto(PlanOf(attempt, *parts, step), *parts, attempt.activations[parts->first].key,
              step_number, merged);
  }
}

void LogicalRun::MergeInto(const MergePlan& plan, const Parts& parts, const TensorKey& key,
                           std::uint64_t step_number, Merged* merged) {
  if (plan.nothing) return;
  auto& [with, without] = merged->blocks;
  const auto place = static_cast<std::uint32_t>(with.size() + without.size());
  TensorStats stats;
  std::vector<std::uint32_t> differing;
  const std::size_t before = with.sketch.size();
  bool has_sketch = statcollect::query::Merge(plan, parts.second, &stats, &with.sketch, &differing);
  if (has_sketch) {
    const auto width = static_cast<std::uint32_t>(with.sketch.size() - before);
    if (with.sketch_width == 0) with.sketch_width = width;
    has_sketch = with.sketch_width == width;  // false: ranks of different settings
    if (!has_sketch) with.sketch.resize(before);
  }
  StatColumns& block = has_sketch ? with : without;
  merged->hashed[has_sketch ? 0 : 1] &= plan.layout.Trusts(Statistic::kHash);
  block.activation.push_back(parts.first);
  block.layout.push_back(plan.layout.id);
  block.step.push_back(step_number);
  block.order.push_back(place);
  block.stats.push_back(stats);
  block.sample_count.push_back(0);
  if (plan.tiling != Tiling::kWhole) {
    findings_.Add(plan.tiling == Tiling::kIncomplete ? Finding::kIncomplete : Finding::kConflicting,
                  key, step_number, place, plan.problem);
  }
  if (!differing.empty()) {
    findings_.Add(
        Finding::kReplicasDiffer, key, step_number, place,
        RanksNamed("rank", differing) +
            " from the first of its ranks, whose values were compared; statctl ranks shows more");
  }
}

std::uint32_t LogicalRun::Intern(Attempt& attempt, const Layout& layout) {
  const auto [known, is_new] = attempt.layout_ids.try_emplace(
      {layout.dtype, layout.hash_kind, layout.absent, layout.untrusted, layout.shape},
      static_cast<std::uint32_t>(attempt.layouts.size()));
  if (is_new) {
    attempt.layouts.push_back(layout);
    attempt.layouts.back().id = known->second;
  }
  return known->second;
}

Result<LogicalRun::HeldParts> LogicalRun::ReadParts(std::uint64_t number, const IsWanted& wanted) {
  for (auto attempt = attempts_.rbegin(); attempt != attempts_.rend(); ++attempt) {
    Step step;
    STATCOLLECT_RETURN_IF_ERROR(ReadStep(*attempt, number, /*sketches=*/true, step));
    ReaderLock lock(mutex_);
    for (auto& [id, parts] : step.parts) {
      if (wanted(attempt->activations[id].key))
        return HeldParts{.blocks = std::move(step.blocks), .parts = std::move(parts)};
    }
  }
  return HeldParts();
}

std::vector<std::uint32_t> LogicalRun::RanksOf(const TensorName& tensor) const {
  ReaderLock lock(mutex_);
  for (auto attempt = attempts_.rbegin(); attempt != attempts_.rend(); ++attempt) {
    const auto found = attempt->holders.find(tensor);
    if (found != attempt->holders.end()) return {found->second.begin(), found->second.end()};
  }
  return {};
}

std::vector<std::uint32_t> LogicalRun::RanksOf(AttemptId id, const TensorName& tensor) const {
  ReaderLock lock(mutex_);
  for (const Attempt& attempt : attempts_) {
    const auto found = attempt.holders.find(tensor);
    if (attempt.id == id && found != attempt.holders.end())
      return {found->second.begin(), found->second.end()};
  }
  return {};
}

// --- the answers of a RunReader

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

Result<SharedDefinitions> LogicalRun::Definitions(AttemptId attempt, std::uint32_t) {
  RankDefinitions read;
  if (Attempt* const found = Find(attempt)) {
    ReaderLock lock(mutex_);
    MutexLock plans_lock(plans_mutex_);
    read = {.activations = found->activations, .layouts = found->layouts};
  }
  return std::make_shared<const RankDefinitions>(std::move(read));
}

std::unique_ptr<StatScan> LogicalRun::ScanStats(AttemptId attempt, std::uint32_t,
                                                StepBounds steps) {
  return std::make_unique<LogicalScan>(*this, Find(attempt), steps);
}

Result<std::vector<StatPoint>> LogicalRun::ActivationSeries(AttemptId attempt_id, std::uint32_t,
                                                            std::uint32_t activation,
                                                            StepBounds steps) {
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
        if (member.logical[id] == activation)
          read.push_back({.member = &member, .id = id, .points = {}});
      }
    }
  }
  for (OfRank& of : read) {
    STATCOLLECT_ASSIGN_OR_RETURN(
        of.points, store_.ActivationSeries(attempt_id, of.member->rank, of.id, steps));
  }
  const bool grown = std::any_of(read.begin(), read.end(), [&](const OfRank& of) {
    ReaderLock lock(mutex_);
    return std::any_of(of.points.begin(), of.points.end(), [&](const StatPoint& point) {
      return point.layout >= of.member->layouts.size();
    });
  });
  if (grown) STATCOLLECT_RETURN_IF_ERROR(ReadDefinitionsAgain(*attempt));
  std::map<std::uint64_t, std::vector<Part>> by_step;
  ReaderLock lock(mutex_);
  for (const OfRank& of : read) {
    for (const StatPoint& point : of.points) {
      if (point.layout < of.member->layouts.size())
        by_step[point.step].push_back(
            MakePart(*of.member, of.id, point.layout, &point.stats, point.order));
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
    if (plan.nothing) continue;
    StatPoint& point = points.emplace_back(
        StatPoint{.step = step, .layout = plan.layout.id, .order = order, .stats = {}});
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

Result<std::vector<std::uint64_t>> LogicalRun::StatSteps(AttemptId attempt, std::uint32_t,
                                                         StepBounds steps) {
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

// A scalar that is the same on all ranks stays; losses are averaged over ranks and, if those are
// one batch, micro-batches; others are each rank's own.
Result<std::vector<ScalarRecord>> LogicalRun::Scalars(AttemptId attempt, std::uint32_t,
                                                      StepBounds steps) {
  struct Values {
    std::uint64_t place = 0;  // of the first
    std::vector<double> all;
  };
  std::map<std::tuple<std::uint64_t, std::string, std::uint32_t>, Values> gathered;
  std::uint64_t place = 0;
  for (const Member& member : MembersOf(attempt)) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto of, store_.Scalars(attempt, member.rank, steps));
    for (ScalarRecord& scalar : of) {
      Values& values =
          gathered[{scalar.step, std::move(scalar.name), fold_ ? 0 : scalar.micro_batch}];
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
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& x, const auto& y) { return x.step < y.step; });
  return all;
}

// A step has ended once it has on every rank.
Result<std::vector<StepRecord>> LogicalRun::StepEnds(AttemptId attempt, std::uint32_t,
                                                     StepBounds steps) {
  std::map<std::uint64_t, std::pair<std::size_t, StepRecord>>
      ended;  // by step, with the number of ranks
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
