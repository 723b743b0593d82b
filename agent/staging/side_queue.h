// Bounded queue of the small records (scalars, events, memory, densities, settings, exponents,
// tokens, step ends) beside the staging ring. An entry remembers how many tensors were reserved
// before it, so that the batcher can take both in the order in which they were handed over. An
// entry may be awaited: it stays, and all behind it, until a GPU has computed what it lacks.
// Threads: any may call TryPush and Remove; only the batcher calls the rest; the closing thread may
// call Clear.
#ifndef STATCOLLECT_AGENT_STAGING_SIDE_QUEUE_H_
#define STATCOLLECT_AGENT_STAGING_SIDE_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <variant>

#include "common/records.h"
#include "common/thread_annotations.h"

namespace statcollect {

using SideRecord = std::variant<ScalarRecord, EventRecord, MemoryRecord, DensityRecord,
                                SettingRecord, ExponentRecord, TokenRecord, StepRecord>;

// An upper bound of the record's size on the wire, in bytes.
std::size_t EncodedBytesMax(const SideRecord& record);

class SideQueue {
 public:
  static constexpr std::size_t kRecordsMax = 65536;
  static constexpr std::size_t kBytesMax = 16u << 20;

  struct Entry {
    SideRecord record;
    std::uint64_t after_ticket = 0;  // tensors reserved in the ring before this record
    std::size_t bytes = 0;           // EncodedBytesMax(record)
    bool awaited = false;
  };

  explicit SideQueue(std::size_t records_max = kRecordsMax, std::size_t bytes_max = kBytesMax)
      : records_max_(records_max), bytes_max_(bytes_max) {}

  // False if the queue is full; the record is then lost and the caller counts it. *was_empty:
  // whether the queue was empty before the call. *awaited, if not null, becomes the number under
  // which the record is awaited.
  bool TryPush(SideRecord record, std::uint64_t after_ticket, bool* was_empty,
               std::uint64_t* awaited = nullptr);
  // Calls complete(record) for an awaited record, which may go then, unless it was cleared. Its
  // size stays.
  template <typename Function>
  void Complete(std::uint64_t number, const Function& complete) {
    MutexLock lock(mutex_);
    const auto found = entries_.find(number);
    if (found == entries_.end()) return;
    complete(found->second.record);
    found->second.awaited = false;
  }
  // Takes an awaited record out; false if it was cleared before.
  bool Remove(std::uint64_t number);

  // Tensors reserved in the ring before the oldest entry; the largest number if the queue is empty.
  // Lock-free.
  std::uint64_t front_ticket() const { return front_ticket_.load(std::memory_order_acquire); }

  // Pops the oldest entry if (a) all tensors before it have left the ring, (b) it has at most
  // bytes_max bytes, (c) it is not the end of step `held_step` or of a later step and (d) it is not
  // awaited. *held_back: whether only (b), (c) or (d) failed.
  std::optional<Entry> PopIf(std::uint64_t ring_head, std::size_t bytes_max,
                             std::optional<std::uint64_t> held_step, bool* held_back);

  std::size_t size() const;
  bool HasStepEnd() const;  // whether a step end waits
  std::uint64_t Clear();    // forgets everything; returns the number of entries lost

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  void FrontChangedLocked() STATCOLLECT_REQUIRES(mutex_);
  Entry TakeLocked(std::map<std::uint64_t, Entry>::iterator at) STATCOLLECT_REQUIRES(mutex_);

  const std::size_t records_max_, bytes_max_;
  std::atomic<std::uint64_t> front_ticket_{kNone};
  mutable Mutex mutex_;
  std::uint64_t pushed_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, Entry> entries_ STATCOLLECT_GUARDED_BY(mutex_);  // by number
  std::size_t bytes_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::size_t step_ends_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_SIDE_QUEUE_H_
