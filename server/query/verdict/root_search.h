// Finds the root of a diff: the first difference that rounding does not explain. docs/verdict.md derives how.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_ROOT_SEARCH_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_ROOT_SEARCH_H_

#include <cstdint>
#include <map>
#include <optional>
#include <stop_token>
#include <string>

#include "common/status.h"
#include "server/query/compare/diff_plan.h"
#include "server/query/compare/rank_step_diff.h"
#include "server/query/compare/steps_to_judge.h"
#include "server/query/reports.h"
#include "server/query/verdict/rank_judge.h"

namespace statcollect::query {

// Borrowed.
struct RootQuestion {
  const DiffContext& context;
  const DiffPlan& plan;
  const StepsToJudge& steps;
  std::optional<std::uint64_t> last_step;  // later ones were not compared
};

struct RootAnswer {
  std::optional<Root> root;
  std::optional<Caveat> caveat;               // of the root
  std::optional<DifferBefore> differ_before;  // of the rank in which the weights differ most
  std::map<std::string, bool> noise_driven;   // as RankJudge says
};

// No root: rounding explains every difference that was judged. `alternatives` and `cause` are the caller's to
// use; `agreeing` counts records of the root's rank. Cost: reads the chosen steps of up to
// StepsToJudge::kPlacesMax ranks, each with the two before it, from both runs, and those ranks' learning
// rates; ranks run on several threads. Memory: one step of a rank of both runs for each thread.
Result<RootAnswer> FindRoot(const RootQuestion& question, const std::stop_token& stop);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_ROOT_SEARCH_H_
