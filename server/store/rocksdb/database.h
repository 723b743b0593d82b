// An open RocksDB, shared by its users.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_DATABASE_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_DATABASE_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/wal_filter.h>

#include "server/store/rocksdb/definition_cache.h"
#include "server/store/rocksdb/families.h"
#include "server/store/rocksdb/util.h"
#include "server/store/run_reader.h"

namespace statcollect {

// Closes when its last user releases it.
struct Database {
  std::shared_ptr<rocksdb::Env> env;  // that it was opened with; RocksDB keeps pointers to both
  std::unique_ptr<rocksdb::WalFilter> log_filter;  // of the logs that were recovered
  bool lost = false;      // what had been synced was missing, and it was opened without
                          // (RocksDbStoreOptions::accept_loss)
  bool unsynced = false;  // its log is synced when it is closed, and not with each write
  std::unique_ptr<rocksdb::DB> db;
  std::vector<rocksdb::ColumnFamilyHandle*> families;  // by Family
  std::atomic<bool> closing{false};                    // asks running scans to end early
  DefinitionCache definitions;                         // of what is in it

  Database() = default;
  Database(const Database&) = delete;
  ~Database() {
    if (db == nullptr) return;
    // So that SyncedMark knows what a closed store must have, as it does with a sync for each
    // write.
    if (unsynced) (void)db->SyncWAL();
    for (auto* family : families) (void)db->DestroyColumnFamilyHandle(family);
    (void)db->Close();
  }
};

inline StatFamilies StatFamiliesOf(const Database& database) {
  return {.stats = database.families[kStats], .sketches = database.families[kSketches]};
}

// A read that would keep RocksDB open too long ends with this.
inline Status ReadInterrupted(const std::string& what) {
  return {Code::kUnavailable,
          "read " + what + ": the store is being opened again after its disk was full; try again"};
}

// A scan that keeps RocksDB open, and ends with kUnavailable where that would keep it open too
// long.
class PinnedScan final : public StatScan {
 public:
  PinnedScan(std::shared_ptr<Database> database, std::unique_ptr<StatScan> scan)
      : database_(std::move(database)), scan_(std::move(scan)) {}
  explicit PinnedScan(Status failure) : status_(std::move(failure)) {}

  bool NextHead() override {
    if (!status_.ok()) return false;
    if (database_->closing) {
      status_ = ReadInterrupted("statistics");
      return false;
    }
    return scan_->NextHead();
  }
  const BlockHead& head() const override { return scan_->head(); }
  bool Load(bool sketches, StatColumns* columns) override {
    return status_.ok() && scan_->Load(sketches, columns);
  }
  bool LoadHashes(HashColumns* columns) override {
    return status_.ok() && scan_->LoadHashes(columns);
  }
  const NumberColumns* Columns() override { return status_.ok() ? scan_->Columns() : nullptr; }
  const NumberColumns* Numbers(NumberSet wanted) override {
    return status_.ok() ? scan_->Numbers(wanted) : nullptr;
  }
  const Status& status() const override { return status_.ok() ? scan_->status() : status_; }
  std::uint64_t bytes_read() const override { return scan_ == nullptr ? 0 : scan_->bytes_read(); }

 private:
  std::shared_ptr<Database> database_;  // outlives the scan
  std::unique_ptr<StatScan> scan_;
  Status status_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_DATABASE_H_
