#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_ROUNDOFF_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_ROUNDOFF_H_

#include "common/records.h"

namespace statcollect::query {

// Half of the distance between neighbouring values near 1. Integers count as f32, which they are
// converted to for computations.
double UnitRoundoff(DType dtype);

// Whether it is a floating-point or complex type.
bool IsFloat(DType dtype);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_ROUNDOFF_H_
