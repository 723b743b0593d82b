// Writes records: the committer's batches, the ranks' states, the collector's own events.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_APPEND_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_APPEND_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include <rocksdb/write_batch.h>

#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/store/record_writer.h"
#include "server/store/rocksdb/aliases.h"
#include "server/store/rocksdb/recovery.h"

namespace statcollect {

// The methods are those of Store, with the same contracts.
//
// Threads: any. Only one committer at a time calls Append; callers of PutEvents hold the store's
// catalogue mutex, so that the attempt stays.
class Appender {
 public:
  // Borrows the database, the aliases and the attempts. `fsync`: appends are synced.
  Appender(RecoverableDatabase& database, Aliases& aliases, LiveAttempts& live, bool fsync)
      : database_(database), aliases_(aliases), live_(live), fsync_(fsync) {}

  std::unique_ptr<StreamWriter> NewWriter(AttemptId attempt, std::uint32_t rank);
  Status Append(std::span<const AppendItem> items);
  Status PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta);
  Status PutEvents(AttemptId attempt, std::span<const CollectorEvent> events);

  // The database has been opened again: nothing noted before is known to be written.
  void Forget();

 private:
  // In a batch that is not written yet.
  struct Added {
    Aliases::Pairs pairs;
    std::set<std::pair<AttemptId, std::uint32_t>> with_info;
  };

  Status AddItem(const Database& database, rocksdb::WriteBatch& batch, const AppendItem& item,
                 Added* added);
  Status AddInfo(const Database& database, rocksdb::WriteBatch& batch, const AppendItem& item,
                 Added* added);

  RecoverableDatabase& database_;
  Aliases& aliases_;
  LiveAttempts& live_;
  const bool fsync_;
  std::atomic<std::size_t> key_frame_bytes_{0};  // shared by the streams' encoders
  Mutex with_info_mutex_;
  // Ranks whose hello is known to be stored.
  std::set<std::pair<AttemptId, std::uint32_t>> with_info_ STATCOLLECT_GUARDED_BY(with_info_mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_APPEND_H_
