#include "server/query/diff/diff_scan.h"

#include <algorithm>
#include <cstddef>

#include "server/query/parallel.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kUnitsAThread = 4;  // for an even load
constexpr std::size_t kWaveRankStepsMax = 1024;

using Steps = decltype(DiffPlan::steps);

// Steps of one rank that one thread compares.
struct Unit {
  RankSteps steps;
  std::size_t rank_index = 0, first_step_index = 0;
  Status status;
};

// The next steps, as many as wanted, of one attempt of each run.
std::vector<StepResult> CutWave(const DiffPlan& plan, Steps::const_iterator& next,
                                std::size_t steps) {
  std::vector<StepResult> wave;
  const auto attempts = next->second;
  for (; next != plan.steps.end() && wave.size() < steps && next->second == attempts; ++next) {
    wave.push_back(
        {.step = next->first, .ranks = std::vector<RankStepFindings>(plan.ranks.size())});
  }
  return wave;
}

std::vector<Unit> CutUnits(const DiffPlan& plan, const std::vector<StepResult>& wave) {
  const auto [attempt_a, attempt_b] = plan.steps.at(wave.front().step);
  const std::size_t processors = ThreadsOfAQuery();
  const std::size_t rank_steps = wave.size() * plan.ranks.size();
  const std::size_t unit_steps =
      std::max<std::size_t>(1, rank_steps / (processors * kUnitsAThread));
  std::vector<Unit> units;
  for (std::size_t first = 0; first < wave.size(); first += unit_steps) {
    for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
      Unit& unit = units.emplace_back();
      unit.rank_index = rank;
      unit.first_step_index = first;
      unit.steps = {.place = rank,
                    .ranks = plan.ranks[rank],
                    .attempt_a = attempt_a,
                    .attempt_b = attempt_b,
                    .steps = {}};
      for (std::size_t i = first; i < std::min(first + unit_steps, wave.size()); ++i)
        unit.steps.steps.push_back(wave[i].step);
    }
  }
  return units;
}

Status CompareWave(const DiffContext& context, const DiffPlan& plan, std::vector<StepResult>& wave,
                   const std::stop_token& stop) {
  std::vector<Unit> units = CutUnits(plan, wave);
  InParallel(units.size(), [&](std::size_t i) {
    Unit& unit = units[i];
    if (stop.stop_requested()) return;
    auto found = CompareRankSteps(context, unit.steps, stop);
    unit.status = found.status();
    if (!found.ok()) return;
    for (std::size_t s = 0; s < found->size(); ++s)
      wave[unit.first_step_index + s].ranks[unit.rank_index] = std::move((*found)[s]);
  });
  for (const Unit& unit : units) STATCOLLECT_RETURN_IF_ERROR(unit.status);
  return Status::Ok();
}

}  // namespace

Status ScanSteps(const DiffContext& context, const DiffPlan& plan, const TakeStep& take,
                 const OnProgress& progress, const std::stop_token& stop) {
  Progress done{.done = 0, .total = plan.steps.size() * plan.ranks.size()};
  std::size_t steps = 1;
  for (auto next = plan.steps.begin(); next != plan.steps.end();) {
    auto wave = CutWave(plan, next, steps);
    STATCOLLECT_RETURN_IF_ERROR(CompareWave(context, plan, wave, stop));
    if (stop.stop_requested()) return {Code::kCancelled, "diff: cancelled"};
    done.done += wave.size() * plan.ranks.size();
    for (StepResult& step : wave) {
      STATCOLLECT_ASSIGN_OR_RETURN(const auto more, take(std::move(step)));
      if (!more) return Status::Ok();
    }
    if (progress) progress(done);
    steps = std::min(2 * steps, std::max<std::size_t>(1, kWaveRankStepsMax / plan.ranks.size()));
  }
  return Status::Ok();
}

}  // namespace statcollect::query
