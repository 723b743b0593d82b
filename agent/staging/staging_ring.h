// Fixed set of slots handed from recording threads to the batcher, in the order of reservation.
// Slot: free -> reserved -> ready or given up -> free.
// Invariants: (1) A reserved slot has one writer, a ready one only the batcher as reader. (2) Tickets are
// handed out without gaps; the slot of ticket t is t modulo capacity. (3) head() <= tail() <= head() +
// capacity(). Threads: TryReserve and Commit from any; Front and Release from the batcher only; Abandon once,
// by whoever closes.
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
  std::uint32_t sample_count = 0;  // of `samples`, how many hold
  TensorStats stats;
  std::span<double> sketch;
  std::span<double> samples;
};

// The place in the order of what replays of CUDA graphs record in steps up to `step`: it becomes known only
// after later records have got their slots. Afterwards what belongs to steps before `next` comes too late.
struct ReplayGate {
  std::uint64_t step = 0, next = 0;
};

struct Slot : ObservedTensor {     // sketch and samples: memory that the ring owns
  std::optional<ReplayGate> gate;  // then there is no tensor
  // Whoever fills the slot counts the exponents, too; null: nobody asked. Gone when the slot is handed over.
  std::unique_ptr<ExponentCounts> exponents;

 private:
  friend class StagingRing;
  enum State : std::uint8_t { kFree, kReserved, kReady, kGivenUp, kAbandoned };
  std::atomic<State> state{kFree};
};

class StagingRing {
 public:
  // Allocates everything it will ever need: about slots * (200 + 8 * (sketch + samples)) bytes. slots >= 1.
  StagingRing(std::size_t slots, std::uint32_t sketch, std::uint32_t samples);

  // nullptr if no slot is free. Never blocks, allocates or throws. The caller fills the slot and commits it.
  Slot* TryReserve() noexcept;
  // Hands the slot over. False: it was abandoned meanwhile, and whoever abandoned it did not count it.
  bool Commit(Slot* slot) noexcept;
  // The slot has nothing to hand over: the batcher will pass it by. Whoever calls counts the loss, here and
  // after abandoning.
  void GiveUp(Slot* slot) noexcept;

  // The oldest slot if it is ready, else nullptr. Frees those given up before it.
  Slot* Front() noexcept;
  // Frees the slot that Front returned.
  void Release() noexcept;
  // Gives up every slot not yet released: returns how many of them were ready tensors; those reserved fail to
  // commit.
  // Nothing can be reserved afterwards. Precondition: the batcher has stopped.
  std::uint64_t Abandon() noexcept;

  std::uint64_t head() const noexcept { return head_.load(); }  // tickets released
  std::uint64_t tail() const noexcept { return tail_.load(); }  // tickets reserved
  std::size_t capacity() const noexcept { return capacity_; }

 private:
  Slot& At(std::uint64_t ticket) noexcept { return slots_[ticket % capacity_]; }

  const std::size_t capacity_;
  std::vector<double> values_;  // sketches and samples of all slots
  std::unique_ptr<Slot[]> slots_;
  // Sequentially consistent: a writer that sees an empty ring wakes the batcher, the batcher sleeps only on
  // an empty ring.
  std::atomic<std::uint64_t> head_{0}, tail_{0};
  std::atomic<bool> abandoned_{false};
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_STAGING_RING_H_
