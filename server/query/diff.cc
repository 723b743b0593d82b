#include "server/query/diff.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "common/names.h"
#include "server/query/config_diff.h"
#include "server/query/distance.h"
#include "server/query/origin.h"
#include "server/query/step_order.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kUnmatchedMax = 10'000;

void SetDistance(Divergence& row, const Comparison& comparison) {
  row.reason = comparison.reason;
  row.tolerance = comparison.tolerance;
  if (!comparison.distance) return;
  row.distance = comparison.distance->value;
  row.distance_kind = comparison.distance->kind;
  if (comparison.distance->kind == DistanceKind::kSketch) {
    row.distance_low = comparison.distance->low;
    row.distance_high = comparison.distance->high;
  }
}

struct PlacedRow {
  Place place;
  Divergence row;
};

// One step, all ranks, while it is compared.
struct StepResult {
  std::vector<PlacedRow> rows;             // diverged
  std::optional<PlacedRow> first_bitwise;  // first that is not bit-identical
  std::vector<ForwardTrace> traces;
};

// Matching of one rank's activations between two catalogues, by identity; ids of A to ids of B and back.
struct Matching {
  std::size_t defined_a = 0, defined_b = 0;  // the catalogues' sizes that it was made for
  std::unordered_map<std::uint32_t, std::uint32_t> b_of_a, a_of_b;
};

struct KindPresence {
  std::array<bool, kKindCount> a{}, b{};
};

// One observation on both sides, as judged.
struct Pair {
  const Observation* a = nullptr;
  const Observation* b = nullptr;
  Comparison comparison;
  std::size_t row = 0;  // index of its row in StepResult, if it diverged
};

// The last activation of a stage and micro-batch that agrees.
struct Agreeing {
  const ActivationDef* def = nullptr;
  double distance = 0;
};

// Names of losses, and how many were found with no counterpart in their step.
struct LossNames {
  std::set<std::string> a, b;
  std::uint64_t alone = 0;
};

class Diff {
 public:
  Diff(RunView& a, RunView& b, const DiffRequest& request) : a_(a), b_(b), request_(request) {
    report_.run_a = a.run();
    report_.run_b = b.run();
  }

  Result<DiffReport> Run(const IsStreamOpen& is_stream_open, const OnProgress& progress,
                         const std::stop_token& stop);

 private:
  // One rank of one step.
  struct RankStep {
    std::uint64_t step = 0;
    std::uint32_t rank = 0;
    std::size_t attempt_a = 0, attempt_b = 0;
    StepResult* result = nullptr;
    std::map<std::tuple<Stage, std::uint32_t, Mode>, Agreeing> agreeing;
    std::optional<bool> complete_a, complete_b;  // looked up when something is missing
  };

  Status ChooseRanksAndSteps();
  Status ChooseSteps();
  void CompareConfiguration();
  Status FindKinds();
  Status CompareStep(RankStep& at);
  Status CompareMatched(const StepData& a, const StepData& b, const Matching& matching, RankStep& at);
  Pair ComparePair(const Observation& a, const Observation& b, RankStep& at);
  void NoteInputs(Stage stage, bool identical);
  Status Missing(const Observation& seen, bool in_a, bool defined, const Place& place, RankStep& at);
  Result<bool> IsCertainlyMissing(const Observation& seen, bool in_a, bool defined, RankStep& at);
  void CompareOrder(const std::vector<Pair>& forward, RankStep& at);
  void MarkOutOfPlace(const Pair& pair, const Observation& before, RankStep& at);
  Status CompareLosses(const RankStep& at);
  void CompareLoss(const ScalarRecord& a, double b, std::uint64_t position, const RankStep& at);
  void TakeStep(StepResult result);
  void MarkStepOrigins(std::vector<Divergence>& rows, const std::vector<ForwardTrace>& traces);
  void NoteUnmatched(std::string label, bool only_a);
  void NoteBitwise(const Place& place, const Divergence& row, StepResult& result) const;
  void Count(const Divergence& row);
  void AddNotes(const IsStreamOpen& is_stream_open);
  void Conclude();
  void ConcludeIncomparable();
  const Matching& MatchingOf(const RankStep& at, const RankCatalogue& a, const RankCatalogue& b);
  bool Wanted(Kind kind) const {
    return request_.kinds.empty() ||
           std::find(request_.kinds.begin(), request_.kinds.end(), kind) != request_.kinds.end();
  }

  RunView& a_;
  RunView& b_;
  const DiffRequest& request_;
  DiffReport report_;
  StepSet wanted_;
  std::map<std::uint64_t, std::pair<std::size_t, std::size_t>> steps_;  // common: attempts of A and B
  KindPresence kinds_;
  std::map<std::tuple<std::size_t, std::size_t, std::uint32_t>, Matching> matchings_;
  std::uint64_t pairs_ = 0;
  std::uint64_t incomparable_ = 0;  // pairs without a statistic in common
  std::uint64_t without_hash_ = 0;  // identical as far as was recorded
  std::set<std::string> unmatched_a_, unmatched_b_;
  std::unordered_set<std::string> missing_counted_;  // side, rank and label
  std::unordered_set<const ActivationDef*> compared_defs_;
  std::set<std::string> diverged_names_, compared_names_;
  std::set<std::uint32_t> diverged_ranks_;
  std::set<std::string> incomplete_;  // notes
  LossNames losses_;
  bool uncertain_missing_ = false, sketch_missing_ = false, cut_ = false;
  bool weights_seen_ = false, weights_differ_ = false, batches_seen_ = false, batches_differ_ = false;
  bool order_reported_ = false, values_diverged_ = false;
};

Result<DiffReport> Diff::Run(const IsStreamOpen& is_stream_open, const OnProgress& progress,
                             const std::stop_token& stop) {
  CompareConfiguration();
  STATCOLLECT_RETURN_IF_ERROR(ChooseRanksAndSteps());
  AddNotes(is_stream_open);
  if (!report_.message.empty()) {
    report_.verdict = Verdict::kIncomparable;
    return std::move(report_);
  }
  STATCOLLECT_RETURN_IF_ERROR(FindKinds());
  Progress done{.done = 0, .total = steps_.size() * report_.ranks.size()};
  for (const auto& [step, attempts] : steps_) {
    StepResult result;
    for (const std::uint32_t rank : report_.ranks) {
      if (stop.stop_requested()) return Status(Code::kCancelled, "diff: cancelled");
      RankStep at{.step = step,
                  .rank = rank,
                  .attempt_a = attempts.first,
                  .attempt_b = attempts.second,
                  .result = &result};
      STATCOLLECT_RETURN_IF_ERROR(CompareStep(at));
      STATCOLLECT_RETURN_IF_ERROR(CompareLosses(at));
      ++done.done;
      if (progress) progress(done);
    }
    TakeStep(std::move(result));
  }
  Conclude();
  return std::move(report_);
}

Status Diff::ChooseRanksAndSteps() {
  auto wanted = StepSet::Parse(request_.steps);
  if (!wanted.ok()) return wanted.status();
  wanted_ = *std::move(wanted);
  if (request_.tolerance && !(std::isfinite(*request_.tolerance) && *request_.tolerance >= 0)) {
    return {Code::kInvalidArgument,
            "diff: tolerance is not a finite number of at least 0; expected a relative L2 such as 1e-3"};
  }
  const auto ranks_a = a_.AllRanks(), ranks_b = b_.AllRanks();
  std::set_intersection(ranks_a.begin(), ranks_a.end(), ranks_b.begin(), ranks_b.end(),
                        std::back_inserter(report_.ranks));
  if (!request_.ranks.empty()) {
    std::set<std::uint32_t> asked(request_.ranks.begin(), request_.ranks.end());
    std::erase_if(report_.ranks, [&](std::uint32_t rank) { return asked.erase(rank) == 0; });
    for (const std::uint32_t rank : asked) {
      report_.notes.push_back("rank " + std::to_string(rank) + " was asked for, but not both runs have it");
    }
  }
  if (ranks_a != ranks_b) {
    report_.notes.push_back("the runs have different ranks (" + std::to_string(ranks_a.size()) + " and " +
                            std::to_string(ranks_b.size()) + "); compared the " +
                            std::to_string(report_.ranks.size()) + " that both have");
  }
  if (report_.ranks.empty()) {
    report_.message =
        "no rank in common" + std::string(request_.ranks.empty() ? "" : " among those asked for");
    return Status::Ok();
  }
  return ChooseSteps();
}

Status Diff::ChooseSteps() {
  auto steps_a = a_.Steps(wanted_), steps_b = b_.Steps(wanted_);
  if (!steps_a.ok()) return steps_a.status();
  if (!steps_b.ok()) return steps_b.status();
  for (const auto& [step, attempt] : *steps_a) {
    const auto other = steps_b->find(step);
    if (other != steps_b->end()) steps_[step] = {attempt, other->second};
  }
  const auto range = [](const auto& steps) {
    return steps.empty()
               ? std::string("none")
               : std::to_string(steps.begin()->first) + ".." + std::to_string(steps.rbegin()->first);
  };
  if (steps_.empty()) {
    report_.message = "no step in common: " + report_.run_a + " has " + range(*steps_a) + ", " +
                      report_.run_b + " has " + range(*steps_b) +
                      (request_.steps.empty() ? "" : " among the steps asked for");
    return Status::Ok();
  }
  if (steps_a->size() + steps_b->size() > 2 * steps_.size()) {
    report_.notes.push_back("steps differ: " + report_.run_a + " has " + range(*steps_a) + ", " +
                            report_.run_b + " has " + range(*steps_b) + "; compared the " +
                            std::to_string(steps_.size()) + " that both have");
  }
  report_.steps = StepRange{.first = steps_.begin()->first, .last = steps_.rbegin()->first};
  return Status::Ok();
}

void Diff::CompareConfiguration() {
  const auto config_of = [](const RunView& view) {
    const auto& ranks = view.ranks(view.attempts().size() - 1);
    return ranks.empty() ? std::map<std::string, std::string>() : ranks.begin()->second.info.config;
  };
  report_.inputs.config = CompareConfig(config_of(a_), config_of(b_));
}

// A kind that one run never recorded was not asked for there: that is no divergence, but is said.
Status Diff::FindKinds() {
  const auto add = [&](RunView& view, std::size_t attempt, std::array<bool, kKindCount>& present) {
    for (const std::uint32_t rank : report_.ranks) {
      auto catalogue = view.Catalogue(attempt, rank);
      if (!catalogue.ok()) return catalogue.status();
      for (const ActivationDef& def : (*catalogue)->activations)
        present[static_cast<std::size_t>(def.key.kind)] = true;
    }
    return Status::Ok();
  };
  std::set<std::size_t> attempts_a, attempts_b;
  for (const auto& [step, attempts] : steps_) {
    attempts_a.insert(attempts.first);
    attempts_b.insert(attempts.second);
  }
  for (const std::size_t attempt : attempts_a) STATCOLLECT_RETURN_IF_ERROR(add(a_, attempt, kinds_.a));
  for (const std::size_t attempt : attempts_b) STATCOLLECT_RETURN_IF_ERROR(add(b_, attempt, kinds_.b));
  for (std::size_t kind = 1; kind < kKindCount; ++kind) {
    if (kinds_.a[kind] == kinds_.b[kind] || !Wanted(static_cast<Kind>(kind))) continue;
    report_.notes.push_back(std::string("only ") + (kinds_.a[kind] ? report_.run_a : report_.run_b) +
                            " recorded " + std::string(Name(static_cast<Kind>(kind))) +
                            "; that kind was not compared");
  }
  return Status::Ok();
}

const Matching& Diff::MatchingOf(const RankStep& at, const RankCatalogue& a, const RankCatalogue& b) {
  Matching& matching = matchings_[{at.attempt_a, at.attempt_b, at.rank}];
  if (matching.defined_a == a.activations.size() && matching.defined_b == b.activations.size())
    return matching;
  matching = Matching{
      .defined_a = a.activations.size(), .defined_b = b.activations.size(), .b_of_a = {}, .a_of_b = {}};
  std::map<ActivationKey, std::uint32_t> ids;
  for (const ActivationDef& def : b.activations) ids[def.key] = def.id;
  for (const ActivationDef& def : a.activations) {
    const auto found = ids.find(def.key);
    if (found == ids.end()) continue;
    matching.b_of_a[def.id] = found->second;
    matching.a_of_b[found->second] = def.id;
  }
  return matching;
}

Status Diff::CompareStep(RankStep& at) {
  auto a = a_.Read(at.attempt_a, at.rank, at.step), b = b_.Read(at.attempt_b, at.rank, at.step);
  if (!a.ok()) return a.status();
  if (!b.ok()) return b.status();
  // A rank without any statistics in a step that others have (died, or records elsewhere) has nothing to
  // compare.
  if (a->observations.empty() || b->observations.empty()) return Status::Ok();
  auto catalogue_a = a_.Catalogue(at.attempt_a, at.rank), catalogue_b = b_.Catalogue(at.attempt_b, at.rank);
  if (!catalogue_a.ok()) return catalogue_a.status();
  if (!catalogue_b.ok()) return catalogue_b.status();
  return CompareMatched(*a, *b, MatchingOf(at, **catalogue_a, **catalogue_b), at);
}

Status Diff::CompareMatched(const StepData& a, const StepData& b, const Matching& matching, RankStep& at) {
  std::unordered_map<std::uint32_t, const Observation*> b_by_id;
  for (const Observation& observation : b.observations) b_by_id[observation.def->id] = &observation;
  std::unordered_map<const Observation*, std::uint64_t> position_of_b;  // in A's order, of what is matched

  ForwardTrace& trace = at.result->traces.emplace_back();
  trace.rank = at.rank;
  std::vector<Pair> forward;
  for (const Observation& seen : a.observations) {
    const ActivationKey& key = seen.def->key;
    if (!Wanted(key.kind)) continue;
    const auto match = matching.b_of_a.find(seen.def->id);
    const auto other = match == matching.b_of_a.end() ? b_by_id.end() : b_by_id.find(match->second);
    if (other == b_by_id.end()) {
      const Place place = MakePlace(key, seen.order + 1ull, at.rank);
      STATCOLLECT_RETURN_IF_ERROR(Missing(seen, /*in_a=*/false, match != matching.b_of_a.end(), place, at));
      continue;
    }
    const Pair pair = ComparePair(seen, *other->second, at);
    position_of_b[other->second] = seen.order + 1ull;
    if (StageOf(key) != Stage::kForward) continue;
    if (seen.def->depth == 1) trace.root = key.name;
    trace.points.push_back({&key, pair.comparison.agreement == Agreement::kDiverged});
    forward.push_back(pair);
  }
  std::uint64_t position = 0;  // behind the last matched one before it
  std::uint32_t after = 0;
  for (const Observation& left : b.observations) {
    const auto matched = position_of_b.find(&left);
    if (matched != position_of_b.end()) position = matched->second;
    if (matched != position_of_b.end() || !Wanted(left.def->key.kind)) continue;
    Place place = MakePlace(left.def->key, position, at.rank);
    place.after = ++after;
    STATCOLLECT_RETURN_IF_ERROR(
        Missing(left, /*in_a=*/true, matching.a_of_b.contains(left.def->id), place, at));
  }
  CompareOrder(forward, at);
  return Status::Ok();
}

Pair Diff::ComparePair(const Observation& a, const Observation& b, RankStep& at) {
  const ActivationKey& key = a.def->key;
  Pair pair{.a = &a, .b = &b, .comparison = Compare(a, b, request_.tolerance, request_.exact)};
  if (pair.comparison.agreement == Agreement::kIncomparable) {
    ++incomparable_;
    return pair;
  }
  const bool identical = pair.comparison.agreement == Agreement::kIdentical;
  without_hash_ += pair.comparison.without_hash ? 1 : 0;
  ++pairs_;
  ++report_.compared.records;
  if (compared_defs_.insert(a.def).second) {
    compared_names_.insert(std::string(Name(key.kind)) + " " + key.name + " " + key.output_path);
  }
  sketch_missing_ = sketch_missing_ || a.sketch.size() != b.sketch.size();
  const Stage stage = StageOf(key);
  NoteInputs(stage, identical);
  Agreeing& previous = at.agreeing[{stage, key.micro_batch, key.mode}];
  if (identical) {
    ++report_.compared.identical;
    previous = {a.def, 0.0};
    return pair;
  }
  const Place place = MakePlace(key, a.order + 1ull, at.rank);
  Divergence row = MakeRow(*a.def, at.step, at.rank);
  SetDistance(row, pair.comparison);
  row.a = MakeSide(a);
  row.b = MakeSide(b);
  if (previous.def != nullptr) {
    row.previous = previous.def->key.name;
    row.previous_distance = previous.distance;
  }
  NoteBitwise(place, row, *at.result);
  if (pair.comparison.agreement == Agreement::kWithinTolerance) {
    ++report_.compared.within_tolerance;
    previous = {a.def, pair.comparison.distance->value};
    return pair;
  }
  ++report_.compared.diverged;
  pair.row = at.result->rows.size();
  at.result->rows.push_back({place, std::move(row)});
  return pair;
}

void Diff::NoteInputs(Stage stage, bool identical) {
  if (stage == Stage::kWeights) {
    weights_seen_ = true;
    weights_differ_ = weights_differ_ || !identical;
  }
  if (stage == Stage::kBatch) {
    batches_seen_ = true;
    batches_differ_ = batches_differ_ || !identical;
  }
}

void Diff::NoteBitwise(const Place& place, const Divergence& row, StepResult& result) const {
  if (report_.first_bitwise || (result.first_bitwise && result.first_bitwise->place < place)) return;
  result.first_bitwise = PlacedRow{place, row};
}

void Diff::NoteUnmatched(std::string label, bool only_a) {
  auto& known = only_a ? unmatched_a_ : unmatched_b_;
  auto& list = only_a ? report_.unmatched.only_a : report_.unmatched.only_b;
  if (known.contains(label)) return;
  if (known.size() >= kUnmatchedMax) {
    cut_ = true;
    return;
  }
  known.insert(label);
  list.push_back(std::move(label));
}

// Notes what is missing; whether it counts as a divergence: not if the other side may have had it (its agent
// lost records and has once recorded it, or it is still writing the step) or was never asked for the kind.
Result<bool> Diff::IsCertainlyMissing(const Observation& seen, bool in_a, bool defined, RankStep& at) {
  RunView& view = in_a ? a_ : b_;
  auto& complete = in_a ? at.complete_a : at.complete_b;
  if (!complete) {
    auto found = view.IsComplete(in_a ? at.attempt_a : at.attempt_b, at.rank, at.step);
    if (!found.ok()) return found.status();
    complete = *found;
  }
  if (!*complete) {
    incomplete_.insert("step " + std::to_string(at.step) + " of " + view.run() +
                       " was not finished on rank " + std::to_string(at.rank) +
                       "; what is missing there was not counted");
    return false;
  }
  NoteUnmatched(Label(seen.def->key), /*only_a=*/!in_a);
  if (!(in_a ? kinds_.a : kinds_.b)[static_cast<std::size_t>(seen.def->key.kind)]) return false;
  const bool maybe_lost = defined && view.Dropped(at.rank) > 0;
  uncertain_missing_ = uncertain_missing_ || maybe_lost;
  return !maybe_lost;
}

// One row and one count for an identity and rank, at the first step without it.
Status Diff::Missing(const Observation& seen, bool in_a, bool defined, const Place& place, RankStep& at) {
  auto certain = IsCertainlyMissing(seen, in_a, defined, at);
  if (!certain.ok()) return certain.status();
  if (!*certain) return Status::Ok();
  const std::string counted = (in_a ? "a" : "b") + std::to_string(at.rank) + " " + Label(seen.def->key);
  if (!missing_counted_.insert(counted).second) return Status::Ok();
  ++report_.compared.records;
  ++report_.compared.diverged;
  Divergence row = MakeRow(*seen.def, at.step, at.rank);
  row.reason = in_a ? Reason::kMissingInA : Reason::kMissingInB;
  (in_a ? row.b : row.a) = MakeSide(seen);
  at.result->rows.push_back({place, std::move(row)});
  return Status::Ok();
}

// Within each forward pass; a rank is reported once, at the first activation out of place, and only in the
// first such step.
void Diff::CompareOrder(const std::vector<Pair>& forward, RankStep& at) {
  if (order_reported_) return;
  std::map<std::pair<std::uint32_t, Mode>, const Observation*> before;  // by pass, of B
  for (const Pair& pair : forward) {
    const ActivationKey& key = pair.a->def->key;
    const Observation*& last = before[{key.micro_batch, key.mode}];
    if (last != nullptr && pair.b->order < last->order) return MarkOutOfPlace(pair, *last, at);
    last = pair.b;
  }
}

// Another order explains other values: it takes the place of their reason. Another shape or dtype stays.
void Diff::MarkOutOfPlace(const Pair& pair, const Observation& before, RankStep& at) {
  Compared& compared = report_.compared;
  if (pair.comparison.agreement == Agreement::kDiverged) {
    Divergence& row = at.result->rows[pair.row].row;
    if (row.reason != Reason::kShape && row.reason != Reason::kDType) row.reason = Reason::kOrder;
    return;
  }
  --(pair.comparison.agreement == Agreement::kIdentical ? compared.identical : compared.within_tolerance);
  ++compared.diverged;
  Divergence row = MakeRow(*pair.a->def, at.step, at.rank);
  row.reason = Reason::kOrder;
  row.a = MakeSide(*pair.a);
  row.b = MakeSide(*pair.b);
  row.previous = before.def->key.name;
  at.result->rows.push_back({MakePlace(pair.a->def->key, pair.a->order + 1ull, at.rank), std::move(row)});
}

Status Diff::CompareLosses(const RankStep& at) {
  if (!request_.kinds.empty()) return Status::Ok();
  auto a = a_.Scalars(at.attempt_a, at.rank, {.first = at.step, .last = at.step});
  auto b = b_.Scalars(at.attempt_b, at.rank, {.first = at.step, .last = at.step});
  if (!a.ok()) return a.status();
  if (!b.ok()) return b.status();
  // A loss logged several times in a step is compared first with first, second with second.
  std::map<std::pair<std::string, std::uint32_t>, std::deque<double>> losses_b;
  for (const ScalarRecord& scalar : *b) {
    if (!IsLoss(scalar.name)) continue;
    losses_b[{scalar.name, scalar.micro_batch}].push_back(scalar.value);
    losses_.b.insert(scalar.name);
    ++losses_.alone;
  }
  std::uint64_t position = 0;
  for (const ScalarRecord& scalar : *a) {
    if (!IsLoss(scalar.name)) continue;
    losses_.a.insert(scalar.name);
    const auto other = losses_b.find({scalar.name, scalar.micro_batch});
    if (other == losses_b.end() || other->second.empty()) {
      ++losses_.alone;
      continue;
    }
    CompareLoss(scalar, other->second.front(), ++position, at);
    other->second.pop_front();
    --losses_.alone;
  }
  return Status::Ok();
}

void Diff::CompareLoss(const ScalarRecord& a, double b, std::uint64_t position, const RankStep& at) {
  const double distance = RelativeDifference(a.value, b);
  const double tolerance = request_.tolerance.value_or(DefaultTolerance(DType::kF32, DType::kF32));
  ++pairs_;
  ++report_.compared.records;
  compared_names_.insert("loss " + a.name);
  if (distance == 0) {
    ++report_.compared.identical;
    return;
  }
  Divergence row{.step = at.step,
                 .micro_batch = a.micro_batch,
                 .rank = at.rank,
                 .stage = Stage::kLoss,
                 .activation = a.name};
  row.distance = distance;
  row.distance_kind = DistanceKind::kStatistics;
  row.tolerance = tolerance;
  row.mode = Name(Mode::kTrain);
  row.a = ObservationSide{.value = a.value};
  row.b = ObservationSide{.value = b};
  row.reason = std::isinf(distance)   ? Reason::kNonfinite
               : distance > tolerance ? Reason::kNumeric
                                      : Reason::kBitwise;
  const Place place = MakePlace(Stage::kLoss, a.micro_batch, false, position, at.rank);
  NoteBitwise(place, row, *at.result);
  if (row.reason == Reason::kBitwise && !request_.exact) {
    ++report_.compared.within_tolerance;
    return;
  }
  ++report_.compared.diverged;
  at.result->rows.push_back({place, std::move(row)});
}

void Diff::Count(const Divergence& row) {
  diverged_ranks_.insert(row.rank);
  diverged_names_.insert(std::string(row.stage == Stage::kLoss ? "loss" : Name(row.kind)) + " " +
                         row.activation + " " + row.output_path);
}

void Diff::TakeStep(StepResult result) {
  std::stable_sort(result.rows.begin(), result.rows.end(),
                   [](const PlacedRow& x, const PlacedRow& y) { return x.place < y.place; });
  std::vector<Divergence> rows;
  for (PlacedRow& placed : result.rows) rows.push_back(std::move(placed.row));
  if (!report_.first_bitwise && result.first_bitwise) {
    report_.first_bitwise = std::move(result.first_bitwise->row);
    if (report_.first_bitwise->reason == Reason::kUnspecified)
      report_.first_bitwise->reason = Reason::kBitwise;
  }
  if (rows.empty()) return;
  ++report_.spread.steps;
  MarkStepOrigins(rows, result.traces);
  const std::uint64_t rows_max = request_.all       ? kDivergedRowsMax
                                 : request_.top > 0 ? request_.top
                                                    : kTopDefault;
  for (Divergence& row : rows) {
    Count(row);
    if (row.reason == Reason::kOrder) order_reported_ = true;
    if (!row.origin) {
      row.previous.clear();
      row.previous_distance.reset();
    }
    if (report_.diverged.size() < rows_max) {
      report_.diverged.push_back(std::move(row));
    } else if (request_.all) {
      cut_ = true;
    }
  }
}

// Origins are sought in the first step whose values differ: weights carry them into every later step. What
// differs in structure only (missing, reordered) explains nothing later; the first answer is an origin by
// definition.
void Diff::MarkStepOrigins(std::vector<Divergence>& rows, const std::vector<ForwardTrace>& traces) {
  if (!values_diverged_ && !std::all_of(rows.begin(), rows.end(), IsStructural)) {
    values_diverged_ = true;
    MarkOrigins(rows, traces);
  }
  if (!report_.first) {
    rows.front().origin = true;
    report_.first = rows.front();
  }
  std::set<std::tuple<Stage, Kind, std::string, std::string>> reported;
  for (const Divergence& row : rows) {
    if (!row.origin || report_.origins.size() >= kTopDefault) continue;
    if (reported.insert({row.stage, row.kind, row.activation, row.output_path}).second)
      report_.origins.push_back(row);
  }
}

void Diff::AddNotes(const IsStreamOpen& is_stream_open) {
  for (const RunView* view : {&a_, &b_}) {
    std::uint64_t dropped = 0;
    bool running = false;
    for (const std::uint32_t rank : view->AllRanks()) dropped += view->Dropped(rank);
    for (std::size_t i = 0; i < view->attempts().size(); ++i) {
      for (const auto& [rank, meta] : view->ranks(i)) {
        running = running || (is_stream_open && is_stream_open(view->attempts()[i].id, rank));
      }
    }
    if (dropped > 0) {
      report_.notes.push_back("agents of " + view->run() + " lost " + std::to_string(dropped) +
                              " records; what is missing there may be a loss and not a divergence");
    }
    if (running)
      report_.notes.push_back(view->run() + " is still running; later steps are not in this answer");
  }
}

void Diff::Conclude() {
  report_.inputs.weights = !weights_seen_ ? "unknown" : weights_differ_ ? "differ" : "identical";
  report_.inputs.batches = !batches_seen_ ? "unknown" : batches_differ_ ? "differ" : "identical";
  report_.spread.activations = diverged_names_.size();
  report_.spread.activations_total = compared_names_.size();
  report_.spread.ranks.assign(diverged_ranks_.begin(), diverged_ranks_.end());
  if (sketch_missing_) {
    report_.notes.push_back(
        "the runs were recorded with different sketches; distances come from statistics where they differ");
  }
  if (uncertain_missing_) {
    report_.notes.push_back(
        "records missing on a rank that lost some are listed as unmatched and not counted as diverged");
  }
  if (incomparable_ > 0) {
    report_.notes.push_back(std::to_string(incomparable_) +
                            " pairs of records have no statistic in common and were not compared");
  }
  if (without_hash_ > 0) {
    report_.notes.push_back(
        std::to_string(without_hash_) +
        " records count as identical because every recorded statistic is equal; no content "
        "hash tells about their bits");
  }
  if (cut_)
    report_.notes.push_back("some lists were cut; narrow the question with --steps, --rank or --kinds");
  for (const std::string& name : losses_.a) {
    if (!losses_.b.contains(name)) NoteUnmatched("scalar " + name, /*only_a=*/true);
  }
  for (const std::string& name : losses_.b) {
    if (!losses_.a.contains(name)) NoteUnmatched("scalar " + name, /*only_a=*/false);
  }
  if (losses_.alone > 0) {
    report_.notes.push_back(std::to_string(losses_.alone) +
                            " losses are in one run only and were not compared");
  }
  report_.notes.insert(report_.notes.end(), incomplete_.begin(), incomplete_.end());
  const bool unmatched = !report_.unmatched.only_a.empty() || !report_.unmatched.only_b.empty();
  if (pairs_ == 0) return ConcludeIncomparable();
  if (report_.first) {
    report_.verdict = Verdict::kDiverged;
  } else if (report_.compared.identical == report_.compared.records && !unmatched) {
    report_.verdict = Verdict::kIdentical;
  } else {
    report_.verdict = Verdict::kWithinTolerance;
  }
}

// Nothing was compared: what is unmatched stays listed, but is no divergence.
void Diff::ConcludeIncomparable() {
  const bool unmatched = !report_.unmatched.only_a.empty() || !report_.unmatched.only_b.empty();
  report_.verdict = Verdict::kIncomparable;
  report_.first.reset();
  report_.first_bitwise.reset();
  report_.diverged.clear();
  report_.origins.clear();
  report_.compared = {};
  report_.spread = {};
  report_.message = unmatched ? "no activation in common: nothing that one run recorded has the same name, "
                                "kind and place in the other"
                              : "no record in common in the ranks, steps and kinds asked for";
}

}  // namespace

Result<DiffReport> DiffRuns(RunView& a, RunView& b, const DiffRequest& request,
                            const IsStreamOpen& is_stream_open, const OnProgress& progress,
                            const std::stop_token& stop) {
  return Diff(a, b, request).Run(is_stream_open, progress, stop);
}

}  // namespace statcollect::query
