#include "server/query/diff/stat_map.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "common/saturating.h"
#include "common/step_set.h"
#include "common/update_ratio.h"
#include "server/query/compare/loaded_step.h"
#include "server/query/diff/level_columns.h"
#include "server/query/diff/stat_map_builder.h"
#include "server/query/parallel.h"
#include "server/query/rows.h"

namespace statcollect::query {
namespace {

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
  std::vector<StatMapBuilder::Cell> cells_;
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

std::uint32_t SideOrDefault(std::uint32_t asked) {
  return asked == 0 ? kStatMapSideDefault : asked;
}

StatMap EmptyMap(const RunView& view, TopBy by) {
  return {.run = view.run(),
          .by = by,
          .rows = {},
          .columns = {},
          .cells = {},
          .ranks = view.AllRanks()};
}

}  // namespace

Result<StatMap> MakeStatMap(RunView& view, const StatMapRequest& request,
                            const std::stop_token& stop) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto wanted, StepSet::Parse(request.steps));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto owners, view.Steps(wanted));
  StatMap map = EmptyMap(view, request.by == TopBy::kUnspecified ? TopBy::kL2 : request.by);
  STATCOLLECT_ASSIGN_OR_RETURN(const auto steps, StepsToRead(view, owners, map.by));
  std::vector<std::uint32_t> ranks;
  for (const std::uint32_t rank : map.ranks) {
    if (IsWanted(request.ranks, rank)) ranks.push_back(rank);
  }
  StatMapBuilder builder(StepsOf(owners), SideOrDefault(request.columns),
                         SideOrDefault(request.rows));
  const std::vector<Unit> units = CutUnits(ranks, steps, map.by);
  std::vector<Status> read(units.size(), Status::Ok());
  InParallel(units.size(), [&](std::size_t i) {
    read[i] = UnitReader(view, request, map.by, builder).Read(units[i], stop);
  });
  for (const Status& status : read) STATCOLLECT_RETURN_IF_ERROR(status);
  builder.Fill(map);
  return map;
}

StatMap MakeLossMap(const RunView& view, const StatMapRequest& request,
                    const std::vector<StatMapLoss>& losses) {
  std::set<std::uint64_t> steps;
  for (const StatMapLoss& loss : losses) steps.insert(loss.step);
  std::vector<std::uint64_t> columns(steps.begin(), steps.end());
  StatMap map = EmptyMap(view, TopBy::kExponentLoss);
  StatMapBuilder builder(columns, SideOrDefault(request.columns), SideOrDefault(request.rows));
  for (const StatMapLoss& loss : losses) {
    const auto at = std::lower_bound(columns.begin(), columns.end(), loss.step) - columns.begin();
    builder.Take(static_cast<std::size_t>(at), *loss.def, StatLevel(loss.share));
  }
  builder.Fill(map);
  return map;
}

}  // namespace statcollect::query
