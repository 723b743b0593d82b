// Gradients that ranks did not reduce.
#include <algorithm>
#include <string>
#include <vector>

#include "server/query/cause/linear.h"
#include "server/query/cause/rules.h"
#include "server/query/cause/text.h"

namespace statcollect::query::cause {
namespace {

constexpr double kSameNorm = 1e-5;

// The root's gradient on other ranks of a run.
struct OtherRanks {
  std::size_t seen = 0, same = 0;
  std::optional<std::uint32_t> different;  // the first rank with a different gradient
  bool scaled = false;                     // one of them is this rank's times a factor
};

// Ranks have different samples, so gradients that are proportional were reduced, and scaled after that.
bool AreProportional(const Observation& ours, const TensorStats& theirs) {
  const Observation other{.def = ours.def, .layout = ours.layout, .stats = &theirs};
  const auto fit = FitFactor(ours, other);
  return fit && fit->Explains();
}

Result<OtherRanks> LookAtOtherRanks(const Side& side, std::uint64_t step) {
  OtherRanks ranks;
  std::vector<RunView::Series> series;
  for (const auto& [rank, meta] : side.view->ranks(side.attempt)) {
    if (rank == side.rank || series.size() >= kOtherRanksMax) continue;
    auto catalogue = side.view->Catalogue(side.attempt, rank);
    if (!catalogue.ok()) return catalogue.status();
    for (const TensorDef& def : (*catalogue)->activations) {
      if (def.key == side.root->def->key)
        series.push_back({.attempt = side.attempt,
                          .rank = rank,
                          .activation = def.id,
                          .steps = {.first = step, .last = step},
                          .points = {}});
    }
  }
  STATCOLLECT_RETURN_IF_ERROR(side.view->ReadSeries(series));
  for (const RunView::Series& one : series) {
    if (one.points.empty()) continue;
    const TensorStats &theirs = one.points.front().stats, &ours = *side.root->stats;
    const bool hash = side.root->layout->Trusts(Statistic::kHash) && theirs.hash == ours.hash;
    const bool same = hash || Near(theirs.l2, ours.l2, kSameNorm);
    ++ranks.seen;
    if (same) ++ranks.same;
    if (same) continue;
    if (!ranks.different) ranks.different = one.rank;
    ranks.scaled = ranks.scaled || AreProportional(*side.root, theirs);
  }
  return ranks;
}

}  // namespace

Result<Found> FindReduction(const Evidence& evidence, const std::stop_token&) {
  const bool applies = evidence.root.stage == Stage::kGrad && evidence.root.kind == Kind::kWeightGrad &&
                       evidence.HasRootPair() && evidence.a.world_size > 1 && evidence.b.world_size > 1;
  if (!applies) return Found();
  auto a = LookAtOtherRanks(evidence.a, evidence.root.step);
  if (!a.ok()) return a.status();
  auto b = LookAtOtherRanks(evidence.b, evidence.root.step);
  if (!b.ok()) return b.status();
  const bool agree_a = a->seen > 0 && a->same == a->seen, agree_b = b->seen > 0 && b->same == b->seen;
  if (a->seen == 0 || b->seen == 0 || agree_a == agree_b) return Found();
  const Side &reduced = agree_a ? evidence.a : evidence.b, &apart = agree_a ? evidence.b : evidence.a;
  const OtherRanks& others = *(agree_a ? b : a);
  if (others.scaled) return Found();
  const std::uint32_t other = *others.different;
  const auto [first, second] = std::minmax(apart.rank, other);
  return Found(Cause{.rule = "reduction",
                     .text = "ranks " + std::to_string(first) + " and " + std::to_string(second) + " of " +
                             apart.name() + " have different gradients " + evidence.AtStep() + ", those of " +
                             reduced.name() + " agree: in " + apart.name() +
                             " they were not reduced over the ranks (all-reduce)",
                     .confidence = Confidence::kCertain,
                     .key = evidence.root.activation,
                     .a = {},
                     .b = {}});
}

}  // namespace statcollect::query::cause
