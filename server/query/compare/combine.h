// Combines several tensors into one: a fused module against its parts.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_COMBINE_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_COMBINE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/records.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// Combined statistics of the parts' elements. No hash and no sketch, because both depend on the
// position of an element.
struct Combined {
  const TensorDef* def = nullptr;  // the first part's
  Layout layout;                   // one dimension of all elements
  TensorStats stats;
  std::vector<double> sketch;  // empty, unless the elements' places are known (fused_pair.h)
  // Points into this object.
  Observation observation(std::uint32_t order) const {
    return {.def = def, .layout = &layout, .stats = &stats, .sketch = sketch, .order = order};
  }
};

// Means and deviations are combined as in Chan, Golub and LeVeque (1979). A statistic that one part
// lacks is absent. Precondition: at least one part.
Combined Combine(std::span<const Observation> parts);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_COMBINE_H_
