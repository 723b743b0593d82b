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

// Steps of one part of a long series, at least. A point read costs 5 us, a part's first one a seek.
constexpr std::uint64_t kStepsOfAPart = std::uint64_t{1} << 14;
constexpr std::uint64_t kPartsMax = 16;

// The series of an activation, in parts that several threads read at once. Where they part does not depend on where
// the series begins and ends: a live run's next answer is cached by part, too.
void AddInParts(const RunView& view, RunView::Series whole, std::vector<RunView::Series>& series) {
  const RankMeta& meta = view.ranks(whole.attempt).at(whole.rank);
  const std::uint64_t first = std::max(whole.steps.first, meta.first_step.value_or(0));
  const std::uint64_t last = std::max(first, std::min(whole.steps.last, meta.last_step.value_or(0)));
  std::uint64_t each = kStepsOfAPart;
  while (last / each >= first / each + kPartsMax) each *= 2;
  for (std::uint64_t part = first / each; part <= last / each; ++part) {
    RunView::Series one = whole;
    if (part > first / each) one.steps.first = part * each;
    if (part < last / each) one.steps.last = (part + 1) * each - 1;
    series.push_back(std::move(one));
  }
}

// Calls visit(attempt, rank, definition) for everything that the run ever defined.
template <typename Visit>
Status ForEachDefinition(RunView& view, Visit visit) {
  ReadCatalogues(RanksOf(view, 0, view.attempts().size() - 1));
  for (std::size_t attempt = 0; attempt < view.attempts().size(); ++attempt) {
    for (const auto& [rank, meta] : view.ranks(attempt)) {
      STATCOLLECT_ASSIGN_OR_RETURN(auto catalogue, view.Catalogue(attempt, rank));
      for (const TensorDef& def : catalogue->activations) visit(attempt, rank, def);
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
  STATCOLLECT_ASSIGN_OR_RETURN(auto wanted, StepSet::Parse(request.steps));
  const StepBounds bounds{.first = wanted.first(), .last = wanted.last()};
  std::vector<RunView::Series> series;
  STATCOLLECT_RETURN_IF_ERROR(
      ForEachDefinition(view, [&](std::size_t attempt, std::uint32_t rank, const TensorDef& def) {
        if (Matches(request, def.key) && IsWanted(request.ranks, rank)) {
          AddInParts(view,
                     {.attempt = attempt, .rank = rank, .activation = def.id, .steps = bounds, .points = {}},
                     series);
        }
      }));
  if (series.empty()) return NoActivation(view, request);
  std::vector<SeriesPoint> points;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto owners, StepOwners::Of(view, wanted));
  STATCOLLECT_RETURN_IF_ERROR(view.ReadSeries(series, [&](std::size_t attempt, std::uint64_t step) {
    return wanted.Contains(step) && owners.IsOf(attempt, step);
  }));
  std::vector<const RankCatalogue*> catalogues;
  std::vector<std::size_t> first = {0};  // of the points of each series
  for (const RunView::Series& one : series) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto catalogue, view.Catalogue(one.attempt, one.rank));
    catalogues.push_back(catalogue);
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
