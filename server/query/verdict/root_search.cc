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
  std::optional<DifferBefore> differ_before;
  std::set<std::string> noise_driven;
  std::set<std::string> data_dependent, unjudged_rows;
  std::optional<LossScales> loss_scales;
  Measured measured = Measured::kWhole;
  std::optional<WithoutEffect> without_effect;
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

Result<RootAnswer> FindRoot(const RootQuestion& question, const std::stop_token& stop) {
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
    auto found = judge.Judge(rank.steps, question.last_step, stop);
    rank.status = found.status();
    rank.differ_before = judge.differ_before();
    rank.noise_driven = judge.noise_driven();
    rank.data_dependent = judge.data_dependent();
    rank.unjudged_rows = judge.unjudged_rows();
    rank.loss_scales = judge.loss_scales();
    rank.measured = judge.measured();
    rank.without_effect = judge.without_effect();
    if (found.ok()) rank.found = *std::move(found);
  });
  const Rank* first = nullptr;
  const auto when = [](const Rank& rank) {
    return std::tuple(rank.found->step, rank.found->order, rank.place);
  };
  RootAnswer answer;
  for (const Rank& rank : ranks) {
    STATCOLLECT_RETURN_IF_ERROR(rank.status);
    answer.noise_driven.insert(rank.noise_driven.begin(), rank.noise_driven.end());
    answer.data_dependent.insert(rank.data_dependent.begin(), rank.data_dependent.end());
    answer.unjudged_rows.insert(rank.unjudged_rows.begin(), rank.unjudged_rows.end());
    answer.measured = std::max(answer.measured, rank.measured);
    if (!answer.without_effect) answer.without_effect = rank.without_effect;
    if (!answer.loss_scales) answer.loss_scales = rank.loss_scales;
    const auto& before = rank.differ_before;
    if (before && (!answer.differ_before || answer.differ_before->distance < before->distance))
      answer.differ_before = before;
    if (rank.found && (first == nullptr || when(rank) < when(*first))) first = &rank;
  }
  if (first == nullptr) return answer;
  answer.root = first->found->root;
  answer.caveat = first->found->caveat;
  return answer;
}

}  // namespace statcollect::query
