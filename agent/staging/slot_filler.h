// Fills slots some time after they were reserved: statistics that a GPU computes, and those that it computes
// unasked, when CUDA graphs are replayed. The batcher asks it what is there.
#ifndef STATCOLLECT_AGENT_STAGING_SLOT_FILLER_H_
#define STATCOLLECT_AGENT_STAGING_SLOT_FILLER_H_

#include <cstddef>

#include "agent/staging/staging_ring.h"

namespace statcollect {

class SlotFiller {
 public:
  virtual ~SlotFiller() = default;
  // Commits the slots whose contents are there, or gives them up. Returns how many are still to come. Never
  // waits. Called by the batcher's thread only.
  virtual std::size_t Poll() noexcept = 0;

  // The oldest record of replays that has its place at the gate; null if there is none left. Holds until
  // PopReplayed.
  virtual const ObservedTensor* FrontReplayed(const ReplayGate& gate) noexcept = 0;
  virtual void PopReplayed() noexcept = 0;  // what FrontReplayed returned
  // Everything behind the gate follows now.
  virtual void PassGate(const ReplayGate& gate) noexcept = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_SLOT_FILLER_H_
