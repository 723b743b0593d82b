// Levels of one statistic of whole blocks, read as columns: what a map of a long run, and one that
// grows, mostly takes.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_LEVEL_COLUMNS_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_LEVEL_COLUMNS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "server/query/diff/stat_levels.h"
#include "server/store/number_columns.h"

namespace statcollect::query {

// Whether a map shows the tensor. `kinds`: empty: all, without integer tensors.
bool IsShown(const std::vector<Kind>& kinds, const TensorDef& def, const Layout& layout);

// For one rank of one launch, step by step. What the definitions tell about a block's records is
// kept for the next steps. Borrows the kinds. Not thread-safe.
class LevelColumns {
 public:
  LevelColumns(TopBy by, const std::vector<Kind>& kinds) : by_(by), kinds_(kinds) {}

  NumberSet needs() const;
  // The definitions with which a block of the same tensors was learned; null: with none.
  const RankCatalogue* CatalogueOf(const NumberColumns& block);
  // `catalogue` defines all ids of the block.
  void Learn(const RankCatalogue& catalogue, const NumberColumns& block);
  // Appends the cells of a block that CatalogueOf knows: the last one that was asked for or
  // learned.
  void AddCells(const NumberColumns& block, std::vector<StatCell>& cells);

 private:
  // What a record can tell, as far as it depends on its layout.
  struct Recorded {
    bool value = false;  // the statistic, if anything is finite
    bool nan = false, inf = false, inf_sign = false;
    double components = 1;  // real parts of an element
    bool operator==(const Recorded&) const = default;
  };
  struct Plan {
    const RankCatalogue* catalogue = nullptr;
    std::vector<std::uint64_t> numbers;  // activations and layouts of the block
    std::vector<std::uint8_t> shown;
    Recorded recorded;
    bool usual =
        false;  // all have the same recorded, and the statistic is a column or follows from it
  };

  Recorded RecordedOf(const Layout& layout) const;
  // The statistic's magnitudes, as bits.
  std::span<const std::uint64_t> SizesOf(const NumberColumns& block, double components);
  void AddUsual(const NumberColumns& block, std::vector<StatCell>& cells);
  void AddOneByOne(const NumberColumns& block, std::vector<StatCell>& cells);

  const TopBy by_;
  const std::vector<Kind>& kinds_;
  std::map<std::uint64_t, Plan> plans_;  // by the first activation
  const Plan* plan_ = nullptr;           // of the block at hand
  std::vector<std::uint64_t> sizes_;
  std::vector<std::uint16_t> levels_;
  ObservationSide side_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_LEVEL_COLUMNS_H_
