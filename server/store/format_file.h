// The file FORMAT of a data directory: "statcollect store <version>". Written before anything else is, so
// that a directory without it is not one of ours.
#ifndef STATCOLLECT_SERVER_STORE_FORMAT_FILE_H_
#define STATCOLLECT_SERVER_STORE_FORMAT_FILE_H_

#include <string>

#include "common/status.h"

namespace statcollect {

// Writes the file, durably and whole or not at all, if the directory holds no store; else checks it.
// kFailedPrecondition: a newer version, or a RocksDB of somebody else's. kDataLoss: the file is damaged.
Status CheckFormatFile(const std::string& directory, int version);
// Writes the file into a directory that has none, durably and whole or not at all.
Status WriteFormatFile(const std::string& directory, int version);
bool HasFormatFile(const std::string& directory);

// Flushes a file or directory to disk; false with errno.
bool SyncPath(const std::string& path);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_FORMAT_FILE_H_
