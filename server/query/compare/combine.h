// Several tensors taken as one: a fused module against the parts it was made from.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_COMBINE_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_COMBINE_H_

#include <cstdint>
#include <span>

#include "common/records.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// Statistics of the parts' elements together. No hash and no sketch: both depend on where an element lies.
struct Combined {
  const TensorDef* def = nullptr;  // the first part's
  Layout layout;                   // one dimension of all elements
  TensorStats stats;
  // Points into this.
  Observation observation(std::uint32_t order) const {
    return {.def = def, .layout = &layout, .stats = &stats, .sketch = {}, .order = order};
  }
};

// Means and deviations are combined as by Chan, Golub and LeVeque (1979). What one part does not tell, the
// whole does not. Precondition: at least one part.
Combined Combine(std::span<const Observation> parts);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_COMBINE_H_
