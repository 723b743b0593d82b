// The queue of committed batches for the rules.
#ifndef STATCOLLECT_SERVER_ALARMS_BATCH_QUEUE_H_
#define STATCOLLECT_SERVER_ALARMS_BATCH_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <memory>

#include "common/thread_annotations.h"
#include "server/store/committed_batch.h"

namespace statcollect::alarms {

// Bounded: if a batch would exceed `bytes_max`, its statistics are left out and counted; Push never
// waits.
//
// Threads: any may call Push and Wake; the rest is called by the one thread that empties the queue.
// There is no lock, so that the committer never waits for a low-priority thread to run.
class BatchQueue {
 public:
  struct Item {
    CommittedBatch batch;
    std::size_t bytes = 0;
    bool gap = false;  // its statistics were left out
    std::unique_ptr<Item> next;
  };

  // `with_stats`: false drops all statistics.
  BatchQueue(std::size_t bytes_max, bool with_stats)
      : bytes_max_(bytes_max), with_stats_(with_stats) {}
  ~BatchQueue();
  BatchQueue(const BatchQueue&) = delete;
  BatchQueue& operator=(const BatchQueue&) = delete;

  // Returns how many records of statistics were left out. Never blocks longer than an allocation;
  // throws if that fails.
  std::size_t Push(CommittedBatch batch);
  void Wake() { work_.notify_one(); }

  // Waits until there is an item, or Wake was called while `stopping` is set. A missed wake-up only
  // delays it a little.
  void Wait(const std::atomic<bool>& stopping);
  // Takes all items, oldest first; null if there are none. The caller calls Done for each of them.
  std::unique_ptr<Item> TakeAll();
  void Done(const Item& item);
  // Thread-safe.
  bool idle() const { return items_ == 0; }

 private:
  const std::size_t bytes_max_;
  const bool with_stats_;
  std::atomic<Item*> newest_{nullptr};            // owned; `next` is the one before
  std::atomic<std::size_t> bytes_{0}, items_{0};  // until they are done
  ConditionVariable work_;                        // signalled without a lock
};

}  // namespace statcollect::alarms

#endif  // STATCOLLECT_SERVER_ALARMS_BATCH_QUEUE_H_
