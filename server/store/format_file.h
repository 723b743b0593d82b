// The file FORMAT of a data directory: "statcollect store <version>". It is written before anything else, so
// a directory without it is not a statcollect store.
#ifndef STATCOLLECT_SERVER_STORE_FORMAT_FILE_H_
#define STATCOLLECT_SERVER_STORE_FORMAT_FILE_H_

#include <string>

#include "common/status.h"

namespace statcollect {

// If the directory holds no store, writes the file durably and atomically; otherwise checks it.
// kFailedPrecondition: a newer version, or a foreign RocksDB. kDataLoss: the file is damaged.
Status CheckFormatFile(const std::string& directory, int version);
// Writes the file into a directory that has none, durably and atomically.
Status WriteFormatFile(const std::string& directory, int version);
bool HasFormatFile(const std::string& directory);

// Flushes a file or directory to disk; false with errno.
bool SyncPath(const std::string& path);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_FORMAT_FILE_H_
