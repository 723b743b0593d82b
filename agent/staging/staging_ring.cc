#include "agent/staging/staging_ring.h"

#include <cassert>

namespace statcollect {

StagingRing::StagingRing(std::size_t slots, std::uint32_t sketch, std::uint32_t samples)
    : capacity_(slots),
      values_(slots * (sketch + samples)),
      slots_(std::make_unique<Slot[]>(slots)) {
  assert(slots > 0);
  for (std::size_t i = 0; i < slots; ++i) {
    const std::span<double> own =
        std::span(values_).subspan(i * (sketch + samples), sketch + samples);
    slots_[i].sketch = own.first(sketch);
    slots_[i].samples = own.subspan(sketch);
  }
}

Slot* StagingRing::TryReserve() noexcept {
  while (!abandoned_.load()) {
    const std::uint64_t head = head_.load();  // before the tail, so that head <= ticket
    std::uint64_t ticket = tail_.load();
    if (ticket - head >= capacity_) {
      if (head_.load() == head) return nullptr;
      continue;
    }
    if (!tail_.compare_exchange_weak(ticket, ticket + 1)) continue;
    Slot& slot = At(ticket);
    Slot::State expected = Slot::kFree;
    if (!slot.state.compare_exchange_strong(expected, Slot::kReserved)) return nullptr;
    slot.gate.reset();
    return &slot;
  }
  return nullptr;
}

bool StagingRing::Commit(Slot* slot) noexcept {
  Slot::State expected = Slot::kReserved;
  return slot->state.compare_exchange_strong(expected, Slot::kReady);
}

void StagingRing::GiveUp(Slot* slot) noexcept {
  Slot::State expected = Slot::kReserved;
  (void)slot->state.compare_exchange_strong(expected, Slot::kGivenUp);
}

Slot* StagingRing::Front() noexcept {
  while (true) {
    const std::uint64_t ticket = head_.load();
    if (ticket == tail_.load()) return nullptr;
    Slot& slot = At(ticket);
    const Slot::State state = slot.state.load();
    if (state != Slot::kGivenUp) return state == Slot::kReady ? &slot : nullptr;
    Release();
  }
}

void StagingRing::Release() noexcept {
  const std::uint64_t ticket = head_.load();
  At(ticket).state.store(Slot::kFree);
  head_.store(ticket + 1);
}

std::uint64_t StagingRing::Abandon() noexcept {
  abandoned_.store(true);
  std::uint64_t ready = 0;
  for (std::uint64_t ticket = head_.load(); ticket != tail_.load(); ++ticket) {
    Slot& slot = At(ticket);
    if (slot.state.exchange(Slot::kAbandoned) == Slot::kReady && !slot.gate) ++ready;
  }
  return ready;
}

}  // namespace statcollect
