// Components as float64, one at a time; internal to agent/stats, for what does not need the
// kernels' speed.
#ifndef STATCOLLECT_AGENT_STATS_COMPONENT_VALUES_H_
#define STATCOLLECT_AGENT_STATS_COMPONENT_VALUES_H_

#include <cstddef>

#include "common/types.h"

namespace statcollect::stats {

// `count` components (complex numbers are two) at `from`, any alignment. Subnormals are kept only
// in the default floating-point environment.
void ComponentsToDoubles(DType dtype, const unsigned char* from, std::size_t count,
                         double* to) noexcept;

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_COMPONENT_VALUES_H_
