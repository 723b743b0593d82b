// What a range of components comes to, in the CUDA engine: everything but the sketch, whose sums lie beside
// it.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_TOTALS_H_
#define STATCOLLECT_AGENT_STATS_CUDA_TOTALS_H_

#include <cstdint>

#include "agent/stats/accumulate.h"

namespace statcollect::stats::cuda {

// `moments.squares` is left 0: it follows from mean and deviations (Squares), so no element pays for it.
struct Totals {
  std::uint64_t components = 0;
  std::uint64_t nan = 0, pos_inf = 0, neg_inf = 0, zero = 0, neg = 0;
  std::uint64_t hash = 0;
  double min = 0, max = 0;  // finite components; meaningless if moments.count == 0
  Moments moments;
};

// Appends what comes after `a` in index order. An empty Totals changes nothing, on either side.
STATCOLLECT_HD void Append(Totals& a, const Totals& b) {
  a.components += b.components;
  a.nan += b.nan;
  a.pos_inf += b.pos_inf;
  a.neg_inf += b.neg_inf;
  a.zero += b.zero;
  a.neg += b.neg;
  a.hash += b.hash;
  if (b.moments.count == 0) return;
  a.min = a.moments.count == 0 || b.min < a.min ? b.min : a.min;
  a.max = a.moments.count == 0 || b.max > a.max ? b.max : a.max;
  Append(a.moments, b.moments);
}

// Sum of the squares: deviations from the mean, and the mean. Both terms are positive: nothing cancels.
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
