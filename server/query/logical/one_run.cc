#include "server/query/logical/one_run.h"

#include <algorithm>

#include "common/placement.h"

namespace statcollect::query {
Result<bool> HoldsParts(RunView& view) {
  for (std::size_t attempt = 0; attempt < view.attempts().size(); ++attempt) {
    if (view.ranks(attempt).size() < 2) continue;
    ReadCatalogues(RanksOf(view, attempt, attempt));
    for (const auto& [rank, meta] : view.ranks(attempt)) {
      STATCOLLECT_ASSIGN_OR_RETURN(auto catalogue, view.Catalogue(attempt, rank));
      if (std::any_of(catalogue->layouts.begin(), catalogue->layouts.end(),
                      [](const Layout& l) { return l.placement && !IsWhole(View(*l.placement)); }))
        return true;
    }
  }
  return false;
}

Result<std::unique_ptr<LogicalRun>> OpenIfCut(RunReader& store, RunView& view) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto parts, HoldsParts(view));
  if (!parts) return std::unique_ptr<LogicalRun>();
  return OpenWhole(store, view);
}

Result<std::unique_ptr<LogicalRun>> OpenWhole(RunReader& store, const RunView& view) {
  auto run = LogicalRun::Open(store, view.run());
  if (run.ok()) (*run)->ChooseAlone();
  return run;
}

}  // namespace statcollect::query
