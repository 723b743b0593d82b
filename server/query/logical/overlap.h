// Whether two parts of a logical tensor have elements in common.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_OVERLAP_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_OVERLAP_H_

#include "common/records.h"

namespace statcollect::query {

// A part without a placement is the whole. False for boxes against ranges of the flattened tensor,
// which are not compared. Cost: the product of their numbers of boxes or ranges.
bool Overlap(const Layout& a, const Layout& b);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_OVERLAP_H_
