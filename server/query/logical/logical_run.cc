#include "server/query/logical/logical_run.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/names.h"
#include "common/placement.h"
#include "common/saturating.h"
#include "common/shape.h"
#include "common/text.h"
#include "server/query/logical/cut.h"
#include "server/query/logical/logical_scan.h"

namespace statcollect::query {
namespace {

constexpr int kStepsLookedAt = 2;

TensorName NameOf(const TensorDef& def) { return {def.key.kind, def.key.name, def.key.output_path}; }

bool IsOfBatch(Kind kind) {
  return kind == Kind::kOutput || kind == Kind::kInput || kind == Kind::kInspect || kind == Kind::kBatch ||
         IsGradientOfActivation(kind);
}

// The order of a step: stages of a pipeline follow each other forward, and the other way round backward.
int PhaseOf(const TensorKey& key) {
  if (key.kind == Kind::kWeight && key.mode == Mode::kInit) return 0;
  if (key.kind == Kind::kBatch) return 1;
  if (IsGradientOfActivation(key.kind)) return 3;
  if (key.kind == Kind::kWeightGrad) return 4;
  return IsOfParameter(key.kind) ? 5 : 2;
}

std::uint64_t OrderOf(const TensorKey& key, std::uint32_t stage, std::uint32_t stages, std::uint32_t order) {
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
    STATCOLLECT_ASSIGN_OR_RETURN(auto ranks, store_.Ranks(meta.id));
    attempt.ranks = std::move(ranks);
    for (const auto& [rank, of] : attempt.ranks) attempt.members.emplace_back().rank = rank;
    WriterLock lock(mutex_);
    STATCOLLECT_RETURN_IF_ERROR(Grow(attempt));
    FindStages(attempt);
    Define(attempt);
  }
  return Status::Ok();
}

// Ranks with the same weights are of one stage; stages are numbered by their lowest rank.
void LogicalRun::FindStages(Attempt& attempt) {
  std::vector<std::set<std::string>> stages;
  for (Member& member : attempt.members) {
    std::set<std::string> weights;
    for (const TensorDef& def : member.activations) {
      if (def.key.kind == Kind::kWeight) weights.insert(def.key.name);
    }
    const auto known = std::find(stages.begin(), stages.end(), weights);
    member.stage = static_cast<std::uint32_t>(known - stages.begin());
    if (known == stages.end()) stages.push_back(std::move(weights));
  }
  attempt.stages = static_cast<std::uint32_t>(std::max<std::size_t>(stages.size(), 1));
}

Status LogicalRun::Grow(Attempt& attempt) {
  for (Member& member : attempt.members) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto activations, store_.Activations(attempt.id, member.rank));
    member.activations = std::move(activations);
    STATCOLLECT_ASSIGN_OR_RETURN(auto layouts, store_.Layouts(attempt.id, member.rank));
    for (std::size_t i = member.layouts.size(); i < layouts.size(); ++i)
      member.layouts.push_back(std::move(layouts[i]));
  }
  return Status::Ok();
}

// Gives what is new its logical id, in the order of execution.
void LogicalRun::Define(Attempt& attempt) {
  std::vector<std::tuple<std::uint64_t, std::size_t, std::uint32_t>> fresh;  // order, member, id
  for (std::size_t i = 0; i < attempt.members.size(); ++i) {
    const Member& member = attempt.members[i];
    for (auto id = static_cast<std::uint32_t>(member.logical.size()); id < member.activations.size(); ++id) {
      const std::uint64_t order =
          attempt.stages == 1 ? id : OrderOf(member.activations[id].key, member.stage, attempt.stages, id);
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
  if (hidden_.contains(name) || (fold_ && !sums_ && in_training && IsGradientOfActivation(def.key.kind)))
    return kHidden;
  attempt.holders[name].insert(member.rank);
  TensorDef logical = def;
  if (fold_ && in_training && IsOfBatch(def.key.kind)) logical.key.micro_batch = logical.key.call = 0;
  const auto [known, is_new] =
      attempt.ids.try_emplace(logical.key, static_cast<std::uint32_t>(attempt.activations.size()));
  if (!is_new) return known->second;
  logical.id = known->second;
  attempt.activations.push_back(std::move(logical));
  return known->second;
}

void LogicalRun::Choose(std::set<TensorName> hidden, std::set<std::string> tied, bool fold) {
  WriterLock lock(mutex_);
  hidden_ = std::move(hidden);
  tied_ = std::move(tied);
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
    attempt.shapes.clear();
    for (Member& member : attempt.members) member.logical.clear();
    Define(attempt);
  }
}

// A parameter that is the same on all ranks when it is loaded is a replica, and so are its gradient and state:
// where those differ, the ranks no longer agree.
Status LogicalRun::Classify() {
  for (Attempt& attempt : attempts_) {
    cut_.elements.clear();
    cut_.ranks = std::max(cut_.ranks, static_cast<std::uint32_t>(attempt.members.size()));
    cut_.stages = std::max(cut_.stages, attempt.stages);
    std::set<std::string> replicated;
    STATCOLLECT_ASSIGN_OR_RETURN(auto steps, StatSteps(attempt.id, 0, {}));
    if (steps.size() > kStepsLookedAt) steps.resize(kStepsLookedAt);
    for (const std::uint64_t number : steps) {
      Step step;
      for (std::size_t i = 0; i < attempt.members.size(); ++i) {
        const auto scan =
            store_.ScanStats(attempt.id, attempt.members[i].rank, {.first = number, .last = number});
        while (scan->NextHead() && scan->Load(/*sketches=*/false, &step.NewBlock()))
          STATCOLLECT_RETURN_IF_ERROR(Add(attempt, i, step));
        STATCOLLECT_RETURN_IF_ERROR(scan->status());
      }
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
  if (cut.prints.empty()) cut.shape = parts.front().layout->shape;
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
    if (def.key.kind == Kind::kWeight && def.key.mode == Mode::kInit) replicated->insert(def.key.name);
    return;
  }
  if (bare && IsOfParameter(def.key.kind) && replicated->contains(def.key.name)) return;
  cut_.unknown.insert(name);
}

void LogicalRun::CountElements(const TensorDef& def, const std::vector<Part>& parts) {
  if (!IsOfBatch(def.key.kind) || IsGradientOfActivation(def.key.kind) || def.key.mode != Mode::kTrain)
    return;
  std::uint64_t& elements = cut_.elements[NameOf(def)];
  for (const Part& part : parts) elements += NumelOf(part.layout->shape);
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
  members.clear();
}

bool LogicalRun::IsDefined(const Member& member, const StatColumns& block) const {
  const auto below = [](const std::vector<std::uint32_t>& ids, std::size_t end) {
    return std::all_of(ids.begin(), ids.end(), [end](std::uint32_t id) { return id < end; });
  };
  return below(block.activation, member.logical.size()) && below(block.layout, member.layouts.size());
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
  step.members.push_back(static_cast<std::uint32_t>(index));
  bool defined = false;
  {
    ReaderLock lock(mutex_);
    defined = IsDefined(member, block);
  }
  if (!defined) {
    WriterLock lock(mutex_);
    STATCOLLECT_RETURN_IF_ERROR(Grow(attempt));
    Define(attempt);
    if (!IsDefined(member, block)) {
      return {Code::kDataLoss,
              "merge the ranks of run '" + run_ + "': rank " + std::to_string(member.rank) +
                  " has a record without a definition; the store is damaged; restore a checkpoint"};
    }
  }
  ReaderLock lock(mutex_);
  for (std::size_t i = 0; i < block.size(); ++i) {
    const std::uint32_t id = member.logical[block.activation[i]];
    if (id == kHidden) continue;
    Part part = MakePart(member, block.activation[i], block.layout[i], &block.stats[i], block.order[i]);
    part.sketch = block.SketchOf(i);
    step.PartsOf(id).push_back(part);
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

void LogicalRun::Merge(Attempt& attempt, std::uint64_t step_number, Step& step, Merged* merged) {
  for (StatColumns& block : merged->blocks) Empty(&block);
  merged->hashed.fill(true);
  ReaderLock lock(mutex_);
  std::vector<std::pair<std::uint64_t, const Parts*>> ordered;
  ordered.reserve(step.parts.size());
  for (const Parts& parts : step.parts) {
    std::uint64_t first = ~std::uint64_t{0};
    for (const Part& part : parts.second) {
      const std::uint64_t order = attempt.stages == 1 ? part.order
                                                      : OrderOf(attempt.activations[parts.first].key,
                                                                part.stage, attempt.stages, part.order);
      first = std::min(first, order);
    }
    ordered.emplace_back(first, &parts);
  }
  std::sort(ordered.begin(), ordered.end(), [](const auto& x, const auto& y) {
    return std::pair(x.first, x.second->first) < std::pair(y.first, y.second->first);
  });
  for (const auto& [order, parts] : ordered) {
    MergeInto(PlanOf(attempt, *parts, step), *parts, attempt.activations[parts->first].key, step_number,
              merged);
  }
}

void LogicalRun::MergeInto(const MergePlan& plan, const Parts& parts, const TensorKey& key,
                           std::uint64_t step_number, Merged* merged) {
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
    findings_.Add(plan.tiling == Tiling::kIncomplete ? Finding::kIncomplete : Finding::kConflicting, key,
                  step_number, place, plan.problem);
  }
  if (!differing.empty()) {
    findings_.Add(Finding::kReplicasDiffer, key, step_number, place,
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
    for (std::size_t i = 0; i < attempt->members.size(); ++i) {
      const auto scan =
          store_.ScanStats(attempt->id, attempt->members[i].rank, {.first = number, .last = number});
      while (scan->NextHead() && scan->Load(/*sketches=*/true, &step.NewBlock()))
        STATCOLLECT_RETURN_IF_ERROR(Add(*attempt, i, step));
      STATCOLLECT_RETURN_IF_ERROR(scan->status());
    }
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

}  // namespace statcollect::query
