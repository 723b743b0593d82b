// Writes what agents send, and what the collector adds to it.
//
// Who: ingest. NewWriter and PutRank from any thread; Append and Recover from one thread, the
// committer, of which each part of a store has its own; PutEvents also from the alarms' thread.
// What has returned is as durable as the store was opened for (fsync()); NewWriter writes nothing.
#ifndef STATCOLLECT_SERVER_STORE_RECORD_WRITER_H_
#define STATCOLLECT_SERVER_STORE_RECORD_WRITER_H_

#include <cstdint>
#include <memory>
#include <span>

#include "common/records.h"
#include "common/status.h"
#include "server/store/attempt.h"

namespace statcollect {

// A batch in its stored form.
class PreparedBatch {
 public:
  virtual ~PreparedBatch() = default;
};

// Prepares the batches of one stream, in order: the CPU-bound part of storing, which several
// streams do in parallel. Not thread-safe. Prepared batches must be appended in order, and none
// after one that could not be appended, because later ones may refer to it.
class StreamWriter {
 public:
  virtual ~StreamWriter() = default;
  virtual std::unique_ptr<PreparedBatch> Prepare(const RecordBatch& batch) = 0;
};

// A batch to store, validated and trimmed to what is new. `meta` is the rank's state after it. Only
// PutRank changes a stored `meta->info`; Append stores it if the rank has none.
struct AppendItem {
  AttemptId attempt = 0;
  std::uint32_t rank = 0;
  const RankMeta* meta = nullptr;
  const PreparedBatch* prepared = nullptr;  // null: no records, only the state
};

// An event that the collector itself adds to a rank. `number` (below 2^63) is chosen by the
// collector: an event with the same number in the same step is replaced.
struct CollectorEvent {
  std::uint32_t rank = 0;
  std::uint64_t number = 0;
  EventRecord event;
};

struct StoreUsage {
  std::uint64_t disk_bytes = 0;           // of the store's files
  std::uint64_t disk_free_bytes = 0;      // of its file system
  std::uint64_t disk_capacity_bytes = 0;  // of its file system
  bool disk_known = true;                 // false: free space and capacity are not
  std::uint64_t unflushed_bytes = 0;      // in memory and in the log, not yet written to tables
  std::uint64_t retired_attempts = 0;     // whose data is still to be deleted
};

class RecordWriter {
 public:
  virtual ~RecordWriter() = default;

  // For the batches of one stream. Must not outlive the store.
  virtual std::unique_ptr<StreamWriter> NewWriter(AttemptId attempt, std::uint32_t rank) = 0;
  // One atomic write of all items (of each item, where several collectors share the store):
  // definitions, records and rank metas; synced if the store was opened with fsync durability.
  // kAborted is transient, and some items may have been written: claim a rank before writing it
  // again. After a failed write, every later one fails, too, until Recover succeeds.
  virtual Status Append(std::span<const AppendItem> items) = 0;
  // Adds events of the collector, durable when it returns. Events returns them with the agents',
  // with `from_collector` set; they are removed with the attempt and not counted in tallies.
  // kNotFound: no such attempt.
  virtual Status PutEvents(AttemptId attempt, std::span<const CollectorEvent> events) = 0;
  // Durable when it returns.
  virtual Status PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta) = 0;
  // OK: writes are accepted. After a write that failed for lack of space or descriptors
  // (kResourceExhausted), reopens the store, which takes as long as a start and blocks readers.
  // Call it when there is space again, and repeat while it returns kResourceExhausted: it waits for
  // running scans, but never for the store's own background work. After OK, ranks and records are
  // durable as read; the failed write may be among them. Other failures are permanent.
  virtual Status Recover() = 0;
  virtual Result<StoreUsage> Usage() = 0;

  // --- what an acknowledgement is worth, as a stream's welcome says
  virtual bool fsync() const = 0;  // whether Append syncs
  // Tells this store from others, and from itself before a checkpoint was restored. Unknown: it has
  // none.
  virtual StoreIdentity identity() const { return {}; }
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_RECORD_WRITER_H_
