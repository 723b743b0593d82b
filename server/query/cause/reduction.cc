// Gradients that ranks did not reduce, or that each of them scaled by itself; replicas that hold
// other weights.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "common/names.h"
#include "server/query/cause/linear.h"
#include "server/query/cause/rules.h"
#include "server/query/cause/text.h"

namespace statcollect::query::cause {
namespace {

constexpr double kSameNorm = 1e-5;

// The root's tensor on the other ranks of a run.
using OtherRanks = std::map<std::uint32_t, TensorStats>;

Result<OtherRanks> ReadOtherRanks(const Side& side, std::uint64_t step) {
  std::vector<RunView::Series> series;
  for (const auto& [rank, meta] : side.view->ranks(side.attempt)) {
    if (rank == side.rank || series.size() >= kOtherRanksMax) continue;
    STATCOLLECT_ASSIGN_OR_RETURN(auto catalogue, side.view->Catalogue(side.attempt, rank));
    for (const TensorDef& def : catalogue->activations) {
      if (def.key == side.root->def->key)
        series.push_back({.attempt = side.attempt,
                          .rank = rank,
                          .activation = def.id,
                          .steps = {.first = step, .last = step},
                          .points = {}});
    }
  }
  STATCOLLECT_RETURN_IF_ERROR(side.view->ReadSeries(series));
  OtherRanks ranks;
  for (const RunView::Series& one : series) {
    if (!one.points.empty()) ranks.emplace(one.rank, one.points.front().stats);
  }
  return ranks;
}

bool IsSame(const Observation& ours, const TensorStats& theirs) {
  return (ours.layout->Trusts(Statistic::kHash) && theirs.hash == ours.stats->hash) ||
         Near(theirs.l2, ours.stats->l2, kSameNorm);
}

Observation With(const Observation& like, const TensorStats& stats) {
  return {.def = like.def, .layout = like.layout, .stats = &stats};
}

// Ranks have different samples, so gradients that are proportional were reduced, and scaled after
// that.
bool HasProportional(const Side& side, const OtherRanks& others) {
  return std::any_of(others.begin(), others.end(), [&](const auto& other) {
    const auto fit = FitFactor(*side.root, With(*side.root, other.second));
    return fit && fit->Explains();
  });
}

// Replicas compute the same bits; gradients may be reduced in another order.
bool HaveSameHash(const Observation& ours, const TensorStats& theirs) {
  return ours.layout->Trusts(Statistic::kHash) ? theirs.hash == ours.stats->hash
                                               : IsSame(ours, theirs);
}

// The first rank whose tensor is not this rank's; nothing if all are.
std::optional<std::uint32_t> FirstApart(const Side& side, const OtherRanks& others) {
  const bool gradient = side.root->def->key.kind == Kind::kWeightGrad;
  for (const auto& [rank, stats] : others) {
    if (!(gradient ? IsSame : HaveSameHash)(*side.root, stats)) return rank;
  }
  return std::nullopt;
}

Found AsReduction(const Evidence& evidence, const OtherRanks& of_a, const OtherRanks& of_b) {
  const auto apart_a = FirstApart(evidence.a, of_a), apart_b = FirstApart(evidence.b, of_b);
  if (of_a.empty() || of_b.empty() || apart_a.has_value() == apart_b.has_value())
    return std::nullopt;
  const Side &reduced = apart_a ? evidence.b : evidence.a,
             &apart = apart_a ? evidence.a : evidence.b;
  const bool gradient = evidence.root.stage == Stage::kGrad;
  if (gradient && HasProportional(apart, apart_a ? of_a : of_b)) return std::nullopt;
  const std::uint32_t other = apart_a ? *apart_a : *apart_b;
  const auto [first, second] = std::minmax(apart.rank, other);
  if (!gradient)
    return Make("replicas",
                "ranks " + std::to_string(first) + " and " + std::to_string(second) + " of " +
                    apart.name() + " hold different values of " + TensorText(evidence.root) + " " +
                    evidence.AtStep() + ", those of " + reduced.name() + " agree (statctl ranks " +
                    apart.name() + ")",
                Confidence::kLikely, evidence.root.activation);
  return Make("reduction",
              "ranks " + std::to_string(first) + " and " + std::to_string(second) + " of " +
                  apart.name() + " have different gradients " + evidence.AtStep() + ", those of " +
                  reduced.name() + " agree: in " + apart.name() +
                  " they were not reduced over the ranks (all-reduce)",
              Confidence::kCertain, evidence.root.activation);
}

// By rank, the factor between the tensors of the two runs. Nothing if there is none on some rank.
std::optional<std::map<std::uint32_t, double>> FactorsByRank(const Evidence& evidence,
                                                             const OtherRanks& of_a,
                                                             const OtherRanks& of_b) {
  constexpr double kResidual = 1e-3;
  std::map<std::uint32_t, double> factors;
  const auto add = [&](std::uint32_t rank, const Observation& a, const Observation& b) {
    const auto fit = FitFactor(a, b);
    if (fit && fit->residual <= kResidual) factors[rank] = fit->factor;
    return factors.contains(rank);
  };
  if (!add(evidence.a.rank, *evidence.a.root, *evidence.b.root)) return std::nullopt;
  for (const auto& [rank, stats] : of_a) {
    const auto other = of_b.find(rank);
    if (other == of_b.end()) continue;
    if (!add(rank, With(*evidence.a.root, stats), With(*evidence.b.root, other->second)))
      return std::nullopt;
  }
  return factors;
}

// "the norm of its own part is 1 in ort", if that was chosen and is not the model's.
std::string OwnNormText(const Evidence& evidence) {
  for (const Side* side : {&evidence.b, &evidence.a}) {
    const double own = NormOfRank(side->at);
    if (IsRound(own) && side->norm && !Near(own, *side->norm, kSameNorm))
      return ": the norm of its own part is " + WithFewDigits(own) + " in " + side->name();
  }
  return {};
}

Found AsFactorByRank(const Evidence& evidence, const OtherRanks& of_a, const OtherRanks& of_b) {
  constexpr double kApart = 0.01;
  constexpr std::size_t kShown = 4;
  if (evidence.a.rank != evidence.b.rank) return std::nullopt;
  const auto factors = FactorsByRank(evidence, of_a, of_b);
  if (!factors) return std::nullopt;
  const auto [least, most] =
      std::minmax_element(factors->begin(), factors->end(),
                          [](const auto& x, const auto& y) { return x.second < y.second; });
  if (Near(least->second, most->second, kApart)) return std::nullopt;
  Cause cause{.rule = "gradient_scale",
              .confidence = Confidence::kCertain,
              .key = evidence.root.activation};
  cause.text = TensorText(evidence.root) + " in " + evidence.b.name() + " is ";
  std::size_t shown = 0;
  for (const auto& [rank, factor] : *factors) {
    if (shown == kShown) break;
    const std::string times = WithFewDigits(factor) + " times";
    const std::string on = " on rank " + std::to_string(rank);
    const bool last = shown + 1 == std::min(kShown, factors->size());
    cause.text += shown++ == 0 ? times + " that in " + evidence.a.name() + on
                               : (last ? " and " : ", ") + times + on;
  }
  cause.text += " " + evidence.AtStep() + ": each rank scales by itself" + OwnNormText(evidence);
  return cause;
}

}  // namespace

Result<Found> FindReduction(const Evidence& evidence, const std::stop_token&) {
  const Kind kind = evidence.root.kind;
  const bool of_replicas = IsOfParameter(kind);
  const bool applies = (of_replicas || kind == Kind::kGradOutput) && evidence.HasRootPair() &&
                       evidence.a.world_size > 1 && evidence.b.world_size > 1;
  if (!applies) return Found();
  STATCOLLECT_ASSIGN_OR_RETURN(auto a, ReadOtherRanks(evidence.a, evidence.root.step));
  STATCOLLECT_ASSIGN_OR_RETURN(auto b, ReadOtherRanks(evidence.b, evidence.root.step));
  if (of_replicas) {
    if (auto found = AsReduction(evidence, a, b)) return found;
  }
  const bool gradient = kind == Kind::kWeightGrad || kind == Kind::kGradOutput;
  return gradient ? AsFactorByRank(evidence, a, b) : Found();
}

}  // namespace statcollect::query::cause
