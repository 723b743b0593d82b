// Files of checkpoints: where one may be written, how it appears whole or not at all, and how it is
// copied into a new data directory. What RocksDB has to do with it is in rocksdb/checkpoint.cc.
#ifndef STATCOLLECT_SERVER_STORE_CHECKPOINT_FILES_H_
#define STATCOLLECT_SERVER_STORE_CHECKPOINT_FILES_H_

#include <functional>
#include <string>

#include "common/status.h"
#include "server/store/store.h"

namespace statcollect {

// A directory under construction next to its final path. The destructor removes it unless it was
// published.
class StagedDirectory {
 public:
  // `final_path`: as ParseTarget returned it. Removes what an earlier process left under
  // construction.
  explicit StagedDirectory(std::string final_path);
  ~StagedDirectory();
  StagedDirectory(const StagedDirectory&) = delete;

  const std::string& path() const { return path_; }
  // Renames it durably to its final path, which must be absent or an empty directory.
  Status Publish();

 private:
  const std::string final_path_, path_;
  bool published_ = false;
};

// The canonical path of `directory`. kInvalidArgument unless it is an absolute path without control
// characters whose parent exists, and is absent or an empty directory outside `data_dir`.
// `attempted` begins the message.
Result<std::string> ParseTarget(const std::string& attempted, const std::string& directory,
                                const std::string& data_dir);

// kResourceExhausted unless the file system of `path` (or of its parent) has `bytes` free, plus a
// margin.
Status CheckFreeSpace(const std::string& attempted, const std::string& path, std::uint64_t bytes);
// Whether both are on the same file system; `path` itself need not exist.
bool SameFileSystem(const std::string& path, const std::string& other);

// The files directly in the directory, their size, and whether all tables are shared with another
// directory.
Result<CheckpointReport> MeasureCheckpoint(const std::string& directory);

// Copies the files directly in `from` into the new directory `to`, and syncs them. kCancelled if
// stopped() (may be empty) returns true between two files.
Status CopyFiles(const std::string& from, const std::string& to,
                 const std::function<bool()>& stopped);
// The status of an operation that its caller stopped; nothing is left of it.
Status Stopped(const std::string& attempted);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CHECKPOINT_FILES_H_
