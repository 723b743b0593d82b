#include "server/api/heat_tiles.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/endian.h"
#include "proto/json.h"
#include "server/api/convert.h"
#include "server/api/convert/parts.h"
#include "server/query/diff/joined_heat_map.h"

namespace statcollect::api {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::size_t kCachedCellsMax = std::size_t{64} << 20;
constexpr std::size_t kCachedMapsMax = 16;
constexpr std::uint32_t kZoomMax = 31;
constexpr std::size_t kTileHeadBytes = 64;
constexpr std::uint32_t kNoOrigin = ~std::uint32_t{0};

std::uint32_t Parts(std::uint32_t all, std::uint32_t zoom) {
  return static_cast<std::uint32_t>((std::uint64_t{all} + (std::uint64_t{1} << zoom) - 1) >> zoom);
}

// Along one side of the map: the cells of a tile, and what there is of them.
struct TileSide {
  std::uint32_t finest = 0, zoom = 0, total = 0, first = 0, count = 0;
  std::uint32_t Begin(std::uint32_t cell) const { return (first + cell) << zoom; }
  std::uint32_t End(std::uint32_t cell) const {
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(finest, std::uint64_t{first + cell + 1} << zoom));
  }
};

Result<TileSide> SideOf(const char* what, std::size_t finest, std::uint32_t zoom,
                        std::uint32_t tile) {
  TileSide side{.finest = static_cast<std::uint32_t>(finest), .zoom = zoom};
  side.total = Parts(side.finest, zoom);
  const std::uint32_t tiles =
      std::max<std::uint32_t>(1, (side.total + HeatTiles::kSide - 1) / HeatTiles::kSide);
  if (tile >= tiles) {
    return Status(Code::kOutOfRange, std::string("heatmap: ") + what + " " + std::to_string(tile) +
                                         " of the tiles at zoom " + std::to_string(zoom) +
                                         " does not exist; expected 0.." +
                                         std::to_string(tiles - 1));
  }
  side.first = tile * HeatTiles::kSide;
  side.count = std::min(HeatTiles::kSide, side.total - side.first);
  return side;
}

std::string TileCells(const query::HeatMap& map, const TileSide& columns, const TileSide& rows) {
  std::string cells(std::size_t{rows.count} * columns.count, '\0');
  for (std::uint32_t row = 0; row < rows.count; ++row) {
    char* const out = cells.data() + std::size_t{row} * columns.count;
    for (std::uint32_t from = rows.Begin(row); from < rows.End(row); ++from) {
      const char* const in = map.cells.data() + std::size_t{from} * columns.finest;
      for (std::uint32_t column = 0; column < columns.count; ++column) {
        auto level = static_cast<unsigned char>(out[column]);
        for (std::uint32_t at = columns.Begin(column); at < columns.End(column); ++at)
          level = std::max(level, static_cast<unsigned char>(in[at]));
        out[column] = static_cast<char>(level);
      }
    }
  }
  return cells;
}

std::string TileLabels(const query::HeatMap& map, const TileSide& columns, const TileSide& rows) {
  nlohmann::ordered_json labels = {{"rows", nlohmann::ordered_json::array()},
                                   {"first_steps", nlohmann::ordered_json::array()},
                                   {"last_steps", nlohmann::ordered_json::array()}};
  for (std::uint32_t row = 0; row < rows.count; ++row) {
    v1::HeatMapRow wire;
    ToWire(map.rows[rows.Begin(row)], wire);
    wire.set_tensors(rows.End(row) - rows.Begin(row));
    labels["rows"].push_back(ToJson(wire));
  }
  for (std::uint32_t column = 0; column < columns.count; ++column) {
    labels["first_steps"].push_back(map.columns[columns.Begin(column)].first);
    labels["last_steps"].push_back(map.columns[columns.End(column) - 1].last);
  }
  return DumpJson(labels, -1);
}

std::string TileOf(const query::HeatMap& map, const TileSide& columns, const TileSide& rows) {
  const std::string labels = TileLabels(map, columns, rows);
  std::string tile = "SCHM";
  AppendLittleEndian<std::uint16_t>(&tile, 1);  // version
  AppendLittleEndian<std::uint16_t>(&tile, kTileHeadBytes);
  for (const std::uint32_t number :
       {columns.first, columns.count, rows.first, rows.count, columns.total, rows.total,
        columns.finest, rows.finest, map.origin_column.value_or(kNoOrigin),
        map.origin_row.value_or(kNoOrigin), static_cast<std::uint32_t>(labels.size())})
    AppendLittleEndian(&tile, number);
  AppendLittleEndian<std::uint64_t>(&tile, map.steps);
  tile.resize(kTileHeadBytes, '\0');
  return tile + TileCells(map, columns, rows) + labels;
}

Status Stopped() { return {Code::kCancelled, "heatmap: cancelled"}; }

}  // namespace

Result<std::string> HeatTiles::Get(const v1::GetHeatMapRequest& request,
                                   const std::stop_token& stop, const std::string& project) {
  if (request.zoom_steps() > kZoomMax || request.zoom_tensors() > kZoomMax) {
    return Invalid("heatmap: zoom is " +
                   std::to_string(std::max(request.zoom_steps(), request.zoom_tensors())) +
                   "; expected 0.." + std::to_string(kZoomMax));
  }
  v1::GetHeatMapRequest question = request;  // without what differs between its tiles
  question.clear_zoom_steps();
  question.clear_zoom_tensors();
  question.clear_column();
  question.clear_row();
  const std::string bytes = question.SerializeAsString();
  v1::DiffRequest same;
  if (!same.ParseFromString(bytes))
    return Status(Code::kInternal, "heatmap: the request could not be read");
  STATCOLLECT_ASSIGN_OR_RETURN(auto wanted, FromWire(same));
  wanted.top = 1;
  wanted.heat_map_columns = wanted.heat_map_rows = query::kHeatMapWhole;
  STATCOLLECT_ASSIGN_OR_RETURN(auto grid, GridOf(project + "/" + bytes, project, wanted, stop));
  const query::HeatMap& map = grid->map;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto columns, SideOf("column", map.columns.size(),
                                                          request.zoom_steps(), request.column()));
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto rows, SideOf("row", map.rows.size(), request.zoom_tensors(), request.row()));
  return TileOf(map, columns, rows);
}

void HeatTiles::Forget(const std::string& run) {
  MutexLock lock(mutex_);
  for (auto& [key, entry] : entries_) {
    if (entry.run_a == run || entry.run_b == run) entry.stale = true;
  }
}

Result<std::shared_ptr<const HeatTiles::Grid>> HeatTiles::GridOf(const Key& key,
                                                                 const std::string& project,
                                                                 const query::DiffRequest& request,
                                                                 const std::stop_token& stop) {
  std::shared_ptr<const Grid> old;
  {
    MutexLock lock(mutex_);
    Entry* entry = &entries_[key];
    while (entry->busy) {
      if (stop.stop_requested()) return Stopped();
      made_.wait_until(mutex_, SteadyClock::now() + std::chrono::milliseconds(50));
      entry = &entries_[key];
    }
    entry->used = ++uses_;
    if (entry->grid && !entry->stale && SteadyClock::now() < entry->fresh_until) return entry->grid;
    entry->run_a = QualifiedRun(project, request.run_a);
    entry->run_b = QualifiedRun(project, request.run_b);
    if (!entry->stale) old = entry->grid;
    entry->busy = true;
    entry->stale = false;
  }
  const auto began = SteadyClock::now();
  auto made = Make(*engine_.Of(project), request, old, stop);
  const auto now = SteadyClock::now();
  MutexLock lock(mutex_);
  made_.notify_all();
  const auto entry = entries_.find(key);
  entry->second.busy = false;
  if (!made.ok()) {
    if (entry->second.grid == nullptr) entries_.erase(entry);
    return made;
  }
  entry->second.grid = *made;
  const bool live = (*made)->a.running || (*made)->b.running;
  const SteadyClock::duration least = freshness_.least, most = freshness_.most;
  entry->second.fresh_until =
      now + (live ? std::clamp(freshness_.times * (now - began), least, most) : least);
  EvictLocked();
  return made;
}

Result<std::shared_ptr<const HeatTiles::Grid>> HeatTiles::Make(
    const query::QueryEngine& engine, const query::DiffRequest& request,
    const std::shared_ptr<const Grid>& old, const std::stop_token& stop) {
  // First, so that what comes while the runs are compared is compared next time.
  STATCOLLECT_ASSIGN_OR_RETURN(const auto a, VersionOf(engine, request.run_a, stop));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto b, VersionOf(engine, request.run_b, stop));
  if (old && old->a == a && old->b == b) return old;
  const bool continued = old && (a.running || b.running) && old->a.IsSameLaunch(a) &&
                         old->b.IsSameLaunch(b) && request.steps.empty() &&
                         old->map.columns.size() == old->map.steps;
  query::DiffRequest asked = request;
  if (continued)
    asked.steps = std::to_string(std::min(old->a.settled_step, old->b.settled_step)) + "-";
  STATCOLLECT_ASSIGN_OR_RETURN(auto report, engine.Diff(asked, {}, stop));
  query::HeatMap map = report.heat_map ? *std::move(report.heat_map) : query::HeatMap{};
  const bool whole = map.columns.size() == map.steps;
  if (continued && !whole) return Make(engine, request, nullptr, stop);
  if (continued) map = query::JoinedHeatMap(old->map, map);
  return std::make_shared<const Grid>(Grid{.map = std::move(map), .a = a, .b = b});
}

Result<HeatTiles::Version> HeatTiles::VersionOf(const query::QueryEngine& engine,
                                                const std::string& run,
                                                const std::stop_token& stop) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto summary, engine.Summary(run, stop));
  return Version{.attempts = summary.attempts,
                 .start_unix_nanos = summary.start_unix_nanos,
                 .records = summary.records,
                 .running = summary.state == "running",
                 .settled_step = summary.settled_step.value_or(0)};
}

void HeatTiles::EvictLocked() {
  const auto cells = [this]() STATCOLLECT_REQUIRES(mutex_) {
    std::size_t sum = 0;
    for (const auto& [key, entry] : entries_) sum += entry.grid ? entry.grid->map.cells.size() : 0;
    return sum;
  };
  while (entries_.size() > 1 && (entries_.size() > kCachedMapsMax || cells() > kCachedCellsMax)) {
    auto oldest = entries_.end();
    for (auto at = entries_.begin(); at != entries_.end(); ++at) {
      const bool older = oldest == entries_.end() || at->second.used < oldest->second.used;
      if (!at->second.busy && older) oldest = at;
    }
    if (oldest == entries_.end()) return;
    entries_.erase(oldest);
  }
}

}  // namespace statcollect::api
