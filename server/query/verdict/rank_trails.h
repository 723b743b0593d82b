// What all ranks of two runs have shown by the time a record is computed: reduced gradients, and
// whatever else ranks exchange, depend on the records of every rank.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_RANK_TRAILS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_RANK_TRAILS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <stop_token>
#include <vector>

#include "common/status.h"
#include "server/query/compare/diff_plan.h"
#include "server/query/compare/rank_step_diff.h"
#include "server/query/pairs/twins.h"
#include "server/query/verdict/measured_rule.h"

namespace statcollect::query {

// Immutable once built. Memory: about 100 bytes for each record of the judged steps.
class RankTrails {
 public:
  // Reads the steps that twins judge. `places`: the ranks to read. `wanted`: the steps that will be
  // judged, not empty. Cost: reads each step of these ranks of both runs and all twins.
  static Result<RankTrails> Follow(const DiffContext& context, const DiffPlan& plan,
                                   const Twins& twins, const std::set<std::size_t>& places,
                                   const std::set<std::uint64_t>& wanted,
                                   std::optional<std::uint64_t> last_step,
                                   const std::stop_token& stop);

  // The other ranks' trails in a step; empty if there are none.
  std::vector<const RankTrail*> OfOthers(std::size_t place, std::uint64_t step) const;

 private:
  std::map<std::size_t, std::map<std::uint64_t, RankTrail>> trails_;  // by place, then by step
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_RANK_TRAILS_H_
