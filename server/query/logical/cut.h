// Which part of a tensor a rank holds, whatever the tensor's size: the same for runs of other
// batches or widths.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_CUT_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_CUT_H_

#include <cstdint>
#include <vector>

#include "common/records.h"

namespace statcollect::query {

// Its dimensions; for each dimension that is not whole, its number, which part and of how many.
using Cut = std::vector<std::int64_t>;

// Of a tensor that is whole, with or without a placement: empty.
Cut CutOf(const Layout& layout);

// A number for rank and cut. The prints of all ranks add up to the print of the tensor.
std::uint64_t PrintOf(std::uint32_t rank, const Layout& layout);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_CUT_H_
