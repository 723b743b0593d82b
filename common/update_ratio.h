// Estimates how far an update moved a weight, ||W now - W before|| / ||W before||, from the
// sketches of two records.
#ifndef STATCOLLECT_COMMON_UPDATE_RATIO_H_
#define STATCOLLECT_COMMON_UPDATE_RATIO_H_

#include <optional>
#include <vector>

#include "common/records.h"

namespace statcollect {

struct UpdateRatio {
  double value = 0;
  double low = 0, high = 0;  // likely range of the true value, see docs/divergence.md
};

// One record of a weight.
struct WeightRecord {
  TensorStats stats;
  std::vector<double> sketch;
};

// Empty if the sketches differ in width, the sizes differ, or elements are not finite. 0 if the
// bits are equal. The estimate has a relative standard deviation of about sqrt(1/2k) (k = 16: 18
// %); below about 2e-7 it is rounding of the sketches.
std::optional<UpdateRatio> EstimateUpdateRatio(const WeightRecord& before,
                                               const WeightRecord& after);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_UPDATE_RATIO_H_
