// Puts a statistic's levels together into a map of step x tensor.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_STAT_MAP_BUILDER_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_STAT_MAP_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/records.h"
#include "common/thread_annotations.h"
#include "server/query/compare/step_order.h"
#include "server/query/diff/stat_map.h"

namespace statcollect::query {

// Several levels of a cell become the greatest. Memory: 16 MiB of cells; with more steps x tensors
// than that, columns are merged. Thread-safe: the map is the same whatever the order of the calls.
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
  static constexpr std::size_t kCellsHeldMax = std::size_t{8} << 20;
  static constexpr std::size_t kCellsSentMax = std::size_t{1} << 20;
  using RowKey = std::tuple<Stage, Mode, Kind, std::string, std::string>;
  using FirstSeen = std::pair<std::size_t, std::uint32_t>;  // step and rank
  struct Row {
    TensorKey key;
    Stage stage = Stage::kUnspecified;
    FirstSeen first;
    std::uint32_t order = 0;  // of execution, where it was first seen
    std::vector<std::uint16_t> levels;
  };

  std::uint32_t FindRow(std::uint32_t id, const TensorKey& key) STATCOLLECT_REQUIRES(mutex_);
  std::uint32_t FindRow(const TensorKey& key) STATCOLLECT_REQUIRES(mutex_);
  void Raise(std::uint32_t row, FirstSeen here, std::uint32_t order, std::uint16_t level)
      STATCOLLECT_REQUIRES(mutex_);
  void HalveColumns() STATCOLLECT_REQUIRES(mutex_);
  std::vector<const Row*> InOrder() const STATCOLLECT_REQUIRES(mutex_);
  static void AddRow(std::span<const Row* const> merged, StatMap& map);

  const std::uint32_t rows_max_;
  const std::vector<std::uint64_t> steps_;
  mutable Mutex mutex_;
  std::size_t steps_each_ STATCOLLECT_GUARDED_BY(mutex_) = 1;  // steps of a column
  std::unordered_map<const RankCatalogue*, std::vector<std::uint32_t>> rows_of_
      STATCOLLECT_GUARDED_BY(mutex_);  // by id
  std::map<RowKey, std::uint32_t> by_key_ STATCOLLECT_GUARDED_BY(mutex_);
  std::vector<std::uint32_t> usual_row_
      STATCOLLECT_GUARDED_BY(mutex_);  // by id, of the last rank that asked
  std::vector<Row> rows_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_STAT_MAP_BUILDER_H_
