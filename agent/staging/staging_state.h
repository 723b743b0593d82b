// State shared by everything that records: the current step, the identities, the queues to the
// batcher, and the mutex that orders what goes into them. Owned by the Recorder; used only by it
// and its parts.
//
// Invariants: (1) Steps never decrease. (2) Everything handed over is in the ledger, whether it was
// kept or lost. Threads: any. Functions named Locked and the members below the mutex need the
// mutex. It is held for a few hundred nanoseconds a call, never during computation, waiting or I/O.
#ifndef STATCOLLECT_AGENT_STAGING_STAGING_STATE_H_
#define STATCOLLECT_AGENT_STAGING_STAGING_STATE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "agent/staging/ledger.h"
#include "agent/staging/registry.h"
#include "agent/staging/side_queue.h"
#include "agent/staging/staging_ring.h"
#include "agent/staging/waker.h"
#include "common/clock.h"
#include "common/thread_annotations.h"

namespace statcollect {

struct StagingState {
  StagingState(std::size_t slots, std::uint32_t sketch, std::uint32_t samples,
               const Clock* the_clock, Ledger* the_ledger, Waker* the_batcher)
      : clock(the_clock),
        ledger(the_ledger),
        batcher(the_batcher),
        ring(slots, sketch, samples),
        registry(&definitions) {}

  // Queues the record, or counts it as lost. Returns whether the caller must wake the batcher after
  // unlocking. `awaited`: as SideQueue::TryPush; unchanged if the record is lost.
  bool PushLocked(SideRecord record, std::uint64_t* awaited = nullptr) STATCOLLECT_REQUIRES(mutex);
  // As above for a record that the ledger already counts. It is queued even if records are refused
  // by now.
  bool PushProducedLocked(SideRecord record, std::uint64_t* awaited = nullptr)
      STATCOLLECT_REQUIRES(mutex);
  // Reserves a slot. nullptr if none is free or records are refused; the caller then counts the
  // loss.
  Slot* TryReserveLocked() STATCOLLECT_REQUIRES(mutex) {
    return refused.empty() ? ring.TryReserve() : nullptr;
  }
  // A record of the current step has this micro-batch.
  void NoteMicroBatchLocked(std::uint32_t micro_batch) STATCOLLECT_REQUIRES(mutex);

  const Clock* const clock;
  Ledger* const ledger;
  Waker* const batcher;
  Definitions definitions;
  StagingRing ring;
  SideQueue side;

  mutable Mutex mutex;  // guards what follows
  Registry registry STATCOLLECT_GUARDED_BY(mutex);
  std::uint64_t step STATCOLLECT_GUARDED_BY(mutex) = 0;
  std::uint32_t order STATCOLLECT_GUARDED_BY(mutex) = 0;          // of the next tensor in this step
  std::uint32_t micro_batches STATCOLLECT_GUARDED_BY(mutex) = 0;  // seen in this step
  std::string refused STATCOLLECT_GUARDED_BY(mutex);  // why records are dropped, if not empty
  // The batcher has stopped: nothing in the queues will be taken out.
  bool ended STATCOLLECT_GUARDED_BY(mutex) = false;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_STAGING_STATE_H_
