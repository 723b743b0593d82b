#include "server/query/verdict/root_search.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "server/query/parallel.h"

namespace statcollect::query {
namespace {

struct Rank {
  std::size_t place = 0;
  std::set<std::uint64_t> steps;
  Status status;
  std::optional<JudgedRoot> found;
  RankFindings findings;
};

void NoteFirst(const PlacedRow& placed, std::optional<PlacedRow>& first) {
  if (!first || (placed.row.step == first->row.step && placed.place < first->place)) first = placed;
}

// Only twins show how ranks depend on each other.
Result<RankTrails> FollowRanks(const RootQuestion& question, const std::vector<Rank>& ranks,
                               const std::stop_token& stop) {
  if (question.twins == nullptr || question.plan.ranks.size() < 2 || ranks.empty()) return RankTrails();
  std::set<std::size_t> places;
  std::set<std::uint64_t> wanted;
  for (const Rank& rank : ranks) {
    places.insert(rank.place);
    wanted.insert(rank.steps.begin(), rank.steps.end());
  }
  return RankTrails::Follow(question.context, question.plan, *question.twins, std::move(places), wanted,
                            question.last_step, stop);
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

Result<RootAnswer> FindRoot(const RootQuestion& question, const std::stop_token& stop) {
  std::vector<Rank> ranks;
  for (auto& [place, steps] : question.steps.Chosen()) ranks.push_back({.place = place, .steps = steps});
  STATCOLLECT_ASSIGN_OR_RETURN(auto trails, FollowRanks(question, ranks, stop));
  InParallel(ranks.size(), [&](std::size_t i) {
    Rank& rank = ranks[i];
    RankJudge judge(question.context, question.plan, rank.place, question.steps.AgreeingBefore(rank.place),
                    question.twins, &trails);
    auto found = judge.Judge(rank.steps, question.last_step, stop);
    rank.status = found.status();
    rank.findings = judge.findings();
    if (found.ok()) rank.found = *std::move(found);
  });
  const Rank* first = nullptr;
  const auto when = [](const Rank& rank) {
    return std::tuple(rank.found->step, rank.found->order, rank.place);
  };
  RootAnswer answer;
  for (const Rank& rank : ranks) {
    STATCOLLECT_RETURN_IF_ERROR(rank.status);
    answer.Merge(rank.findings);
    if (rank.found && (first == nullptr || when(rank) < when(*first))) first = &rank;
  }
  if (first == nullptr) return answer;
  answer.root = first->found->root;
  answer.caveat = first->found->caveat;
  return answer;
}

}  // namespace statcollect::query
