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
#include "server/query/verdict/row_counts.h"
#include "server/query/verdict/step_model.h"

namespace statcollect::query {

class GuessedModel final : public StepModel {
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

  Result<Answer> Judge(std::uint64_t step, StepPairs& now) override;
  const std::set<std::string>& data_dependent() const override { return rows_.varying(); }
  bool measures_noise() const override { return false; }
  std::size_t ChooseJump(std::span<const Explained> step,
                         std::span<const Jump> jumps) const override {
    return query::ChooseJump(step, jumps);
  }
  const std::unordered_set<std::string_view>& noise_driven() const override {
    return explainer_.noise_driven();
  }

 private:
  Explainer explainer_;
  JumpFinder finder_;
  RowCounts rows_;
  const Others others_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_GUESSED_MODEL_H_
