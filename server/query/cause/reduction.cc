// Gradients that ranks did not reduce, or that each of them scaled by itself.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "common/names.h"
#include "server/query/cause/constants.h"
#include "server/query/cause/linear.h"
#include "server/query/cause/rules.h"
#include "server/query/cause/text.h"
#include "server/query/compare/step_order.h"
#include "server/query/number_text.h"

namespace statcollect::query::cause {
namespace {

// A tensor on the other ranks of a run.
using OtherRanks = std::map<std::uint32_t, TensorStats>;

Result<OtherRanks> ReadOtherRanks(const Side& side, const TensorKey& key, std::uint64_t step) {
  std::vector<RunView::Series> series;
  for (const auto& [rank, meta] : side.view->ranks(side.attempt)) {
    if (rank == side.rank || series.size() >= kOtherRanksMax) continue;
    STATCOLLECT_ASSIGN_OR_RETURN(auto catalogue, side.view->Catalogue(side.attempt, rank));
    for (const TensorDef& def : catalogue->activations) {
      if (def.key == key)
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

// The first rank whose tensor is not this rank's; nothing if all are.
std::optional<std::uint32_t> FirstApart(const Side& side, const OtherRanks& others) {
  for (const auto& [rank, stats] : others) {
    if (!IsSame(*side.root, stats)) return rank;
  }
  return std::nullopt;
}

Found AsReduction(const Evidence& evidence, const OtherRanks& of_a, const OtherRanks& of_b) {
  const auto apart_a = FirstApart(evidence.a, of_a), apart_b = FirstApart(evidence.b, of_b);
  if (of_a.empty() || of_b.empty() || apart_a.has_value() == apart_b.has_value())
    return std::nullopt;
  const Side &reduced = apart_a ? evidence.b : evidence.a,
             &apart = apart_a ? evidence.a : evidence.b;
  if (HasProportional(apart, apart_a ? of_a : of_b)) return std::nullopt;
  const std::uint32_t other = apart_a ? *apart_a : *apart_b;
  const auto [first, second] = std::minmax(apart.rank, other);
  return Make("reduction",
              "ranks " + std::to_string(first) + " and " + std::to_string(second) + " of " +
                  apart.name() + " have different gradients " + evidence.AtStep() + ", those of " +
                  reduced.name() + " agree: in " + apart.name() +
                  " they were not reduced over the ranks (all-reduce)",
              Confidence::kCertain, evidence.root.activation);
}

// By rank, the factor between the tensors of the two runs. Nothing if there is none on some rank.
std::optional<std::map<std::uint32_t, double>> FactorsByRank(std::uint32_t rank, const Pair& here,
                                                             const OtherRanks& of_a,
                                                             const OtherRanks& of_b) {
  std::map<std::uint32_t, double> factors;
  const auto add = [&](std::uint32_t rank, const Observation& a, const Observation& b) {
    const auto fit = FitFactor(a, b);
    if (fit && fit->residual <= kRankResidual) factors[rank] = fit->factor;
    return factors.contains(rank);
  };
  if (!add(rank, *here.a, *here.b)) return std::nullopt;
  for (const auto& [other, stats] : of_a) {
    const auto in_b = of_b.find(other);
    if (in_b == of_b.end()) continue;
    if (!add(other, With(*here.a, stats), With(*here.b, in_b->second))) return std::nullopt;
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

Found AsFactorByRank(const Evidence& evidence, const Pair& here, const OtherRanks& of_a,
                     const OtherRanks& of_b) {
  if (evidence.a.rank != evidence.b.rank) return std::nullopt;
  const auto factors = FactorsByRank(evidence.a.rank, here, of_a, of_b);
  if (!factors) return std::nullopt;
  const auto [least, most] =
      std::minmax_element(factors->begin(), factors->end(),
                          [](const auto& x, const auto& y) { return x.second < y.second; });
  if (Near(least->second, most->second, kRanksApart)) return std::nullopt;
  Cause cause{.rule = "gradient_scale", .confidence = Confidence::kCertain, .key = here.key().name};
  cause.text = TensorText(MakeRow(*here.a->def, evidence.root.step, evidence.root.rank)) + " in " +
               evidence.b.name() + " is " + FactorsText(*factors, evidence.a.name());
  cause.text += " " + evidence.AtStep() + ": each rank scales by itself" + OwnNormText(evidence);
  return cause;
}

// The root; of a loss, the gradient next to it. Nothing if it is no gradient.
std::optional<Pair> GradientAtRoot(const Evidence& evidence) {
  const Divergence& root = evidence.root;
  if (root.kind == Kind::kWeightGrad || root.kind == Kind::kGradOutput) {
    if (!evidence.HasRootPair()) return std::nullopt;
    return Pair{.a = evidence.a.root, .b = evidence.b.root};
  }
  if (root.stage != Stage::kLoss) return std::nullopt;
  for (const Pair& pair : evidence.PairsOf(Kind::kGradOutput)) {
    if (pair.key().micro_batch == root.micro_batch && pair.a->stats->l2 > 0) return pair;
  }
  return std::nullopt;
}

}  // namespace

Result<Found> FindReduction(const Evidence& evidence, const std::stop_token&) {
  const auto here = GradientAtRoot(evidence);
  if (!here || evidence.a.world_size < 2 || evidence.b.world_size < 2) return Found();
  const TensorKey &in_a = here->a->def->key, &in_b = here->b->def->key;
  STATCOLLECT_ASSIGN_OR_RETURN(auto a, ReadOtherRanks(evidence.a, in_a, evidence.root.step));
  STATCOLLECT_ASSIGN_OR_RETURN(auto b, ReadOtherRanks(evidence.b, in_b, evidence.root.step));
  if (evidence.root.kind == Kind::kWeightGrad) {
    if (auto found = AsReduction(evidence, a, b)) return found;
  }
  return AsFactorByRank(evidence, *here, a, b);
}

}  // namespace statcollect::query::cause
