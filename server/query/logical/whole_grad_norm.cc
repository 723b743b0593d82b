#include "server/query/logical/whole_grad_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "common/shape.h"
#include "server/query/logical/logical_run.h"
#include "server/query/logical/one_run.h"

namespace statcollect::query {
namespace {

bool IsCounted(const TensorKey& key) { return key.kind == Kind::kWeightGrad && key.call == 0; }

// Whether the ranks of a launch, such as the stages of a pipeline, have gradients of different
// parameters.
Result<bool> HasStages(RunView& run) {
  for (std::size_t attempt = 0; attempt < run.attempts().size(); ++attempt) {
    std::set<std::set<std::string>> held;
    for (const auto& [rank, meta] : run.ranks(attempt)) {
      STATCOLLECT_ASSIGN_OR_RETURN(auto catalogue, run.Catalogue(attempt, rank));
      std::set<std::string> names;
      for (const TensorDef& def : catalogue->activations) {
        if (IsCounted(def.key)) names.insert(def.key.name);
      }
      held.insert(std::move(names));
    }
    if (held.size() > 1) return true;
  }
  return false;
}

bool IsUnknown(const LogicalRun& run) {
  const auto& unknown = run.cut().unknown;
  return std::any_of(unknown.begin(), unknown.end(),
                     [](const TensorName& name) { return name.kind == Kind::kWeightGrad; });
}

// Whether every rank of the launch has ended the step.
Result<bool> HasEnded(const RunView& run, std::size_t attempt, std::uint64_t step) {
  for (const auto& [rank, meta] : run.ranks(attempt)) {
    if (!meta.last_step || *meta.last_step < step) return false;
    auto complete = run.IsComplete(attempt, rank, step);
    if (!complete.ok() || !*complete) return complete;
  }
  return true;
}

// Absent: without gradients, or with one of which a part is missing.
std::optional<double> NormOf(const StepData& step) {
  std::optional<double> squares;
  for (const Observation& seen : step.observations) {
    if (!IsCounted(seen.def->key)) continue;
    const TensorStats& stats = *seen.stats;
    if (stats.numel != NumelOf(seen.layout->shape)) return std::nullopt;
    double& sum = squares ? *squares : squares.emplace(0);
    if (stats.has_finite) sum += stats.l2 * stats.l2;
    if (stats.pos_inf + stats.neg_inf > 0) sum += std::numeric_limits<double>::infinity();
    if (stats.nan > 0) sum = std::numeric_limits<double>::quiet_NaN();
  }
  return squares ? std::optional(std::sqrt(*squares)) : std::nullopt;
}

}  // namespace

Result<std::optional<std::vector<WholeNorm>>> WholeGradNorm(RunReader& store, RunView& by_rank,
                                                            const StepSet& steps,
                                                            const std::stop_token& stop) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto stages, HasStages(by_rank));
  STATCOLLECT_ASSIGN_OR_RETURN(auto whole,
                               stages ? OpenWhole(store, by_rank) : OpenIfCut(store, by_rank));
  if (!whole || IsUnknown(*whole)) return {std::nullopt};
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(*whole, by_rank.run()));
  STATCOLLECT_ASSIGN_OR_RETURN(auto wanted, view.Steps(steps));
  std::vector<WholeNorm> rows;
  for (const auto& [step, attempt] : wanted) {
    if (stop.stop_requested())
      return Status(Code::kCancelled, "grad_norm of run '" + by_rank.run() + "': cancelled");
    STATCOLLECT_ASSIGN_OR_RETURN(auto ended, HasEnded(by_rank, attempt, step));
    if (!ended) continue;
    STATCOLLECT_ASSIGN_OR_RETURN(auto data, view.Read(attempt, 0, step));
    const auto norm = NormOf(data);
    if (!norm) continue;
    WholeNorm& row = rows.emplace_back(WholeNorm{.step = step, .value = *norm, .ranks = {}});
    for (const auto& [rank, meta] : by_rank.ranks(attempt)) row.ranks.push_back(rank);
  }
  return {std::move(rows)};
}

}  // namespace statcollect::query
