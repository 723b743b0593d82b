// Which tensors the ring (tensor_ring.h) keeps of a step, and how much of each: what fits into the
// step's share of the memory, the same in every step.
//
// If a step is larger than its share, half of the share is for whole tensors, the smallest first,
// and the rest for the first bytes of all others, as many of each. What a step consists of is known
// once it is over: the first one takes its tensors as they come. A tensor that appears or grows
// changes the plan from the next step on.
//
// Not thread-safe.
#ifndef STATCOLLECT_AGENT_STAGING_RING_PLAN_H_
#define STATCOLLECT_AGENT_STAGING_RING_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace statcollect {

inline constexpr std::uint64_t kRingAlignment = 64;
// What a tensor of so many bytes takes in the ring.
constexpr std::uint64_t RingRoom(std::uint64_t bytes) {
  return (bytes == 0 ? 1 : (bytes + kRingAlignment - 1) / kRingAlignment) * kRingAlignment;
}

class RingPlan {
 public:
  // Of a step at most `share` bytes, in at most `tensors` tensors.
  RingPlan(std::uint64_t share, std::uint64_t tensors) : share_(share), tensors_max_(tensors) {}

  // How many of the tensor's `bytes` bytes are kept; absent: nothing.
  std::optional<std::uint64_t> Grant(std::uint32_t activation, std::uint64_t step,
                                     std::uint64_t bytes);

  struct Kept {
    std::uint64_t tensors = 0;  // of a step
    std::uint64_t whole = 0, in_part = 0;
    std::uint64_t bytes = 0, of_bytes = 0;
  };
  // Absent: no step has ended yet.
  std::optional<Kept> kept() const { return steps_ > 1 ? std::optional(kept_) : std::nullopt; }
  // Steps fill their share, so that the ring holds few beyond those it is meant for.
  bool crowded() const { return 2 * used_ > share_; }

 private:
  static constexpr std::uint64_t kPartBytesMin = 4096;

  struct Tensor {
    bool seen = false;
    std::uint64_t bytes = 0;  // the most so far
    std::optional<std::uint64_t> grant;
  };

  void Renew();
  void Give(Tensor& tensor, std::uint64_t bytes);

  const std::uint64_t share_, tensors_max_;
  std::vector<Tensor> tensors_;  // by activation
  Kept kept_;                    // by the last Renew
  std::uint64_t steps_ = 0, step_ = 0;
  bool changed_ = false;
  std::uint64_t used_ = 0, granted_ = 0;  // by the plan, and by new tensors of this step
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_RING_PLAN_H_
