#include "server/query/logical/logical_run.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/names.h"
#include "common/placement.h"
#include "common/shape.h"
#include "server/query/logical/cut.h"
#include "server/query/logical/logical_scan.h"

namespace statcollect::query {
namespace {

constexpr int kStepsLookedAt = 2;

TensorName NameOf(const TensorDef& def) { return {def.key.kind, def.key.name, def.key.output_path}; }

bool IsGradientOfActivation(Kind kind) {
  return kind == Kind::kGradOutput || kind == Kind::kGradInput || kind == Kind::kInspectGrad;
}

bool IsOfBatch(Kind kind) {
  return kind == Kind::kOutput || kind == Kind::kInput || kind == Kind::kInspect || kind == Kind::kBatch ||
         IsGradientOfActivation(kind);
}

bool IsOfParameter(Kind kind) {
  return kind == Kind::kWeight || kind == Kind::kWeightGrad || kind == Kind::kOptimizerState;
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

bool HasHash(const Part& part) { return part.layout->Has(Statistic::kHash); }

bool IsCut(const Layout& layout) {
  return layout.placement && (layout.placement->pieces > 1 || !IsWhole(View(*layout.placement)));
}

std::string RanksText(const std::vector<std::uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < 8; ++i)
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return ranks.size() > 8 ? text + " and others" : text;
}

}  // namespace

Result<std::unique_ptr<LogicalRun>> LogicalRun::Open(RunReader& store, const std::string& run) {
  std::unique_ptr<LogicalRun> logical(new LogicalRun(store, run));
  STATCOLLECT_RETURN_IF_ERROR(logical->Read());
  STATCOLLECT_RETURN_IF_ERROR(logical->Classify());
  return logical;
}

Status LogicalRun::Read() {
  auto attempts = store_.Attempts(run_);
  if (!attempts.ok()) return attempts.status();
  for (const AttemptMeta& meta : *attempts) {
    Attempt& attempt = attempts_.emplace_back();
    attempt.id = meta.id;
    auto ranks = store_.Ranks(meta.id);
    if (!ranks.ok()) return ranks.status();
    attempt.ranks = *std::move(ranks);
    for (const auto& [rank, of] : attempt.ranks) attempt.members.emplace_back().rank = rank;
    MutexLock lock(mutex_);
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
    auto activations = store_.Activations(attempt.id, member.rank);
    if (!activations.ok()) return activations.status();
    member.activations = *std::move(activations);
    auto layouts = store_.Layouts(attempt.id, member.rank);
    if (!layouts.ok()) return layouts.status();
    for (std::size_t i = member.layouts.size(); i < layouts->size(); ++i)
      member.layouts.push_back(std::move((*layouts)[i]));
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
  if (hidden_.contains(name) || (fold_ && in_training && IsGradientOfActivation(def.key.kind)))
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
  MutexLock lock(mutex_);
  hidden_ = std::move(hidden);
  tied_ = std::move(tied);
  fold_ = fold;
  for (Attempt& attempt : attempts_) {
    attempt.activations.clear();
    attempt.ids.clear();
    attempt.holders.clear();
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
    auto steps = StatSteps(attempt.id, 0, {});
    if (!steps.ok()) return steps.status();
    if (steps->size() > kStepsLookedAt) steps->resize(kStepsLookedAt);
    for (const std::uint64_t number : *steps) {
      Step step;
      for (std::size_t i = 0; i < attempt.members.size(); ++i) {
        const auto scan =
            store_.ScanStats(attempt.id, attempt.members[i].rank, {.first = number, .last = number});
        std::vector<StatColumns> blocks;
        while (scan->NextHead() && scan->Load(/*sketches=*/false, &blocks.emplace_back())) {
        }
        STATCOLLECT_RETURN_IF_ERROR(scan->status());
        STATCOLLECT_RETURN_IF_ERROR(Add(attempt, i, std::move(blocks), step));
      }
      for (const auto& [id, parts] : step.parts) {
        Judge(attempt.activations[id], parts, &replicated);
        if (number == steps->front()) CountElements(attempt.activations[id], parts);
      }
    }
  }
  return Status::Ok();
}

void LogicalRun::Judge(const TensorDef& def, const std::vector<Part>& parts,
                       std::set<std::string>* replicated) {
  const TensorName name = NameOf(def);
  if (IsOfBatch(def.key.kind) && def.key.mode == Mode::kTrain)
    cut_.micro_batches = std::max(cut_.micro_batches, def.key.micro_batch + 1);
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

Status LogicalRun::Add(Attempt& attempt, std::size_t index, std::vector<StatColumns> blocks, Step& step) {
  MutexLock lock(mutex_);
  Member& member = attempt.members[index];
  for (StatColumns& read : blocks) {
    const StatColumns& block = step.blocks.emplace_back(std::move(read));
    for (std::size_t i = 0; i < block.size(); ++i) {
      const std::uint32_t id = block.activation[i], layout = block.layout[i];
      if (id >= member.logical.size() || layout >= member.layouts.size()) {
        STATCOLLECT_RETURN_IF_ERROR(Grow(attempt));
        Define(attempt);
      }
      if (id >= member.logical.size() || layout >= member.layouts.size()) {
        return {Code::kDataLoss,
                "merge the ranks of run '" + run_ + "': rank " + std::to_string(member.rank) +
                    " has a record without a definition; the store is damaged; restore a checkpoint"};
      }
      if (member.logical[id] == kHidden) continue;
      const TensorKey& key = member.activations[id].key;
      step.parts[member.logical[id]].push_back({.rank = member.rank,
                                                .micro_batch = key.micro_batch,
                                                .call = key.call,
                                                .layout = &member.layouts[layout],
                                                .stats = &block.stats[i],
                                                .sketch = block.SketchOf(i),
                                                .order = block.order[i],
                                                .stage = member.stage});
    }
  }
  return Status::Ok();
}

std::vector<StatColumns> LogicalRun::Merge(Attempt& attempt, std::uint64_t step_number, const Step& step) {
  struct Row {
    std::uint64_t order;
    std::uint32_t id;
    MergedTensor merged;
  };
  MutexLock lock(mutex_);
  std::vector<Row> rows;
  rows.reserve(step.parts.size());
  for (const auto& [id, parts] : step.parts) {
    Row row{.order = ~std::uint64_t{0}, .id = id, .merged = attempt.merger.Merge(parts)};
    Note(attempt.activations[id], step_number, row.merged);
    if (!row.merged.problem.empty()) continue;
    for (const Part& part : parts) {
      const std::uint64_t order =
          attempt.stages == 1 ? part.order
                              : OrderOf(attempt.activations[id].key, part.stage, attempt.stages, part.order);
      row.order = std::min(row.order, order);
    }
    rows.push_back(std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& x, const Row& y) { return x.order < y.order; });
  std::vector<StatColumns> blocks(2);
  std::uint32_t order = 0;
  for (Row& row : rows) {
    StatColumns& block = blocks[row.merged.sketch.empty() ? 1 : 0];
    if (!row.merged.sketch.empty()) {
      const auto width = static_cast<std::uint32_t>(row.merged.sketch.size());
      if (block.sketch_width != 0 && block.sketch_width != width) continue;  // ranks of different settings
      block.sketch_width = width;
      block.sketch.insert(block.sketch.end(), row.merged.sketch.begin(), row.merged.sketch.end());
    }
    block.activation.push_back(row.id);
    block.layout.push_back(Intern(attempt, row.merged.layout));
    block.step.push_back(step_number);
    block.order.push_back(order++);
    block.stats.push_back(row.merged.stats);
    block.sample_count.push_back(0);
  }
  std::erase_if(blocks, [](const StatColumns& block) { return block.empty(); });
  return blocks;
}

std::uint32_t LogicalRun::Intern(Attempt& attempt, const Layout& layout) {
  for (std::size_t i = 0; i < attempt.layouts.size(); ++i) {
    Layout same = layout;
    same.id = attempt.layouts[i].id;
    if (same == attempt.layouts[i]) return same.id;
  }
  attempt.layouts.push_back(layout);
  attempt.layouts.back().id = static_cast<std::uint32_t>(attempt.layouts.size() - 1);
  return attempt.layouts.back().id;
}

void LogicalRun::Note(const TensorDef& def, std::uint64_t step, const MergedTensor& merged) {
  const std::string what = std::string(Name(def.key.kind)) + " " + Printable(def.key.name);
  const auto note = [&](const char* about, const std::string& text) STATCOLLECT_REQUIRES(mutex_) {
    notes_.try_emplace(about, run_ + ": " + what + ", step " + std::to_string(step) + ": " + text);
  };
  if (!merged.problem.empty()) note("problem", merged.problem + "; such tensors were not compared");
  if (!merged.complete) {
    note("incomplete",
         "the ranks that were recorded do not hold all of it; what they hold was compared without "
         "hash and sketch");
  }
  if (!merged.differing.empty()) {
    note("differing",
         "replicas differ: " + RanksText(merged.differing) +
             " from the first of its ranks, whose values were compared; statctl ranks shows more");
  }
}

std::vector<std::string> LogicalRun::Notes() const {
  MutexLock lock(mutex_);
  std::vector<std::string> notes;
  for (const auto& [about, text] : notes_) notes.push_back(text);
  return notes;
}

std::vector<std::uint32_t> LogicalRun::RanksOf(const TensorName& tensor) const {
  MutexLock lock(mutex_);
  for (auto attempt = attempts_.rbegin(); attempt != attempts_.rend(); ++attempt) {
    const auto found = attempt->holders.find(tensor);
    if (found != attempt->holders.end()) return {found->second.begin(), found->second.end()};
  }
  return {};
}

}  // namespace statcollect::query
