// What a diff can compare: the ranks, steps and kinds that both runs have.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_PLAN_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_PLAN_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "server/query/query.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

struct DiffPlan {
  std::vector<std::uint32_t> ranks;                                    // ascending
  std::map<std::uint64_t, std::pair<std::size_t, std::size_t>> steps;  // attempts of A and B
  std::array<bool, kKindCount> wanted{};                               // by kind
  std::array<bool, kKindCount> kinds_a{}, kinds_b{};                   // ever recorded
  std::vector<std::string> notes;
  std::string incomparable;  // why there is nothing to compare; empty: there is
};

// kInvalidArgument: steps or tolerance that make no sense.
Result<DiffPlan> PlanDiff(RunView& a, RunView& b, const DiffRequest& request,
                          const IsStreamOpen& is_stream_open);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_PLAN_H_
