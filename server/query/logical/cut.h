// Which part of a tensor a rank holds, independent of the tensor's size: the same in runs with
// other batches or widths.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_CUT_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_CUT_H_

#include <cstdint>
#include <vector>

#include "common/records.h"

namespace statcollect::query {

// The number of dimensions; then, for each dimension that is cut, which one it is, which part, and
// of how many.
using Cut = std::vector<std::int64_t>;

// Empty for a tensor that is whole, with or without a placement.
Cut CutOf(const Layout& layout);

// A number for rank and cut. The prints of all ranks add up to the print of the tensor.
std::uint64_t PrintOf(std::uint32_t rank, const Layout& layout);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_CUT_H_
