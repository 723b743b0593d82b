// Whether the store accepts writes, shared with RocksDB's own threads.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_WRITE_HEALTH_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_WRITE_HEALTH_H_

#include <memory>
#include <utility>

#include <rocksdb/listener.h>

#include "common/failpoint.h"
#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/store/rocksdb/util.h"

namespace statcollect {

// Thread-safe.
class WriteHealth {
 public:
  Status status() const {
    MutexLock lock(mutex_);
    return failure_;
  }
  // Keeps the first failure, until Clear.
  Status Fail(const Status& why) {
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = Explain(why);
    return failure_;
  }
  void Clear() {
    MutexLock lock(mutex_);
    failure_ = Status::Ok();
  }

 private:
  static Status Explain(const Status& why) {
    return {why.code(),
            why.message() +
                (why.code() == Code::kResourceExhausted
                     ? "; expected space on the store's file system, and descriptors (ulimit -n); "
                       "free some, and the store accepts writes again by itself"
                     : "; the store accepts no more writes until statcollectord is restarted")};
  }

  mutable Mutex mutex_;
  Status failure_ STATCOLLECT_GUARDED_BY(mutex_);
};

// Reports failed flushes and compactions to WriteHealth, and keeps RocksDB from recovering by
// itself. After a failed write, part of it may be in the log, and the next start would find it
// although agents were notified that it failed. After a compaction without space or descriptors,
// writes would wait inside RocksDB (docs/decisions/0012).
class BackgroundErrors final : public rocksdb::EventListener {
 public:
  explicit BackgroundErrors(std::shared_ptr<WriteHealth> health) : health_(std::move(health)) {}

  void OnBackgroundError(rocksdb::BackgroundErrorReason /*reason*/,
                         rocksdb::Status* error) override {
    if (error->severity() > rocksdb::Status::Severity::kSoftError || error->IsNoSpace() ||
        IsOutOfFiles(*error))
      (void)health_->Fail(FromRocks("write the store's files", *error));
  }
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status,
                            bool* automatic) override {
    *automatic = false;
  }
#ifdef STATCOLLECT_FAILPOINTS
  void OnFlushBegin(rocksdb::DB*, const rocksdb::FlushJobInfo&) override {
    STATCOLLECT_FAILPOINT("flush.begin");
  }
  void OnTableFileCreated(const rocksdb::TableFileCreationInfo&) override {
    STATCOLLECT_FAILPOINT("flush.table_written");
  }
  void OnFlushCompleted(rocksdb::DB*, const rocksdb::FlushJobInfo&) override {
    STATCOLLECT_FAILPOINT("flush.installed");
  }
  void OnCompactionCompleted(rocksdb::DB*, const rocksdb::CompactionJobInfo&) override {
    STATCOLLECT_FAILPOINT("compaction.installed");
  }
#endif

 private:
  const std::shared_ptr<WriteHealth> health_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_WRITE_HEALTH_H_
