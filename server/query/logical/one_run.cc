#include "server/query/logical/one_run.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "common/placement.h"
#include "server/store/newest_step.h"

namespace statcollect::query {
namespace {

void DescribeRanks(const LogicalRun& run, SeriesPoint& point) {
  point.ranks = run.RanksOf({point.kind, point.activation, point.output_path});
  if (!point.ranks.empty()) point.rank = point.ranks.front();
}

// The newest step with statistics that every rank of the newest launch has reached.
Result<std::optional<std::uint64_t>> NewestStepOfAll(LogicalRun& run, const RunView& by_rank) {
  const std::size_t newest = by_rank.attempts().size() - 1;
  std::optional<std::uint64_t> last;
  for (const auto& [rank, meta] : by_rank.ranks(newest)) {
    if (meta.last_step) last = std::min(last.value_or(*meta.last_step), *meta.last_step);
  }
  if (!last) return {std::nullopt};
  return NewestStep(
      *last, [&](StepBounds steps) { return run.FirstStatStep(by_rank.attempts()[newest].id, 0, steps); });
}

}  // namespace

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

void DescribeRanks(const LogicalRun& run, std::vector<SeriesPoint>& points) {
  for (SeriesPoint& point : points) DescribeRanks(run, point);
}

Result<TopReport> FindTopOfWhole(LogicalRun& run, RunView& by_rank, const TopRequest& request,
                                 const std::stop_token& stop) {
  TopRequest wanted = request;
  if (!wanted.step) {
    STATCOLLECT_ASSIGN_OR_RETURN(wanted.step, NewestStepOfAll(run, by_rank));
  }
  STATCOLLECT_ASSIGN_OR_RETURN(auto whole, RunView::Open(run, by_rank.run()));
  auto top = FindTop(whole, wanted, stop);
  if (!top.ok()) return top;
  for (TopRow& row : top->rows) DescribeRanks(run, row.point);
  top->notes.insert(top->notes.begin(), "the parts of the ranks were combined; --by-rank shows each rank's");
  for (std::string& note : run.Notes()) top->notes.push_back(std::move(note));
  if (run.cut().unknown.empty()) return top;
  wanted.step = top->step;
  auto parts = FindTop(by_rank, wanted, stop, [&](const TensorKey& key) {
    return run.cut().unknown.contains({key.kind, key.name, key.output_path});
  });
  if (!parts.ok()) return parts;
  top->considered += parts->considered;
  std::move(parts->rows.begin(), parts->rows.end(), std::back_inserter(top->rows));
  std::stable_sort(top->rows.begin(), top->rows.end(), [&](const TopRow& a, const TopRow& b) {
    return IsMoreExtreme(top->by, a.value, b.value);
  });
  const std::size_t count = request.count == 0 ? kTopDefault : request.count;
  if (top->rows.size() > count) top->rows.resize(count);
  const std::size_t unknown = run.cut().unknown.size();
  top->notes.push_back("layout not known: " + std::to_string(unknown) +
                       (unknown == 1 ? " tensor " : " tensors ") +
                       "whose values differ between ranks; shown rank by rank");
  return top;
}

}  // namespace statcollect::query
