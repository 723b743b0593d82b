// Sizes that several parts of the model need of a pair of tensors.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_PAIR_SIZE_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_PAIR_SIZE_H_

#include <algorithm>

#include "server/query/compare/roundoff.h"
#include "server/query/verdict/explain.h"

namespace statcollect::query {

inline double Norm(const TensorPair& pair) { return std::max(pair.a.stats->l2, pair.b.stats->l2); }
inline double Numel(const TensorPair& pair) {
  return std::max<double>(1, static_cast<double>(pair.a.stats->numel));
}
inline double Unit(const TensorPair& pair) {
  return std::max(UnitRoundoff(pair.a.layout->dtype), UnitRoundoff(pair.b.layout->dtype));
}
inline double Capped(double distance) { return std::min(distance, 1.0); }

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_PAIR_SIZE_H_
