#include "server/query/verdict/rank_levels.h"

#include <span>

#include "server/query/parallel.h"
#include "server/query/verdict/guessed_model.h"
#include "server/query/verdict/step_pairs.h"

namespace statcollect::query {

RankLevels::RankLevels(const DiffContext& context, const DiffPlan& plan,
                       const std::set<std::size_t>& places, const std::set<std::uint64_t>& wanted,
                       std::optional<std::uint64_t> last_step)
    : context_(context),
      plan_(plan),
      steps_(GuessedModel::StepsFor(plan, wanted, last_step)),
      next_(steps_.begin()) {
  if (places.size() < 2) return;
  for (const std::size_t place : places) ranks_.emplace_back().place = place;
}

Result<std::vector<const SharedLevels*>> RankLevels::OfOthers(std::size_t place, std::uint64_t step,
                                                              const std::stop_token& stop) {
  const MutexLock lock(mutex_);
  STATCOLLECT_RETURN_IF_ERROR(ReadUpTo(step, stop));
  std::vector<const SharedLevels*> others;
  for (const Rank& rank : ranks_) {
    const auto found = rank.steps.find(step);
    if (rank.place != place && found != rank.steps.end()) others.push_back(&found->second);
  }
  return others;
}

Status RankLevels::ReadUpTo(std::uint64_t step, const std::stop_token& stop) {
  for (; next_ != steps_.end() && next_->first <= step; ++next_) {
    const std::span<Rank> ranks(ranks_);  // the threads that read have no lock of their own
    InParallel(ranks.size(), [&, at = next_->first](std::size_t i) { Read(at, stop, ranks[i]); });
    for (const Rank& rank : ranks) STATCOLLECT_RETURN_IF_ERROR(rank.status);
  }
  return Status::Ok();
}

void RankLevels::Read(std::uint64_t step, const std::stop_token& stop, Rank& rank) const {
  if (stop.stop_requested()) {
    rank.status = Status(Code::kCancelled, "diff: cancelled");
    return;
  }
  const StepPairsReader reader(context_, plan_, rank.place, StepPairsReader::Order::kExecution);
  StepPairs now;
  rank.status = reader.Read(step, now);
  if (!rank.status.ok()) return;
  rank.explainer.Step(now.pairs);
  rank.steps.emplace(step, rank.explainer.Levels());
}

}  // namespace statcollect::query
