// How far a difference that is only noise may exceed the measured noise.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_NOISE_THRESHOLD_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_NOISE_THRESHOLD_H_

#include <cstddef>

namespace statcollect::query {

// The ratio of two norms, each estimated from sums of squares, that noise exceeds with a chance of
// measured::kChance: the root of F's quantile, with the independent sums as degrees of freedom.
// `sums`: independent ones of the difference, 1 to 16; `twins`: at least 1, whose squares were
// averaged; `trimmed`: whether the difference was. Thread-safe; computes each value once.
double NoiseThreshold(std::size_t sums, std::size_t twins, bool trimmed);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_NOISE_THRESHOLD_H_
