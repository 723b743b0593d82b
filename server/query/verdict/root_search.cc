#include "server/query/verdict/root_search.h"

#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "server/query/parallel.h"
#include "server/query/verdict/rank_judge.h"

namespace statcollect::query {
namespace {

struct Rank {
  std::size_t place = 0;
  std::set<std::uint64_t> steps;
  Status status;
  std::optional<JudgedRoot> found;
};

}  // namespace

Result<std::optional<Root>> FindRoot(const RootQuestion& question, const std::stop_token& stop) {
  std::vector<Rank> ranks;
  for (auto& [place, steps] : question.steps.Chosen()) ranks.push_back({.place = place, .steps = steps});
  InParallel(ranks.size(), [&](std::size_t i) {
    Rank& rank = ranks[i];
    auto found =
        RankJudge(question.context, question.plan, rank.place, question.steps.AgreeingBefore(rank.place))
            .Judge(rank.steps, question.last_step, stop);
    rank.status = found.status();
    if (found.ok()) rank.found = *std::move(found);
  });
  const Rank* first = nullptr;
  const auto when = [](const Rank& rank) {
    return std::tuple(rank.found->step, rank.found->order, rank.place);
  };
  for (const Rank& rank : ranks) {
    STATCOLLECT_RETURN_IF_ERROR(rank.status);
    if (rank.found && (first == nullptr || when(rank) < when(*first))) first = &rank;
  }
  if (first == nullptr) return std::optional<Root>();
  return std::optional(first->found->root);
}

}  // namespace statcollect::query
