// The file SYNCED of a data directory: which logs and MANIFESTs must be there, and how much of
// each.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_SYNCED_MARK_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_SYNCED_MARK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include <rocksdb/file_system.h>

#include "common/status.h"
#include "common/thread_annotations.h"

namespace statcollect {

inline constexpr char kSyncedName[] = "SYNCED";

// By the name of a log or a MANIFEST in the directory: how many of its first bytes were synced. Its
// name was synced, too.
using SyncedLengths = std::map<std::string, std::uint64_t>;

// Whether it is the name of a file that the mark is about.
bool IsJournal(const std::string& name);

// The file has lines of 64 bytes, 4096 in all: a heading, then one for each journal (its name, the
// bytes that were synced, and the CRC-32C of both), or blanks. A line lies in one sector, so a
// power cut leaves it old or new. kNotFound: there is no such file. kDataLoss: it is damaged.
Result<SyncedLengths> ReadSyncedMark(rocksdb::FileSystem& files, const std::string& directory);
// Replaces the file, durably and at once.
Status WriteSyncedMark(rocksdb::FileSystem& files, const std::string& directory,
                       const SyncedLengths& lengths);

// Keeps the file up to date while RocksDB is open.
//
// Invariant: what the file says is never more than what is on the disk, also after a power cut at
// any moment. So a line is written, without a sync of its own, only after the journal and the
// directory were synced; and a line is gone from the disk before its journal is.
//
// Threads: any.
class SyncedMark {
 public:
  // `lengths`: what WriteSyncedMark has just written. `log` gets a line if the file cannot be
  // written.
  static Result<std::unique_ptr<SyncedMark>> Open(const std::shared_ptr<rocksdb::FileSystem>& files,
                                                  const std::string& directory,
                                                  const SyncedLengths& lengths,
                                                  std::function<void(const std::string&)> log);

  // A journal was created, and its name is not durable yet.
  void Created(const std::string& name);
  // Its first `bytes` were synced.
  void Synced(const std::string& name, std::uint64_t bytes);
  // Names to pass to DirectorySynced once a sync of the directory that begins now has succeeded.
  std::set<std::string> Unnamed() const;
  void DirectorySynced(const std::set<std::string>& names);
  // Call before the journal is deleted. If this fails, the journal must stay.
  rocksdb::IOStatus Forget(const std::string& name);

 private:
  static constexpr std::size_t kLineBytes = 64, kLines = 64;

  SyncedMark(std::unique_ptr<rocksdb::FSRandomRWFile> file,
             std::function<void(const std::string&)> log)
      : log_(std::move(log)), file_(std::move(file)) {}
  friend Status WriteSyncedMark(rocksdb::FileSystem&, const std::string&, const SyncedLengths&);
  friend Result<SyncedLengths> ReadSyncedMark(rocksdb::FileSystem&, const std::string&);

  static std::string Line(const std::string& name, std::uint64_t bytes);
  static std::string Heading();
  void PutLocked(const std::string& name) STATCOLLECT_REQUIRES(mutex_);
  rocksdb::IOStatus WriteLocked(std::size_t line, const std::string& text)
      STATCOLLECT_REQUIRES(mutex_);

  struct Journal {
    std::uint64_t bytes = 0;
    std::size_t line = 0;  // 0: it has none
    bool named = false;    // its name is durable
  };

  const std::function<void(const std::string&)> log_;
  mutable Mutex mutex_;
  const std::unique_ptr<rocksdb::FSRandomRWFile> file_;
  std::map<std::string, Journal> journals_ STATCOLLECT_GUARDED_BY(mutex_);
  std::array<bool, kLines> used_ STATCOLLECT_GUARDED_BY(mutex_){true};
  bool told_ STATCOLLECT_GUARDED_BY(mutex_) = false;  // that it cannot be written
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_SYNCED_MARK_H_
