#include "server/query/verdict/root_search.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "server/query/parallel.h"
#include "server/query/verdict/guessed_model.h"
#include "server/query/verdict/measured_model.h"
#include "server/query/verdict/other_ranks.h"

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

// One rank alone inherits nothing from others.
template <typename Data, typename MakeFollow>
std::vector<typename OtherRanks<Data>::Rank> Follow(const RootQuestion& question,
                                                    const std::set<std::size_t>& places,
                                                    StepPairsReader::Order order,
                                                    const MakeFollow& make) {
  std::vector<typename OtherRanks<Data>::Rank> ranks;
  for (const std::size_t place : places) {
    if (places.size() > 1)
      ranks.push_back({place, {question.context, question.plan, place, order}, make(place)});
  }
  return ranks;
}

OtherRanks<RankTrail> TrailsOf(const RootQuestion& question, const Selection& selected,
                               const std::stop_token& stop) {
  const Twins* const twins = question.twins;
  if (twins == nullptr || selected.steps.empty()) return {{}, {}, stop};
  const auto make = [&](std::size_t place) {
    return [model = std::make_shared<MeasuredModel>(*twins, question.plan.ranks[place].a)](
               std::uint64_t step, StepPairs& now) { return model->Follow(step, now); };
  };
  return {Follow<RankTrail>(question, selected.places, StepPairsReader::Order::kReport, make),
          MeasuredModel::StepsFor(*twins, question.plan, selected.steps, question.last_step), stop};
}

// How a kernel rounds enters what is expected, not what ranks inherit.
OtherRanks<SharedLevels> LevelsOf(const RootQuestion& question, const Selection& selected,
                                  const std::stop_token& stop) {
  const auto make = [](std::size_t /*place*/) {
    return [explainer = std::make_shared<Explainer>()](std::uint64_t /*step*/, StepPairs& now) {
      explainer->Step(now.pairs);
      return Result<SharedLevels>(explainer->Levels());
    };
  };
  return {Follow<SharedLevels>(question, selected.places, StepPairsReader::Order::kExecution, make),
          GuessedModel::StepsFor(question.plan, selected.steps, question.last_step), stop};
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
  OtherRanks<RankTrail> trails = TrailsOf(question, selected, stop);
  OtherRanks<SharedLevels> levels = LevelsOf(question, selected, stop);
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
