// Fixed set of slots handed from recording threads to the batcher, in the order of reservation.
// Slot: free -> reserved -> ready or given up -> free.
// Invariants: (1) A reserved slot has one writer; a ready slot is read by the batcher only. (2)
// Tickets have no gaps; the slot of ticket t is t modulo capacity. (3) head() <= tail() <= head() +
// capacity(). Threads: any may call TryReserve and Commit; only the batcher calls Front and
// Release; the closing thread calls Abandon once.
#ifndef STATCOLLECT_AGENT_STAGING_STAGING_RING_H_
#define STATCOLLECT_AGENT_STAGING_STAGING_RING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/records.h"

namespace statcollect {

// Components by binary exponent, from kExponentLowest on.
using ExponentCounts = std::array<std::uint64_t, kExponentsMax>;

// One observed tensor on its way to the batcher.
struct ObservedTensor {
  std::uint32_t activation = 0;  // TensorDef::id
  std::uint32_t layout = 0;      // Layout::id
  std::uint64_t step = 0;
  std::uint32_t order = 0;
  std::uint32_t sample_count = 0;  // how many of `samples` are valid
  TensorStats stats;
  std::span<double> sketch;
  std::span<double> samples;
};

// Keeps the place in the order for what replays of CUDA graphs recorded in steps up to `step`,
// which becomes known only after later records have been given slots. Past the gate, results of
// steps before `next` are too late.
struct ReplayGate {
  std::uint64_t step = 0, next = 0;
};

struct Slot : ObservedTensor {     // sketch and samples point into memory of the ring
  std::optional<ReplayGate> gate;  // if set, the slot has no tensor
  // If not null, the filler counts the exponents, too. Moved out when the slot is committed.
  std::unique_ptr<ExponentCounts> exponents;

 private:
  friend class StagingRing;
  enum State : std::uint8_t { kFree, kReserved, kReady, kGivenUp, kAbandoned };
  std::atomic<State> state{kFree};
};

class StagingRing {
 public:
  // Allocates everything it will ever need: about slots * (200 + 8 * (sketch + samples)) bytes.
  // slots >= 1.
  StagingRing(std::size_t slots, std::uint32_t sketch, std::uint32_t samples);

  // nullptr if no slot is free. Never blocks, allocates or throws. The caller fills the slot and
  // commits it.
  Slot* TryReserve() noexcept;
  // Hands the slot over. False if it was abandoned meanwhile; the caller then counts the loss.
  bool Commit(Slot* slot) noexcept;
  // The slot has nothing to hand over; the batcher will skip it. The caller counts the loss, even
  // after Abandon.
  void GiveUp(Slot* slot) noexcept;

  // The oldest slot if it is ready, else nullptr. Frees those given up before it.
  Slot* Front() noexcept;
  // Frees the slot that Front returned.
  void Release() noexcept;
  // Gives up every slot not yet released and returns how many of them held ready tensors.
  // Committing a reserved slot then fails, and nothing can be reserved. Precondition: the batcher
  // has stopped.
  std::uint64_t Abandon() noexcept;

  std::uint64_t head() const noexcept { return head_.load(); }  // tickets released
  std::uint64_t tail() const noexcept { return tail_.load(); }  // tickets reserved
  std::size_t capacity() const noexcept { return capacity_; }

 private:
  Slot& At(std::uint64_t ticket) noexcept { return slots_[ticket % capacity_]; }

  const std::size_t capacity_;
  std::vector<double> values_;  // sketches and samples of all slots
  std::unique_ptr<Slot[]> slots_;
  // Sequentially consistent: a writer that sees an empty ring wakes the batcher, the batcher sleeps
  // only on an empty ring.
  std::atomic<std::uint64_t> head_{0}, tail_{0};
  std::atomic<bool> abandoned_{false};
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_STAGING_RING_H_
