// By how much a difference of noise's own size may exceed it.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_NOISE_THRESHOLD_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_NOISE_THRESHOLD_H_

#include <cstddef>

namespace statcollect::query {

// The ratio of two norms that are estimated from sums of squares, at the chance of
// measured::kChance: the root of the quantile of F with as many degrees of freedom as independent
// sums. `sums`: independent ones of a difference, 1 to 16; `twins`: at least 1, whose squares were
// averaged; `trimmed`: the difference was. Thread-safe; computes each value once.
double NoiseThreshold(std::size_t sums, std::size_t twins, bool trimmed);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_NOISE_THRESHOLD_H_
