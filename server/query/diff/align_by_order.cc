#include "server/query/diff/align_by_order.h"

#include <algorithm>
#include <utility>

#include "server/query/compare/sequence_alignment.h"

namespace statcollect::query {
namespace {

constexpr int kStepsAligned = 8;

// Whether the alignment knows every activation of the steps: a run may have defined more since.
bool Covers(const Alignment& alignment, const StepData& a, const StepData& b) {
  const auto known = [](const StepData& data, const RankCatalogue& catalogue) {
    return std::all_of(
        data.observations.begin(), data.observations.end(),
        [&](const Observation& seen) { return seen.def->id < catalogue.activations.size(); });
  };
  return known(a, alignment.a()) && known(b, alignment.b());
}

// Aligns one rank, on the first step in which both runs have statistics of it.
Status AlignRank(const DiffContext& context, const DiffPlan& plan, std::size_t place,
                 const std::stop_token& stop) {
  const RankPair ranks = plan.ranks[place];
  int tried = 0;
  for (auto step = plan.steps.begin(); step != plan.steps.end() && tried < kStepsAligned;
       ++step, ++tried) {
    if (stop.stop_requested()) return {Code::kCancelled, "diff: cancelled"};
    if (plan.full && !std::binary_search(plan.full->begin(), plan.full->end(), step->first))
      continue;
    const auto [attempt_a, attempt_b] = step->second;
    STATCOLLECT_ASSIGN_OR_RETURN(const auto catalogue_a, context.a.Catalogue(attempt_a, ranks.a));
    STATCOLLECT_ASSIGN_OR_RETURN(const auto catalogue_b, context.b.Catalogue(attempt_b, ranks.b));
    const Alignment& alignment = context.aligner.For(place, *catalogue_a, *catalogue_b);
    if (!alignment.IsOpenOnBothSides()) break;
    STATCOLLECT_ASSIGN_OR_RETURN(const auto a, context.a.Read(attempt_a, ranks.a, step->first));
    STATCOLLECT_ASSIGN_OR_RETURN(const auto b, context.b.Read(attempt_b, ranks.b, step->first));
    if (a.observations.empty() || b.observations.empty() || !Covers(alignment, a, b)) continue;
    auto matches = AlignBySequence(a, b, alignment);
    if (!matches.empty()) context.aligner.SetByOrder(place, std::move(matches));
    break;
  }
  return Status::Ok();
}

}  // namespace

Status AlignByOrder(const DiffContext& context, const DiffPlan& plan, const std::stop_token& stop) {
  for (std::size_t place = 0; place < plan.ranks.size(); ++place)
    STATCOLLECT_RETURN_IF_ERROR(AlignRank(context, plan, place, stop));
  return Status::Ok();
}

}  // namespace statcollect::query
