// Judges the steps of a rank by the noise that its run's twins show.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_MEASURED_MODEL_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_MEASURED_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "server/query/compare/diff_plan.h"
#include "server/query/pairs/twins.h"
#include "server/query/verdict/measured_rule.h"
#include "server/query/verdict/step_pairs.h"

namespace statcollect::query {

// Borrows the twins. Cost: reads each step of every twin. Memory: one step of the rank for each
// twin.
class MeasuredModel {
 public:
  // `rank`: A's. `others`: what other ranks have seen in a step.
  using Others = std::function<Result<std::vector<const RankTrail*>>(std::uint64_t step)>;
  MeasuredModel(const Twins& twins, std::uint32_t rank,
                OtherConvolutions convolutions = OtherConvolutions::kNone, Others others = {});

  // Which steps to read, and whether to judge them. The first steps show each tensor's own
  // rounding, and the step before the first difference shows what that one starts from. From there
  // on every step counts, up to kStepsInARow; later only those of `wanted`, each with the step
  // before it. All are steps of the plan and of all twins. `wanted`: not empty.
  static std::map<std::uint64_t, bool> StepsFor(const Twins& twins, const DiffPlan& plan,
                                                const std::set<std::uint64_t>& wanted,
                                                std::optional<std::uint64_t> last_step);
  static constexpr std::size_t kStepsInARow = 32, kStepsAtFirst = 2;

  // Takes a step without judging it. Steps must ascend.
  Result<RankTrail> Follow(std::uint64_t step, StepPairs& now);
  // Names must outlive the model.
  Result<JudgedStep> Judge(std::uint64_t step, StepPairs& now);
  std::size_t ChooseJump(const JudgedStep& step) const { return rule_.ChooseJump(step.jumps); }
  static constexpr bool kMeasuresNoise = true;
  // Whether any twin has differed from A so far.
  bool noise_arrived() const { return rule_.noise_arrived(); }

 private:
  // `twins`: keeps what the result points to.
  Result<MeasuredStep> Measure(std::uint64_t step, StepPairs& now,
                               std::vector<Twins::Step>& twins) const;

  const Twins& twins_;
  const std::uint32_t rank_;
  const Others others_;
  MeasuredRule rule_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_MEASURED_MODEL_H_
