#include "server/query/ranks/ranks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "common/names.h"
#include "server/query/compare/distance.h"
#include "server/query/compare/loss_diff.h"
#include "server/query/compare/step_order.h"
#include "server/query/number_text.h"
#include "server/query/parallel.h"
#include "server/query/settings/config_report.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kNotesMax = 50;
constexpr std::size_t kSidesMax = 8;             // distances kept of a step before its finding is known
constexpr std::uint64_t kBatchElementsMin = 16;  // smaller inputs are equal by chance
constexpr std::uint64_t kLossStepsAgreeing = 3;  // before a loss counts as reduced
constexpr double kSameNames = 0.8;               // of the ranks' weights: fewer in common are no replicas
constexpr std::uint64_t kSpan = 256;             // steps whose scalars are read at a time
constexpr std::size_t kWaveRankSteps = 8;        // read ahead while as many are checked: they hold sketches

// What the check makes of a kind.
enum class Role : std::uint8_t { kWeight, kState, kGradient, kBatch, kActivation };

Role RoleOf(const TensorKey& key) {
  switch (key.kind) {
    case Kind::kWeight:
      return Role::kWeight;
    case Kind::kOptimizerState:
      return Role::kState;
    case Kind::kWeightGrad:
      return Role::kGradient;
    case Kind::kBatch:
      return Role::kBatch;
    default:
      return Role::kActivation;
  }
}

RankReason ReasonOf(Role role) {
  return role == Role::kWeight  ? RankReason::kWeightsDiffer
         : role == Role::kState ? RankReason::kStateDiffers
                                : RankReason::kGradientsDiffer;
}

std::uint64_t Mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The content's hash; of records that another tool wrote without one, of all their statistics.
std::uint64_t IdentityOf(const Observation& o) {
  const TensorStats& s = *o.stats;
  if (o.layout->Trusts(Statistic::kHash))
    return o.layout->hash_kind == HashKind::kContent
               ? s.hash
               : Mix(s.hash + static_cast<std::uint64_t>(o.layout->hash_kind));
  std::uint64_t identity = 0;
  const auto add = [&](Statistic statistic, auto value) {
    if (o.layout->Trusts(statistic))
      identity = Mix(identity + std::bit_cast<std::uint64_t>(value) + 0x9e3779b97f4a7c15u);
  };
  add(Statistic::kMin, s.min);
  add(Statistic::kMax, s.max);
  add(Statistic::kMean, s.mean);
  add(Statistic::kStd, s.std);
  add(Statistic::kL2, s.l2);
  add(Statistic::kNan, s.nan);
  add(Statistic::kInf, s.pos_inf);
  add(Statistic::kZero, s.zero);
  return identity;
}

std::string Of(const char* noun, const Ranks& ranks) {
  return std::string(noun) + (ranks.size() == 1 ? " " : "s ") + RanksText(ranks);
}

std::string TensorOf(const RankFinding& f) {
  std::string text = Printable(f.activation);
  if (!f.output_path.empty() && f.output_path != "0") text += "[" + Printable(f.output_path) + "]";
  return text;
}

// One tensor, over all ranks and attempts.
struct KeyInfo {
  TensorKey key;
  std::string class_name;
  Role role = Role::kActivation;
  std::uint32_t slot = 0;  // the same tensor after an update: key without call, `init` as `train`
  std::int64_t weight = -1, gradient = -1;  // key of the same name after the update; gradient before it
  bool agreed = false;                      // all replicas were equal bit for bit in an earlier step
};

// One tensor of one rank in one step.
struct Cell {
  bool present = false, finite = false, nan = false, pos_inf = false, diverged = false;
  bool varied = false, large = false;  // no constant; no few elements
  std::uint16_t layout = 0;            // of the step and key: equal number, equal shape and dtype
  std::uint32_t order = 0;
  std::uint32_t segment = 0;  // StepOrder
  std::uint64_t hash = 0;
  double rms = 0;
};

Cell CellOf(const Observation& o, const StepOrder& order) {
  const TensorStats& s = *o.stats;
  const double finite = FiniteCount(o);
  const bool bounds = o.layout->Trusts(Statistic::kMin) && o.layout->Trusts(Statistic::kMax);
  Cell cell = {
      .present = true, .finite = s.has_finite && finite > 0, .nan = s.nan > 0, .pos_inf = s.pos_inf > 0};
  cell.varied = s.has_finite && !(bounds && s.min == s.max);
  cell.large = s.numel >= kBatchElementsMin;
  cell.order = o.order;
  cell.segment = order.At(o.order).segment;
  cell.hash = IdentityOf(o);
  cell.rms = cell.finite && o.layout->Trusts(Statistic::kL2) ? s.l2 / std::sqrt(finite) : 0;
  return cell;
}

// One rank's step, and what can be said of it without the other ranks: made on any thread.
struct RankStep {
  std::uint64_t step = 0;
  std::size_t attempt = 0, group = 0, index = 0;  // `index`: of the rank in its group
  std::uint32_t rank = 0;
  StepData data;
  std::vector<Cell> cells;  // of its observations, one for one
  Status status;
};

struct Odd {
  Ranks ranks, others;
  bool outvoted = false;
};

// A weight of one rank over the steps.
struct WeightHistory {
  std::uint64_t hash = 0;
  bool seen = false, changed = false;
  std::uint32_t still = 0;  // steps in which it stayed although its gradient was not zero
  std::uint64_t first_still = 0;
  double gradient = 0;  // norm in the first of them
};

struct OutlierHistory {
  std::uint64_t first_step = 0, hits = 0, first_checked = 0;
  double value = 0, median = 0;
  Cell cell;  // in the first of them
};

struct LossHistory {
  std::uint64_t agreeing = 0;
  bool done = false;  // it differs by nature, or has been reported
};

struct BatchHistory {
  std::uint64_t first_step = 0, steps = 0, last_step = 0;
  std::uint32_t micro_batch = 0;
  std::uint64_t last_counted = ~std::uint64_t{0};
};

using FindingKey = std::tuple<RankReason, Ranks, std::string>;

class RankCheck {
 public:
  RankCheck(RunView& view, const RanksRequest& request,
            const std::function<bool(AttemptId, std::uint32_t)>& is_open, std::size_t threads)
      : view_(view), request_(request), is_open_(is_open), threads_(threads) {
    report_.run = view.run();
  }

  Result<RanksReport> Run(const std::function<void(const Progress&)>& progress, const std::stop_token& stop);

 private:
  // The replicas of one group in one step.
  struct GroupStep {
    std::uint64_t step = 0;
    std::size_t attempt = 0, group = 0;
    const Ranks* ranks = nullptr;
    std::vector<bool> recorded;                    // by rank's index
    std::optional<RankStep> reference;             // of the first that recorded something
    std::vector<std::vector<Cell>> cells;          // by rank's index, by key
    std::map<std::uint32_t, Comparison> measured;  // by key: a rank that differs from the reference
  };

  Status Choose();
  void ReadLayout();
  void NoteMissingRanks();
  std::vector<RankStep> CutWave(std::map<std::uint64_t, std::size_t>::const_iterator& step,
                                std::size_t& group, std::size_t& index) const;
  void Read(RankStep& to, const std::stop_token& stop) const;
  Status CheckWave(std::vector<RankStep>& wave, GroupStep& at, const std::function<Status()>& tick);
  Status CheckGroup(GroupStep& at);
  void Take(const RankStep& read, GroupStep& at);
  void Measure(const RankStep& read, GroupStep& at);
  void CompareReplicas(GroupStep& at);
  void CompareKey(std::uint32_t id, bool bits, GroupStep& at);
  bool IsEqual(const Cell& a, const Cell& b, bool bits) const;
  Odd FindOdd(std::uint32_t id, bool bits, const GroupStep& at);
  bool IsExcused(std::uint32_t id, const GroupStep& at) const;
  void FindMissing(GroupStep& at);
  void FollowWeights(GroupStep& at);
  void CompareBatches(GroupStep& at);
  void FindOutliers(GroupStep& at);
  void FindNonfinite(GroupStep& at);
  Status CompareLosses(const GroupStep& at);
  static Cell CellOfLoss(const std::string& name, std::uint32_t micro_batch, const GroupStep& at);
  Status ReadScalars(const GroupStep& at);
  void AddFrozen();
  void AddBatches();
  void AddOutliers();
  void AddMissingSteps();
  void Conclude();
  void ConcludeReplicas();

  std::uint32_t KeyOf(std::size_t attempt, std::uint32_t rank, const TensorDef& def);
  RankFinding Finding(RankReason reason, std::uint32_t id, std::uint64_t step) const;
  // Adds to the finding of this reason and ranks, or makes it. `cell`: where it stands in its step.
  RankFinding& Add(RankFinding finding, const Cell& cell, const std::string& of = {});
  void Note(const std::string& note) {
    if (report_.notes.size() < kNotesMax) report_.notes.push_back(note);
  }
  void NoteOnce(const std::string& topic, const std::string& note) {
    if (noted_.insert(topic).second) Note(note);
  }
  bool Wanted(Kind kind) const {
    return request_.kinds.empty() ||
           std::find(request_.kinds.begin(), request_.kinds.end(), kind) != request_.kinds.end();
  }
  bool IsCompared(const KeyInfo& info) const;
  static bool IsReplicated(Role role) { return role <= Role::kGradient; }

  struct Listed {
    RankFinding finding;
    ReportOrder place_in_order;
    std::set<std::uint32_t> keys;  // distinct tensors
  };

  RunView& view_;
  const RanksRequest& request_;
  const std::function<bool(AttemptId, std::uint32_t)>& is_open_;
  const std::size_t threads_;
  RanksReport report_;
  ReplicaLayout layout_;
  StepSet wanted_;
  std::map<std::uint64_t, std::size_t> steps_;  // and their attempts
  std::map<TensorKey, std::uint32_t> ids_;
  std::vector<KeyInfo> keys_;
  std::map<std::pair<std::size_t, std::uint32_t>, std::vector<std::int64_t>> id_of_def_;
  std::map<FindingKey, Listed> findings_;
  std::map<std::size_t, Odd> known_odd_;  // by group: who parted from the others
  std::map<std::uint32_t, std::unordered_map<std::uint32_t, WeightHistory>> weights_;  // by rank, slot
  std::map<Ranks, BatchHistory> batches_;
  std::uint64_t steps_with_batches_ = 0;
  std::map<std::pair<std::uint32_t, std::uint32_t>, OutlierHistory> outliers_;  // by rank, key
  std::unordered_map<std::uint32_t, std::uint64_t> outlier_steps_;              // by key: checked
  std::map<std::pair<std::size_t, std::string>, LossHistory> losses_;           // by group
  std::map<std::uint32_t, std::vector<ScalarRecord>> scalars_;                  // of the span, by rank
  std::uint64_t span_ = ~std::uint64_t{0};
  std::size_t span_attempt_ = 0;
  std::map<std::uint32_t, std::vector<std::uint64_t>> missing_steps_;  // by rank; at most a few
  std::map<std::uint32_t, std::uint64_t> missing_count_;
  std::map<std::uint32_t, std::uint64_t> steps_of_rank_;
  std::set<std::string> noted_;
  std::uint64_t equal_varied_ = 0, replica_differences_ = 0;
  std::uint64_t pairs_ = 0;
};

Result<RanksReport> RankCheck::Run(const std::function<void(const Progress&)>& progress,
                                   const std::stop_token& stop) {
  STATCOLLECT_RETURN_IF_ERROR(Choose());
  Progress done{.done = 0, .total = steps_.size() * report_.ranks.size()};
  const auto tick = [&] {
    if (stop.stop_requested()) return Status(Code::kCancelled, "ranks: cancelled");
    ++done.done;
    if (progress) progress(done);
    return Status::Ok();
  };
  auto step = steps_.cbegin();
  std::size_t group = 0, index = 0;
  GroupStep at;
  std::vector<RankStep> wave, next = CutWave(step, group, index);
  while (!wave.empty() || !next.empty()) {
    Status checked;
    // The checks follow each other, in order: this thread does them while the others read what comes next.
    InParallelWith([&] { checked = CheckWave(wave, at, tick); }, next.size(),
                   [&](std::size_t i) { Read(next[i], stop); }, threads_);
    STATCOLLECT_RETURN_IF_ERROR(checked);
    wave = std::exchange(next, CutWave(step, group, index));
  }
  Conclude();
  return std::move(report_);
}

// From where the last one ended: step by step, group by group, rank by rank.
std::vector<RankStep> RankCheck::CutWave(std::map<std::uint64_t, std::size_t>::const_iterator& step,
                                         std::size_t& group, std::size_t& index) const {
  std::vector<RankStep> wave;
  while (step != steps_.cend() && !report_.groups.empty() && wave.size() < kWaveRankSteps) {
    wave.push_back({.step = step->first,
                    .attempt = step->second,
                    .group = group,
                    .index = index,
                    .rank = report_.groups[group][index]});
    if (++index < report_.groups[group].size()) continue;
    index = 0;
    if (++group < report_.groups.size()) continue;
    group = 0;
    ++step;
  }
  return wave;
}

void RankCheck::Read(RankStep& to, const std::stop_token& stop) const {
  if (stop.stop_requested() || !view_.ranks(to.attempt).contains(to.rank)) return;
  auto data = view_.Read(to.attempt, to.rank, to.step);
  to.status = data.status();
  if (!data.ok()) return;
  to.data = *std::move(data);
  to.cells.reserve(to.data.observations.size());
  const StepOrder order(to.data.observations);
  for (const Observation& o : to.data.observations) to.cells.push_back(CellOf(o, order));
}

Status RankCheck::Choose() {
  if (request_.tolerance && !(std::isfinite(*request_.tolerance) && *request_.tolerance >= 0)) {
    return {Code::kInvalidArgument,
            "ranks: tolerance is not a finite number of at least 0; expected a relative L2 such as 1e-6"};
  }
  auto wanted = StepSet::Parse(request_.steps);
  if (!wanted.ok()) return wanted.status();
  wanted_ = *std::move(wanted);
  report_.ranks = view_.AllRanks();
  if (!request_.ranks.empty()) {
    std::set<std::uint32_t> asked(request_.ranks.begin(), request_.ranks.end());
    std::erase_if(report_.ranks, [&](std::uint32_t rank) { return asked.erase(rank) == 0; });
    if (!asked.empty())
      Note(Of("rank", Ranks(asked.begin(), asked.end())) + " asked for; the run does not have it");
  }
  auto steps = view_.Steps(wanted_);
  if (!steps.ok()) return steps.status();
  steps_ = *std::move(steps);
  if (!steps_.empty()) report_.steps = {{.first = steps_.begin()->first, .last = steps_.rbegin()->first}};
  ReadLayout();
  NoteMissingRanks();
  for (const std::string& difference : DifferencesBetweenRanks(view_))
    Note("the ranks were told different things: " + difference);
  return Status::Ok();
}

void RankCheck::ReadLayout() {
  layout_ = FindReplicas(view_);
  for (const std::string& note : layout_.notes) Note(note);
  for (Ranks group : layout_.groups) {
    std::erase_if(group, [&](std::uint32_t rank) {
      return !std::binary_search(report_.ranks.begin(), report_.ranks.end(), rank);
    });
    if (!group.empty()) report_.groups.push_back(std::move(group));
  }
}

void RankCheck::NoteMissingRanks() {
  const std::size_t newest = view_.attempts().size() - 1;
  const AttemptMeta& attempt = view_.attempts()[newest];
  const auto& there = view_.ranks(newest);
  bool open = false;
  for (const auto& [rank, meta] : there) open = open || (is_open_ && is_open_(attempt.id, rank));
  Ranks absent;
  for (std::uint32_t rank = 0; rank < attempt.world_size && absent.size() < 1024; ++rank) {
    if (!there.contains(rank)) absent.push_back(rank);
  }
  if (absent.empty() || there.empty() || !request_.ranks.empty()) return;
  const std::string text = Of("rank", absent) + " of a world of " + std::to_string(attempt.world_size) +
                           " never reported to the collector";
  if (open) return Note(text + " yet");
  RankFinding finding{.step = report_.steps ? report_.steps->first : 0,
                      .reason = RankReason::kMissingRank,
                      .ranks = absent,
                      .text = text + "."};
  Add(std::move(finding), {});
}

// `at`: the group whose ranks have been taken in so far; it may have begun in the wave before.
Status RankCheck::CheckWave(std::vector<RankStep>& wave, GroupStep& at, const std::function<Status()>& tick) {
  for (RankStep& read : wave) {
    STATCOLLECT_RETURN_IF_ERROR(tick());
    STATCOLLECT_RETURN_IF_ERROR(read.status);
    const Ranks& ranks = report_.groups[read.group];
    if (read.index == 0) {
      at = {.step = read.step, .attempt = read.attempt, .group = read.group, .ranks = &ranks};
      at.recorded.resize(ranks.size());
      at.cells.resize(ranks.size());
    }
    if (!read.data.observations.empty()) {
      at.recorded[read.index] = true;
      ++steps_of_rank_[read.rank];
      Take(read, at);
      if (at.reference) {
        Measure(read, at);
      } else {
        at.reference = std::move(read);
      }
    }
    if (read.index + 1 == ranks.size()) STATCOLLECT_RETURN_IF_ERROR(CheckGroup(at));
  }
  return Status::Ok();
}

Status RankCheck::CheckGroup(GroupStep& at) {
  const Ranks& ranks = *at.ranks;
  if (at.reference) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      at.cells[i].resize(keys_.size());
      if (at.recorded[i] || !view_.ranks(at.attempt).contains(ranks[i])) continue;
      if (missing_count_[ranks[i]]++ == 0) missing_steps_[ranks[i]] = {at.step, at.step};
      missing_steps_[ranks[i]].back() = at.step;
    }
    CompareReplicas(at);
    FindMissing(at);
    CompareBatches(at);
    FindNonfinite(at);
    FindOutliers(at);
    FollowWeights(at);
  }
  return request_.kinds.empty() ? CompareLosses(at) : Status::Ok();
}

std::uint32_t RankCheck::KeyOf(std::size_t attempt, std::uint32_t rank, const TensorDef& def) {
  auto& known = id_of_def_[{attempt, rank}];
  if (def.id >= known.size()) known.resize(def.id + 1, -1);
  if (known[def.id] >= 0) return static_cast<std::uint32_t>(known[def.id]);
  const auto intern = [&](const TensorKey& key, const std::string& class_name) {
    const auto [entry, fresh] = ids_.try_emplace(key, static_cast<std::uint32_t>(keys_.size()));
    if (fresh) {
      keys_.push_back({.key = key, .class_name = class_name, .role = RoleOf(key)});
      keys_.back().slot = entry->second;
    }
    return entry->second;
  };
  const std::uint32_t id = intern(def.key, def.class_name);
  if (keys_[id].role == Role::kWeight || keys_[id].role == Role::kState) {
    TensorKey slot = def.key;
    slot.mode = Mode::kTrain;
    slot.call = 0;
    const std::uint32_t slot_id = intern(slot, def.class_name);
    keys_[id].slot = slot_id;
  }
  if (keys_[id].role == Role::kWeight || keys_[id].role == Role::kGradient) {
    TensorKey other = def.key;
    other.kind = keys_[id].role == Role::kWeight ? Kind::kWeightGrad : Kind::kWeight;
    const std::uint32_t other_id = intern(other, def.class_name);
    (keys_[id].role == Role::kWeight ? keys_[id].gradient : keys_[id].weight) = other_id;
  }
  known[def.id] = id;
  return id;
}

void RankCheck::Take(const RankStep& read, GroupStep& at) {
  auto& cells = at.cells[read.index];
  for (std::size_t i = 0; i < read.cells.size(); ++i) {
    const TensorDef& def = *read.data.observations[i].def;
    if (!Wanted(def.key.kind)) continue;
    const std::uint32_t id = KeyOf(at.attempt, read.rank, def);
    if (cells.size() <= id) cells.resize(std::max<std::size_t>(keys_.size(), id + 1));
    cells[id] = read.cells[i];
  }
}

// Distances of what differs from the reference, and numbers for shapes, while both are at hand.
void RankCheck::Measure(const RankStep& read, GroupStep& at) {
  const RankStep& reference = *at.reference;
  std::unordered_map<std::uint32_t, std::size_t> of_key;
  const auto is_wanted = [&](const Observation& o) {
    return Wanted(o.def->key.kind) && IsReplicated(RoleOf(o.def->key));
  };
  for (std::size_t i = 0; i < reference.cells.size(); ++i) {
    const Observation& o = reference.data.observations[i];
    if (is_wanted(o)) of_key.emplace(KeyOf(at.attempt, reference.rank, *o.def), i);
  }
  for (std::size_t i = 0; i < read.cells.size(); ++i) {
    const Observation& o = read.data.observations[i];
    if (!is_wanted(o)) continue;
    const std::uint32_t id = KeyOf(at.attempt, read.rank, *o.def);
    const auto found = of_key.find(id);
    if (found == of_key.end()) continue;
    const Observation& r = reference.data.observations[found->second];
    Cell& cell = at.cells[read.index][id];
    const bool same_layout = r.layout->shape == o.layout->shape && r.layout->dtype == o.layout->dtype;
    cell.layout = same_layout ? 0 : 1;
    if (same_layout && reference.cells[found->second].hash == read.cells[i].hash) continue;
    // Far behind a divergence only the count is needed, unless the distance decides.
    if (!request_.tolerance && keys_[id].agreed && at.measured.size() >= kSidesMax) {
      cell.diverged = true;
      continue;
    }
    const Comparison comparison = Compare(r, o, request_.tolerance, false);
    cell.diverged = comparison.agreement == Agreement::kDiverged;
    at.measured.emplace(id, comparison);
  }
}

bool RankCheck::IsCompared(const KeyInfo& info) const {
  if (layout_.experts_differ && info.key.name.find("expert") != std::string::npos) return false;
  switch (info.role) {
    case Role::kWeight:
      return !layout_.weights_sharded;
    case Role::kState:
      return !layout_.state_sharded;
    case Role::kGradient:
      return !layout_.gradients_sharded;
    default:
      return false;
  }
}

// Compared with the reference rank by tolerance, with any other by hash.
bool RankCheck::IsEqual(const Cell& a, const Cell& b, bool bits) const {
  if (a.layout != b.layout) return false;
  if (a.hash == b.hash) return true;
  return !bits && !a.diverged && !b.diverged;
}

Odd RankCheck::FindOdd(std::uint32_t id, bool bits, const GroupStep& at) {
  const Ranks& ranks = *at.ranks;
  std::vector<std::vector<std::size_t>> camps;
  std::size_t present = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Cell& cell = at.cells[i][id];
    if (!cell.present) continue;
    ++present;
    const auto camp = std::find_if(camps.begin(), camps.end(), [&](const auto& members) {
      return IsEqual(at.cells[members.front()][id], cell, bits);
    });
    camp == camps.end() ? camps.push_back({i}) : camp->push_back(i);
  }
  const auto largest = std::max_element(camps.begin(), camps.end(),
                                        [](const auto& a, const auto& b) { return a.size() < b.size(); });
  Odd odd;
  if (largest->size() * 2 > present) {
    odd.outvoted = true;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (!at.cells[i][id].present) continue;
      const bool in = std::find(largest->begin(), largest->end(), i) != largest->end();
      (in ? odd.others : odd.ranks).push_back(ranks[i]);
    }
    return odd;
  }
  // Nobody is outvoted. Whoever kept the old weight while others updated theirs has missed an update.
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Cell& cell = at.cells[i][id];
    if (!cell.present) continue;
    bool still = false;
    if (keys_[id].role == Role::kWeight) {
      const auto& history = weights_[ranks[i]];
      const auto before = history.find(keys_[id].slot);
      still = before != history.end() && before->second.seen && before->second.hash == cell.hash;
    }
    (still ? odd.ranks : odd.others).push_back(ranks[i]);
  }
  if (!odd.ranks.empty() && !odd.others.empty()) return odd;
  const auto known = known_odd_.find(at.group);
  if (known != known_odd_.end()) return known->second;
  odd.ranks.clear();
  odd.others.clear();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (at.cells[i][id].present) odd.ranks.push_back(ranks[i]);
  }
  return odd;
}

// Gradients that are reduced later, inside the optimizer: the weights agree all the same.
bool RankCheck::IsExcused(std::uint32_t id, const GroupStep& at) const {
  if (keys_[id].role != Role::kGradient || keys_[id].weight < 0) return false;
  const auto weight = static_cast<std::size_t>(keys_[id].weight);
  const Cell* first = nullptr;
  for (std::size_t i = 0; i < at.ranks->size(); ++i) {
    const Cell& cell = at.cells[i][weight];
    if (!cell.present || (first != nullptr && (cell.hash != first->hash || cell.layout != first->layout)))
      return false;
    first = &cell;
  }
  return first != nullptr;
}

void RankCheck::CompareKey(std::uint32_t id, bool bits, GroupStep& at) {
  KeyInfo& info = keys_[id];
  const Cell* first = nullptr;
  bool equal = true, same_bits = true, same_layout = true;
  std::uint64_t present = 0;
  for (const auto& cells : at.cells) {
    const Cell& cell = cells[id];
    if (!cell.present) continue;
    ++present;
    if (first == nullptr) {
      first = &cell;
      continue;
    }
    same_layout = same_layout && cell.layout == first->layout;
    same_bits = same_bits && same_layout && cell.hash == first->hash;
    equal = equal && IsEqual(*first, cell, bits);
  }
  if (present < 2) return;
  report_.compared.records += present - 1;
  pairs_ += present - 1;
  const bool varied = first->varied;
  if (equal) {
    (same_bits ? report_.compared.identical : report_.compared.within_tolerance) += present - 1;
    equal_varied_ += same_bits && varied ? 1 : 0;
    info.agreed = info.agreed || same_bits;
    if (!same_bits) {
      NoteOnce(
          "bits " + std::string(Name(info.key.kind)),
          std::string(Name(info.key.kind)) +
              " tensors differ between ranks in their bits, within the tolerance of their dtype (first: " +
              Printable(info.key.name) + ", step " + std::to_string(at.step) +
              "); replicas of one device type usually agree bit for bit");
    }
    return;
  }
  if (!same_layout && !layout_.stated) {
    NoteOnce(
        "shapes",
        "ranks hold " + std::string(Name(info.key.kind)) + " tensors of one name and different shapes (" +
            Printable(info.key.name) +
            "): shards? Not compared; name the parallel layout in the run's configuration (docs/ranks.md)");
    report_.compared.records -= present - 1;
    pairs_ -= present - 1;
    return;
  }
  ++replica_differences_;
  const Odd odd = FindOdd(id, bits, at);
  if (IsExcused(id, at)) {
    report_.compared.within_tolerance += present - 1;
    NoteOnce("gradients", "gradients differ between ranks where the weights after the update agree (first: " +
                              Printable(info.key.name) + ", step " + std::to_string(at.step) +
                              "): reduced inside the optimizer, or a learning rate of 0");
    return;
  }
  const std::uint64_t differ =
      odd.others.empty() ? present - 1 : std::min<std::uint64_t>(present - 1, odd.ranks.size());
  report_.compared.diverged += differ;
  report_.compared.identical += present - 1 - differ;
  if (!odd.others.empty()) known_odd_.try_emplace(at.group, odd);
  RankFinding finding = Finding(same_layout ? ReasonOf(info.role) : RankReason::kShapeDiffers, id, at.step);
  finding.ranks = odd.ranks;
  finding.others = odd.others;
  finding.outvoted = odd.outvoted;
  if (const auto found = at.measured.find(id); found != at.measured.end()) {
    const Comparison& comparison = found->second;
    if (comparison.distance) {
      finding.distance = comparison.distance->value;
      finding.distance_kind = comparison.distance->kind;
    }
    finding.tolerance = bits ? 0 : comparison.tolerance;
  }
  Add(std::move(finding), *first);
}

void RankCheck::CompareReplicas(GroupStep& at) {
  if (at.ranks->size() < 2) return;
  std::uint64_t keys = 0, equal = 0;
  std::vector<std::uint32_t> compared;
  for (std::uint32_t id = 0; id < keys_.size(); ++id) {
    if (!IsCompared(keys_[id])) continue;
    const Cell* first = nullptr;
    bool same = true, two = false;
    for (const auto& cells : at.cells) {
      const Cell& cell = cells[id];
      if (!cell.present) continue;
      two = first != nullptr;
      if (first == nullptr) first = &cell;
      same = same && cell.hash == first->hash && cell.layout == first->layout;
      if (!same && two) break;
    }
    if (!two) continue;
    compared.push_back(id);
    ++keys;
    equal += same ? 1 : 0;
  }
  // In the order of the step, so that the first finding is where it began.
  const auto place = [&](std::uint32_t id) {
    const auto first =
        std::find_if(at.cells.begin(), at.cells.end(), [id](const auto& cells) { return cells[id].present; });
    const Cell& cell = (*first)[id];
    ReportOrder place = MakeReportOrder(keys_[id].key, cell.order, 0);
    if (place.stage != Stage::kWeights) place.segment = cell.segment;
    return place;
  };
  std::vector<std::pair<ReportOrder, std::uint32_t>> sorted;
  for (const std::uint32_t id : compared) sorted.emplace_back(place(id), id);
  std::sort(sorted.begin(), sorted.end());
  const bool mostly = equal * 2 >= keys;
  for (const auto& [unused, id] : sorted)
    CompareKey(id, !request_.tolerance && (keys_[id].agreed || mostly), at);
}

// Weights that one rank lacks and the others have.
void RankCheck::FindMissing(GroupStep& at) {
  if (at.ranks->size() < 2 || layout_.weights_sharded) return;
  std::uint64_t all = 0, shared = 0;
  std::vector<std::uint32_t> partly;
  std::vector<bool> has_weights(at.ranks->size());
  for (std::uint32_t id = 0; id < keys_.size(); ++id) {
    if (keys_[id].role != Role::kWeight) continue;
    for (std::size_t i = 0; i < at.ranks->size(); ++i)
      has_weights[i] = has_weights[i] || at.cells[i][id].present;
  }
  const auto recording = static_cast<std::size_t>(std::count(has_weights.begin(), has_weights.end(), true));
  if (recording < 2) return;
  for (std::uint32_t id = 0; id < keys_.size(); ++id) {
    if (keys_[id].role != Role::kWeight || !IsCompared(keys_[id])) continue;
    std::size_t present = 0;
    for (const auto& cells : at.cells) present += cells[id].present ? 1 : 0;
    if (present == 0) continue;
    ++all;
    shared += present == recording ? 1 : 0;
    if (present < recording) partly.push_back(id);
  }
  if (partly.empty()) return;
  if (!layout_.stated && static_cast<double>(shared) < kSameNames * static_cast<double>(all)) {
    NoteOnce(
        "names",
        "ranks have only " + std::to_string(shared) + " of " + std::to_string(all) +
            " weights in common: different stages of a pipeline? Only these were compared; name the parallel "
            "layout in the run's configuration (docs/ranks.md)");
    return;
  }
  for (const std::uint32_t id : partly) {
    RankFinding finding = Finding(RankReason::kMissingActivation, id, at.step);
    Cell cell;
    bool lost = false;
    for (std::size_t i = 0; i < at.ranks->size(); ++i) {
      const std::uint32_t rank = (*at.ranks)[i];
      if (!has_weights[i]) continue;
      const bool present = at.cells[i][id].present;
      (present ? finding.others : finding.ranks).push_back(rank);
      if (present) cell = at.cells[i][id];
      if (present) continue;
      const auto complete = view_.IsComplete(at.attempt, rank, at.step);
      lost = lost || view_.Dropped(rank) > 0 || !complete.ok() || !*complete;
    }
    if (lost) {
      NoteOnce("lost", Of("rank", finding.ranks) + " lacks " + Printable(keys_[id].key.name) + " in step " +
                           std::to_string(at.step) +
                           ": among the records that it lost, or did not live to send");
      continue;
    }
    Add(std::move(finding), cell);
  }
}

void RankCheck::FollowWeights(GroupStep& at) {
  for (std::size_t i = 0; i < at.ranks->size(); ++i) {
    const auto& cells = at.cells[i];
    auto& histories = weights_[(*at.ranks)[i]];
    for (std::uint32_t id = 0; id < cells.size(); ++id) {
      const KeyInfo& info = keys_[id];
      if (info.role != Role::kWeight || !cells[id].present || info.key.mode == Mode::kEval) continue;
      WeightHistory& history = histories[info.slot];
      if (info.key.mode == Mode::kTrain && history.seen) {
        const Cell* gradient = info.gradient >= 0 ? &cells[static_cast<std::size_t>(info.gradient)] : nullptr;
        const bool moves = gradient != nullptr && gradient->present && gradient->finite &&
                           gradient->rms > 0 && !gradient->nan && !gradient->pos_inf;
        if (history.hash != cells[id].hash) {
          history.changed = true;
        } else if (moves && history.still++ == 0) {
          history.first_still = at.step;
          history.gradient = gradient->rms;
        }
      }
      history.hash = cells[id].hash;
      history.seen = true;
    }
  }
}

void RankCheck::CompareBatches(GroupStep& at) {
  if (at.ranks->size() < 2) return;
  // Per micro-batch and rank: everything it was fed, as one number.
  struct Fed {
    std::uint64_t sum = 0;
    bool varied = false;
  };
  std::map<std::uint32_t, std::vector<Fed>> fed;
  for (std::uint32_t id = 0; id < keys_.size(); ++id) {
    if (keys_[id].role != Role::kBatch || keys_[id].key.mode == Mode::kEval) continue;
    for (std::size_t i = 0; i < at.ranks->size(); ++i) {
      const Cell& cell = at.cells[i][id];
      if (!cell.present) continue;
      auto& ranks = fed[keys_[id].key.micro_batch];
      ranks.resize(at.ranks->size());
      ranks[i].sum += Mix(cell.hash + 0x9e3779b97f4a7c15u * (id + 1));
      ranks[i].varied = ranks[i].varied || (cell.varied && cell.large);
    }
  }
  if (!fed.empty() && at.group == 0) ++steps_with_batches_;
  for (const auto& [micro_batch, ranks] : fed) {
    std::map<std::uint64_t, Ranks> same;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i].varied) same[ranks[i].sum].push_back((*at.ranks)[i]);
    }
    for (const auto& [sum, who] : same) {
      if (who.size() < 2) continue;
      BatchHistory& history = batches_[who];
      if (history.steps == 0) {
        history.first_step = at.step;
        history.micro_batch = micro_batch;
      }
      if (history.last_counted != at.step) ++history.steps;
      history.last_counted = history.last_step = at.step;
    }
  }
}

void RankCheck::FindNonfinite(GroupStep& at) {
  if (at.ranks->size() < 2) return;
  for (std::uint32_t id = 0; id < keys_.size(); ++id) {
    Ranks broken, sound;
    Cell last_broken;
    for (std::size_t i = 0; i < at.ranks->size(); ++i) {
      const Cell& cell = at.cells[i][id];
      if (!cell.present) continue;
      const bool bad = cell.nan || cell.pos_inf;
      (bad ? broken : sound).push_back((*at.ranks)[i]);
      if (bad) last_broken = cell;
    }
    if (broken.empty() || sound.size() < broken.size() || IsReplicated(keys_[id].role)) continue;
    RankFinding finding = Finding(RankReason::kNonfinite, id, at.step);
    finding.ranks = std::move(broken);
    finding.others = std::move(sound);
    finding.outvoted = finding.others.size() > finding.ranks.size();
    Add(std::move(finding), last_broken);
  }
}

double Median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

void RankCheck::FindOutliers(GroupStep& at) {
  if (at.ranks->size() < kOutlierRanksMin) return;
  struct Norms {
    std::uint32_t id = 0;
    double median = 0, spread = 0;
  };
  std::map<Kind, std::vector<Norms>> by_kind;
  std::vector<double> logs, deviations;
  for (std::uint32_t id = 0; id < keys_.size(); ++id) {
    if (keys_[id].role != Role::kActivation) continue;
    logs.clear();
    for (const auto& cells : at.cells) {
      if (cells[id].present && cells[id].rms > 0) logs.push_back(std::log(cells[id].rms));
    }
    if (logs.size() < kOutlierRanksMin) continue;
    Norms norms{.id = id};
    norms.median = Median(logs);
    deviations.clear();
    for (const double x : logs) deviations.push_back(std::abs(x - norms.median));
    norms.spread = 1.4826 * Median(deviations);
    by_kind[keys_[id].key.kind].push_back(norms);
  }
  for (auto& [kind, all] : by_kind) {
    std::vector<double> spreads;
    for (const Norms& norms : all) spreads.push_back(norms.spread);
    const double pooled = Median(spreads);
    for (const Norms& norms : all) {
      const std::uint64_t checked = outlier_steps_[norms.id]++;
      const double limit =
          std::max(std::log(kOutlierRatio), kOutlierSpreads * std::max(norms.spread, pooled));
      for (std::size_t i = 0; i < at.ranks->size(); ++i) {
        const Cell& cell = at.cells[i][norms.id];
        if (!cell.present || cell.rms <= 0 || std::abs(std::log(cell.rms) - norms.median) <= limit) continue;
        OutlierHistory& history = outliers_[{(*at.ranks)[i], norms.id}];
        if (history.hits++ > 0) continue;
        history.first_step = at.step;
        history.first_checked = checked;
        history.value = cell.rms;
        history.median = std::exp(norms.median);
        history.cell = cell;
      }
    }
  }
}

// Scalars of some steps at a time: a read for each step would be a seek each.
Status RankCheck::ReadScalars(const GroupStep& at) {
  if (at.step / kSpan == span_ && at.attempt == span_attempt_) return Status::Ok();
  span_ = at.step / kSpan;
  span_attempt_ = at.attempt;
  scalars_.clear();
  for (const std::uint32_t rank : report_.ranks) {
    if (!view_.ranks(at.attempt).contains(rank)) continue;
    auto scalars =
        view_.Scalars(at.attempt, rank, {.first = span_ * kSpan, .last = span_ * kSpan + kSpan - 1});
    if (!scalars.ok()) return scalars.status();
    std::erase_if(*scalars, [](const ScalarRecord& scalar) { return !IsLoss(scalar.name); });
    scalars_[rank] = *std::move(scalars);
  }
  return Status::Ok();
}

// Where it stands in the step of the reference.
Cell RankCheck::CellOfLoss(const std::string& name, std::uint32_t micro_batch, const GroupStep& at) {
  if (!at.reference) return {};
  ScalarRecord loss{.name = name};
  loss.micro_batch = micro_batch;
  const auto spots = SpotsOfLosses(at.reference->data.observations, {loss});
  return {.segment = spots.empty() ? 0 : spots.front().segment};
}

Status RankCheck::CompareLosses(const GroupStep& at) {
  if (at.ranks->size() < 2) return Status::Ok();
  STATCOLLECT_RETURN_IF_ERROR(ReadScalars(at));
  std::map<std::pair<std::string, std::uint32_t>, std::vector<std::pair<std::uint32_t, double>>> values;
  for (const std::uint32_t rank : *at.ranks) {
    std::set<std::pair<std::string, std::uint32_t>> seen;  // the first of each name and micro-batch
    for (const ScalarRecord& scalar : scalars_[rank]) {
      if (scalar.step == at.step && seen.emplace(scalar.name, scalar.micro_batch).second)
        values[{scalar.name, scalar.micro_batch}].emplace_back(rank, scalar.value);
    }
  }
  std::map<std::string, bool> agreeing;
  for (const auto& [of, losses] : values) {
    if (losses.size() < 2) continue;
    const auto make = [&](RankReason reason) {
      RankFinding finding{.step = at.step,
                          .micro_batch = of.second,
                          .stage = Stage::kLoss,
                          .activation = of.first,
                          .reason = reason,
                          .last_step = at.step};
      return finding;
    };
    Ranks broken, sound;
    for (const auto& [rank, value] : losses) (std::isfinite(value) ? sound : broken).push_back(rank);
    if (!broken.empty() && sound.size() >= broken.size()) {
      RankFinding finding = make(RankReason::kNonfinite);
      finding.ranks = broken;
      finding.others = sound;
      finding.outvoted = sound.size() > broken.size();
      Add(std::move(finding), CellOfLoss(of.first, of.second, at), of.first);
      continue;
    }
    const double first = losses.front().second;
    bool same = true;
    for (const auto& [rank, value] : losses) same = same && RelativeDifference(first, value) == 0;
    LossHistory& history = losses_[{at.group, of.first}];
    const auto [entry, fresh] = agreeing.try_emplace(of.first, same);
    if (!fresh) entry->second = entry->second && same;
    if (same || history.done) continue;
    history.done = true;
    // Each rank's own loss differs by nature; the same data twice made it look reduced.
    if (history.agreeing < kLossStepsAgreeing || !batches_.empty()) continue;
    std::map<double, Ranks> camps;
    for (const auto& [rank, value] : losses) camps[value].push_back(rank);
    RankFinding finding = make(RankReason::kLossDiffers);
    const auto largest = std::max_element(camps.begin(), camps.end(), [](const auto& a, const auto& b) {
      return a.second.size() < b.second.size();
    });
    finding.outvoted = largest->second.size() * 2 > losses.size();
    for (const auto& [value, who] : camps) {
      Ranks& into = finding.outvoted && who == largest->second ? finding.others : finding.ranks;
      into.insert(into.end(), who.begin(), who.end());
      if (&into == &finding.ranks) finding.value = value;
    }
    std::sort(finding.ranks.begin(), finding.ranks.end());
    finding.expected = finding.outvoted ? largest->first : first;
    finding.distance = RelativeDifference(*finding.value, *finding.expected);
    Add(std::move(finding), CellOfLoss(of.first, of.second, at), of.first);
  }
  for (const auto& [name, same] : agreeing) losses_[{at.group, name}].agreeing += same ? 1 : 0;
  return Status::Ok();
}

RankFinding RankCheck::Finding(RankReason reason, std::uint32_t id, std::uint64_t step) const {
  const KeyInfo& info = keys_[id];
  return {.step = step,
          .micro_batch = info.key.micro_batch,
          .stage = StageOf(info.key),
          .kind = info.key.kind,
          .activation = info.key.name,
          .output_path = info.key.output_path,
          .call = info.key.call,
          .class_name = info.class_name,
          .mode = std::string(Name(info.key.mode)),
          .reason = reason,
          .last_step = step};
}

RankFinding& RankCheck::Add(RankFinding finding, const Cell& cell, const std::string& of) {
  const auto [entry, fresh] = findings_.try_emplace({finding.reason, finding.ranks, of});
  Listed& listed = entry->second;
  const auto key = ids_.find({.name = finding.activation,
                              .kind = finding.kind,
                              .output_path = finding.output_path,
                              .micro_batch = finding.micro_batch,
                              .call = finding.call,
                              .mode = finding.mode == "init"   ? Mode::kInit
                                      : finding.mode == "eval" ? Mode::kEval
                                                               : Mode::kTrain});
  if (key != ids_.end()) listed.keys.insert(keys_[key->second].slot);
  const bool eval = finding.mode == "eval";
  query::ReportOrder place = MakeReportOrder(finding.stage, finding.micro_batch, eval, cell.order,
                                             finding.ranks.empty() ? 0 : finding.ranks.front());
  if (place.stage != Stage::kWeights) place.segment = cell.segment;
  if (fresh) {
    listed.finding = std::move(finding);
    listed.place_in_order = place;
    return listed.finding;
  }
  RankFinding& kept = listed.finding;
  kept.steps += finding.step > kept.last_step ? 1 : 0;
  kept.last_step = std::max(kept.last_step, finding.step);
  if (finding.step == kept.step && place < listed.place_in_order) {
    finding.steps = kept.steps;
    finding.last_step = kept.last_step;
    kept = std::move(finding);
    listed.place_in_order = place;
  }
  return kept;
}

void RankCheck::AddFrozen() {
  std::map<std::uint32_t, Ranks> frozen;  // by slot
  std::map<std::uint32_t, std::uint64_t> moving;
  for (const auto& [rank, histories] : weights_) {
    for (const auto& [slot, history] : histories) {
      moving[rank] += history.changed ? 1 : 0;
      if (!history.changed && history.still >= 2) frozen[slot].push_back(rank);
    }
  }
  for (const auto& [slot, ranks] : frozen) {
    const WeightHistory& history = weights_[ranks.front()][slot];
    RankFinding finding = Finding(RankReason::kFrozenWeight, slot, history.first_still);
    finding.ranks = ranks;
    finding.value = history.gradient;
    const bool all =
        std::none_of(ranks.begin(), ranks.end(), [&](std::uint32_t rank) { return moving[rank] > 0; });
    // Independent mistakes, one each; unless nothing learns at all.
    RankFinding& added = Add(std::move(finding), Cell{.order = slot}, all ? "" : std::to_string(slot));
    added.steps = std::max<std::uint64_t>(added.steps, history.still);
    if (report_.steps) added.last_step = report_.steps->last;
  }
}

void RankCheck::AddBatches() {
  for (const auto& [ranks, history] : batches_) {
    if (history.steps < 2 && steps_with_batches_ > 1) {
      Note(Of("rank", ranks) + " were fed the same data once, in step " + std::to_string(history.first_step));
      continue;
    }
    RankFinding finding{.step = history.first_step,
                        .micro_batch = history.micro_batch,
                        .stage = Stage::kBatch,
                        .kind = Kind::kBatch,
                        .reason = RankReason::kSameBatch,
                        .ranks = ranks,
                        .steps = history.steps,
                        .last_step = history.last_step};
    Add(std::move(finding), {});
  }
}

void RankCheck::AddOutliers() {
  std::vector<std::pair<const std::pair<std::uint32_t, std::uint32_t>*, const OutlierHistory*>> lasting;
  for (const auto& [of, history] : outliers_) {
    const std::uint64_t checked = outlier_steps_[of.second] - history.first_checked;
    if (checked > 1 ? history.hits >= 2 && history.hits * 2 >= checked : outlier_steps_[of.second] == 1)
      lasting.emplace_back(&of, &history);
  }
  std::sort(lasting.begin(), lasting.end(), [](const auto& a, const auto& b) {
    return std::tie(a.second->first_step, a.second->cell.order) <
           std::tie(b.second->first_step, b.second->cell.order);
  });
  for (const auto& [of, history] : lasting) {
    RankFinding finding = Finding(RankReason::kOutlier, of->second, history->first_step);
    finding.ranks = {of->first};
    for (const Ranks& group : report_.groups) {
      if (!std::binary_search(group.begin(), group.end(), of->first)) continue;
      for (const std::uint32_t rank : group) {
        if (rank != of->first) finding.others.push_back(rank);
      }
    }
    finding.outvoted = true;
    finding.value = history->value;
    finding.expected = history->median;
    RankFinding& added = Add(std::move(finding), history->cell);
    added.steps = std::max(added.steps, history->hits);
  }
}

void RankCheck::AddMissingSteps() {
  for (const auto& [rank, count] : missing_count_) {
    const auto recorded = steps_of_rank_.find(rank);
    if (recorded == steps_of_rank_.end()) {
      if (view_.ranks(view_.attempts().size() - 1).contains(rank))
        Note(Of("rank", {rank}) + " recorded no statistics in these steps");
      continue;
    }
    const std::uint64_t first = missing_steps_[rank].front(), last = missing_steps_[rank].back();
    const std::size_t attempt = steps_[first];
    const auto meta = view_.ranks(attempt).find(rank);
    const bool known = meta != view_.ranks(attempt).end();
    const bool ended = known && meta->second.last_step && first > *meta->second.last_step;
    const bool open = known && is_open_ && is_open_(view_.attempts()[attempt].id, rank);
    const std::string range = first == last ? "step " + std::to_string(first)
                                            : "steps " + std::to_string(first) + ".." + std::to_string(last);
    if (ended && open) {
      Note(Of("rank", {rank}) + " is " + std::to_string(count) + (count == 1 ? " step" : " steps") +
           " behind the others; its stream is open");
      continue;
    }
    if (view_.Dropped(rank) > 0 && !ended) {
      Note(Of("rank", {rank}) + " has no statistics in " + std::to_string(count) + " of " + range +
           "; its agent reported lost records");
      continue;
    }
    RankFinding finding{.step = first,
                        .reason = ended ? RankReason::kEndedEarly : RankReason::kMissingStep,
                        .ranks = {rank},
                        .steps = count,
                        .last_step = last};
    finding.text = ended ? "Rank " + std::to_string(rank) + " has nothing after step " +
                               std::to_string(*meta->second.last_step) + ", the others go on to step " +
                               std::to_string(last) + "."
                         : "Rank " + std::to_string(rank) + " has no statistics in " + range + " (" +
                               std::to_string(count) + "), other ranks do.";
    Add(std::move(finding), {});
  }
}

std::string Sentence(const RankFinding& f) {
  const std::string kind(Name(f.kind));
  const bool one = f.ranks.size() == 1;
  const std::string who = (one ? "Rank " : "Ranks ") + RanksText(f.ranks);
  const std::string far = f.distance ? " (distance " + ShortNumber(*f.distance) + ")" : "";
  const std::string against = f.others.empty() ? "" : Of(" rank", f.others);
  switch (f.reason) {
    case RankReason::kWeightsDiffer:
    case RankReason::kStateDiffers:
    case RankReason::kGradientsDiffer: {
      const std::string what = f.reason == RankReason::kStateDiffers ? "optimizer state of " + TensorOf(f)
                               : f.reason == RankReason::kGradientsDiffer
                                   ? "gradient of " + TensorOf(f)
                                   : TensorOf(f) + (f.mode == "init" ? " as loaded" : " after the update");
      if (f.others.empty()) {
        std::string text = who + " do not agree on " + what + far;
        if (f.reason == RankReason::kGradientsDiffer) text += ": was the reduction over the ranks skipped?";
        return text + (text.back() == '?' ? "" : ".");
      }
      if (!f.outvoted && f.reason == RankReason::kWeightsDiffer && f.mode != "init")
        return who + " kept the old " + TensorOf(f) + " while" + against + " updated theirs" + far + ".";
      return who + (one ? " does" : " do") + " not have the " + what + " of" + against + far + ".";
    }
    case RankReason::kShapeDiffers:
      return who +
             (f.others.empty() ? " do not agree"
              : one            ? " differs"
                               : " differ") +
             (f.others.empty() ? "" : " from" + against) + " in shape or dtype of " + kind + " " +
             TensorOf(f) + ".";
    case RankReason::kSameBatch:
      return who + " were fed the same data in " + std::to_string(f.steps) +
             (f.steps == 1 ? " step: " : " steps: ") + "is the data set sharded over the ranks?";
    case RankReason::kFrozenWeight:
      return TensorOf(f) +
             (f.activations > 1 ? " and " + std::to_string(f.activations - 1) + " more weights" : "") +
             " never changed on " + Of("rank", f.ranks) + " although the gradient is not zero (rms " +
             ShortNumber(f.value.value_or(0)) +
             "): not in the optimizer, a learning rate of 0, or an update below the "
             "dtype's resolution?";
    case RankReason::kLossDiffers:
      return Printable(f.activation) + " was equal on all ranks until step " + std::to_string(f.step) + ": " +
             ShortNumber(f.value.value_or(0)) + " on " + Of("rank", f.ranks) + ", " +
             ShortNumber(f.expected.value_or(0)) +
             (f.others.empty() ? " on another." : " on" + against + ".");
    case RankReason::kNonfinite:
      return (f.stage == Stage::kLoss ? Printable(f.activation) : kind + " " + TensorOf(f)) + " of " +
             Of("rank", f.ranks) + " has NaN or infinities," + against +
             (f.others.size() == 1 ? " has" : " have") + " none.";
    case RankReason::kOutlier:
      return who + " is unlike the others: rms of " + kind + " " + TensorOf(f) + " is " +
             ShortNumber(f.value.value_or(0)) + ", the median over the ranks " +
             ShortNumber(f.expected.value_or(0)) + ".";
    case RankReason::kMissingActivation:
      return who + (one ? " does" : " do") + " not have " + kind + " " + TensorOf(f) + "," + against +
             (f.others.size() == 1 ? " does." : " do.");
    default:
      return f.text;
  }
}

// Ranks of which nothing is equal are no replicas that parted.
void RankCheck::ConcludeReplicas() {
  if (layout_.stated || replica_differences_ == 0 || equal_varied_ > 0) return;
  std::erase_if(findings_, [](const auto& entry) {
    const RankReason reason = std::get<0>(entry.first);
    return reason == RankReason::kWeightsDiffer || reason == RankReason::kStateDiffers ||
           reason == RankReason::kGradientsDiffer;
  });
  report_.message =
      "no weight, gradient or optimizer state is the same on two ranks in any step: they hold shards (FSDP, "
      "tensor or pipeline parallel) or models of their own; if they are to be replicas, say so in the run's "
      "configuration, as config={\"dp\": " +
      std::to_string(view_.attempts().back().world_size) + "} (docs/ranks.md)";
  Note(report_.message);
  report_.compared = {};
  pairs_ = 0;
}

void RankCheck::Conclude() {
  ConcludeReplicas();
  AddFrozen();
  AddBatches();
  AddOutliers();
  AddMissingSteps();
  std::vector<Listed> all;
  for (auto& [of, listed] : findings_) all.push_back(std::move(listed));
  std::sort(all.begin(), all.end(), [](const Listed& a, const Listed& b) {
    return std::tie(a.finding.step, a.place_in_order, a.finding.reason, a.finding.ranks) <
           std::tie(b.finding.step, b.place_in_order, b.finding.reason, b.finding.ranks);
  });
  const std::size_t top = request_.top == 0 ? kFindingsDefault : request_.top;
  std::set<std::uint32_t> explained;
  for (Listed& listed : all) {
    RankFinding& f = listed.finding;
    f.activations = std::max<std::uint64_t>(listed.keys.size(), f.activation.empty() ? 0 : 1);
    const bool value_of_rank = f.reason <= RankReason::kGradientsDiffer ||
                               f.reason == RankReason::kLossDiffers || f.reason == RankReason::kNonfinite ||
                               f.reason == RankReason::kOutlier;
    f.propagated = value_of_rank && std::any_of(f.ranks.begin(), f.ranks.end(),
                                                [&](std::uint32_t rank) { return explained.contains(rank); });
    if (value_of_rank) explained.insert(f.ranks.begin(), f.ranks.end());
    f.text = Sentence(f);
    if (report_.findings.size() < top) report_.findings.push_back(std::move(f));
  }
  if (all.size() > top)
    Note("only the first " + std::to_string(top) + " of " + std::to_string(all.size()) +
         " findings are listed");
  if (!report_.findings.empty()) {
    report_.verdict = RanksVerdict::kInconsistent;
    report_.message.clear();
  } else if (pairs_ > 0) {
    report_.verdict = RanksVerdict::kConsistent;
  } else {
    report_.verdict = RanksVerdict::kIncomparable;
    if (!report_.message.empty()) return;
    const bool alone = std::all_of(report_.groups.begin(), report_.groups.end(),
                                   [](const Ranks& group) { return group.size() < 2; });
    report_.message = steps_.empty() ? "no step to look at"
                      : alone        ? "no two ranks are replicas of each other"
                              : "no weight, gradient or optimizer state was recorded on two ranks; watch the "
                                "optimizer (statagent.watch(model, optimizer=...))";
  }
}

}  // namespace

std::string_view Name(RankReason reason) {
  static constexpr std::array<std::string_view, 14> kNames = {
      "unspecified",  "weights_differ", "state_differs",      "gradients_differ", "shape_differs",
      "same_batch",   "frozen_weight",  "loss_differs",       "nonfinite",        "outlier",
      "missing_rank", "missing_step",   "missing_activation", "ended_early"};
  const auto index = static_cast<std::size_t>(reason);
  return index < kNames.size() ? kNames[index] : kNames[0];
}

Result<RanksReport> CheckRanks(RunView& view, const RanksRequest& request,
                               const std::function<bool(AttemptId, std::uint32_t)>& is_stream_open,
                               const std::function<void(const Progress&)>& progress,
                               const std::stop_token& stop, std::size_t threads) {
  return RankCheck(view, request, is_stream_open, threads).Run(progress, stop);
}

}  // namespace statcollect::query
