// Finds the root of a diff by values: the first difference that rounding does not explain.
// ChooseRoot (verdict.cc) decides between it and differences that are certain.
// docs/verdict-model.md derives how.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_ROOT_SEARCH_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_ROOT_SEARCH_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <stop_token>
#include <string>

#include "common/status.h"
#include "server/query/compare/diff_plan.h"
#include "server/query/compare/rank_step_diff.h"
#include "server/query/compare/steps_to_judge.h"
#include "server/query/reports.h"
#include "server/query/verdict/rank_judge.h"

namespace statcollect::query {

// The first row about something that only one run has, and the first such gradient of a parameter:
// a report may have too many rows to list them. Rows are noted step by step.
struct FirstMissing {
  std::optional<PlacedRow> gradient;
  std::optional<PlacedRow> other;               // that is not IsIdle
  std::map<std::uint64_t, PlacedRow> idle_at;   // by step, the first row that IsIdle
  std::map<std::uint64_t, std::uint64_t> idle;  // how many of them there are
  void Note(const PlacedRow& placed);
};

// Whether a record that only one run has is one on which training need not depend: a gradient of an
// activation, which a switch turns on or off (enable_input_require_grads, checkpoints), or a given
// tensor, such as a mask of ones. If it matters, the gradients of the weights show it.
bool IsIdle(const Divergence& row);

// Borrowed.
struct RootQuestion {
  const DiffContext& context;
  const DiffPlan& plan;
  const StepsToJudge& steps;
  const FirstMissing& missing;
  std::optional<std::uint64_t> last_step;  // later ones were not compared
  const Twins* twins = nullptr;            // of A; null: none
};

// Of all ranks. The caller fills in the root's `cause`; `agreeing` counts records of the root's
// rank. Cost: reads the selected steps of
// up to StepsToJudge::kPlacesMax ranks, each with the two steps before it, from both runs, and
// those ranks' learning rates; ranks run on several threads. Memory: for each thread, one step of
// one rank of both runs.
Result<Judgement> FindRoot(const RootQuestion& question, const std::stop_token& stop);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_ROOT_SEARCH_H_
