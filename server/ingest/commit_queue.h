// Group commit of one part of the store: one thread takes everything that the streams have queued,
// writes it in one Store::Append and notifies each stream. The slower the disk, the larger the
// groups.
//
// Invariants:
// (1) An item's `done` is called exactly once, with OK only after its Append has returned OK.
// (2) Items of a lane are written in the order of Submit, and none after one that failed.
// (3) Bytes queued and being written stay at or below `queue_bytes_max`, unless one item is larger.
// (4) After a failed Append every lane of its group has failed, and nothing is written until the
//     store has recovered.
//
// Threads: any may call. `done` and `accepted` are called without locks held, by the queue's thread
// or, if an item is refused at once, by the caller of Submit.
#ifndef STATCOLLECT_SERVER_INGEST_COMMIT_QUEUE_H_
#define STATCOLLECT_SERVER_INGEST_COMMIT_QUEUE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/store/record_writer.h"

namespace statcollect {

struct CommitterOptions {
  std::size_t queue_bytes_max = std::size_t{128} << 20;         // of CommitItem::bytes
  std::uint64_t disk_free_bytes_min = std::uint64_t{64} << 20;  // below: no records are accepted
};

// The order and fate of one stream's items. Guarded by the mutex of its queue, but for `part`,
// which stays.
struct CommitLane {
  std::size_t part = 0;    // of the store, whose queue takes the items
  Status failure;          // once set, no item of the lane is written
  bool appending = false;  // the group being written holds an item of the lane
};

struct CommitItem {
  std::shared_ptr<CommitLane> lane;
  AttemptId attempt = 0;
  std::uint32_t rank = 0;
  std::unique_ptr<PreparedBatch> prepared;  // null: only `meta` is written
  RankMeta meta;
  std::size_t bytes = 0;      // in memory
  std::uint64_t records = 0;  // of `prepared`
  std::function<void(const Status&)> done;
  std::chrono::steady_clock::time_point since;  // set by Submit
};

// Records received and not yet durable.
struct CommitBacklog {
  std::uint64_t records = 0, bytes = 0;
  std::chrono::milliseconds oldest{0};
};

class CommitQueue {
 public:
  CommitQueue(RecordWriter& store, const Clock& clock, const CommitterOptions& options);
  ~CommitQueue();  // calls Drain
  CommitQueue(const CommitQueue&) = delete;
  CommitQueue& operator=(const CommitQueue&) = delete;

  // Takes the item. True: the queue had room. False: the item waits for room, first come first
  // served, and `accepted` is called when it is queued; until then a stream must not submit
  // anything else, which bounds memory and keeps streams fair. If the lane has failed, or the queue
  // is read-only or draining, the item is refused at once: returns false, calls `done`, and never
  // calls `accepted`.
  bool Submit(CommitItem item, std::function<void()> accepted);

  // After it returns, nothing of the lane is being or will be written; its queued items fail with
  // `why`.
  void Abandon(const std::shared_ptr<CommitLane>& lane, const Status& why);

  // OK while records are accepted, otherwise why not (kUnavailable, kResourceExhausted). Checks the
  // disk at most once a second; if there is space again, it lets the store recover, which may take
  // as long as a start.
  Status Admission();

  // The same as last seen, without asking the store.
  Status Refusal();

  // Refuses later items.
  void BeginDrain();
  // The same, writes what is queued, ends the thread. Idempotent.
  void Drain();

  CommitBacklog Backlog();

  std::uint64_t commits() const { return commits_.load(std::memory_order_relaxed); }

 private:
  struct Waiting {
    CommitItem item;
    std::function<void()> accepted;
  };
  using Group = std::vector<CommitItem>;
  using Callbacks = std::vector<std::function<void()>>;

  void Run();
  // Waits for work. An empty group means drained.
  Group TakeGroup();
  void CommitGroup(Group group);
  // Takes out the items that may be written and marks their lanes. The others fail; if `refusal` is
  // not OK, all do.
  Group TakeWritable(Group& group, const Status& refusal, Callbacks* callbacks);
  // After Append: fails the lanes on failure, frees the room and admits waiting items.
  void FinishGroup(Group& group, const Status& status, Callbacks* callbacks);
  Status RefusalLocked(const CommitLane& lane) const STATCOLLECT_REQUIRES(mutex_);
  bool HasRoomLocked(std::size_t bytes) const STATCOLLECT_REQUIRES(mutex_);
  void AdmitWaitingLocked(Callbacks* callbacks) STATCOLLECT_REQUIRES(mutex_);
  Status CheckDisk();

  RecordWriter& store_;
  const Clock& clock_;
  const CommitterOptions options_;

  Mutex mutex_;
  ConditionVariable work_, append_done_;
  std::deque<CommitItem> queue_ STATCOLLECT_GUARDED_BY(mutex_);
  std::deque<Waiting> waiting_ STATCOLLECT_GUARDED_BY(mutex_);
  std::size_t bytes_ STATCOLLECT_GUARDED_BY(mutex_) = 0;  // queued and being written
  Status read_only_
      STATCOLLECT_GUARDED_BY(mutex_);  // set by a failed Append, until the store has recovered
  // The group being written.
  std::uint64_t group_records_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::optional<std::chrono::steady_clock::time_point> group_since_ STATCOLLECT_GUARDED_BY(mutex_);
  bool draining_ STATCOLLECT_GUARDED_BY(mutex_) = false;

  Mutex disk_mutex_;  // may be held over Store::Usage; never together with mutex_
  std::optional<std::chrono::steady_clock::time_point> disk_checked_
      STATCOLLECT_GUARDED_BY(disk_mutex_);
  Status disk_ STATCOLLECT_GUARDED_BY(disk_mutex_);

  std::atomic<std::uint64_t> commits_{0};
  Mutex join_mutex_;
  std::thread thread_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_COMMIT_QUEUE_H_
