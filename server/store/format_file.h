// The file FORMAT of a data directory: "statcollect store <version>", then words for what belongs
// to the store, so that it is missed when it is gone. It is written before anything else, so a
// directory without it is not a statcollect store.
#ifndef STATCOLLECT_SERVER_STORE_FORMAT_FILE_H_
#define STATCOLLECT_SERVER_STORE_FORMAT_FILE_H_

#include <set>
#include <string>

#include "common/status.h"

namespace statcollect {

inline constexpr char kSyncedWord[] = "synced";  // the file SYNCED (rocksdb/synced_mark.h)
inline constexpr char kTokensWord[] = "tokens";  // a file of tokens, wherever it is: calls need one

// If the directory holds no store, writes the file durably and atomically; otherwise checks it.
// kFailedPrecondition: a newer version, or a foreign RocksDB. kDataLoss: the file is damaged.
Status CheckFormatFile(const std::string& directory, int version);
// Writes the file, durably and atomically.
Status WriteFormatFile(const std::string& directory, int version,
                       const std::set<std::string>& words = {});
// Whether the file has the word. False if there is no file.
bool FormatFileSays(const std::string& directory, const std::string& word);
// Changes the file, durably and atomically, unless it is so already. Where there is none, it is
// made, of `version`.
Status SetFormatWord(const std::string& directory, int version, const std::string& word,
                     bool present);
bool HasFormatFile(const std::string& directory);

// Puts a file of this text in the place of the old one, durably and atomically.
Status ReplaceFile(const std::string& path, const std::string& text);
// Flushes a file or directory to disk; false with errno.
bool SyncPath(const std::string& path);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_FORMAT_FILE_H_
