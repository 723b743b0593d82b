#include "server/query/diff/diff_scan.h"

#include <algorithm>

#include "server/query/parallel.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kUnitsAThread = 4;  // for an even load
constexpr std::size_t kWaveRankStepsMax = 1024;

}  // namespace

Status DiffScan::Run(const Take& take, const OnProgress& progress, const std::stop_token& stop) {
  Progress done{.done = 0, .total = plan_.steps.size() * plan_.ranks.size()};
  std::size_t steps = 1;
  for (auto next = plan_.steps.begin(); next != plan_.steps.end();) {
    auto wave = CutWave(next, steps);
    STATCOLLECT_RETURN_IF_ERROR(CompareWave(wave, stop));
    if (stop.stop_requested()) return {Code::kCancelled, "diff: cancelled"};
    done.done += wave.size() * plan_.ranks.size();
    for (StepResult& step : wave) {
      STATCOLLECT_ASSIGN_OR_RETURN(const auto more, take(std::move(step)));
      if (!more) return Status::Ok();
    }
    if (progress) progress(done);
    steps = std::min(2 * steps, std::max<std::size_t>(1, kWaveRankStepsMax / plan_.ranks.size()));
  }
  return Status::Ok();
}

// The next steps, as many as wanted, of one attempt of each run.
std::vector<StepResult> DiffScan::CutWave(Steps::const_iterator& next, std::size_t steps) {
  std::vector<StepResult> wave;
  attempts_ = next->second;
  for (; next != plan_.steps.end() && wave.size() < steps && next->second == attempts_; ++next) {
    wave.push_back(
        {.step = next->first, .ranks = std::vector<RankStepFindings>(plan_.ranks.size())});
  }
  return wave;
}

std::vector<DiffScan::Unit> DiffScan::CutUnits(const std::vector<StepResult>& wave) const {
  const std::size_t processors = ThreadsOfAQuery();
  const std::size_t rank_steps = wave.size() * plan_.ranks.size();
  const std::size_t unit_steps =
      std::max<std::size_t>(1, rank_steps / (processors * kUnitsAThread));
  std::vector<Unit> units;
  for (std::size_t first = 0; first < wave.size(); first += unit_steps) {
    for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
      Unit& unit = units.emplace_back();
      unit.rank_index = rank;
      unit.first_step_index = first;
      unit.steps = {.place = rank,
                    .ranks = plan_.ranks[rank],
                    .attempt_a = attempts_.first,
                    .attempt_b = attempts_.second,
                    .steps = {}};
      for (std::size_t i = first; i < std::min(first + unit_steps, wave.size()); ++i)
        unit.steps.steps.push_back(wave[i].step);
    }
  }
  return units;
}

Status DiffScan::CompareWave(std::vector<StepResult>& wave, const std::stop_token& stop) const {
  std::vector<Unit> units = CutUnits(wave);
  InParallel(units.size(), [&](std::size_t i) {
    Unit& unit = units[i];
    if (stop.stop_requested()) return;
    auto found = CompareRankSteps(context_, unit.steps, stop);
    unit.status = found.status();
    if (!found.ok()) return;
    for (std::size_t s = 0; s < found->size(); ++s)
      wave[unit.first_step_index + s].ranks[unit.rank_index] = std::move((*found)[s]);
  });
  for (const Unit& unit : units) STATCOLLECT_RETURN_IF_ERROR(unit.status);
  return Status::Ok();
}

}  // namespace statcollect::query
