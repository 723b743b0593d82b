#include "server/query/verdict/rank_trails.h"

#include <utility>

#include "server/query/parallel.h"
#include "server/query/verdict/measured_model.h"
#include "server/query/verdict/step_pairs.h"

namespace statcollect::query {
namespace {

struct Followed {
  std::size_t place = 0;
  Status status;
  std::map<std::uint64_t, RankTrail> trails;
};

}  // namespace

Result<RankTrails> RankTrails::Follow(const DiffContext& context, const DiffPlan& plan,
                                      const Twins& twins, const std::set<std::size_t>& places,
                                      const std::set<std::uint64_t>& wanted,
                                      std::optional<std::uint64_t> last_step,
                                      const std::stop_token& stop) {
  std::vector<Followed> ranks;
  for (const std::size_t place : places) ranks.push_back({.place = place});
  InParallel(ranks.size(), [&](std::size_t i) {
    Followed& rank = ranks[i];
    MeasuredModel model(twins, plan.ranks[rank.place].a);
    const StepPairsReader reader(context, plan, rank.place, StepPairsReader::Order::kReport);
    StepPairs now;
    for (const auto& [step, judged] : model.StepsFor(plan, wanted, last_step)) {
      if (rank.status.ok() && stop.stop_requested())
        rank.status = Status(Code::kCancelled, "diff: cancelled");
      if (rank.status.ok()) rank.status = reader.Read(step, now);
      if (!rank.status.ok()) return;
      auto trail = model.Follow(step, now);
      rank.status = trail.status();
      if (trail.ok()) rank.trails.emplace(step, *std::move(trail));
    }
  });
  RankTrails all;
  for (Followed& rank : ranks) {
    STATCOLLECT_RETURN_IF_ERROR(rank.status);
    all.trails_.emplace(rank.place, std::move(rank.trails));
  }
  return all;
}

std::vector<const RankTrail*> RankTrails::OfOthers(std::size_t place, std::uint64_t step) const {
  std::vector<const RankTrail*> others;
  for (const auto& [other, trails] : trails_) {
    const auto found = trails.find(step);
    if (other != place && found != trails.end()) others.push_back(&found->second);
  }
  return others;
}

}  // namespace statcollect::query
