#include "server/query/pairs/tensor_pair.h"

#include <limits>

#include "server/query/compare/distance.h"

namespace statcollect::query {

double DistanceBetween(const Observation& a, const Observation& b) {
  const Comparison comparison = Compare(a, b, std::nullopt, /*exact=*/false, /*interval=*/false);
  if (comparison.agreement == Agreement::kIdentical ||
      comparison.agreement == Agreement::kIncomparable)
    return 0;
  return comparison.distance ? comparison.distance->value : std::numeric_limits<double>::infinity();
}

bool HaveSameBits(const Observation& a, const Observation& b) {
  return a.layout->dtype == b.layout->dtype && a.layout->shape == b.layout->shape &&
         a.layout->hash_kind == b.layout->hash_kind && a.layout->Trusts(Statistic::kHash) &&
         b.layout->Trusts(Statistic::kHash) && a.stats->hash == b.stats->hash;
}

}  // namespace statcollect::query
