// Plans a diff: the ranks, steps and kinds that both runs have.
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

// The kinds ever recorded of a run, and the tool that recorded them.
struct RecordedKinds {
  std::string tool;  // the tool whose dump it is, such as "ort"; empty: recorded by an agent
  std::array<std::array<bool, kModeCount>, kKindCount> modes{};
};

struct DiffPlan {
  std::vector<RankPair> ranks;  // ascending; unless ranks are merged, each with itself
  StepAttempts steps;
  // Steps that both runs have, also those that were not asked for. What they left behind explains
  // the first steps that are compared.
  StepAttempts stored;
  std::array<bool, kKindCount> wanted{};              // by kind
  std::array<bool, kKindCount> kinds_a{}, kinds_b{};  // ever recorded
  RecordedKinds recorded_a, recorded_b;
  bool losses = true;  // whether losses are compared
  // "a was recorded with include=blocks.*": why something may have been computed in between that no
  // record shows; empty: nothing is known to be left out.
  std::string left_out;
  // Under an overhead budget of a run: the steps that both recorded in full; of the others, only
  // losses and batches are compared. Absent: there was no budget.
  std::optional<std::vector<std::uint64_t>> full;
  std::vector<PremiseCheck> checks;  // steps, ranks, and what was recorded
  std::vector<std::string> notes;
  // Why nothing can be compared, and what to do; empty if something can.
  std::string incomparable;
};

// Why the absence of `def` in one run means nothing: one run is an import of a dump, and its tool
// (or the agent) never records such a tensor. One sentence, the same for all such tensors; empty if
// the absence counts. `of_b`: B has the tensor. `seen`: the other run has recorded it in some step.
std::optional<std::string> WhyNotRecorded(const RunView& a, const RunView& b, const DiffPlan& plan,
                                          const TensorDef& def, bool of_b, bool seen);

// kInvalidArgument: invalid steps or tolerance.
Result<DiffPlan> PlanDiff(RunView& a, RunView& b, const DiffRequest& request,
                          const IsStreamOpen& is_stream_open);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_DIFF_PLAN_H_
