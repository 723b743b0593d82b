#include "server/query/run_view.h"

#include <algorithm>
#include <atomic>
#include <set>

#include "common/names.h"
#include "server/query/parallel.h"
#include "server/query/place_text.h"
#include "server/query/rows.h"
#include "server/query/suggest.h"
#include "server/store/newest_step.h"
#include "server/store/record_reader.h"

namespace statcollect::query {
namespace {

constexpr std::uint64_t kStepsBetweenChecks = 1024;
// Of a run, in memory: each takes a node of a map.
constexpr std::size_t kStepsMax = kListBytesMax / 64;

Status TooManySteps(const std::string& run) {
  return {Code::kResourceExhausted,
          "list the steps of run '" + run + "': found more than " + std::to_string(kStepsMax) +
              "; expected no more at once; narrow the query with --steps"};
}

// Whether every step from the rank's first to its last has statistics: the tallies tell, nothing
// need be read.
bool IsGapless(const RankMeta& meta) {
  return meta.first_step && meta.last_step && meta.steps > 0 &&
         *meta.last_step - *meta.first_step == meta.steps - 1;
}

}  // namespace

Result<RunView> RunView::Open(RunReader& store, const std::string& run) {
  RunView view(store, run);
  STATCOLLECT_ASSIGN_OR_RETURN(auto attempts, store.Attempts(run));
  if (attempts.empty()) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto runs, store.ListRuns());
    return Status(Code::kNotFound, "no run '" + Printable(run) + "'; runs there: " +
                                       Suggest(run, runs) + "; statctl runs lists them");
  }
  view.attempts_ = std::move(attempts);
  for (const AttemptMeta& attempt : view.attempts_) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto ranks, store.Ranks(attempt.id));
    view.ranks_.push_back(std::move(ranks));
  }
  return view;
}

std::vector<std::uint32_t> RunView::AllRanks() const {
  std::set<std::uint32_t> all;
  for (const auto& ranks : ranks_) {
    for (const auto& [rank, meta] : ranks) all.insert(rank);
  }
  return {all.begin(), all.end()};
}

std::uint64_t RunView::Dropped(std::uint32_t rank) const {
  std::uint64_t dropped = 0;
  for (const auto& ranks : ranks_) {
    const auto meta = ranks.find(rank);
    if (meta == ranks.end()) continue;
    for (const auto& [cause, count] : meta->second.dropped) dropped += count;
  }
  return dropped;
}

std::optional<StepRange> RunView::StepSpan() const {
  std::optional<StepRange> span;
  for (const auto& ranks : ranks_) {
    for (const auto& [rank, meta] : ranks) {
      if (!meta.first_step || !meta.last_step) continue;
      if (!span) span = {*meta.first_step, *meta.last_step};
      span->first = std::min(span->first, *meta.first_step);
      span->last = std::max(span->last, *meta.last_step);
    }
  }
  return span;
}

std::string RunView::StepSpanText() const {
  const auto span = StepSpan();
  if (!span) return "no steps yet";
  return "steps " + std::to_string(span->first) + ".." + std::to_string(span->last);
}

// A rank that was copied here has the tallies that its sender gave, so that there may be 2^64 of
// them.
Status RunView::AddAll(StepBounds range, const StepSet& wanted, std::size_t attempt,
                       std::map<std::uint64_t, std::size_t>& steps) const {
  std::uint64_t added = 0;
  for (auto step = wanted.AtOrAfter(range.first); step && *step <= range.last;
       step = wanted.AtOrAfter(*step + 1)) {
    if (added++ % kStepsBetweenChecks == 0) STATCOLLECT_RETURN_IF_ERROR(store_->CheckStop());
    if (steps.size() >= kStepsMax) return TooManySteps(run_);
    steps[*step] = attempt;
    if (*step == StepSet::kLastStep) break;
  }
  return Status::Ok();
}

Result<std::map<std::uint64_t, std::size_t>> RunView::Steps(const StepSet& wanted) const {
  std::map<std::uint64_t, std::size_t> steps;
  const StepBounds bounds{.first = wanted.first(), .last = wanted.last()};
  for (std::size_t attempt = 0; attempt < attempts_.size(); ++attempt) {
    const auto add = [&](std::uint64_t step) {
      if (wanted.Contains(step)) steps[step] = attempt;  // newer attempts come later and win
    };
    std::set<std::pair<std::uint64_t, std::uint64_t>> added;  // ranks mostly have the same steps
    for (const auto& [rank, meta] : ranks_[attempt]) {
      const bool lone = meta.steps == 1 && steps.contains(meta.first_step.value_or(0));
      if (IsGapless(meta) && !lone) {
        if (!added.emplace(*meta.first_step, *meta.last_step).second) continue;
        STATCOLLECT_RETURN_IF_ERROR(
            AddAll({*meta.first_step, *meta.last_step}, wanted, attempt, steps));
        continue;
      }
      STATCOLLECT_ASSIGN_OR_RETURN(auto with_stats,
                                   store_->StatSteps(attempts_[attempt].id, rank, bounds));
      if (!with_stats.empty() && steps.contains(with_stats.front())) {
        STATCOLLECT_ASSIGN_OR_RETURN(auto found, IsWhatWasFound(attempt, rank, with_stats.front()));
        if (found) with_stats.erase(with_stats.begin());
      }
      for (const std::uint64_t step : with_stats) add(step);
      STATCOLLECT_ASSIGN_OR_RETURN(auto scalars,
                                   store_->Scalars(attempts_[attempt].id, rank, bounds));
      for (const ScalarRecord& scalar : scalars) add(scalar.step);
    }
  }
  return steps;
}

// Asked of the store and not of a window's steps: the answer is the same for every window.
Result<bool> RunView::IsWhatWasFound(std::size_t attempt, std::uint32_t rank,
                                     std::uint64_t step) const {
  if (step != ranks_[attempt].at(rank).first_step) return false;
  if (step != StepSet::kLastStep) {
    STATCOLLECT_ASSIGN_OR_RETURN(
        auto next,
        store_->FirstStatStep(attempts_[attempt].id, rank, {.first = step + 1, .last = step + 1}));
    if (next) return false;
  }
  return HasOnlyInitial(attempt, rank, step);
}

Result<bool> RunView::HasOnlyInitial(std::size_t attempt, std::uint32_t rank,
                                     std::uint64_t step) const {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto read, store_->Definitions(attempts_[attempt].id, rank));
  const std::vector<TensorDef>& activations = read->activations;
  const auto scan = Scan(attempt, rank, {.first = step, .last = step});
  StatColumns columns;
  while (scan->NextHead() && scan->Load(/*sketches=*/false, &columns)) {
    for (const std::uint32_t id : columns.activation) {
      if (id >= activations.size() || activations[id].key.mode != Mode::kInit) return false;
    }
  }
  STATCOLLECT_RETURN_IF_ERROR(scan->status());
  return true;
}

Result<std::optional<std::uint64_t>> RunView::NewestStepWithStats() const {
  std::optional<std::uint64_t> newest;
  for (std::size_t attempt = 0; attempt < attempts_.size(); ++attempt) {
    for (const auto& [rank, meta] : ranks_[attempt]) {
      if (!meta.last_step || (newest && *meta.last_step <= *newest)) continue;
      STATCOLLECT_ASSIGN_OR_RETURN(const auto of_rank,
                                   NewestStep(*meta.last_step, [&, of = rank](StepBounds steps) {
                                     return store_->FirstStatStep(attempts_[attempt].id, of, steps);
                                   }));
      newest = std::max(newest, of_rank);
    }
  }
  return newest;
}

Result<const RankCatalogue*> RunView::Catalogue(std::size_t attempt, std::uint32_t rank) {
  {
    MutexLock lock(*mutex_);
    const auto& cached = catalogues_[{attempt, rank}];
    if (cached) return static_cast<const RankCatalogue*>(cached.get());
  }
  return ReadCatalogueAgain(attempt, rank, nullptr);
}

// Definitions are stored with or before what uses them.
Result<const RankCatalogue*> RunView::ReadCatalogueAgain(std::size_t attempt, std::uint32_t rank,
                                                         const RankCatalogue* outgrown) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto fresh, store_->Definitions(attempts_[attempt].id, rank));
  MutexLock lock(*mutex_);
  auto& cached = catalogues_[{attempt, rank}];
  const bool larger = !cached || cached->activations.size() < fresh->activations.size() ||
                      cached->layouts.size() < fresh->layouts.size();
  if (cached.get() != outgrown && !larger)  // another thread was first
    return static_cast<const RankCatalogue*>(cached.get());
  if (cached) outgrown_.push_back(std::move(cached));
  cached = std::move(fresh);
  return static_cast<const RankCatalogue*>(cached.get());
}

Result<bool> RunView::IsComplete(std::size_t attempt, std::uint32_t rank,
                                 std::uint64_t step) const {
  const auto meta = ranks_[attempt].find(rank);
  if (meta == ranks_[attempt].end() || meta->second.last_step > step) return true;
  // Agents that never end steps (imports) are complete once they said goodbye.
  const StepBounds last_two{.first = step > 0 ? step - 1 : 0, .last = step};
  STATCOLLECT_ASSIGN_OR_RETURN(auto ends, store_->StepEnds(attempts_[attempt].id, rank, last_two));
  if (ends.empty()) return meta->second.finished;
  return ends.back().step == step;
}

namespace {

bool AreDefined(const RankCatalogue& catalogue, const auto& activations, const auto& layouts) {
  return std::ranges::all_of(activations,
                             [&](auto id) { return id < catalogue.activations.size(); }) &&
         std::ranges::all_of(layouts, [&](auto id) { return id < catalogue.layouts.size(); });
}

}  // namespace

std::unique_ptr<StatScan> RunView::Scan(std::size_t attempt, std::uint32_t rank,
                                        StepBounds steps) const {
  return store_->ScanStats(attempts_[attempt].id, rank, steps);
}

Result<StepData> RunView::ReadBlocks(std::size_t attempt, std::uint32_t rank,
                                     std::uint64_t step) const {
  StepData data;
  const auto scan = Scan(attempt, rank, {.first = step, .last = step});
  while (scan->Next()) data.blocks.push_back(scan->block().columns);
  STATCOLLECT_RETURN_IF_ERROR(scan->status());
  return data;
}

Result<const RankCatalogue*> RunView::CatalogueOf(std::size_t attempt, std::uint32_t rank,
                                                  std::uint64_t step,
                                                  std::span<const StatColumns> blocks) {
  const auto is_defined = [&](const RankCatalogue& catalogue) {
    return std::ranges::all_of(blocks, [&](const StatColumns& block) {
      return AreDefined(catalogue, block.activation, block.layout);
    });
  };
  return CatalogueThat(is_defined, attempt, rank, step);
}

Result<const RankCatalogue*> RunView::CatalogueOf(std::size_t attempt, std::uint32_t rank,
                                                  std::uint64_t step, const NumberColumns& block) {
  const auto is_defined = [&](const RankCatalogue& catalogue) {
    return AreDefined(catalogue, std::span(block.activation, block.size),
                      std::span(block.layout, block.size));
  };
  return CatalogueThat(is_defined, attempt, rank, step);
}

Result<const RankCatalogue*> RunView::CatalogueThat(
    const std::function<bool(const RankCatalogue&)>& is_defined, std::size_t attempt,
    std::uint32_t rank, std::uint64_t step) {
  auto catalogue = Catalogue(attempt, rank);
  if (!catalogue.ok() || is_defined(**catalogue)) return catalogue;
  catalogue = ReadCatalogueAgain(attempt, rank, *catalogue);
  if (!catalogue.ok() || is_defined(**catalogue)) return catalogue;
  return Undefined(rank, step);
}

Status RunView::Undefined(std::uint32_t rank, std::uint64_t step) const {
  return {Code::kDataLoss,
          "read step " + std::to_string(step) + " of rank " + std::to_string(rank) + " of run '" +
              run_ + "': a record has no definition; the store is damaged; restore a checkpoint"};
}

Status RunView::ReadSeries(std::span<Series> series, const KeepStep& keep) {
  std::vector<Status> statuses(series.size());
  std::atomic<std::size_t> rows{0};
  std::atomic<bool> failed{false};
  const auto read = [&](std::size_t i) {
    if (failed) return;
    Series& one = series[i];
    auto points =
        store_->ActivationSeries(attempts_[one.attempt].id, one.rank, one.activation, one.steps);
    statuses[i] = points.ok() ? Status::Ok() : points.status();
    if (points.ok()) {
      one.points = *std::move(points);
      if (keep)
        std::erase_if(one.points,
                      [&](const StatPoint& point) { return !keep(one.attempt, point.step); });
      if ((rows += one.points.size()) > kRowsMax) statuses[i] = TooManyRows("series");
    }
    if (!statuses[i].ok()) failed = true;
  };
  // Where the blocks are not in memory, the threads wait for the disk, and it serves several at
  // once in the same time.
  constexpr std::size_t kReadersMax = 8;
  InParallelWith([] {}, series.size(), read, std::min(series.size(), kReadersMax));
  for (std::size_t i = 0; i < series.size(); ++i) {
    STATCOLLECT_RETURN_IF_ERROR(statuses[i]);
    STATCOLLECT_RETURN_IF_ERROR(DefineLayouts(series[i]));
  }
  return Status::Ok();
}

Status RunView::DefineLayouts(const Series& series) {
  const auto highest =
      std::max_element(series.points.begin(), series.points.end(),
                       [](const StatPoint& a, const StatPoint& b) { return a.layout < b.layout; });
  if (highest == series.points.end()) return Status::Ok();
  auto catalogue = Catalogue(series.attempt, series.rank);
  if (catalogue.ok() && highest->layout >= (*catalogue)->layouts.size())
    catalogue = ReadCatalogueAgain(series.attempt, series.rank, *catalogue);
  if (!catalogue.ok()) return catalogue.status();
  return highest->layout < (*catalogue)->layouts.size() ? Status::Ok()
                                                        : Undefined(series.rank, highest->step);
}

Result<StepData> RunView::Read(std::size_t attempt, std::uint32_t rank, std::uint64_t step) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto data, ReadBlocks(attempt, rank, step));
  STATCOLLECT_ASSIGN_OR_RETURN(auto catalogue, CatalogueOf(attempt, rank, step, data.blocks));
  for (const StatColumns& block : data.blocks) {
    for (std::size_t i = 0; i < block.size(); ++i) {
      data.observations.push_back({.def = &catalogue->activations[block.activation[i]],
                                   .layout = &catalogue->layouts[block.layout[i]],
                                   .stats = &block.stats[i],
                                   .sketch = block.SketchOf(i),
                                   .order = block.order[i]});
    }
  }
  std::stable_sort(data.observations.begin(), data.observations.end(),
                   [](const Observation& a, const Observation& b) { return a.order < b.order; });
  return data;
}

Result<std::vector<ScalarRecord>> RunView::Scalars(std::size_t attempt, std::uint32_t rank,
                                                   StepBounds steps) const {
  return store_->Scalars(attempts_[attempt].id, rank, steps);
}

Result<std::vector<EventRecord>> RunView::Events(std::size_t attempt, std::uint32_t rank) const {
  return store_->Events(attempts_[attempt].id, rank);
}

std::vector<RankOfRun> RanksOf(RunView& view, std::size_t first_attempt, std::size_t last_attempt) {
  std::vector<RankOfRun> all;
  for (std::size_t attempt = first_attempt; attempt <= last_attempt; ++attempt) {
    for (const auto& [rank, meta] : view.ranks(attempt))
      all.push_back({.view = &view, .attempt = attempt, .rank = rank});
  }
  return all;
}

void ReadCatalogues(std::span<const RankOfRun> ranks) {
  InParallel(ranks.size(), [&](std::size_t i) {
    (void)ranks[i].view->Catalogue(ranks[i].attempt, ranks[i].rank);
  });
}

void SetValues(const TensorStats& s, const Layout& layout, ObservationSide& side) {
  const auto tell = [&](bool known, auto value, auto& to) {
    if (known)
      to = value;
    else
      to.reset();
  };
  const auto finite = [&](Statistic statistic) { return s.has_finite && layout.Has(statistic); };
  tell(finite(Statistic::kMin), s.min, side.min);
  tell(finite(Statistic::kMax), s.max, side.max);
  tell(finite(Statistic::kMean), s.mean, side.mean);
  tell(finite(Statistic::kStd), s.std, side.std);
  tell(finite(Statistic::kL1), s.l1, side.l1);
  tell(finite(Statistic::kL2), s.l2, side.l2);
  tell(layout.Has(Statistic::kNan), s.nan, side.nan);
  const bool infinite = layout.Has(Statistic::kInf), by_sign = layout.Has(Statistic::kInfSign);
  tell(infinite && by_sign, s.pos_inf, side.pos_inf);
  tell(infinite && by_sign, s.neg_inf, side.neg_inf);
  tell(infinite && !by_sign, s.pos_inf, side.inf);
  tell(layout.Has(Statistic::kZero), s.zero, side.zero);
  tell(layout.Has(Statistic::kNeg), s.neg, side.neg);
  tell(layout.Has(Statistic::kPos), s.pos, side.pos);
  tell(layout.Has(Statistic::kShape), s.numel, side.numel);
  tell(layout.Has(Statistic::kHash), s.hash, side.hash);
}

ObservationSide MakeSide(const TensorStats& s, const Layout& layout) {
  ObservationSide side;
  SetValues(s, layout, side);
  side.dtype = Name(layout.dtype);
  side.shape = layout.shape;
  if (layout.placement) side.place = PlaceText(*layout.placement);
  if (layout.hash_kind != HashKind::kContent3) side.hash_kind = Name(layout.hash_kind);
  for (int i = 0; i < kStatisticCount; ++i) {
    const auto statistic = static_cast<Statistic>(i);
    if ((layout.untrusted & BitOf(statistic)) != 0) side.untrusted.emplace_back(Name(statistic));
  }
  return side;
}

}  // namespace statcollect::query
