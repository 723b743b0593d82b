// Where a rank's part lies in a larger tensor, in words.
#ifndef STATCOLLECT_SERVER_QUERY_PLACE_TEXT_H_
#define STATCOLLECT_SERVER_QUERY_PLACE_TEXT_H_

#include <string>

#include "common/records.h"

namespace statcollect::query {

// "[0:4, 0:10] of (8, 10)", "elements 0:12 of (8, 10)"; the first four boxes or ranges. Empty if it
// is the whole, also of this rank's part of the batch: the rank says which part that is.
std::string PlaceText(const Placement& place);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_PLACE_TEXT_H_
