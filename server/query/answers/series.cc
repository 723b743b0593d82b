#include "server/query/answers/series.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "common/names.h"
#include "common/step_set.h"
#include "server/query/answers/message_parts.h"
#include "server/query/answers/whole_rows.h"
#include "server/query/logical/one_run.h"
#include "server/query/parallel.h"
#include "server/query/rows.h"
#include "server/query/run_view.h"
#include "server/query/suggest.h"

namespace statcollect::query {
namespace {

// Whether a series asks for this activation.
bool Matches(const SeriesRequest& request, const TensorKey& key) {
  return key.name == request.activation &&
         (request.kind == Kind::kUnspecified || key.kind == request.kind) &&
         (!request.output_path || key.output_path == *request.output_path);
}

// Steps of one part of a long series, at least. A point read costs 5 us, a part's first one a seek.
constexpr std::uint64_t kStepsOfAPart = std::uint64_t{1} << 14;
constexpr std::uint64_t kPartsMax = 16;

// The series of an activation, in parts that several threads read at once. Where they part does not
// depend on where the series begins and ends: a live run's next answer is cached by part, too.
void AddInParts(const RunView& view, RunView::Series whole, std::vector<RunView::Series>& series) {
  const RankMeta& meta = view.ranks(whole.attempt).at(whole.rank);
  const std::uint64_t first = std::max(whole.steps.first, meta.first_step.value_or(0));
  const std::uint64_t last =
      std::max(first, std::min(whole.steps.last, meta.last_step.value_or(0)));
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
    return {Code::kNotFound,
            "'" + Printable(request.activation) + "' of run '" + view.run() +
                "': it has records, but none of this kind, output path or rank; relax the filters"};
  }
  return {Code::kNotFound,
          "'" + Printable(request.activation) + "' of run '" + view.run() +
              "': no activation of that name; closest of the " + std::to_string(names.size()) +
              " there are: " + Suggest(request.activation, {names.begin(), names.end()})};
}

// Points of one series, to be filled by one thread.
struct Chunk {
  const RunView::Series* series = nullptr;
  const RankCatalogue* catalogue = nullptr;
  std::size_t begin = 0, end = 0;  // of the series
  int first = 0;                   // of the answer's records
};
// A thread is started in the time of some dozens.
constexpr std::size_t kPointsOfAChunk = 1000;

void Fill(const std::string& run, const Chunk& chunk,
          google::protobuf::RepeatedPtrField<v1::SeriesPoint>& records) {
  const TensorKey& key = chunk.catalogue->activations[chunk.series->activation].key;
  int at = chunk.first;
  for (std::size_t i = chunk.begin; i < chunk.end; ++i) {
    const StatPoint& point = chunk.series->points[i];
    v1::SeriesPoint& out = records[at++];
    out.set_run(run);
    out.set_rank(chunk.series->rank);
    out.set_step(point.step);
    FillKey(key, out);
    ToWire(MakeSide(point.stats, chunk.catalogue->layouts[point.layout]), *out.mutable_stats());
  }
}

Status AddSeries(RunView& view, const SeriesRequest& request, v1::GetSeriesResponse& out) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto wanted, StepSet::Parse(request.steps));
  const StepBounds bounds{.first = wanted.first(), .last = wanted.last()};
  std::vector<RunView::Series> series;
  STATCOLLECT_RETURN_IF_ERROR(ForEachDefinition(view, [&](std::size_t attempt, std::uint32_t rank,
                                                          const TensorDef& def) {
    if (Matches(request, def.key) && IsWanted(request.ranks, rank)) {
      AddInParts(
          view,
          {.attempt = attempt, .rank = rank, .activation = def.id, .steps = bounds, .points = {}},
          series);
    }
  }));
  if (series.empty()) return NoActivation(view, request);
  STATCOLLECT_ASSIGN_OR_RETURN(const auto owners, StepOwners::Of(view, wanted));
  STATCOLLECT_RETURN_IF_ERROR(view.ReadSeries(series, [&](std::size_t attempt, std::uint64_t step) {
    return wanted.Contains(step) && owners.IsOf(attempt, step);
  }));
  std::vector<Chunk> chunks;
  int count = 0;
  for (const RunView::Series& one : series) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto catalogue, view.Catalogue(one.attempt, one.rank));
    for (std::size_t begin = 0; begin < one.points.size(); begin += kPointsOfAChunk) {
      const std::size_t end = std::min(one.points.size(), begin + kPointsOfAChunk);
      chunks.push_back({&one, catalogue, begin, end, count});
      count += static_cast<int>(end - begin);
    }
  }
  auto& records = *out.mutable_records();
  records.Reserve(count);
  for (int i = 0; i < count; ++i) records.Add();
  InParallel(chunks.size(), [&](std::size_t i) { Fill(request.run, chunks[i], records); });
  SortBy(records, [](const v1::SeriesPoint& p) {
    return std::tuple<v1::Kind, const std::string&, std::uint32_t, std::uint64_t, std::uint32_t,
                      std::uint32_t>(p.kind(), p.output_path(), p.rank(), p.step(), p.micro_batch(),
                                     p.call());
  });
  return Status::Ok();
}

}  // namespace

Result<SeriesRequest> FromWire(const v1::GetSeriesRequest& request) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto wanted, SelectionFromWire<SeriesRequest>(request));
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("activation", request.activation()));
  STATCOLLECT_ASSIGN_OR_RETURN(wanted.kind, KindFromWire(request.kind()));
  wanted.by_rank = request.by_rank();
  if (!request.output_path().empty()) wanted.output_path = request.output_path();
  return wanted;
}

Status GetSeries(const Context& context, const SeriesRequest& request, v1::GetSeriesResponse& out) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(context.store, request.run));
  if (request.by_rank || !request.ranks.empty()) return AddSeries(view, request, out);
  STATCOLLECT_ASSIGN_OR_RETURN(auto whole, OpenIfCut(context.store, view));
  const auto is_asked = [&](const TensorName& tensor) { return tensor.name == request.activation; };
  if (!whole || std::any_of(whole->cut().unknown.begin(), whole->cut().unknown.end(), is_asked))
    return AddSeries(view, request, out);
  STATCOLLECT_ASSIGN_OR_RETURN(auto of_whole, RunView::Open(*whole, request.run));
  STATCOLLECT_RETURN_IF_ERROR(AddSeries(of_whole, request, out));
  for (v1::SeriesPoint& point : *out.mutable_records()) DescribeRanks(*whole, point);
  return Status::Ok();
}

}  // namespace statcollect::query
