// Frees the space of removed attempts.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_RECLAIM_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_RECLAIM_H_

#include <atomic>
#include <cstddef>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "server/store/attempt.h"
#include "server/store/rocksdb/recovery.h"

namespace statcollect {

// Affects only space and speed: ids of removed attempts are never read again.
//
// Threads: StartAfter, Pause and Resume are called with the store's purge mutex held. Merges run in
// a separate thread, which ends when nothing is left to do and takes no lock except that of Pin.
class Reclaimer {
 public:
  // Borrows the database. `directory`: the store's, for its free space.
  Reclaimer(RecoverableDatabase& database, std::string directory)
      : database_(database), directory_(std::move(directory)) {}
  ~Reclaimer();  // stops a running merge early
  Reclaimer(const Reclaimer&) = delete;
  Reclaimer& operator=(const Reclaimer&) = delete;

  // These attempts have been removed: frees whole files at once, and starts the merges.
  void StartAfter(std::span<const AttemptId> removed);
  // Waits until the merges have ended. A running one is not cancelled, because it could trigger the
  // same assertions in RocksDB as one that fails.
  void Pause();
  // Continues what Pause ended.
  void Resume();

 private:
  void Start();
  void MergeFiles();
  void MergeCatalogue();
  bool MayFlush() const;

  RecoverableDatabase& database_;
  const std::string directory_;
  std::atomic<std::size_t> removed_{0};  // attempts removed since the catalogue was merged
  std::atomic<bool> running_{false};
  std::atomic<bool> wanted_{false};
  std::thread thread_;  // guarded by the store's purge mutex
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_RECLAIM_H_
