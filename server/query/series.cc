#include "server/query/series.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "common/names.h"
#include "server/query/parallel.h"
#include "server/query/rows.h"
#include "server/query/suggest.h"

namespace statcollect::query {
namespace {

// Whether a series asks for this activation.
bool Matches(const SeriesRequest& request, const TensorKey& key) {
  return key.name == request.activation && (request.kind == Kind::kUnspecified || key.kind == request.kind) &&
         (!request.output_path || key.output_path == *request.output_path);
}

SeriesPoint MakePoint(const std::string& run, std::uint32_t rank, const TensorKey& key,
                      const StatPoint& point, const Layout& layout) {
  return {.run = run,
          .rank = rank,
          .step = point.step,
          .micro_batch = key.micro_batch,
          .kind = key.kind,
          .activation = key.name,
          .output_path = key.output_path,
          .call = key.call,
          .mode = std::string(Name(key.mode)),
          .stats = MakeSide(point.stats, layout)};
}

// Calls visit(attempt, rank, definition) for everything that the run ever defined.
template <typename Visit>
Status ForEachDefinition(RunView& view, Visit visit) {
  ReadCatalogues(RanksOf(view, 0, view.attempts().size() - 1));
  for (std::size_t attempt = 0; attempt < view.attempts().size(); ++attempt) {
    for (const auto& [rank, meta] : view.ranks(attempt)) {
      auto catalogue = view.Catalogue(attempt, rank);
      if (!catalogue.ok()) return catalogue.status();
      for (const TensorDef& def : (*catalogue)->activations) visit(attempt, rank, def);
    }
  }
  return Status::Ok();
}

// Why no definition of the run is asked for.
Status NoActivation(RunView& view, const SeriesRequest& request) {
  std::set<std::string> names;
  STATCOLLECT_RETURN_IF_ERROR(ForEachDefinition(
      view, [&](std::size_t, std::uint32_t, const TensorDef& def) { names.insert(def.key.name); }));
  if (names.contains(request.activation)) {
    return {Code::kNotFound, "series of run '" + view.run() + "': '" + Printable(request.activation) +
                                 "' exists, but not with this kind, output path or rank; relax the filters"};
  }
  return {Code::kNotFound, "series of run '" + view.run() + "': no activation '" +
                               Printable(request.activation) + "'; closest of the " +
                               std::to_string(names.size()) +
                               " there are: " + Suggest(request.activation, {names.begin(), names.end()})};
}

}  // namespace

Result<std::vector<SeriesPoint>> SeriesOf(RunView& view, const SeriesRequest& request) {
  auto wanted = StepSet::Parse(request.steps);
  if (!wanted.ok()) return wanted.status();
  std::vector<RunView::Series> series;
  STATCOLLECT_RETURN_IF_ERROR(
      ForEachDefinition(view, [&](std::size_t attempt, std::uint32_t rank, const TensorDef& def) {
        if (Matches(request, def.key) && IsWanted(request.ranks, rank))
          series.push_back({.attempt = attempt, .rank = rank, .activation = def.id, .points = {}});
      }));
  if (series.empty()) return NoActivation(view, request);
  std::vector<SeriesPoint> points;
  const auto owners = StepOwners::Of(view, *wanted);
  if (!owners.ok()) return owners.status();
  STATCOLLECT_RETURN_IF_ERROR(view.ReadSeries(series, {.first = wanted->first(), .last = wanted->last()},
                                              [&](std::size_t attempt, std::uint64_t step) {
                                                return wanted->Contains(step) && owners->IsOf(attempt, step);
                                              }));
  std::vector<const RankCatalogue*> catalogues;
  std::vector<std::size_t> first = {0};  // of the points of each series
  for (const RunView::Series& one : series) {
    auto catalogue = view.Catalogue(one.attempt, one.rank);
    if (!catalogue.ok()) return catalogue.status();
    catalogues.push_back(*catalogue);
    first.push_back(first.back() + one.points.size());
  }
  points.resize(first.back());
  InParallel(series.size(), [&](std::size_t s) {
    const RunView::Series& one = series[s];
    const TensorKey& key = catalogues[s]->activations[one.activation].key;
    for (std::size_t i = 0; i < one.points.size(); ++i) {
      const Layout& layout = catalogues[s]->layouts[one.points[i].layout];
      points[first[s] + i] = MakePoint(request.run, one.rank, key, one.points[i], layout);
    }
  });
  const auto key = [](const SeriesPoint& p) {
    return std::tie(p.kind, p.output_path, p.rank, p.step, p.micro_batch, p.call);
  };
  const auto before = [&](const SeriesPoint& x, const SeriesPoint& y) { return key(x) < key(y); };
  if (!std::is_sorted(points.begin(), points.end(), before))
    std::stable_sort(points.begin(), points.end(), before);
  return points;
}

}  // namespace statcollect::query
