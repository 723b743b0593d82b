#include "agent/staging/staging_state.h"

#include <algorithm>
#include <new>
#include <utility>

#include "common/saturating.h"

namespace statcollect {

bool StagingState::PushLocked(SideRecord record, std::uint64_t* awaited) {
  if (!refused.empty()) {
    ledger->ProduceDropped(refused);
    return false;
  }
  ledger->Produce();  // first: the batcher may take and settle it before this returns
  return PushProducedLocked(std::move(record), awaited);
}

bool StagingState::PushProducedLocked(SideRecord record, std::uint64_t* awaited) {
  if (ended) {
    ledger->Drop(kDropClosed);
    return false;
  }
  bool was_empty = false;
  bool pushed = false;
  try {
    pushed = side.TryPush(std::move(record), ring.tail(), &was_empty, awaited);
  } catch (const std::bad_alloc&) {
    // As if the queue were full.
  }
  if (!pushed) ledger->Drop(kDropBufferFull);
  return was_empty;
}

void StagingState::NoteMicroBatchLocked(std::uint32_t micro_batch) {
  micro_batches = std::max(micro_batches, SaturatingAdd(micro_batch, 1));
}

}  // namespace statcollect
