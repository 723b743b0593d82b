// One tensor of a step, in both runs.
#ifndef STATCOLLECT_SERVER_QUERY_PAIRS_TENSOR_PAIR_H_
#define STATCOLLECT_SERVER_QUERY_PAIRS_TENSOR_PAIR_H_

#include <string>

#include "server/query/run_view.h"

namespace statcollect::query {

// A tensor that both runs have, or a loss (then `a` and `b` are not set). Borrows
// everything.
struct TensorPair {
  Observation a, b;
  double distance = 0;  // relative L2; 0: equal bits; infinite: no finite measure
  const std::string* loss = nullptr;
  double loss_a = 0, loss_b = 0;
  std::uint32_t loss_micro_batch = 0;
};

// A parameter's value, not a loss.
inline bool IsWeight(const TensorPair& pair) {
  return pair.loss == nullptr && pair.a.def->key.kind == Kind::kWeight;
}

// The distance of two records: 0 for equal bits or without a statistic in common, infinite if there
// is no finite measure (another shape or dtype, NaN).
double DistanceBetween(const Observation& a, const Observation& b);

// Whether both have a content hash of the same definition, dtype and shape, and it is equal.
bool HaveSameBits(const Observation& a, const Observation& b);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_PAIRS_TENSOR_PAIR_H_
