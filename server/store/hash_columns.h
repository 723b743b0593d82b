#ifndef STATCOLLECT_SERVER_STORE_HASH_COLUMNS_H_
#define STATCOLLECT_SERVER_STORE_HASH_COLUMNS_H_

#include <cstdint>
#include <vector>

#include "common/records.h"

namespace statcollect {

// The hashes of a block's records, and whose they are.
struct HashColumns {
  std::vector<std::uint32_t> activation, layout, order;  // as in StatColumns
  std::vector<std::uint64_t> hash;
  std::uint32_t sketch_width = 0;  // of the block, although its sketches are not read
};

inline HashColumns HashesOf(const StatColumns& block) {
  HashColumns columns{.activation = block.activation,
                      .layout = block.layout,
                      .order = block.order,
                      .hash = {},
                      .sketch_width = block.sketch_width};
  columns.hash.reserve(block.size());
  for (const TensorStats& stats : block.stats) columns.hash.push_back(stats.hash);
  return columns;
}

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_HASH_COLUMNS_H_
