// Binary exponents of a tensor on the CPU. On a GPU a kernel counts them
// (cuda/kernels_exponents.cu).
#ifndef STATCOLLECT_AGENT_STATS_EXPONENTS_H_
#define STATCOLLECT_AGENT_STATS_EXPONENTS_H_

#include <cstdint>
#include <span>

#include "agent/stats/stats.h"

namespace statcollect::stats {

// Counts the binary exponents floor(log2(|x|)) of the finite nonzero components: counts[e - lowest]
// is the count of exponent e; the first and the last count include everything beyond them.
// Exponents of float64 range from -1074 to 1023. A separate pass, at about 2 ns per component.
// Precondition: Validate(tensor) is OK.
void CountExponents(const CpuTensor& tensor, int lowest, std::span<std::uint64_t> counts) noexcept;

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_EXPONENTS_H_
