// Which tensors the ring keeps, of how many steps and in how much memory: STATAGENT_RING
// (docs/capture.md).
#ifndef STATCOLLECT_AGENT_STAGING_RING_SPEC_H_
#define STATCOLLECT_AGENT_STAGING_RING_SPEC_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "agent/staging/exponent_spec.h"
#include "common/records.h"
#include "common/status.h"

namespace statcollect {

inline constexpr std::uint64_t kRingStepsMax = 1000;
inline constexpr std::uint64_t kRingBytesMin = std::uint64_t{1} << 20;
// What is written at once waits in the capture queue.
inline constexpr std::uint64_t kRingBytesMax = std::uint64_t{128} << 20;

struct RingSpec {
  std::uint64_t steps = 0;  // that are kept; 0: no ring
  std::uint64_t bytes = 0;  // of values
  // Patterns with kinds and steps, as of exponents. Empty: outputs and gradients of weights.
  std::vector<ExponentSpec> tensors;

  bool on() const { return steps > 0; }
  // Only tensors of training.
  bool Matches(const TensorKey& key, std::uint64_t step) const;
  // "3,64MiB" or "3,64MiB;*.ln2:kind=output;fc*:kind=weight_grad". Empty: no ring. kInvalidArgument
  // says what was found and expected.
  static Result<RingSpec> Parse(std::string_view text);
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_RING_SPEC_H_
