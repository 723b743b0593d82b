// A file system that tells SyncedMark what RocksDB has synced.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_SYNCED_FILES_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_SYNCED_FILES_H_

#include <memory>
#include <string>

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include "server/store/rocksdb/synced_mark.h"

namespace statcollect {

// The files and the clock of `base`, with the journals of `directory` watched.
std::shared_ptr<rocksdb::Env> WatchJournals(rocksdb::Env& base, const std::string& directory,
                                            std::shared_ptr<SyncedMark> mark);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_SYNCED_FILES_H_
