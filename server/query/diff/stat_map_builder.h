// Puts a statistic's levels together into a map of step x tensor.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_STAT_MAP_BUILDER_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_STAT_MAP_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/records.h"
#include "common/thread_annotations.h"
#include "server/query/compare/step_order.h"
#include "server/query/diff/map_grid.h"
#include "server/query/diff/stat_map.h"

namespace statcollect::query {

// Thread-safe: the map is the same whatever the order of the calls.
class StatMapBuilder {
 public:
  struct Cell {
    std::uint32_t id = 0;     // of the activation
    std::uint32_t order = 0;  // of execution
    std::uint16_t level = kStatNoData;
  };

  // `steps`: ascending. At most so many columns and rows.
  StatMapBuilder(std::vector<std::uint64_t> steps, std::uint32_t columns, std::uint32_t rows);
  // Cells of one rank in one step, given as its index among the steps. The catalogue defines their
  // activations, and lives as long as the builder.
  void Take(std::size_t step, std::uint32_t rank, const RankCatalogue& catalogue,
            std::span<const Cell> cells);
  void Take(std::size_t step, const TensorDef& def, std::uint16_t level);
  // Once, after all of them.
  void Fill(StatMap& map) const;

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

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_STAT_MAP_BUILDER_H_
