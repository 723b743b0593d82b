// The RocksDB part of checkpoints, and the disk usage of a store. RestoreCheckpoint is in
// rocksdb_store.h.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_CHECKPOINT_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_CHECKPOINT_H_

#include <string>

#include "common/status.h"
#include "server/store/rocksdb/database.h"
#include "server/store/rocksdb/recovery.h"
#include "server/store/store.h"

namespace statcollect {

// Like Store::Usage, for the store in this directory. `database`: null if it could not be opened
// again. Thread-safe.
Result<StoreUsage> MeasureUsage(const std::string& data_dir, const Database* database);

// Like Store::Checkpoint, for the store in `data_dir`, which is `identity`. One call at a time.
Result<CheckpointReport> MakeCheckpoint(RecoverableDatabase& store, const std::string& data_dir,
                                        const std::string& directory,
                                        const StoreIdentity& identity);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_CHECKPOINT_H_
