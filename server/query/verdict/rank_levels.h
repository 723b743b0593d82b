// By how much the weights and gradients of all ranks of two runs differ, where no twins tell what a
// rank's records inherit from the others' (rank_trails.h has that of twins).
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_RANK_LEVELS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_RANK_LEVELS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <stop_token>
#include <vector>

#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/query/compare/diff_plan.h"
#include "server/query/compare/rank_step_diff.h"
#include "server/query/verdict/explain.h"

namespace statcollect::query {

// Thread-safe. A step is read when somebody asks for it, with those before it: most judgements end
// at the first step that differs. Memory: about 100 bytes for each parameter that differs in a step
// that is read.
class RankLevels {
 public:
  // `places`: the ranks to read. `wanted`: the steps that will be judged. The references must
  // outlive this.
  RankLevels(const DiffContext& context, const DiffPlan& plan, const std::set<std::size_t>& places,
             const std::set<std::uint64_t>& wanted, std::optional<std::uint64_t> last_step);

  // Of the other ranks in a step; empty if there are none, or if it is neither wanted nor one of
  // the two before a wanted one. Cost: the first call for a step reads it of all these ranks of
  // both runs; other callers wait.
  Result<std::vector<const SharedLevels*>> OfOthers(std::size_t place, std::uint64_t step,
                                                    const std::stop_token& stop);

 private:
  struct Rank {
    std::size_t place = 0;
    Explainer explainer;  // how a kernel rounds enters what is expected, not what ranks inherit
    std::map<std::uint64_t, SharedLevels> steps;
    Status status;
  };
  Status ReadUpTo(std::uint64_t step, const std::stop_token& stop) STATCOLLECT_REQUIRES(mutex_);
  void Read(std::uint64_t step, const std::stop_token& stop, Rank& rank) const;

  const DiffContext& context_;
  const DiffPlan& plan_;
  const std::map<std::uint64_t, bool> steps_;
  Mutex mutex_;
  // The first step that is not read.
  std::map<std::uint64_t, bool>::const_iterator next_ STATCOLLECT_GUARDED_BY(mutex_);
  std::vector<Rank> ranks_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_RANK_LEVELS_H_
