#include "server/query/answers/weights.h"

#include <cmath>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "common/step_set.h"
#include "server/query/answers/message_parts.h"
#include "server/query/compare/alignment.h"
#include "server/query/compare/distance.h"
#include "server/query/compare/paired_step.h"
#include "server/query/compare/roundoff.h"
#include "server/query/logical/one_run.h"
#include "server/query/pairs/tensor_pair.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kEarlierMax = 8;       // steps of A in which a stale weight is looked for
constexpr double kSameSumsTolerance = 1e-6;  // relative: sums of equal elements in another order

// A run, put together from its ranks where they hold parts.
struct Side {
  std::unique_ptr<LogicalRun> logical;  // what the view reads; null: the store
  RunView view;

  static Result<Side> Open(RunReader& store, const std::string& run) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto by_rank, RunView::Open(store, run));
    STATCOLLECT_ASSIGN_OR_RETURN(auto logical, OpenIfCut(store, by_rank));
    if (!logical) return Side{nullptr, std::move(by_rank)};
    STATCOLLECT_ASSIGN_OR_RETURN(auto whole, RunView::Open(*logical, run));
    return Side{std::move(logical), std::move(whole)};
  }
};

// What a launch held in weights in one step. Borrows the view's layouts.
struct Weights {
  std::vector<StepData> read;  // what the observations point to
  RankCatalogue catalogue;     // a definition for each, by its name alone
  StepData step;

  bool empty() const { return step.observations.empty(); }
  const Observation* Find(const std::string& name) const {
    const auto found = by_name.find(name);
    return found == by_name.end() ? nullptr : &step.observations[found->second];
  }
  std::map<std::string, std::size_t> by_name;
};

// Whether a later record of a weight counts instead: the last update's, but what fingerprint has
// recorded, outside of training, before any update's.
bool Replaces(const Observation& later, const Observation& earlier) {
  return later.def->key.mode == Mode::kEval || earlier.def->key.mode != Mode::kEval;
}

// Adds the rank's weights that no rank before it holds.
Status AddRank(RunView& view, std::size_t attempt, std::uint32_t rank, std::uint64_t step,
               Weights& to) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto data, view.Read(attempt, rank, step));
  std::map<std::string, Observation> last;
  for (const Observation& seen : data.observations) {
    if (seen.def->key.kind != Kind::kWeight) continue;
    const auto [known, is_new] = last.emplace(seen.def->key.name, seen);
    if (!is_new && Replaces(seen, known->second)) known->second = seen;
  }
  std::vector<Observation> added;
  for (const auto& [name, seen] : last) {
    if (to.by_name.emplace(name, to.by_name.size()).second) added.push_back(seen);
  }
  std::sort(added.begin(), added.end(),
            [](const Observation& x, const Observation& y) { return x.order < y.order; });
  for (Observation& seen : added) {
    to.by_name[seen.def->key.name] = to.step.observations.size();
    to.step.observations.push_back(seen);
  }
  to.read.push_back(std::move(data));
  return Status::Ok();
}

// Once, after the last rank.
void Define(Weights& weights) {
  for (const Observation& seen : weights.step.observations) {
    TensorDef def = *seen.def;
    def.id = static_cast<std::uint32_t>(weights.catalogue.activations.size());
    def.key = {.name = def.key.name, .kind = Kind::kWeight};
    weights.catalogue.activations.push_back(std::move(def));
  }
  for (std::size_t i = 0; i < weights.step.observations.size(); ++i)
    weights.step.observations[i].def = &weights.catalogue.activations[i];
}

// Of one model that the ranks hold together.
Result<Weights> WeightsOf(RunView& view, std::size_t attempt,
                          const std::vector<std::uint32_t>& ranks, std::uint64_t step) {
  Weights weights;
  for (const std::uint32_t rank : ranks)
    STATCOLLECT_RETURN_IF_ERROR(AddRank(view, attempt, rank, step, weights));
  Define(weights);
  return weights;
}

std::vector<std::uint32_t> RanksOf(const RunView& view, std::size_t attempt) {
  std::vector<std::uint32_t> ranks;
  for (const auto& [rank, meta] : view.ranks(attempt)) ranks.push_back(rank);
  return ranks;
}

using Owners = std::map<std::uint64_t, std::size_t>;  // the attempt of each step

// What is compared: A's weights in a step, and those of each rank of B that has some.
struct Chosen {
  std::uint64_t step = 0;
  Weights a;
  std::vector<std::pair<std::uint32_t, Weights>> b;
};

Result<Chosen> ChooseStep(RunView& a, RunView& b, const Owners& of_a, const Owners& of_b,
                          const WeightsRequest& request, const std::stop_token& stop) {
  for (auto at = of_b.rbegin(); at != of_b.rend(); ++at) {
    const auto [step, attempt] = *at;
    const auto in_a = of_a.find(step);
    if ((request.step && step != *request.step) || in_a == of_a.end()) continue;
    Chosen chosen{.step = step, .a = {}, .b = {}};
    for (const std::uint32_t rank : RanksOf(b, attempt)) {
      if (stop.stop_requested()) return Status(Code::kCancelled, "weights: cancelled");
      STATCOLLECT_ASSIGN_OR_RETURN(auto held, WeightsOf(b, attempt, {rank}, step));
      if (!held.empty()) chosen.b.emplace_back(rank, std::move(held));
    }
    if (chosen.b.empty()) continue;
    STATCOLLECT_ASSIGN_OR_RETURN(chosen.a,
                                 WeightsOf(a, in_a->second, RanksOf(a, in_a->second), step));
    if (!chosen.a.empty()) return chosen;
  }
  const std::uint64_t newest_a = of_a.empty() ? 0 : of_a.rbegin()->first;
  const std::uint64_t newest_b = of_b.empty() ? 0 : of_b.rbegin()->first;
  const std::string wanted =
      request.step ? "step " + std::to_string(*request.step) : std::string("any step");
  return Status(Code::kNotFound,
                "weights of runs '" + a.run() + "' and '" + b.run() +
                    "': not both have weights in " + wanted + " (" + a.run() + " has steps to " +
                    std::to_string(newest_a) + ", " + b.run() + " to " + std::to_string(newest_b) +
                    "); expected weights of a watched optimizer or of statagent.fingerprint, "
                    "recorded under the same step in both");
}

// The same elements in another order, as far as statistics tell: a transposed weight, or parts that
// have changed places.
bool HaveSameElements(const Observation& a, const Observation& b) {
  const TensorStats &x = *a.stats, &y = *b.stats;
  const auto counts = [](const TensorStats& of) {
    return std::tie(of.numel, of.nan, of.pos_inf, of.neg_inf, of.zero, of.neg, of.pos, of.min,
                    of.max);
  };
  for (const Statistic one : {Statistic::kMin, Statistic::kMax, Statistic::kL2}) {
    if (!a.layout->Trusts(one) || !b.layout->Trusts(one)) return false;
  }
  return a.layout->dtype == b.layout->dtype && counts(x) == counts(y) &&
         RelativeDifference(x.l1, y.l1) <= kSameSumsTolerance &&
         RelativeDifference(x.l2, y.l2) <= kSameSumsTolerance;
}

// One comparison of B's weights with A's.
class Comparer {
 public:
  Comparer(RunView& a, const Owners& owners, std::uint64_t step, const Weights& weights,
           const NameMap& names, v1::GetWeightsResponse& out)
      : a_(a),
        owners_(owners),
        step_(step),
        weights_(weights),
        names_(names),
        out_(out),
        lacking_(weights.step.observations.size()) {}

  Status Add(std::uint32_t rank, const Weights& b) {
    Alignment::Options options{.names = &names_};
    options.wanted[static_cast<std::size_t>(Kind::kWeight)] = true;
    const Alignment alignment(weights_.catalogue, b.catalogue, options);
    const PairedStep step(alignment, weights_.step.observations, b.step.observations);
    for (const RecordPair& pair : step.pairs()) STATCOLLECT_RETURN_IF_ERROR(AddPair(pair, rank));
    ++ranks_;
    for (const LoneRecord& lone : step.only_a()) ++lacking_[lone.record.def->id];
    for (const LoneRecord& lone : step.only_b()) {
      const std::string& name = lone.record.def->key.name;
      NewRow(v1::WEIGHT_STATE_MISSING_IN_A, rank, lone.record).set_name_b(name);
      only_b_.push_back(name);
    }
    return Status::Ok();
  }

  void End(const std::string& map) {
    std::vector<std::string> only_a;
    for (std::size_t i = 0; i < lacking_.size(); ++i) {
      if (lacking_[i] < ranks_) continue;
      const Observation& seen = weights_.step.observations[i];
      NewRow(v1::WEIGHT_STATE_MISSING_IN_B, 0, seen).set_name_a(seen.def->key.name);
      only_a.push_back(seen.def->key.name);
    }
    if (!map.empty()) return;
    if (std::string proposal = ProposeKnownMap(only_a, only_b_); !proposal.empty())
      out_.add_notes(std::move(proposal));
  }

 private:
  v1::WeightRow& NewRow(v1::WeightState state, std::uint32_t rank, const Observation& seen) {
    v1::WeightRow& row = *out_.add_records();
    row.set_state(state);
    row.set_rank(rank);
    row.mutable_shape()->Add(seen.layout->shape.begin(), seen.layout->shape.end());
    return row;
  }

  Status AddPair(const RecordPair& pair, std::uint32_t rank) {
    out_.set_compared(out_.compared() + 1);
    if (HaveSameBits(pair.a, pair.b)) {
      out_.set_equal(out_.equal() + 1);
      return Status::Ok();
    }
    v1::WeightRow& row = NewRow(v1::WEIGHT_STATE_DIFFERS, rank, pair.b);
    row.set_name_a(pair.a.def->key.name);
    row.set_name_b(pair.b.def->key.name);
    row.set_dtype_a(std::string(Name(pair.a.layout->dtype)));
    row.set_dtype_b(std::string(Name(pair.b.layout->dtype)));
    const Comparison compared = Compare(pair.a, pair.b, /*tolerance=*/0, /*exact=*/false);
    if (compared.distance && std::isfinite(compared.distance->value))
      row.set_distance(compared.distance->value);
    else if (compared.agreement == Agreement::kIdentical)
      row.set_distance(0);  // all statistics agree, and bits cannot be compared
    return Explain(pair, row);
  }

  // Why they are not equal, the most telling reason first.
  Status Explain(const RecordPair& pair, v1::WeightRow& row) {
    const DType a = pair.a.layout->dtype, b = pair.b.layout->dtype;
    const double rounding = std::max(UnitRoundoff(a), UnitRoundoff(b));
    if (pair.group != nullptr) {
      if (row.has_distance() && row.distance() <= rounding)
        row.set_state(v1::WEIGHT_STATE_SAME_STATISTICS);
      return Status::Ok();
    }
    STATCOLLECT_RETURN_IF_ERROR(ReadEarlier());
    const std::string& name = pair.a.def->key.name;
    for (const auto& [step, held] : earlier_) {
      const Observation* const old = held.Find(name);
      if (old == nullptr || !HaveSameBits(*old, pair.b)) continue;
      row.set_state(v1::WEIGHT_STATE_STALE);
      row.set_equals_step(step);
      return Status::Ok();
    }
    for (const Observation& other : weights_.step.observations) {
      if (other.def->key.name == name || !HaveSameBits(other, pair.b)) continue;
      row.set_state(v1::WEIGHT_STATE_EXCHANGED);
      row.set_equals_name(other.def->key.name);
      return Status::Ok();
    }
    if (HaveSameElements(pair.a, pair.b)) {
      row.set_state(v1::WEIGHT_STATE_PERMUTED);
    } else if (a != b && IsFloat(a) && IsFloat(b) && row.has_distance() &&
               row.distance() <= rounding) {
      row.set_state(v1::WEIGHT_STATE_CAST);
    }
    return Status::Ok();
  }

  // Once; the newest first.
  Status ReadEarlier() {
    if (std::exchange(has_earlier_, true)) return Status::Ok();
    for (auto at = std::make_reverse_iterator(owners_.lower_bound(step_));
         at != owners_.rend() && earlier_.size() < kEarlierMax; ++at) {
      STATCOLLECT_RETURN_IF_ERROR(CheckEarlier(at->first, at->second));
    }
    return Status::Ok();
  }
  Status CheckEarlier(std::uint64_t step, std::size_t attempt) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto held, WeightsOf(a_, attempt, RanksOf(a_, attempt), step));
    if (!held.empty()) earlier_.emplace_back(step, std::move(held));
    return Status::Ok();
  }

  RunView& a_;
  const Owners& owners_;
  const std::uint64_t step_;
  const Weights& weights_;
  const NameMap& names_;
  v1::GetWeightsResponse& out_;
  std::size_t ranks_ = 0;             // of B, compared so far
  std::vector<std::size_t> lacking_;  // by id of A's weights: these ranks that have no counterpart
  std::vector<std::string> only_b_;
  bool has_earlier_ = false;
  std::vector<std::pair<std::uint64_t, Weights>> earlier_;
};

}  // namespace

Result<WeightsRequest> FromWire(const v1::GetWeightsRequest& request) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto wanted, SelectionFromWire<WeightsRequest>(request));
  STATCOLLECT_RETURN_IF_ERROR(NameMap::Parse(request.map()).status());
  wanted.map = request.map();
  if (request.has_step()) wanted.step = request.step();
  return wanted;
}

Status GetWeights(const Context& context, const WeightsRequest& request,
                  v1::GetWeightsResponse& out) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto names, NameMap::Parse(request.map));
  STATCOLLECT_ASSIGN_OR_RETURN(auto a, Side::Open(context.store, request.run_a));
  STATCOLLECT_ASSIGN_OR_RETURN(auto b, Side::Open(context.store, request.run_b));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto all, StepSet::Parse(""));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto of_a, a.view.Steps(all));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto of_b, b.view.Steps(all));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto chosen,
                               ChooseStep(a.view, b.view, of_a, of_b, request, context.stop));
  out.set_run_a(request.run_a);
  out.set_run_b(request.run_b);
  out.set_step(chosen.step);
  Comparer comparer(a.view, of_a, chosen.step, chosen.a, names, out);
  for (const auto& [rank, held] : chosen.b) STATCOLLECT_RETURN_IF_ERROR(comparer.Add(rank, held));
  comparer.End(request.map);
  for (const std::string& note : names.Unused(request.run_a, request.run_b)) out.add_notes(note);
  return Status::Ok();
}

}  // namespace statcollect::query
