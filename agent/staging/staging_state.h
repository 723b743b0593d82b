// What everything that records shares: the current step, the identities, the queues to the batcher, and the
// mutex that orders what goes into them. Owned by the Recorder; used by it and its parts only.
//
// Invariants: (1) Steps never decrease. (2) Everything handed over is in the ledger, whether it was kept or
// lost. Threads: any. Functions named Locked and the members below the mutex need the mutex; it is held for a
// few hundred nanoseconds a call, never while computing, waiting or talking to anybody.
#ifndef STATCOLLECT_AGENT_STAGING_STAGING_STATE_H_
#define STATCOLLECT_AGENT_STAGING_STAGING_STATE_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "agent/staging/ledger.h"
#include "agent/staging/registry.h"
#include "agent/staging/side_queue.h"
#include "agent/staging/staging_ring.h"
#include "agent/staging/waker.h"
#include "common/clock.h"

namespace statcollect {

struct StagingState {
  StagingState(std::size_t slots, std::uint32_t sketch, std::uint32_t samples, const Clock* the_clock,
               Ledger* the_ledger, Waker* the_batcher)
      : clock(the_clock),
        ledger(the_ledger),
        batcher(the_batcher),
        ring(slots, sketch, samples),
        registry(&definitions) {}

  // Takes the record, or counts it as lost. Returns whether the batcher must be woken, without the mutex.
  bool PushLocked(SideRecord record);
  // The same for a record that the ledger has already. It is taken even if records are refused by now.
  bool PushProducedLocked(SideRecord record);
  // A slot to be committed, or nullptr. The caller counts the loss.
  Slot* TryReserveLocked() { return refused.empty() ? ring.TryReserve() : nullptr; }
  // A record of the current step has this micro-batch.
  void NoteMicroBatchLocked(std::uint32_t micro_batch);

  const Clock* const clock;
  Ledger* const ledger;
  Waker* const batcher;
  Definitions definitions;
  StagingRing ring;
  SideQueue side;

  mutable std::mutex mutex;
  Registry registry;
  std::uint64_t step = 0;
  std::uint32_t order = 0;          // of the next tensor in this step
  std::uint32_t micro_batches = 0;  // seen in this step
  std::string refused;              // why records are dropped, if not empty
  bool ended = false;               // the batcher has stopped: nothing in the queues will be taken out
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_STAGING_STATE_H_
