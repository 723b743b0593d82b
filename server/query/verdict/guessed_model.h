// Judges the steps of a rank by rules that say how much a kernel, an optimizer or a loss may
// enlarge a difference: where no twins measure it. docs/verdict-model.md.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_GUESSED_MODEL_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_GUESSED_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/status.h"
#include "server/query/compare/diff_plan.h"
#include "server/query/verdict/jumps.h"
#include "server/query/verdict/row_counts.h"
#include "server/query/verdict/step_pairs.h"

namespace statcollect::query {

// For one rank. Steps must ascend. Not thread-safe.
class GuessedModel {
 public:
  // `identical_steps`: number of steps before the first one to judge, all equal bit for bit.
  // `others`: what other ranks' records differ by in a step.
  using Others = std::function<Result<std::vector<const SharedLevels*>>(std::uint64_t step)>;
  GuessedModel(const RecordedMethods& methods, std::uint64_t identical_steps, Others others = {})
      : explainer_(methods), finder_(identical_steps), others_(std::move(others)) {}

  // Which steps to read, and whether to judge them: those of `wanted`, each with the two stored
  // before it, so that what they leave behind is known. A step that was not requested is only read.
  static std::map<std::uint64_t, bool> StepsFor(const DiffPlan& plan,
                                                const std::set<std::uint64_t>& wanted,
                                                std::optional<std::uint64_t> last_step);

  // Names must outlive the model.
  Result<JudgedStep> Judge(std::uint64_t step, StepPairs& now);
  static std::size_t ChooseJump(const JudgedStep& step) {
    return query::ChooseJump(step.explained, step.jumps);
  }
  static constexpr bool kMeasuresNoise = false;

 private:
  Explainer explainer_;
  JumpFinder finder_;
  RowCounts rows_;
  const Others others_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_GUESSED_MODEL_H_
