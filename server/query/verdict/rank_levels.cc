#include "server/query/verdict/rank_levels.h"

#include <utility>

#include "server/query/parallel.h"
#include "server/query/verdict/guessed_model.h"
#include "server/query/verdict/step_pairs.h"

namespace statcollect::query {

RankLevels::RankLevels(const DiffContext& context, const DiffPlan& plan,
                       std::set<std::size_t> places, std::set<std::uint64_t> wanted,
                       std::optional<std::uint64_t> last_step)
    : context_(context), plan_(plan), steps_(GuessedModel::StepsFor(plan, wanted, last_step)) {
  for (std::size_t place = 0; place < plan.ranks.size() && places.size() < kRanksMax; ++place)
    places.insert(place);
  if (places.size() < 2) return;
  for (const std::size_t place : places) levels_[place];
}

Result<std::vector<const SharedLevels*>> RankLevels::OfOthers(std::size_t place, std::uint64_t step,
                                                              const std::stop_token& stop) {
  {
    const std::lock_guard lock(mutex_);
    if (!read_) read_.emplace(Read(stop));
    STATCOLLECT_RETURN_IF_ERROR(*read_);
  }
  std::vector<const SharedLevels*> others;
  for (const auto& [other, steps] : levels_) {
    const auto found = steps.find(step);
    if (other != place && found != steps.end()) others.push_back(&found->second);
  }
  return others;
}

Status RankLevels::Read(const std::stop_token& stop) {
  std::vector<std::pair<const std::size_t, Steps>*> ranks;
  ranks.reserve(levels_.size());
  for (auto& rank : levels_) ranks.push_back(&rank);
  std::vector<Status> read(ranks.size());
  InParallel(ranks.size(),
             [&](std::size_t i) { read[i] = ReadRank(ranks[i]->first, stop, ranks[i]->second); });
  for (Status& status : read) STATCOLLECT_RETURN_IF_ERROR(status);
  return Status::Ok();
}

Status RankLevels::ReadRank(std::size_t place, const std::stop_token& stop, Steps& to) const {
  // How a kernel rounds enters what is expected, not what other ranks inherit.
  GuessedModel model(RecordedMethods(), /*identical_steps=*/0);
  const StepPairsReader reader(context_, plan_, place, StepPairsReader::Order::kExecution);
  StepPairs now;
  for (const auto& [step, judged] : steps_) {
    if (stop.stop_requested()) return {Code::kCancelled, "diff: cancelled"};
    STATCOLLECT_RETURN_IF_ERROR(reader.Read(step, now));
    to.emplace(step, model.Follow(now));
  }
  return Status::Ok();
}

}  // namespace statcollect::query
