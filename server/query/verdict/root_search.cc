#include "server/query/verdict/root_search.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "server/query/parallel.h"

namespace statcollect::query {
namespace {

struct Rank {
  std::size_t place = 0;
  std::set<std::uint64_t> steps;
  Status status;
  Judgement judgement;
};

void NoteFirst(const PlacedRow& placed, std::optional<PlacedRow>& first) {
  if (!first || (placed.row.step == first->row.step && placed.place < first->place)) first = placed;
}

constexpr std::size_t kPlacesFollowed = 16;

// What is read of all ranks, because they depend on each other: the steps that some rank is judged
// in, of those ranks and a few others.
struct Selection {
  std::set<std::size_t> places;
  std::set<std::uint64_t> steps;
};

Selection Select(const std::vector<Rank>& ranks, const DiffPlan& plan) {
  Selection all;
  for (const Rank& rank : ranks) {
    all.places.insert(rank.place);
    all.steps.insert(rank.steps.begin(), rank.steps.end());
  }
  for (std::size_t place = 0; place < plan.ranks.size() && all.places.size() < kPlacesFollowed;
       ++place)
    all.places.insert(place);
  return all;
}

Result<RankTrails> FollowRanks(const RootQuestion& question, const Selection& selected,
                               const std::stop_token& stop) {
  if (question.twins == nullptr || selected.places.size() < 2 || selected.steps.empty())
    return RankTrails();
  return RankTrails::Follow(question.context, question.plan, *question.twins, selected.places,
                            selected.steps, question.last_step, stop);
}

}  // namespace

bool IsIdle(const Divergence& row) {
  const bool missing = row.reason == Reason::kMissingInA || row.reason == Reason::kMissingInB;
  return missing && (row.kind == Kind::kGradOutput || row.kind == Kind::kGradInput ||
                     row.kind == Kind::kInput || row.kind == Kind::kBatch);
}

void FirstMissing::Note(const PlacedRow& placed) {
  const std::uint64_t step = placed.row.step;
  if (!IsIdle(placed.row)) {
    NoteFirst(placed, other);
  } else {
    ++idle[step];
    const auto [first, added] = idle_at.try_emplace(step, placed);
    if (!added && placed.place < first->second.place) first->second = placed;
  }
  if (placed.row.stage == Stage::kGrad) NoteFirst(placed, gradient);
}

Result<Judgement> FindRoot(const RootQuestion& question, const std::stop_token& stop) {
  std::vector<Rank> ranks;
  for (auto& [place, steps] : question.steps.Chosen())
    ranks.push_back({.place = place, .steps = steps});
  const Selection selected = Select(ranks, question.plan);
  STATCOLLECT_ASSIGN_OR_RETURN(const auto trails, FollowRanks(question, selected, stop));
  RankLevels levels(question.context, question.plan, selected.places, selected.steps,
                    question.last_step);
  InParallel(ranks.size(), [&](std::size_t i) {
    Rank& rank = ranks[i];
    RankJudge judge(question.context, question.plan, rank.place,
                    question.steps.AgreeingBefore(rank.place), question.twins, trails, levels);
    auto judgement = judge.Judge(rank.steps, question.last_step, stop);
    rank.status = judgement.status();
    if (judgement.ok()) rank.judgement = *std::move(judgement);
  });
  Judgement all;
  for (Rank& rank : ranks) {
    STATCOLLECT_RETURN_IF_ERROR(rank.status);
    all.Add(std::move(rank.judgement));
  }
  return all;
}

}  // namespace statcollect::query
