#include "server/query/verdict/guessed_model.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kStepsBefore = 2;

}  // namespace

std::map<std::uint64_t, bool> GuessedModel::StepsFor(const DiffPlan& plan,
                                                     const std::set<std::uint64_t>& wanted,
                                                     std::optional<std::uint64_t> last_step) {
  std::map<std::uint64_t, bool> all;
  for (const std::uint64_t step : wanted) {
    if ((last_step && step > *last_step) || !plan.steps.contains(step)) continue;
    auto at = plan.stored.find(step);
    all[step] = true;
    for (std::size_t i = 0; i < kStepsBefore && at != plan.stored.begin(); ++i) {
      --at;
      // Steps compared before the first difference are all equal and need not be read.
      if (at->first >= *wanted.begin() || !plan.steps.contains(at->first))
        all.try_emplace(at->first, false);
    }
  }
  return all;
}

Result<JudgedStep> GuessedModel::Judge(std::uint64_t step, StepPairs& now) {
  std::vector<const SharedLevels*> others;
  if (others_) {
    STATCOLLECT_ASSIGN_OR_RETURN(others, others_(step));
  }
  rows_.Step(now.pairs, {});
  JudgedStep answer{.explained = explainer_.Step(now.pairs, others),
                    .data_dependent = &rows_.varying(),
                    .noise_driven = &explainer_.noise_driven()};
  answer.jumps = finder_.Find(answer.explained);
  return answer;
}

}  // namespace statcollect::query
