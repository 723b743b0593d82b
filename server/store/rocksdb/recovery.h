// The store's RocksDB: opened, written to, and opened again when a full disk has space.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_RECOVERY_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_RECOVERY_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <rocksdb/write_batch.h>

#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/store/live_attempts.h"
#include "server/store/rocksdb/database.h"
#include "server/store/rocksdb/database_opener.h"
#include "server/store/rocksdb/rocksdb_store.h"
#include "server/store/rocksdb/write_health.h"

namespace statcollect {

// Every use of RocksDB goes through Pin, so that Recover knows when it is unused.
//
// Threads: any. mutex_ guards the pointer and is held while RocksDB is opened again, so Pin waits
// for that; `on_opened` runs under it and must not call back. mutex_ is taken after every other
// lock of the store except those that `on_opened` takes.
class RecoverableDatabase {
 public:
  // Called with each database that was opened for writing, before any other thread sees it. If it
  // fails, the store accepts no writes.
  using OnOpened = std::function<Status(const Database&)>;

  // The caller holds the directory's lock while this object lives.
  RecoverableDatabase(const std::string& directory, const RocksDbStoreOptions& options,
                      std::shared_ptr<LiveAttempts> live, OnOpened on_opened);

  // Call once, before anything else.
  Status Open();

  // Keeps RocksDB open while the pointer exists. Do not hold it while waiting for something that
  // needs Recover. kUnavailable: it could not be opened again.
  Result<std::shared_ptr<Database>> Pin();

  // After a failed write, part of which may have reached the disk, nothing is written until the
  // store is opened again. `frees_space`: tries the write anyway; RocksDB refuses it if more than a
  // compaction has failed for lack of space.
  Status Write(const std::string& attempted, const Database& database, rocksdb::WriteBatch& batch,
               bool sync, bool frees_space = false);

  void Log(const std::string& line) const { log_(line); }

  // Whether writes are accepted.
  Status health() const { return health_->status(); }
  // Opens RocksDB again unless it is in use. If it is, returns `failure`, which health() was, and
  // asks long-running scans to end.
  Status Recover(const Status& failure);

 private:
  Status ReopenLocked(const Status& failure) STATCOLLECT_REQUIRES(mutex_);

  const std::string directory_;
  const std::function<void(const std::string&)> log_;
  const bool accept_loss_;  // of the first opening
  const DatabaseOpener opener_;
  const OnOpened on_opened_;
  const std::shared_ptr<WriteHealth> health_ = std::make_shared<WriteHealth>();
  Mutex mutex_;
  std::shared_ptr<Database> database_ STATCOLLECT_GUARDED_BY(mutex_);
  // When Recover first found running scans.
  std::optional<std::chrono::steady_clock::time_point> waiting_since_
      STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_RECOVERY_H_
