// Fills slots some time after they were reserved: statistics that a GPU computes. The batcher asks it what is
// there.
#ifndef STATCOLLECT_AGENT_STAGING_SLOT_FILLER_H_
#define STATCOLLECT_AGENT_STAGING_SLOT_FILLER_H_

#include <cstddef>

namespace statcollect {

class SlotFiller {
 public:
  virtual ~SlotFiller() = default;
  // Commits the slots whose contents are there, or gives them up. Returns how many are still to come. Never
  // waits. Called by the batcher's thread only.
  virtual std::size_t Poll() noexcept = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_SLOT_FILLER_H_
