// Fills slots some time after they were reserved: with statistics that a GPU computes, and with
// those that replayed CUDA graphs produce without a call of the host. The batcher polls it.
#ifndef STATCOLLECT_AGENT_STAGING_SLOT_FILLER_H_
#define STATCOLLECT_AGENT_STAGING_SLOT_FILLER_H_

#include <cstddef>

#include "agent/staging/staging_ring.h"

namespace statcollect {

class SlotFiller {
 public:
  virtual ~SlotFiller() = default;
  // Commits or gives up the slots whose results have arrived. Returns how many are outstanding.
  // Never waits. Called by the batcher's thread only.
  virtual std::size_t Poll() noexcept = 0;

  // The oldest replay record that belongs at the gate; null if none is left. Valid until
  // PopReplayed.
  virtual const ObservedTensor* FrontReplayed(const ReplayGate& gate) noexcept = 0;
  virtual void PopReplayed() noexcept = 0;  // removes what FrontReplayed returned
  // The batcher has taken all records of the gate and goes on to what comes after it.
  virtual void PassGate(const ReplayGate& gate) noexcept = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_SLOT_FILLER_H_
