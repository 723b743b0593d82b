// Gives back the space of attempts that were removed.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_RECLAIM_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_RECLAIM_H_

#include <atomic>
#include <cstddef>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "server/store/rocksdb/recovery.h"
#include "server/store/store.h"

namespace statcollect {

// Only about space and speed: ids of removed attempts are never asked for again.
//
// Threads: StartAfter, Pause and Resume are called with the store's catalogue mutex held. The merges run in a
// thread of its own, which ends when there is nothing left to do and uses no lock but that of Pin.
class Reclaimer {
 public:
  // Borrows the database. `directory`: the store's, whose free space counts.
  Reclaimer(RecoverableDatabase& database, std::string directory)
      : database_(database), directory_(std::move(directory)) {}
  ~Reclaimer();  // cuts a merge under way short
  Reclaimer(const Reclaimer&) = delete;
  Reclaimer& operator=(const Reclaimer&) = delete;

  // These attempts have been removed: gives back whole files at once, and starts the merges.
  void StartAfter(std::span<const AttemptId> removed);
  // Waits until the merges have ended. One under way is waited for: cancelled in the middle, it could meet
  // the same assertions of RocksDB as one that fails.
  void Pause();
  // Starts again what Pause ended.
  void Resume();

 private:
  void Start();
  void MergeFiles();
  void MergeCatalogue();
  bool MayFlush() const;

  RecoverableDatabase& database_;
  const std::string directory_;
  std::atomic<std::size_t> removed_{0};  // attempts since the catalogue was merged
  std::atomic<bool> running_{false};
  std::atomic<bool> wanted_{false};
  std::thread thread_;  // guarded by the store's catalogue mutex
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_RECLAIM_H_
