#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_ROUNDOFF_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_ROUNDOFF_H_

#include "common/records.h"

namespace statcollect::query {

// Half of the distance between neighbouring values near 1; that of f32 for integers, which are computed with
// as if they were.
double UnitRoundoff(DType dtype);

// Floating-point numbers and pairs of them.
bool IsFloat(DType dtype);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_ROUNDOFF_H_
