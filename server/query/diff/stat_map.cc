#include "server/query/diff/stat_map.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "common/names.h"
#include "common/step_set.h"
#include "common/update_ratio.h"
#include "server/query/compare/step_order.h"
#include "server/query/rows.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kCellsHeldMax = std::size_t{8} << 20;
constexpr std::size_t kCellsSentMax = std::size_t{1} << 20;

std::size_t PartsOf(std::size_t all, std::size_t each) { return (all + each - 1) / each; }

// Whether the statistic counts what the others cannot be computed from.
bool CountsElements(TopBy by) {
  return by == TopBy::kNan || by == TopBy::kInf || by == TopBy::kZeroFraction || by == TopBy::kNumel;
}

// kStatNoData: the observation does not have it.
std::uint16_t LevelOf(TopBy by, const Observation& o) {
  const ObservationSide side = MakeSide(o);
  const bool broken =
      side.nan.value_or(0) + side.inf.value_or(0) + side.pos_inf.value_or(0) + side.neg_inf.value_or(0) > 0;
  if (broken && !CountsElements(by)) return kStatNotFinite;
  if (const auto value = ValueOf(by, side, IsComplex(o.layout->dtype))) return StatLevel(std::abs(*value));
  const bool counted = (by == TopBy::kNan && side.nan) ||
                       (by == TopBy::kInf && (side.inf || (side.pos_inf && side.neg_inf))) ||
                       (by == TopBy::kZeroFraction && side.zero);
  return counted ? kStatZero : kStatNoData;
}

class Builder {
 public:
  Builder(std::vector<std::uint64_t> steps, std::uint32_t columns, std::uint32_t rows)
      : rows_max_(rows), steps_(std::move(steps)) {
    steps_each_ = std::max<std::size_t>(1, PartsOf(steps_.size(), columns));
  }

  void Take(std::size_t step, const Observation& o, std::uint16_t level) {
    if (level == kStatNoData) return;
    const auto [known, added] = by_def_.try_emplace(o.def, 0);
    if (added) known->second = FindRow(o.def->key, o.order);
    Raise(step, known->second, level);
  }
  void Take(std::size_t step, const TensorDef& def, std::uint16_t level) {
    if (level != kStatNoData) Raise(step, FindRow(def.key, def.id), level);
  }

  void Fill(StatMap& map) const {
    map.tensors = rows_.size();
    map.steps = steps_.size();
    for (std::size_t i = 0; i < steps_.size(); i += steps_each_)
      map.columns.push_back(
          {.first = steps_[i], .last = steps_[std::min(i + steps_each_, steps_.size()) - 1]});
    const std::vector<const Row*> ordered = InOrder();
    const std::size_t sent =
        std::min<std::size_t>(rows_max_, kCellsSentMax / std::max<std::size_t>(1, map.columns.size()));
    const std::size_t each =
        std::max<std::size_t>(1, PartsOf(ordered.size(), std::max<std::size_t>(1, sent)));
    for (std::size_t begin = 0; begin < ordered.size(); begin += each)
      AddRow(ordered, begin, std::min(begin + each, ordered.size()), map);
  }

 private:
  using RowKey = std::tuple<Stage, Mode, Kind, std::string, std::string>;
  struct Row {
    TensorKey key;
    Stage stage = Stage::kUnspecified;
    std::uint32_t order = 0;  // of execution, where it was first seen
    std::vector<std::uint16_t> levels;
  };

  void Raise(std::size_t step, std::size_t row, std::uint16_t level) {
    std::uint16_t& cell = rows_[row].levels[step / steps_each_];
    cell = std::max(cell, level);
  }

  std::size_t FindRow(const TensorKey& key, std::uint32_t order) {
    const Stage stage = StageOf(key);
    const auto [found, added] =
        by_key_.try_emplace(RowKey(stage, key.mode, key.kind, key.name, key.output_path), rows_.size());
    if (!added) return found->second;
    rows_.push_back({.key = key, .stage = stage, .order = order, .levels = {}});
    while (steps_each_ < steps_.size() && rows_.size() * PartsOf(steps_.size(), steps_each_) > kCellsHeldMax)
      HalveColumns();
    rows_.back().levels.assign(PartsOf(steps_.size(), steps_each_), kStatNoData);
    return found->second;
  }

  void HalveColumns() {
    steps_each_ *= 2;
    for (Row& row : rows_) {
      const std::size_t columns = PartsOf(row.levels.size(), 2);
      for (std::size_t i = 0; i < row.levels.size(); ++i)
        row.levels[i / 2] = i % 2 == 0 ? row.levels[i] : std::max(row.levels[i / 2], row.levels[i]);
      row.levels.resize(columns);
    }
  }

  std::vector<const Row*> InOrder() const {
    std::vector<const Row*> ordered;
    for (const Row& row : rows_) ordered.push_back(&row);
    std::stable_sort(ordered.begin(), ordered.end(), [](const Row* x, const Row* y) {
      return std::tie(x->stage, x->key.mode, x->order) < std::tie(y->stage, y->key.mode, y->order);
    });
    return ordered;
  }

  static void AddRow(const std::vector<const Row*>& ordered, std::size_t begin, std::size_t end,
                     StatMap& map) {
    const Row& first = *ordered[begin];
    map.rows.push_back({.stage = first.stage,
                        .kind = first.key.kind,
                        .activation = first.key.name,
                        .output_path = first.key.output_path,
                        .activation_b = {},
                        .mode = first.key.mode,
                        .tensors = end - begin});
    for (std::size_t i = 0; i < map.columns.size(); ++i) {
      std::uint16_t level = kStatNoData;
      for (std::size_t row = begin; row < end; ++row) level = std::max(level, ordered[row]->levels[i]);
      map.cells += static_cast<char>(level >> 8);
      map.cells += static_cast<char>(level & 255);
    }
  }

  const std::uint32_t rows_max_;
  const std::vector<std::uint64_t> steps_;
  std::size_t steps_each_ = 1;  // steps of a column
  std::unordered_map<const TensorDef*, std::size_t> by_def_;
  std::map<RowKey, std::size_t> by_key_;
  std::vector<Row> rows_;
};

// How far each weight moved since its last record: of the step before, or as it was loaded in the same step.
class Movements {
 public:
  // kStatNoData: not a weight, its first record, or it cannot be known.
  std::uint16_t LevelOf(std::uint32_t rank, std::uint64_t step, const Observation& o) {
    const TensorKey& key = o.def->key;
    if (key.kind != Kind::kWeight) return kStatNoData;
    Last now{.step = step, .record = {.stats = *o.stats, .sketch = {o.sketch.begin(), o.sketch.end()}}};
    Last& last = last_[{rank, key.name}];
    const bool follows = !last.record.sketch.empty() && key.mode != Mode::kInit && last.step + 1 >= step;
    const auto ratio = follows ? EstimateUpdateRatio(last.record, now.record) : std::nullopt;
    last = std::move(now);
    return ratio ? StatLevel(ratio->value) : kStatNoData;
  }

 private:
  struct Last {
    std::uint64_t step = 0;
    WeightRecord record;
  };
  std::map<std::pair<std::uint32_t, std::string>, Last> last_;  // by rank and name
};

std::vector<std::uint64_t> StepsOf(const std::map<std::uint64_t, std::size_t>& owners) {
  std::vector<std::uint64_t> steps;
  for (const auto& [step, attempt] : owners) steps.push_back(step);
  return steps;
}

// What the first step's weights moved from.
Status ReadStepBefore(RunView& view, const StatMapRequest& request,
                      const std::map<std::uint64_t, std::size_t>& owners, Movements& movements) {
  if (owners.empty() || owners.begin()->first == 0) return Status::Ok();
  const auto before = StepSet::Parse(std::to_string(owners.begin()->first - 1));
  if (!before.ok()) return before.status();
  const auto found = view.Steps(*before);
  if (!found.ok()) return found.status();
  for (const auto& [step, attempt] : *found) {
    for (const auto& [rank, meta] : view.ranks(attempt)) {
      if (!IsWanted(request.ranks, rank)) continue;
      const auto data = view.Read(attempt, rank, step);
      if (!data.ok()) return data.status();
      for (const Observation& o : data->observations) (void)movements.LevelOf(rank, step, o);
    }
  }
  return Status::Ok();
}

std::uint32_t SideOrDefault(std::uint32_t asked) { return asked == 0 ? kStatMapSideDefault : asked; }

StatMap EmptyMap(const RunView& view, TopBy by) {
  return {.run = view.run(), .by = by, .rows = {}, .columns = {}, .cells = {}, .ranks = view.AllRanks()};
}

}  // namespace

std::uint16_t StatLevel(double size) {
  constexpr double kLevelsADecade = 512;
  if (!std::isfinite(size)) return kStatNotFinite;
  if (size <= 0) return kStatZero;
  const double level = kStatLevelOne + std::round(kLevelsADecade * std::log10(size));
  return static_cast<std::uint16_t>(std::clamp<double>(level, kStatLevelMin, kStatLevelMax));
}

Result<StatMap> MakeStatMap(RunView& view, const StatMapRequest& request, const std::stop_token& stop) {
  const auto wanted = StepSet::Parse(request.steps);
  if (!wanted.ok()) return wanted.status();
  const auto owners = view.Steps(*wanted);
  if (!owners.ok()) return owners.status();
  StatMap map = EmptyMap(view, request.by == TopBy::kUnspecified ? TopBy::kL2 : request.by);
  Builder builder(StepsOf(*owners), SideOrDefault(request.columns), SideOrDefault(request.rows));
  std::optional<Movements> movements;
  if (map.by == TopBy::kUpdateRatio) {
    movements.emplace();
    STATCOLLECT_RETURN_IF_ERROR(ReadStepBefore(view, request, *owners, *movements));
  }
  std::size_t column = 0;
  for (const auto& [step, attempt] : *owners) {
    for (const auto& [rank, meta] : view.ranks(attempt)) {
      if (!IsWanted(request.ranks, rank)) continue;
      if (stop.stop_requested()) return Cancelled();
      auto data = view.Read(attempt, rank, step);
      if (!data.ok()) return data.status();
      for (const Observation& o : data->observations) {
        if (!IsWanted(request.kinds, o.def->key.kind)) continue;
        if (request.kinds.empty() && IsWholeNumber(o.layout->dtype)) continue;
        builder.Take(column, o, movements ? movements->LevelOf(rank, step, o) : LevelOf(map.by, o));
      }
    }
    ++column;
  }
  builder.Fill(map);
  return map;
}

StatMap MakeLossMap(const RunView& view, const StatMapRequest& request,
                    const std::vector<StatMapLoss>& losses) {
  std::set<std::uint64_t> steps;
  for (const StatMapLoss& loss : losses) steps.insert(loss.step);
  std::vector<std::uint64_t> columns(steps.begin(), steps.end());
  StatMap map = EmptyMap(view, TopBy::kExponentLoss);
  Builder builder(columns, SideOrDefault(request.columns), SideOrDefault(request.rows));
  for (const StatMapLoss& loss : losses) {
    const auto at = std::lower_bound(columns.begin(), columns.end(), loss.step) - columns.begin();
    builder.Take(static_cast<std::size_t>(at), *loss.def, StatLevel(loss.share));
  }
  builder.Fill(map);
  return map;
}

}  // namespace statcollect::query
