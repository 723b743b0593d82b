// What a diff can compare: the ranks, steps and kinds that both runs have.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_PLAN_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_PLAN_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/query/merge_ranks.h"
#include "server/query/query.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

struct DiffPlan {
  std::vector<RankPair> ranks;  // ascending; unless they are merged, each with itself
  StepAttempts steps;
  std::array<bool, kKindCount> wanted{};              // by kind
  std::array<bool, kKindCount> kinds_a{}, kinds_b{};  // ever recorded
  bool losses = true;                                 // whether losses are compared
  std::vector<std::string> notes;
  std::string incomparable;  // why there is nothing to compare; empty: there is
};

// kInvalidArgument: steps or tolerance that make no sense.
Result<DiffPlan> PlanDiff(RunView& a, RunView& b, const DiffRequest& request,
                          const IsStreamOpen& is_stream_open);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_PLAN_H_
