// The order of a step's tensors if ranks record different ones, as with an expert on each.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_COMMON_ORDER_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_COMMON_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace statcollect::query {

// One record of a rank.
struct Ordered {
  std::uint32_t rank = 0;
  std::uint32_t order = 0;   // in the rank's step
  std::uint32_t tensor = 0;  // from 0
};

// By tensor, a number that grows with its place: behind the same tensor of all ranks that it is
// behind on its own rank, and before the same one. Of several records of a tensor, the first
// counts. Cost: n log n of the records.
std::vector<std::uint64_t> CommonOrder(std::span<const Ordered> records, std::size_t tensors);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_COMMON_ORDER_H_
