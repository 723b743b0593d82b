// What a diff can compare: the ranks, steps and kinds that both runs have.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_DIFF_PLAN_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_DIFF_PLAN_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/query/compare/merge_ranks.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"
#include "server/query/types.h"

namespace statcollect::query {

// What was ever recorded of a run, and by what.
struct RecordedKinds {
  std::string tool;  // whose dump it is, such as "ort"; empty: recorded by an agent
  std::array<std::array<bool, kModeCount>, kKindCount> modes{};
};

struct DiffPlan {
  std::vector<RankPair> ranks;  // ascending; unless they are merged, each with itself
  StepAttempts steps;
  // Steps that both runs have, also those that were not asked for. What they left behind explains the first
  // steps that are compared.
  StepAttempts stored;
  std::array<bool, kKindCount> wanted{};              // by kind
  std::array<bool, kKindCount> kinds_a{}, kinds_b{};  // ever recorded
  RecordedKinds recorded_a, recorded_b;
  bool losses = true;  // whether losses are compared
  // "a was recorded with include=blocks.*": why something may have been computed in between that no record
  // shows; empty: nothing is known to be left out.
  std::string left_out;
  std::vector<std::string> notes;
  std::string incomparable;  // why there is nothing to compare; empty: there is
};

// Why it says nothing that an import of another tool's dump lacks `def`, or has it and the agent's run lacks
// it in this step: the tool, or the agent, never records it. One sentence, the same for all of its like;
// absent: it is missing. `of_b`: the run that has it is B. `seen`: the other run has recorded it in some
// step.
std::optional<std::string> WhyNotRecorded(const RunView& a, const RunView& b, const DiffPlan& plan,
                                          const TensorDef& def, bool of_b, bool seen);

// kInvalidArgument: steps or tolerance that make no sense.
Result<DiffPlan> PlanDiff(RunView& a, RunView& b, const DiffRequest& request,
                          const IsStreamOpen& is_stream_open);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_DIFF_PLAN_H_
