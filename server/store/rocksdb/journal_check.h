// Whether logs and MANIFESTs still have what was synced.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_JOURNAL_CHECK_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_JOURNAL_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include <rocksdb/file_system.h>

#include "common/status.h"
#include "server/store/rocksdb/synced_mark.h"

namespace statcollect {

// What has been lost, an unfinished sentence for each file: it is missing, shorter than it was, or
// damaged before that byte. RocksDB itself takes all of these for the traces of a crash. An error:
// a file cannot be read.
Result<std::vector<std::string>> FindLosses(rocksdb::FileSystem& files,
                                            const std::string& directory,
                                            const SyncedLengths& lengths);

// The end of the whole records that a log or a MANIFEST begins with.
Result<std::uint64_t> WholeBytes(rocksdb::FileSystem& files, const std::string& path);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_JOURNAL_CHECK_H_
