// Repairs the end of RocksDB's journals after a power cut.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_ZERO_TAIL_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_ZERO_TAIL_H_

#include <functional>
#include <string>

#include <rocksdb/file_system.h>

#include "server/store/rocksdb/synced_mark.h"

namespace statcollect {

// A power cut may leave a journal (the newest log or MANIFEST) longer than what reached the disk,
// with zeros in place of the missing sectors. RocksDB takes a record that ends in them for damage.
// This cuts off trailing sectors of zeros, so that the record merely lacks its end; it was never
// acknowledged. What was synced stays, whatever it ends in. Returns true if there was something to
// cut off. Only for a store that RocksDB refuses.
bool CutZeroTails(rocksdb::FileSystem& files, const std::string& directory,
                  const SyncedLengths& synced, const std::function<void(const std::string&)>& log);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_ZERO_TAIL_H_
