// Store on an embedded RocksDB.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_ROCKSDB_STORE_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_ROCKSDB_STORE_H_

#include <functional>
#include <memory>
#include <string>

#include "common/status.h"
#include "server/store/store.h"

namespace rocksdb {
class Env;
}

namespace statcollect {

inline constexpr int kStoreFormatVersion = 2;

struct RocksDbStoreOptions {
  bool fsync = true;  // false: an append is complete once the operating system has it
  // statistics held in memory before they are written to a table
  std::size_t memtable_bytes = std::size_t{64} << 20;
  // Opens a store of which synced bytes are missing, without them; the store is then as one that
  // was restored from an older checkpoint.
  bool accept_loss = false;
  // Whether this process leaves the directory once nobody uses it; another that opens it waits for
  // that, up to 30 s.
  bool until_unused = false;
  int open_files_max = -1;  // tables held open; the others are opened when they are read. -1: all
  // Called from any thread, including RocksDB's own.
  std::function<void(const std::string& line)> log = [](const std::string&) {};
  // Checked repeatedly by RestoreCheckpoint; true ends it with kCancelled. Empty: never.
  std::function<bool()> stopped = {};
  // Files (except FORMAT and the lock), clock and threads of RocksDB, for tests. Empty: the
  // operating system's.
  std::shared_ptr<rocksdb::Env> env = nullptr;
};

// Opens or creates the store in a directory and holds the directory until destroyed.
// kFailedPrecondition: another process holds it (names its pid), or a newer format. kDataLoss:
// files are damaged, or something that was synced is missing (its message names the file); no file
// was deleted.
Result<std::unique_ptr<Store>> OpenRocksDbStore(const std::string& directory,
                                                const RocksDbStoreOptions& options = {});

// Copies a checkpoint into a new data directory, absent or empty, and verifies every table of the
// copy. The checkpoint is only read. kDataLoss names the damaged file and leaves the data directory
// as it was.
Status RestoreCheckpoint(const std::string& checkpoint, const std::string& data_dir,
                         const RocksDbStoreOptions& options = {});

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_ROCKSDB_STORE_H_
