// What the CUDA engine adds to Totals, beside which the sketch's sums lie.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_TOTALS_H_
#define STATCOLLECT_AGENT_STATS_CUDA_TOTALS_H_

#include <cstdint>

#include "agent/stats/accumulate.h"

namespace statcollect::stats::cuda {

// Sum of the squares: deviations from the mean, and the mean. The kernels leave moments.squares 0,
// so that no element pays for it. Both terms are positive: nothing cancels.
STATCOLLECT_HD double Squares(const Moments& moments) {
  const double mean = moments.origin + moments.offset;
  return moments.squared_deviations + static_cast<double>(moments.count) * (mean * mean);
}

// What a sketch sum of level `from` is multiplied by to be of level `to`, to >= from.
STATCOLLECT_HD double RaisingFactor(int from, int to) {
  double factor = 1;
  for (; from < to; ++from) factor *= kLevelDown;
  return factor;
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_TOTALS_H_
