// Distances of the pairs of two blocks, in vectors.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_COLUMN_DISTANCES_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_COLUMN_DISTANCES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/store/number_columns.h"

namespace statcollect::query {

// By record. Masks are all ones or 0.
struct PairColumns {
  std::vector<std::uint64_t> same;  // equal hashes
  std::vector<std::uint64_t>
      usual;  // a distance that Measure finds quickly, and as many NaN and infinities on both sides
  std::vector<double> distance;  // if usual: the bits that Measure finds
};

// Of records with equal layouts that have all statistics. `components`: real parts of an element,
// by record. Precondition: both blocks have the same size.
void MeasureColumns(const NumberColumns& a, const NumberColumns& b,
                    const std::vector<double>& components, PairColumns& to);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_COLUMN_DISTANCES_H_
