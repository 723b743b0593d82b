// Configures and opens the store's RocksDB.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_DATABASE_OPENER_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_DATABASE_OPENER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>

#include "common/status.h"
#include "server/store/live_attempts.h"
#include "server/store/rocksdb/database.h"
#include "server/store/rocksdb/rocksdb_store.h"
#include "server/store/rocksdb/synced_mark.h"
#include "server/store/rocksdb/write_health.h"

namespace statcollect {

// Opens the RocksDB of one directory, possibly several times. The caller holds the directory's
// lock.
class DatabaseOpener {
 public:
  DatabaseOpener(const std::string& directory, const RocksDbStoreOptions& options,
                 std::shared_ptr<LiveAttempts> live);

  enum class Access {
    kReadOnly,    // changes no file and accepts no writes
    kWrite,       // kDataLoss if something that was synced is missing; nothing was changed
    kAcceptLoss,  // like kWrite, and goes on without what is missing (Database::lost)
  };
  Result<std::shared_ptr<Database>> Open(Access access,
                                         const std::shared_ptr<WriteHealth>& health) const;

 private:
  Result<SyncedLengths> CheckJournals(rocksdb::FileSystem& files, Access access,
                                      Database& database) const;
  Result<std::vector<std::string>> FindMissing(rocksdb::FileSystem& files, Access access,
                                               SyncedLengths& lengths) const;
  Result<std::vector<std::string>> FindLostTables(Access access) const;
  Status Watch(rocksdb::Env& base, const SyncedLengths& lengths, Database& database) const;
  Status CheckProperties(const Database& database) const;
  rocksdb::Status TryOpen(Access access, rocksdb::DBOptions options, Database& database) const;

  const std::string directory_;
  const std::function<void(const std::string&)> log_;
  const bool fsync_;
  const std::size_t memtable_bytes_;
  const int open_files_max_;
  const std::shared_ptr<rocksdb::Env> env_;
  const std::shared_ptr<LiveAttempts> live_;
  const std::shared_ptr<rocksdb::Cache> cache_;  // filled by point reads
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_DATABASE_OPENER_H_
