#include "server/query/answers/stat_map.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

#include "common/saturating.h"
#include "common/step_set.h"
#include "common/thread_annotations.h"
#include "common/update_ratio.h"
#include "server/query/answers/message_parts.h"
#include "server/query/captures/exponents.h"
#include "server/query/compare/loaded_step.h"
#include "server/query/compare/step_order.h"
#include "server/query/diff/level_columns.h"
#include "server/query/diff/map_grid.h"
#include "server/query/diff/stat_levels.h"
#include "server/query/parallel.h"
#include "server/query/rows.h"
#include "server/query/run_view.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kCellsSentMax = std::size_t{1} << 20;

std::uint32_t SideOrDefault(std::uint32_t asked) {
  return asked == 0 ? kStatMapSideDefault : asked;
}

// Puts levels together into a map. Thread-safe: the map is the same whatever the order of the
// calls.
class StatMapBuilder {
 public:
  // `steps`: ascending.
  StatMapBuilder(std::vector<std::uint64_t> steps, const StatMapRequest& request)
      : rows_max_(SideOrDefault(request.rows)),
        grid_(std::move(steps), SideOrDefault(request.columns)) {}
  // Cells of one rank in one step, given as its index among the steps. The catalogue defines their
  // activations, and lives as long as the builder.
  void Take(std::size_t step, std::uint32_t rank, const RankCatalogue& catalogue,
            std::span<const StatCell> cells);
  void Take(std::size_t step, const TensorDef& def, std::uint16_t level);
  // Once, after all of them.
  void Fill(v1::GetStatMapResponse& out) const;

 private:
  static constexpr std::uint32_t kNoRow = ~std::uint32_t{0};

  std::uint32_t FindRow(std::uint32_t id, const TensorKey& key) STATCOLLECT_REQUIRES(mutex_);
  std::uint32_t FindRow(const TensorKey& key) STATCOLLECT_REQUIRES(mutex_);
  void Raise(std::uint32_t row, std::size_t step, std::uint32_t rank, std::uint32_t order,
             std::uint16_t level) STATCOLLECT_REQUIRES(mutex_);

  const std::uint32_t rows_max_;
  mutable Mutex mutex_;
  MapGrid<std::uint16_t> grid_ STATCOLLECT_GUARDED_BY(mutex_);
  std::unordered_map<const RankCatalogue*, std::vector<std::uint32_t>> rows_of_
      STATCOLLECT_GUARDED_BY(mutex_);  // by id
  std::vector<std::uint32_t> usual_row_
      STATCOLLECT_GUARDED_BY(mutex_);  // by id, of the last rank that asked
};

void StatMapBuilder::Take(std::size_t step, std::uint32_t rank, const RankCatalogue& catalogue,
                          std::span<const StatCell> cells) {
  MutexLock lock(mutex_);
  std::vector<std::uint32_t>& rows = rows_of_[&catalogue];
  rows.resize(catalogue.activations.size(), kNoRow);
  for (const StatCell& cell : cells) {
    if (cell.level == kStatNoData) continue;
    std::uint32_t& row = rows[cell.id];
    if (row == kNoRow) row = FindRow(cell.id, catalogue.activations[cell.id].key);
    Raise(row, step, rank, cell.order, cell.level);
  }
}

// Ranks mostly define the same tensors in the same order: then no names are looked up.
std::uint32_t StatMapBuilder::FindRow(std::uint32_t id, const TensorKey& key) {
  if (id >= usual_row_.size()) usual_row_.resize(id + 1, kNoRow);
  std::uint32_t& usual = usual_row_[id];
  if (usual != kNoRow) {
    const TensorKey& other = grid_.row(usual).key;
    if (other.name == key.name && other.output_path == key.output_path && other.kind == key.kind &&
        other.mode == key.mode && StageOf(key) == grid_.row(usual).stage)
      return usual;
  }
  return usual = FindRow(key);
}

void StatMapBuilder::Take(std::size_t step, const TensorDef& def, std::uint16_t level) {
  MutexLock lock(mutex_);
  if (level != kStatNoData) Raise(FindRow(def.key), step, 0, def.id, level);
}

void StatMapBuilder::Raise(std::uint32_t row, std::size_t step, std::uint32_t rank,
                           std::uint32_t order, std::uint16_t level) {
  auto& of = grid_.row(row);
  const std::pair here(step, rank);
  if (std::tie(here, order) < std::tie(of.first, of.order)) {
    of.first = here;
    of.order = order;
  }
  grid_.Raise(row, step, level);
}

std::uint32_t StatMapBuilder::FindRow(const TensorKey& key) {
  const auto [row, added] = grid_.FindRow(key, StageOf(key));
  if (added) grid_.row(row).first = {grid_.steps().size(), 0};  // after wherever it is seen
  return row;
}

void StatMapBuilder::Fill(v1::GetStatMapResponse& out) const {
  MutexLock lock(mutex_);
  out.set_tensors(grid_.size());
  out.set_steps(grid_.steps().size());
  std::string& cells = *out.mutable_cells();
  const auto shown = grid_.Show(rows_max_, kCellsSentMax, [&](std::uint16_t level) {
    cells += static_cast<char>(level >> 8);
    cells += static_cast<char>(level & 255);
  });
  for (const HeatMapRow& row : shown.rows) ToWire(row, *out.add_rows());
  for (const StepRange& steps : shown.columns) {
    out.add_first_steps(steps.first);
    out.add_last_steps(steps.last);
  }
}

// How far a rank's weights moved since their last record: of the step before, or as they were
// loaded in the same step.
class Movements {
 public:
  // kStatNoData: not a weight, its first record, or it cannot be known. In the order of execution.
  std::uint16_t LevelOf(std::uint64_t step, const Observation& o) {
    const TensorKey& key = o.def->key;
    if (key.kind != Kind::kWeight) return kStatNoData;
    Last now{.step = step,
             .record = {.stats = *o.stats, .sketch = {o.sketch.begin(), o.sketch.end()}}};
    Last& last = last_[key.name];
    const bool follows = !last.record.sketch.empty() && key.mode != Mode::kInit &&
                         SaturatingAdd(last.step, 1) >= step;
    const auto ratio = follows ? EstimateUpdateRatio(last.record, now.record) : std::nullopt;
    last = std::move(now);
    return ratio ? StatLevel(ratio->value) : kStatNoData;
  }

 private:
  struct Last {
    std::uint64_t step = 0;
    WeightRecord record;
  };
  std::map<std::string, Last> last_;  // by name
};

// A step of the run, of one of its launches.
struct StepOf {
  std::uint64_t step = 0;
  std::size_t attempt = 0;
  std::optional<std::size_t> column;  // absent: only what comes next needs it
};

// Steps of one rank that one thread reads.
struct Unit {
  std::uint32_t rank = 0;
  std::span<const StepOf> steps;  // ascending
};

class UnitReader {
 public:
  UnitReader(RunView& view, const StatMapRequest& request, TopBy by, StatMapBuilder& builder)
      : view_(view), request_(request), by_(by), builder_(builder) {}

  Status Read(const Unit& unit, const std::stop_token& stop) {
    for (auto at = unit.steps.begin(); at != unit.steps.end();) {
      const auto end = std::find_if(
          at, unit.steps.end(), [&](const StepOf& step) { return step.attempt != at->attempt; });
      if (view_.ranks(at->attempt).contains(unit.rank))
        STATCOLLECT_RETURN_IF_ERROR(ReadAttempt({unit.rank, {at, end}}, stop));
      at = end;
    }
    return Status::Ok();
  }

 private:
  Status ReadAttempt(const Unit& unit, const std::stop_token& stop) {
    const std::size_t attempt = unit.steps.front().attempt;
    BlockCursor cursor(view_, attempt, unit.rank,
                       {unit.steps.front().step, unit.steps.back().step});
    LevelColumns columns(by_, request_.kinds);
    for (const StepOf& step : unit.steps) {
      if (stop.stop_requested()) return Cancelled();
      if (!MovesCount()) STATCOLLECT_RETURN_IF_ERROR(ReadColumns(unit, step, cursor, columns));
      STATCOLLECT_RETURN_IF_ERROR(ReadRecords(unit, step, cursor));
    }
    return Status::Ok();
  }

  // The blocks of the step, as far as the store has columns.
  Status ReadColumns(const Unit& unit, const StepOf& step, BlockCursor& cursor,
                     LevelColumns& columns) {
    while (cursor.Peek(step.step) != nullptr) {
      const NumberColumns* const block = cursor.Numbers(columns.needs());
      if (block == nullptr) break;
      const RankCatalogue* catalogue = columns.CatalogueOf(*block);
      if (catalogue == nullptr) {
        STATCOLLECT_ASSIGN_OR_RETURN(const auto found,
                                     view_.CatalogueOf(step.attempt, unit.rank, step.step, *block));
        columns.Learn(*(catalogue = found), *block);
      }
      cells_.clear();
      columns.AddCells(*block, cells_);
      if (step.column) builder_.Take(*step.column, unit.rank, *catalogue, cells_);
      cursor.Skip();
    }
    return cursor.status();
  }

  // The rest of them.
  Status ReadRecords(const Unit& unit, const StepOf& step, BlockCursor& cursor) {
    if (cursor.Peek(step.step) == nullptr) return cursor.status();
    loaded_.Clear();
    while (cursor.Peek(step.step) != nullptr && cursor.Load(MovesCount(), &loaded_.Add())) {
    }
    STATCOLLECT_RETURN_IF_ERROR(cursor.status());
    STATCOLLECT_ASSIGN_OR_RETURN(
        const auto catalogue,
        view_.CatalogueOf(step.attempt, unit.rank, step.step, loaded_.blocks()));
    loaded_.Index(*catalogue);
    cells_.clear();
    MovesCount() ? AddMovements(step.step) : AddLevels();
    if (step.column) builder_.Take(*step.column, unit.rank, *catalogue, cells_);
    return Status::Ok();
  }

  bool MovesCount() const { return by_ == TopBy::kUpdateRatio; }

  void AddMovements(std::uint64_t step) {
    for (const Observation& o : loaded_.InOrder()) {
      const std::uint16_t level = movements_.LevelOf(step, o);
      if (IsShown(request_.kinds, *o.def, *o.layout))
        cells_.push_back({.id = o.def->id, .order = o.order, .level = level});
    }
  }

  void AddLevels() {
    for (const StatColumns& block : loaded_.blocks()) {
      for (std::size_t i = 0; i < block.size(); ++i) {
        const Observation o = loaded_.At(block, i);
        if (IsShown(request_.kinds, *o.def, *o.layout))
          cells_.push_back({.id = o.def->id, .order = o.order, .level = LevelOf(by_, o, side_)});
      }
    }
  }

  RunView& view_;
  const StatMapRequest& request_;
  const TopBy by_;
  StatMapBuilder& builder_;
  LoadedStep loaded_;
  Movements movements_;
  ObservationSide side_;
  std::vector<StatCell> cells_;
};

// The steps of the map; before them, what the first step's weights moved from.
Result<std::vector<StepOf>> StepsToRead(const RunView& view,
                                        const std::map<std::uint64_t, std::size_t>& owners,
                                        TopBy by) {
  std::vector<StepOf> steps;
  if (by == TopBy::kUpdateRatio && !owners.empty() && owners.begin()->first > 0) {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto before,
                                 StepSet::Parse(std::to_string(owners.begin()->first - 1)));
    STATCOLLECT_ASSIGN_OR_RETURN(const auto found, view.Steps(before));
    for (const auto& [step, attempt] : found) steps.push_back({step, attempt, std::nullopt});
  }
  std::size_t column = 0;
  for (const auto& [step, attempt] : owners) steps.push_back({step, attempt, column++});
  return steps;
}

// Ranks, and if they are few, parts of their steps; movements need all steps of a rank.
std::vector<Unit> CutUnits(std::span<const std::uint32_t> ranks, std::span<const StepOf> steps,
                           TopBy by) {
  constexpr std::size_t kUnitsAThread = 4;
  const std::size_t wanted = kUnitsAThread * ThreadsOfAQuery();
  const std::size_t parts =
      by == TopBy::kUpdateRatio || ranks.empty() ? 1 : (wanted + ranks.size() - 1) / ranks.size();
  const std::size_t each = std::max<std::size_t>(1, (steps.size() + parts - 1) / parts);
  std::vector<Unit> units;
  for (std::size_t first = 0; first < steps.size(); first += each) {
    for (const std::uint32_t rank : ranks)
      units.push_back({rank, steps.subspan(first, std::min(each, steps.size() - first))});
  }
  return units;
}

std::vector<std::uint64_t> StepsOf(const std::map<std::uint64_t, std::size_t>& owners) {
  std::vector<std::uint64_t> steps;
  for (const auto& [step, attempt] : owners) steps.push_back(step);
  return steps;
}

Status FillMap(RunView& view, const StatMapRequest& request, TopBy by, const std::stop_token& stop,
               v1::GetStatMapResponse& out) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto wanted, StepSet::Parse(request.steps));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto owners, view.Steps(wanted));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto steps, StepsToRead(view, owners, by));
  std::vector<std::uint32_t> ranks = view.AllRanks();
  std::erase_if(ranks, [&](std::uint32_t rank) { return !IsWanted(request.ranks, rank); });
  StatMapBuilder builder(StepsOf(owners), request);
  const std::vector<Unit> units = CutUnits(ranks, steps, by);
  std::vector<Status> read(units.size(), Status::Ok());
  InParallel(units.size(), [&](std::size_t i) {
    read[i] = UnitReader(view, request, by, builder).Read(units[i], stop);
  });
  for (const Status& status : read) STATCOLLECT_RETURN_IF_ERROR(status);
  builder.Fill(out);
  return Status::Ok();
}

// Of what a narrower format would lose of each tensor.
Status FillLossMap(const Context& context, const StatMapRequest& request,
                   v1::GetStatMapResponse& out) {
  struct Loss {
    std::uint64_t step = 0;
    const TensorDef* def = nullptr;
    double share = 0;
  };
  std::deque<TensorDef> defs;  // where they are, they stay
  std::vector<Loss> losses;
  const auto take = [&](const ExponentsSeen& seen) {
    if (losses.size() >= kRowsMax) return TooManyRows("exponents");
    losses.push_back({.step = seen.record.step,
                      .def = &defs.emplace_back(seen.def),
                      .share = seen.ShareLostIn(DType::kF16)});
    return Status::Ok();
  };
  const ExponentsSelection selection{
      .run = request.run, .kinds = request.kinds, .ranks = request.ranks, .steps = request.steps};
  STATCOLLECT_RETURN_IF_ERROR(VisitExponents(context.store, selection, take));
  std::set<std::uint64_t> steps;
  for (const Loss& loss : losses) steps.insert(loss.step);
  const std::vector<std::uint64_t> columns(steps.begin(), steps.end());
  StatMapBuilder builder(columns, request);
  for (const Loss& loss : losses) {
    const auto at = std::lower_bound(columns.begin(), columns.end(), loss.step) - columns.begin();
    builder.Take(static_cast<std::size_t>(at), *loss.def, StatLevel(loss.share));
  }
  builder.Fill(out);
  return Status::Ok();
}

}  // namespace

Result<StatMapRequest> FromWire(const v1::GetStatMapRequest& request) {
  auto wanted = SelectionFromWire<StatMapRequest>(request);
  if (!wanted.ok()) return wanted;
  if (request.by() < 0 || request.by() > v1::TopBy_MAX) {
    return Invalid("stat_map: statistic " + std::to_string(request.by()) +
                   " is unknown to this collector; expected 0.." + std::to_string(v1::TopBy_MAX));
  }
  STATCOLLECT_RETURN_IF_ERROR(CheckMapSide("stat_map", "columns", request.columns()));
  STATCOLLECT_RETURN_IF_ERROR(CheckMapSide("stat_map", "rows", request.rows()));
  wanted->by = static_cast<TopBy>(request.by());
  wanted->columns = request.columns();
  wanted->rows = request.rows();
  return wanted;
}

Status GetStatMap(const Context& context, const StatMapRequest& request,
                  v1::GetStatMapResponse& out) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(context.store, request.run));
  const TopBy by = request.by == TopBy::kUnspecified ? TopBy::kL2 : request.by;
  out.set_run(view.run());
  out.set_by(static_cast<v1::TopBy>(by));
  const std::vector<std::uint32_t> ranks = view.AllRanks();
  out.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  if (by == TopBy::kExponentLoss) return FillLossMap(context, request, out);
  return FillMap(view, request, by, context.stop, out);
}

}  // namespace statcollect::query
