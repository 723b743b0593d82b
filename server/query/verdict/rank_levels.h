// By how much the weights and gradients of all ranks of two runs differ, where no twins tell what a
// rank's records inherit from the others' (rank_trails.h has that of twins).
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_RANK_LEVELS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_RANK_LEVELS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <vector>

#include "common/status.h"
#include "server/query/compare/diff_plan.h"
#include "server/query/compare/rank_step_diff.h"
#include "server/query/verdict/explain.h"

namespace statcollect::query {

// Thread-safe; read when first asked for. Memory: about 100 bytes for each parameter that differs
// in a step that is read.
class RankLevels {
 public:
  static constexpr std::size_t kRanksMax = 16;

  // `places`: the ranks that will be judged; others are added up to kRanksMax. `wanted`: the steps
  // of all of them. The references must outlive this.
  RankLevels(const DiffContext& context, const DiffPlan& plan, std::set<std::size_t> places,
             std::set<std::uint64_t> wanted, std::optional<std::uint64_t> last_step);

  // Of the other ranks in a step; empty if there are none, or it is not read. The first call costs
  // a look at each wanted step, and the two before it, of these ranks of both runs; later ones wait
  // for it.
  Result<std::vector<const SharedLevels*>> OfOthers(std::size_t place, std::uint64_t step,
                                                    const std::stop_token& stop);

 private:
  using Steps = std::map<std::uint64_t, SharedLevels>;
  Status Read(const std::stop_token& stop);
  Status ReadRank(std::size_t place, const std::stop_token& stop, Steps& to) const;

  const DiffContext& context_;
  const DiffPlan& plan_;
  const std::map<std::uint64_t, bool> steps_;
  std::map<std::size_t, Steps> levels_;  // by place; each filled by one thread
  std::mutex mutex_;
  std::optional<Status> read_;  // by mutex_; absent: nobody has asked
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_RANK_LEVELS_H_
