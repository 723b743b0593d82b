#include "server/query/diff.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>
#include <unordered_map>

#include "common/names.h"
#include "server/query/distance.h"
#include "server/query/origin.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kUnmatchedMax = 10'000;

// Configuration that differs between any two launches and explains nothing.
constexpr std::array<std::string_view, 4> kVolatileKeys = {"run", "pid", "start_time", "launch"};

bool IsForward(Kind kind) { return kind == Kind::kOutput || kind == Kind::kInput || kind == Kind::kInspect; }

Stage StageOf(const ActivationKey& key) {
  switch (key.kind) {
    case Kind::kWeight:
      return key.mode == Mode::kInit ? Stage::kWeights : Stage::kOptimizer;
    case Kind::kOptimizerState:
      return key.mode == Mode::kInit ? Stage::kWeights : Stage::kOptimizer;
    case Kind::kBatch:
      return Stage::kBatch;
    case Kind::kWeightGrad:
      return Stage::kGrad;
    case Kind::kGradOutput:
    case Kind::kGradInput:
    case Kind::kInspectGrad:
      return Stage::kBackward;
    default:
      return Stage::kForward;
  }
}

bool IsLoss(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower.ends_with("loss");
}

// Where something stands in a step's question order: weights, batch, then by micro-batch forward, loss,
// backward, then gradients, then the optimizer's results; evaluation after training.
struct Place {
  int phase = 0;
  std::uint32_t micro_batch = 0;
  Stage stage = Stage::kUnspecified;
  bool eval = false;
  std::uint32_t order = 0;
  std::uint32_t rank = 0;
  auto operator<=>(const Place&) const = default;
};

Place MakePlace(Stage stage, std::uint32_t micro_batch, bool eval, std::uint32_t order, std::uint32_t rank) {
  Place place{.stage = stage, .eval = eval, .order = order, .rank = rank};
  switch (stage) {
    case Stage::kWeights:
      place.phase = 0;
      break;
    case Stage::kBatch:
      place.phase = 1;
      break;
    case Stage::kGrad:
      place.phase = 3;
      break;
    case Stage::kOptimizer:
      place.phase = 4;
      break;
    default:
      place.phase = 2;
      place.micro_batch = micro_batch;
  }
  return place;
}

std::string Label(const ActivationKey& key) {
  std::string label = std::string(Name(key.kind)) + " " + key.name;
  if (!key.output_path.empty()) label += "[" + key.output_path + "]";
  if (key.micro_batch > 0) label += " micro-batch " + std::to_string(key.micro_batch);
  label += " call " + std::to_string(key.call);
  if (key.mode != Mode::kTrain) label += " (" + std::string(Name(key.mode)) + ")";
  return label;
}

Divergence MakeRow(const ActivationDef& def, std::uint64_t step, std::uint32_t rank) {
  Divergence row;
  row.step = step;
  row.micro_batch = def.key.micro_batch;
  row.rank = rank;
  row.stage = StageOf(def.key);
  row.kind = def.key.kind;
  row.activation = def.key.name;
  row.output_path = def.key.output_path;
  row.call = def.key.call;
  row.class_name = def.class_name;
  row.mode = Name(def.key.mode);
  return row;
}

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

// Matching of one rank's activations between two catalogues, by identity.
struct Matching {
  std::unordered_map<std::uint32_t, std::uint32_t> b_of_a, a_of_b;
};

struct KindPresence {
  std::array<bool, kKindCount> a{}, b{};
  bool loss_a = false, loss_b = false;
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
  Status ChooseRanksAndSteps();
  void CompareConfiguration();
  Status FindKinds();
  Status CompareStep(std::uint64_t step, std::uint32_t rank, StepResult& result);
  Status CompareLosses(std::uint64_t step, std::uint32_t rank, StepResult& result);
  void ComparePair(const Observation& a, const Observation& b, std::uint64_t step, std::uint32_t rank,
                   StepResult& result,
                   std::map<std::pair<Stage, std::uint32_t>, std::pair<std::string, double>>& agreeing);
  void Missing(const Observation& seen, bool in_a, std::uint64_t step, std::uint32_t rank,
               StepResult& result);
  void CompareOrder(const std::vector<std::pair<const Observation*, const Observation*>>& pairs,
                    std::uint64_t step, std::uint32_t rank, StepResult& result);
  void TakeStep(StepResult result);
  void NoteUnmatched(const ActivationKey& key, bool only_a);
  void NoteBitwise(const Place& place, const Divergence& row, StepResult& result);
  void Count(const Divergence& row);
  void AddNotes(const IsStreamOpen& is_stream_open);
  void Conclude();
  const Matching& MatchingOf(std::size_t attempt_a, std::size_t attempt_b, std::uint32_t rank,
                             const RankCatalogue& a, const RankCatalogue& b);
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
  std::uint64_t steps_only_a_ = 0, steps_only_b_ = 0;
  KindPresence kinds_;
  std::map<std::tuple<std::size_t, std::size_t, std::uint32_t>, Matching> matchings_;
  std::set<std::string> unmatched_a_, unmatched_b_;
  std::set<std::string> diverged_names_, compared_names_;
  std::set<std::uint32_t> diverged_ranks_;
  bool uncertain_missing_ = false, sketch_missing_ = false, cut_ = false;
  bool weights_seen_ = false, weights_differ_ = false, batches_seen_ = false, batches_differ_ = false;
  bool order_reported_ = false;
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
      STATCOLLECT_RETURN_IF_ERROR(CompareStep(step, rank, result));
      STATCOLLECT_RETURN_IF_ERROR(CompareLosses(step, rank, result));
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
    std::erase_if(report_.ranks, [&](std::uint32_t rank) {
      return std::find(request_.ranks.begin(), request_.ranks.end(), rank) == request_.ranks.end();
    });
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
  auto steps_a = a_.Steps(wanted_), steps_b = b_.Steps(wanted_);
  if (!steps_a.ok()) return steps_a.status();
  if (!steps_b.ok()) return steps_b.status();
  for (const auto& [step, attempt] : *steps_a) {
    const auto other = steps_b->find(step);
    if (other != steps_b->end()) steps_[step] = {attempt, other->second};
  }
  steps_only_a_ = steps_a->size() - steps_.size();
  steps_only_b_ = steps_b->size() - steps_.size();
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
  if (steps_only_a_ + steps_only_b_ > 0) {
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
  const auto a = config_of(a_), b = config_of(b_);
  std::set<std::string> keys;
  for (const auto& [key, value] : a) keys.insert(key);
  for (const auto& [key, value] : b) keys.insert(key);
  for (const std::string& key : keys) {
    const std::string_view leaf = std::string_view(key).substr(key.rfind('.') + 1);
    if (std::find(kVolatileKeys.begin(), kVolatileKeys.end(), leaf) != kVolatileKeys.end()) continue;
    ConfigDifference difference{.key = key};
    if (const auto found = a.find(key); found != a.end()) difference.a = found->second;
    if (const auto found = b.find(key); found != b.end()) difference.b = found->second;
    if (difference.a != difference.b) report_.inputs.config.push_back(std::move(difference));
  }
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

const Matching& Diff::MatchingOf(std::size_t attempt_a, std::size_t attempt_b, std::uint32_t rank,
                                 const RankCatalogue& a, const RankCatalogue& b) {
  const auto [entry, fresh] = matchings_.try_emplace({attempt_a, attempt_b, rank});
  Matching& matching = entry->second;
  if (!fresh) return matching;
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

Status Diff::CompareStep(std::uint64_t step, std::uint32_t rank, StepResult& result) {
  const auto [attempt_a, attempt_b] = steps_.at(step);
  auto catalogue_a = a_.Catalogue(attempt_a, rank), catalogue_b = b_.Catalogue(attempt_b, rank);
  if (!catalogue_a.ok()) return catalogue_a.status();
  if (!catalogue_b.ok()) return catalogue_b.status();
  auto a = a_.Read(attempt_a, rank, step), b = b_.Read(attempt_b, rank, step);
  if (!a.ok()) return a.status();
  if (!b.ok()) return b.status();
  // A rank without any statistics in a step that others have (died, or records elsewhere) has nothing to
  // compare.
  if (a->observations.empty() || b->observations.empty()) return Status::Ok();
  const Matching& matching = MatchingOf(attempt_a, attempt_b, rank, **catalogue_a, **catalogue_b);
  std::unordered_map<std::uint32_t, const Observation*> b_by_id;
  for (const Observation& observation : b->observations) b_by_id[observation.def->id] = &observation;

  ForwardTrace& trace = result.traces.emplace_back();
  trace.rank = rank;
  std::map<std::pair<Stage, std::uint32_t>, std::pair<std::string, double>> agreeing;
  std::vector<std::pair<const Observation*, const Observation*>> forward;
  for (const Observation& seen : a->observations) {
    if (!Wanted(seen.def->key.kind)) continue;
    const auto match = matching.b_of_a.find(seen.def->id);
    const auto other = match == matching.b_of_a.end() ? b_by_id.end() : b_by_id.find(match->second);
    if (other == b_by_id.end()) {
      Missing(seen, /*in_a=*/false, step, rank, result);
      continue;
    }
    const std::size_t rows = result.rows.size();
    ComparePair(seen, *other->second, step, rank, result, agreeing);
    if (IsForward(seen.def->key.kind) && seen.def->key.mode == Mode::kTrain) {
      const ActivationKey& key = seen.def->key;
      if (seen.def->depth == 1) trace.root = key.name;
      trace.points.push_back({key.name, key.kind, key.micro_batch, key.call, result.rows.size() > rows});
      forward.emplace_back(&seen, other->second);
    }
    b_by_id.erase(other);
  }
  for (const Observation& left : b->observations) {
    if (!Wanted(left.def->key.kind) || !b_by_id.contains(left.def->id)) continue;
    Missing(left, /*in_a=*/true, step, rank, result);
  }
  CompareOrder(forward, step, rank, result);
  return Status::Ok();
}

void Diff::ComparePair(const Observation& a, const Observation& b, std::uint64_t step, std::uint32_t rank,
                       StepResult& result,
                       std::map<std::pair<Stage, std::uint32_t>, std::pair<std::string, double>>& agreeing) {
  const ActivationKey& key = a.def->key;
  const Comparison comparison = Compare(a, b, request_.tolerance, request_.exact);
  const Stage stage = StageOf(key);
  ++report_.compared.records;
  compared_names_.insert(std::string(Name(key.kind)) + " " + key.name + " " + key.output_path);
  if (a.sketch.size() != b.sketch.size()) sketch_missing_ = true;
  const bool identical = comparison.agreement == Agreement::kIdentical;
  if (stage == Stage::kWeights) {
    weights_seen_ = true;
    weights_differ_ = weights_differ_ || !identical;
  }
  if (stage == Stage::kBatch) {
    batches_seen_ = true;
    batches_differ_ = batches_differ_ || !identical;
  }
  auto& previous = agreeing[{stage, key.micro_batch}];
  if (identical) {
    ++report_.compared.identical;
    previous = {key.name, 0.0};
    return;
  }
  const Place place = MakePlace(stage, key.micro_batch, key.mode == Mode::kEval, a.order, rank);
  Divergence row = MakeRow(*a.def, step, rank);
  SetDistance(row, comparison);
  row.a = MakeSide(a);
  row.b = MakeSide(b);
  row.previous = previous.first;
  if (!previous.first.empty()) row.previous_distance = previous.second;
  NoteBitwise(place, row, result);
  if (comparison.agreement == Agreement::kWithinTolerance) {
    ++report_.compared.within_tolerance;
    previous = {key.name, comparison.distance->value};
    return;
  }
  ++report_.compared.diverged;
  result.rows.push_back({place, std::move(row)});
}

void Diff::NoteBitwise(const Place& place, const Divergence& row, StepResult& result) {
  if (report_.first_bitwise || (result.first_bitwise && result.first_bitwise->place < place)) return;
  result.first_bitwise = PlacedRow{place, row};
}

void Diff::NoteUnmatched(const ActivationKey& key, bool only_a) {
  auto& known = only_a ? unmatched_a_ : unmatched_b_;
  auto& list = only_a ? report_.unmatched.only_a : report_.unmatched.only_b;
  if (known.size() >= kUnmatchedMax) {
    cut_ = true;
    return;
  }
  std::string label = Label(key);
  if (known.insert(label).second) list.push_back(std::move(label));
}

void Diff::Missing(const Observation& seen, bool in_a, std::uint64_t step, std::uint32_t rank,
                   StepResult& result) {
  const ActivationKey& key = seen.def->key;
  NoteUnmatched(key, /*only_a=*/!in_a);
  const auto kind = static_cast<std::size_t>(key.kind);
  if (!(in_a ? kinds_.a : kinds_.b)[kind]) return;  // never recorded there: a note says so
  if ((in_a ? a_ : b_).Dropped(rank) > 0) {
    uncertain_missing_ = true;
    return;
  }
  Divergence row = MakeRow(*seen.def, step, rank);
  row.reason = in_a ? Reason::kMissingInA : Reason::kMissingInB;
  (in_a ? row.b : row.a) = MakeSide(seen);
  const Place place = MakePlace(row.stage, key.micro_batch, key.mode == Mode::kEval, seen.order, rank);
  result.rows.push_back({place, std::move(row)});
}

// Within the forward pass of each micro-batch; a step of a rank is reported once, at the first activation out
// of place, and only the first such step.
void Diff::CompareOrder(const std::vector<std::pair<const Observation*, const Observation*>>& pairs,
                        std::uint64_t step, std::uint32_t rank, StepResult& result) {
  if (order_reported_) return;
  for (std::size_t i = 1; i < pairs.size(); ++i) {
    const bool same_pass = pairs[i].first->def->key.micro_batch == pairs[i - 1].first->def->key.micro_batch;
    if (!same_pass || pairs[i].second->order > pairs[i - 1].second->order) continue;
    Divergence row = MakeRow(*pairs[i].first->def, step, rank);
    row.reason = Reason::kOrder;
    row.a = MakeSide(*pairs[i].first);
    row.b = MakeSide(*pairs[i].second);
    row.previous = pairs[i - 1].first->def->key.name;
    result.rows.push_back(
        {MakePlace(Stage::kForward, row.micro_batch, false, pairs[i].first->order, rank), std::move(row)});
    return;
  }
}

Status Diff::CompareLosses(std::uint64_t step, std::uint32_t rank, StepResult& result) {
  if (!request_.kinds.empty()) return Status::Ok();
  const auto [attempt_a, attempt_b] = steps_.at(step);
  auto a = a_.Scalars(attempt_a, rank, {.first = step, .last = step});
  auto b = b_.Scalars(attempt_b, rank, {.first = step, .last = step});
  if (!a.ok()) return a.status();
  if (!b.ok()) return b.status();
  std::map<std::pair<std::string, std::uint32_t>, double> losses_b;
  for (const ScalarRecord& scalar : *b) {
    if (IsLoss(scalar.name)) losses_b[{scalar.name, scalar.micro_batch}] = scalar.value;
  }
  std::uint32_t order = 0;
  for (const ScalarRecord& scalar : *a) {
    if (!IsLoss(scalar.name)) continue;
    const auto other = losses_b.find({scalar.name, scalar.micro_batch});
    if (other == losses_b.end()) continue;
    const double distance = RelativeDifference(scalar.value, other->second);
    const double tolerance = request_.tolerance.value_or(DefaultTolerance(DType::kF32, DType::kF32));
    ++report_.compared.records;
    compared_names_.insert("loss " + scalar.name);
    if (distance == 0) {
      ++report_.compared.identical;
      continue;
    }
    Divergence row;
    row.step = step;
    row.micro_batch = scalar.micro_batch;
    row.rank = rank;
    row.stage = Stage::kLoss;
    row.activation = scalar.name;
    row.distance = distance;
    row.distance_kind = DistanceKind::kStatistics;
    row.tolerance = tolerance;
    row.mode = Name(Mode::kTrain);
    row.a = ObservationSide{.value = scalar.value};
    row.b = ObservationSide{.value = other->second};
    const bool nonfinite = std::isinf(distance);
    row.reason = nonfinite ? Reason::kNonfinite : distance > tolerance ? Reason::kNumeric : Reason::kBitwise;
    const Place place = MakePlace(Stage::kLoss, scalar.micro_batch, false, order++, rank);
    NoteBitwise(place, row, result);
    if (row.reason == Reason::kBitwise && !request_.exact) {
      ++report_.compared.within_tolerance;
      continue;
    }
    ++report_.compared.diverged;
    result.rows.push_back({place, std::move(row)});
  }
  return Status::Ok();
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
  if (!report_.first) {
    MarkOrigins(rows, result.traces);
    rows.front().origin = true;  // nothing observed before it differs
    report_.first = rows.front();
    std::set<std::tuple<Stage, Kind, std::string, std::string>> reported;
    for (const Divergence& row : rows) {
      if (!row.origin || report_.origins.size() >= kTopDefault) continue;
      if (reported.insert({row.stage, row.kind, row.activation, row.output_path}).second)
        report_.origins.push_back(row);
    }
  }
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
  if (cut_)
    report_.notes.push_back("some lists were cut; narrow the question with --steps, --rank or --kinds");
  const bool unmatched = !report_.unmatched.only_a.empty() || !report_.unmatched.only_b.empty();
  if (report_.compared.records == 0) {
    report_.verdict = Verdict::kIncomparable;
    report_.first.reset();
    report_.message = unmatched ? "no activation in common: nothing that one run recorded has the same name, "
                                  "kind and place in the other"
                                : "no record in common in the ranks, steps and kinds asked for";
    return;
  }
  if (report_.first) {
    report_.verdict = Verdict::kDiverged;
  } else if (report_.compared.identical == report_.compared.records && !unmatched) {
    report_.verdict = Verdict::kIdentical;
  } else {
    report_.verdict = Verdict::kWithinTolerance;
  }
}

}  // namespace

Result<DiffReport> DiffRuns(RunView& a, RunView& b, const DiffRequest& request,
                            const IsStreamOpen& is_stream_open, const OnProgress& progress,
                            const std::stop_token& stop) {
  return Diff(a, b, request).Run(is_stream_open, progress, stop);
}

}  // namespace statcollect::query
