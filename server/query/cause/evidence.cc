#include "server/query/cause/evidence.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "common/names.h"
#include "common/saturating.h"
#include "common/shape.h"
#include "server/query/cause/constants.h"
#include "server/query/compare/roundoff.h"
#include "server/query/compare/step_order.h"
#include "server/query/settings/config_at.h"
#include "server/query/settings/scheduled.h"

namespace statcollect::query::cause {
namespace {

// The scalars of the launches whose steps were compared.
Result<std::vector<ScalarRecord>> ReadScalars(const CauseQuestion& question, const Side& side,
                                              bool of_a) {
  const std::uint64_t last = question.root.step;
  const StepBounds bounds{.first = last > kScalarStepsMax ? last - kScalarStepsMax : 0,
                          .last = last};
  std::vector<ScalarRecord> all;
  for (std::size_t attempt = 0; attempt <= side.attempt; ++attempt) {
    if (!side.view->ranks(attempt).contains(side.rank)) continue;
    STATCOLLECT_ASSIGN_OR_RETURN(auto some, side.view->Scalars(attempt, side.rank, bounds));
    for (ScalarRecord& scalar : some) {
      const auto step = question.steps.find(scalar.step);
      if (step == question.steps.end()) {
        if (attempt == side.attempt) all.push_back(std::move(scalar));
      } else if ((of_a ? step->second.first : step->second.second) == attempt) {
        all.push_back(std::move(scalar));
      }
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const ScalarRecord& x, const ScalarRecord& y) { return x.step < y.step; });
  return all;
}

// Ranks that hold the same part of a tensor, or a tensor of which nothing says that it is one, have
// replicas of it.
Result<std::optional<double>> NormOfModel(const Side& side, std::size_t attempt, std::uint64_t step,
                                          const StepData& own) {
  using Part = std::tuple<TensorKey, std::vector<std::int64_t>, std::vector<std::int64_t>>;
  const auto& ranks = side.view->ranks(attempt);
  if (ranks.size() > kNormRanksMax) return std::optional<double>();
  std::map<Part, double> norms;
  for (const auto& [rank, meta] : ranks) {
    StepData of_rank;
    if (rank != side.rank) {
      STATCOLLECT_ASSIGN_OR_RETURN(auto complete, side.view->IsComplete(attempt, rank, step));
      if (!complete) return std::optional<double>();
      STATCOLLECT_ASSIGN_OR_RETURN(of_rank, side.view->Read(attempt, rank, step));
    }
    for (const Observation& seen : (rank == side.rank ? own : of_rank).observations) {
      if (seen.def->key.kind != Kind::kWeightGrad || !seen.stats->has_finite) continue;
      const Placement place = seen.layout->placement.value_or(Placement());
      const bool whole =
          seen.stats->numel ==
          NumelOf(seen.layout->shape);  // not of merged parts of which one is missing
      if (!whole || place.partial || place.pieces > 1) return std::optional<double>();
      const auto [known, added] =
          norms.try_emplace({seen.def->key, place.boxes, place.ranges}, seen.stats->l2);
      if (!added && std::abs(known->second - seen.stats->l2) > kSameNorm * known->second)
        return std::optional<double>();
    }
  }
  double squares = 0;
  for (const auto& [part, norm] : norms) squares += norm * norm;
  return std::optional(std::sqrt(squares));
}

// One step of a side, and the norm of its gradients where a rule may ask for it.
Status ReadStep(const CauseQuestion& question, std::size_t attempt, std::uint64_t step,
                const Side& side, StepData& data, std::optional<double>& norm) {
  STATCOLLECT_ASSIGN_OR_RETURN(data, side.view->Read(attempt, side.rank, step));
  if (question.root.stage != Stage::kGrad) return Status::Ok();
  STATCOLLECT_ASSIGN_OR_RETURN(norm, NormOfModel(side, attempt, step, data));
  return Status::Ok();
}

Status FillSide(const CauseQuestion& question, bool of_a, Side& side) {
  side.view = of_a ? &question.a : &question.b;
  side.rank = of_a ? question.ranks.a : question.ranks.b;
  const auto here = question.steps.find(question.root.step);
  const auto attempt_of = [&](const auto& step) {
    return of_a ? step->second.first : step->second.second;
  };
  side.attempt = attempt_of(here);
  side.world_size = side.view->attempts()[side.attempt].world_size;
  STATCOLLECT_RETURN_IF_ERROR(
      ReadStep(question, side.attempt, here->first, side, side.at, side.norm));
  if (here != question.steps.begin()) {
    const auto before = std::prev(here);
    STATCOLLECT_RETURN_IF_ERROR(
        ReadStep(question, attempt_of(before), before->first, side, side.before, side.norm_before));
  }
  STATCOLLECT_ASSIGN_OR_RETURN(auto scalars, ReadScalars(question, side, of_a));
  side.scalars = std::move(scalars);
  STATCOLLECT_ASSIGN_OR_RETURN(auto events, side.view->Events(side.attempt, side.rank));
  side.events = std::move(events);
  for (const Observation& seen : side.at.observations)
    side.micro_batches = std::max(side.micro_batches, SaturatingAdd(seen.def->key.micro_batch, 1));
  const auto& ranks = side.view->ranks(side.attempt);
  if (const auto meta = ranks.find(side.rank); meta != ranks.end()) {
    side.config = meta->second.info.config;
    side.first_step = meta->second.first_step.value_or(0);
    TakeBackLaterChanges(question.root.step, side.first_step, side.events, side.config);
  }
  return Status::Ok();
}

std::optional<std::uint64_t> FirstStep(const Side& side) {
  std::optional<std::uint64_t> first;
  for (std::size_t attempt = 0; attempt < side.view->attempts().size(); ++attempt) {
    const auto& ranks = side.view->ranks(attempt);
    const auto meta = ranks.find(side.rank);
    if (meta == ranks.end() || !meta->second.first_step) continue;
    first = std::min(first.value_or(*meta->second.first_step), *meta->second.first_step);
  }
  return first;
}

// A launch of its own within the run, or a run that begins where the other one is under way.
void FindLaunches(const CauseQuestion& question, Evidence& evidence) {
  const auto here = question.steps.find(question.root.step);
  if (here != question.steps.begin()) {
    const auto before = std::prev(here);
    evidence.a.launched_here = before->second.first != here->second.first;
    evidence.b.launched_here = before->second.second != here->second.second;
    return;
  }
  const auto first_a = FirstStep(evidence.a), first_b = FirstStep(evidence.b);
  if (!first_a || !first_b) return;
  const std::uint64_t step = question.root.step;
  evidence.a.launched_here = *first_a == step && *first_b < step;
  evidence.b.launched_here = *first_b == step && *first_a < step;
}

void CompareLaunches(Evidence& evidence) {
  Side &a = evidence.a, &b = evidence.b;
  const Launch of_a{.view = *a.view, .attempt = a.attempt, .rank = a.rank};
  const Launch of_b{.view = *b.view, .attempt = b.attempt, .rank = b.rank};
  evidence.launched_together = BeginTogether(of_a, of_b);
  AlignScheduled(of_a, of_b, a.config, b.config);
  evidence.first_update = FirstStep(a) == evidence.root.step && FirstStep(b) == evidence.root.step;
}

Result<std::vector<Pair>> MatchPairs(const CauseQuestion& question, std::uint64_t step,
                                     const StepData& of_a, const StepData& of_b,
                                     PairedStep& paired) {
  const auto [attempt_a, attempt_b] = question.steps.at(step);
  STATCOLLECT_ASSIGN_OR_RETURN(auto a, question.a.Catalogue(attempt_a, question.ranks.a));
  STATCOLLECT_ASSIGN_OR_RETURN(auto b, question.b.Catalogue(attempt_b, question.ranks.b));
  paired = PairedStep(question.aligner.For(question.place, *a, *b), of_a.observations,
                      of_b.observations);
  std::vector<Pair> pairs;
  pairs.reserve(paired.pairs().size());
  for (const RecordPair& pair : paired.pairs()) pairs.push_back({.a = &pair.a, .b = &pair.b});
  return pairs;
}

void NoteRounding(Evidence& evidence) {
  const std::uint64_t end = evidence.a.root != nullptr ? evidence.a.root->order : ~std::uint64_t{0};
  const Stage stage = evidence.root.stage;
  for (const Pair& pair : evidence.at) {
    const DType a = pair.a->layout->dtype, b = pair.b->layout->dtype;
    if (!IsFloat(a) || !IsFloat(b)) continue;
    evidence.rounding = std::max({evidence.rounding, UnitRoundoff(a), UnitRoundoff(b)});
    const bool before = pair.a->order < end && StageOf(pair.key()) <= stage;
    if (!before || pair.key().kind != Kind::kOutput) continue;
    const double distance = DistanceBetween(*pair.a, *pair.b);
    if (std::isfinite(distance)) evidence.rounding = std::max(evidence.rounding, distance);
  }
}

// Of the twin of the least noise.
Status NoteNoise(const CauseQuestion& question, Evidence& evidence) {
  if (question.twins == nullptr) return Status::Ok();
  const std::uint64_t step = evidence.root.step;
  const auto shared = question.twins->steps().find(step);
  if (shared == question.twins->steps().end() || shared->second != question.steps.at(step).first)
    return Status::Ok();
  Twins::Step twin;
  STATCOLLECT_RETURN_IF_ERROR(question.twins->Read(0, question.ranks.a, step, twin));
  for (const Pair& pair : evidence.at) {
    const Observation of_twin = evidence.paired_at.InPlaceOfA(pair.a->def->id, twin.by_id);
    const double distance = of_twin.def == nullptr ? 0 : DistanceBetween(*pair.a, of_twin);
    if (std::isfinite(distance)) evidence.noise[pair.a] = distance;
  }
  return Status::Ok();
}

bool IsRoot(const Divergence& root, const TensorKey& key) {
  return key.kind == root.kind && key.name == root.activation &&
         key.output_path == root.output_path && key.micro_batch == root.micro_batch &&
         key.call == root.call && Name(key.mode) == root.mode;
}

const Observation* RecordOf(const Divergence& root, const Side& side) {
  for (const Observation& seen : side.at.observations) {
    if (IsRoot(root, seen.def->key)) return &seen;
  }
  return nullptr;
}

void SetRoot(Evidence& evidence) {
  const Divergence& root = evidence.root;
  for (const Pair& pair : evidence.at) {
    if (!IsRoot(root, pair.key())) continue;
    evidence.a.root = pair.a;
    evidence.b.root = pair.b;
    return;
  }
  if (root.reason != Reason::kMissingInA) evidence.a.root = RecordOf(root, evidence.a);
  if (root.reason == Reason::kMissingInA) evidence.b.root = RecordOf(root, evidence.b);
}

}  // namespace

const Observation* Find(const StepData& step, Kind kind, std::string_view name, Mode mode) {
  for (const Observation& seen : step.observations) {
    const TensorKey& key = seen.def->key;
    if (key.kind == kind && key.mode == mode && (name.empty() || key.name == name)) return &seen;
  }
  return nullptr;
}

const Pair* WeightIn(const std::vector<Pair>& pairs, std::string_view name, Mode mode) {
  const auto found = std::find_if(pairs.rbegin(), pairs.rend(), [&](const Pair& pair) {
    const TensorKey& key = pair.key();
    return key.kind == Kind::kWeight && key.mode == mode && key.name == name;
  });
  return found == pairs.rend() ? nullptr : &*found;
}

double NormOfRank(const StepData& step) {
  double squares = 0;
  for (const Observation& seen : step.observations) {
    if (seen.def->key.kind == Kind::kWeightGrad && seen.stats->has_finite)
      squares += seen.stats->l2 * seen.stats->l2;
  }
  return std::sqrt(squares);
}

std::optional<double> Side::LatestScalar(std::string_view scalar, std::uint64_t step) const {
  std::optional<double> value;
  for (const ScalarRecord& record : scalars) {
    if (record.step <= step && record.name == scalar) value = record.value;
  }
  return value;
}

std::optional<double> Side::ScalarAt(std::string_view scalar, std::uint64_t step) const {
  std::optional<double> value;
  for (const ScalarRecord& record : scalars) {
    if (record.step == step && record.name == scalar) value = record.value;
  }
  return value;
}

std::vector<Pair> Evidence::PairsOf(Kind kind) const {
  std::vector<Pair> found;
  for (const Pair& pair : at) {
    if (pair.key().kind == kind && pair.key().mode == Mode::kTrain) found.push_back(pair);
  }
  return found;
}

double Evidence::RemainderOf(const Observation& of_a) const {
  const auto of_twin = noise.find(&of_a);
  return kEnlarged * std::max(rounding, of_twin == noise.end() ? 0 : of_twin->second);
}

Result<Evidence> Gather(const CauseQuestion& question, const std::stop_token& stop) {
  Evidence evidence{.root = question.root};
  STATCOLLECT_RETURN_IF_ERROR(FillSide(question, /*of_a=*/true, evidence.a));
  if (stop.stop_requested()) return Status(Code::kCancelled, "diff: cancelled");
  STATCOLLECT_RETURN_IF_ERROR(FillSide(question, /*of_a=*/false, evidence.b));
  FindLaunches(question, evidence);
  CompareLaunches(evidence);
  STATCOLLECT_ASSIGN_OR_RETURN(auto at, MatchPairs(question, question.root.step, evidence.a.at,
                                                   evidence.b.at, evidence.paired_at));
  evidence.at = std::move(at);
  const auto here = question.steps.find(question.root.step);
  if (here != question.steps.begin()) {
    evidence.step_before = std::prev(here)->first;
    STATCOLLECT_ASSIGN_OR_RETURN(auto before,
                                 MatchPairs(question, *evidence.step_before, evidence.a.before,
                                            evidence.b.before, evidence.paired_before));
    evidence.before = std::move(before);
  }
  SetRoot(evidence);
  NoteRounding(evidence);
  STATCOLLECT_RETURN_IF_ERROR(NoteNoise(question, evidence));
  return evidence;
}

}  // namespace statcollect::query::cause
