// Where a tensor differs between two runs that cut it differently.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_COMMON_PARTS_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_COMMON_PARTS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "server/query/logical/merge_parts.h"
#include "server/query/reports.h"

namespace statcollect::query {

struct CommonParts {
  std::vector<DifferingPart>
      differing;            // in the order of the parts of the side that has fewer of them
  std::uint32_t total = 0;  // 0: the runs have no part in common but the whole
};

// Divides the tensor into the smallest parts that whole parts of A's ranks make up, and whole parts
// of B's, and compares each. A part differs if its distance exceeds the tolerance; if none does,
// those that come near the largest distance. Precondition: at least one part on each side. Cost:
// the product of the numbers of parts.
CommonParts CompareCommonParts(std::span<const Part> a, std::span<const Part> b,
                               std::optional<double> tolerance);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_COMMON_PARTS_H_
