#include "server/store/rocksdb/synced_files.h"

#include <atomic>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>

namespace statcollect {
namespace {

using rocksdb::DataVerificationInfo;
using rocksdb::DirFsyncOptions;
using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

// A log or a MANIFEST that is being written. Threads: as RocksDB uses it; Sync may come from any.
class Journal final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  Journal(std::unique_ptr<rocksdb::FSWritableFile> file, std::string name,
          std::shared_ptr<SyncedMark> mark)
      : FSWritableFileOwnerWrapper(std::move(file)),
        name_(std::move(name)),
        mark_(std::move(mark)) {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    return Count(data, FSWritableFileOwnerWrapper::Append(data, options, debug));
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const DataVerificationInfo& check,
                  IODebugContext* debug) override {
    return Count(data, FSWritableFileOwnerWrapper::Append(data, options, check, debug));
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    const std::uint64_t bytes = bytes_.load();
    return Note(bytes, FSWritableFileOwnerWrapper::Sync(options, debug));
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    const std::uint64_t bytes = bytes_.load();
    return Note(bytes, FSWritableFileOwnerWrapper::Fsync(options, debug));
  }

 private:
  IOStatus Count(const Slice& data, IOStatus status) {
    if (status.ok()) bytes_.fetch_add(data.size());
    return status;
  }
  IOStatus Note(std::uint64_t bytes, IOStatus status) {
    if (status.ok() && bytes > 0) mark_->Synced(name_, bytes);
    return status;
  }

  const std::string name_;
  const std::shared_ptr<SyncedMark> mark_;
  std::atomic<std::uint64_t> bytes_{0};
};

class Directory final : public rocksdb::FSDirectoryWrapper {
 public:
  Directory(std::unique_ptr<rocksdb::FSDirectory> directory, std::shared_ptr<SyncedMark> mark)
      : FSDirectoryWrapper(std::move(directory)), mark_(std::move(mark)) {}

  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    const std::set<std::string> names = mark_->Unnamed();
    return Note(names, FSDirectoryWrapper::Fsync(options, debug));
  }
  IOStatus FsyncWithDirOptions(const IOOptions& options, IODebugContext* debug,
                               const DirFsyncOptions& why) override {
    const std::set<std::string> names = mark_->Unnamed();
    return Note(names, FSDirectoryWrapper::FsyncWithDirOptions(options, debug, why));
  }

 private:
  IOStatus Note(const std::set<std::string>& names, IOStatus status) {
    if (status.ok()) mark_->DirectorySynced(names);
    return status;
  }
  const std::shared_ptr<SyncedMark> mark_;
};

// RocksDB creates, appends to, syncs and deletes journals; it reuses none (recycle_log_file_num is
// 0), and appends to none that it finds.
class WatchingFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  WatchingFileSystem(const std::shared_ptr<rocksdb::FileSystem>& base, std::string directory,
                     std::shared_ptr<SyncedMark> mark)
      : FileSystemWrapper(base), directory_(std::move(directory)), mark_(std::move(mark)) {}
  const char* Name() const override { return "statcollect.WatchingFileSystem"; }

  IOStatus NewWritableFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* file,
                           IODebugContext* debug) override {
    IOStatus created = FileSystemWrapper::NewWritableFile(path, options, file, debug);
    const auto name = JournalOf(path);
    if (!created.ok() || !name) return created;
    mark_->Created(*name);
    *file = std::make_unique<Journal>(std::move(*file), *name, mark_);
    return created;
  }
  IOStatus NewDirectory(const std::string& path, const IOOptions& options,
                        std::unique_ptr<rocksdb::FSDirectory>* directory,
                        IODebugContext* debug) override {
    IOStatus opened = FileSystemWrapper::NewDirectory(path, options, directory, debug);
    if (opened.ok() && path == directory_)
      *directory = std::make_unique<Directory>(std::move(*directory), mark_);
    return opened;
  }
  IOStatus DeleteFile(const std::string& path, const IOOptions& options,
                      IODebugContext* debug) override {
    if (const auto name = JournalOf(path)) {
      if (IOStatus forgotten = mark_->Forget(*name); !forgotten.ok()) return forgotten;
    }
    return FileSystemWrapper::DeleteFile(path, options, debug);
  }

 private:
  // Its name, if it is a journal in the directory. RocksDB may write a second slash.
  std::optional<std::string> JournalOf(const std::string& path) const {
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) return std::nullopt;
    const std::size_t end = path.find_last_not_of('/', slash);
    std::string name = path.substr(slash + 1);
    if (!IsJournal(name) || path.substr(0, end + 1) != directory_) return std::nullopt;
    return name;
  }

  const std::string directory_;
  const std::shared_ptr<SyncedMark> mark_;
};

// RocksDB deletes some files through the Env, not through its file system, so both must be the
// watching one.
class WatchingEnv final : public rocksdb::EnvWrapper {
 public:
  WatchingEnv(std::shared_ptr<rocksdb::FileSystem> files,
              std::shared_ptr<rocksdb::SystemClock> clock)
      : EnvWrapper(rocksdb::NewCompositeEnv(files)) {
    file_system_ = std::move(files);
    system_clock_ = std::move(clock);
  }
  const char* Name() const override { return "statcollect.WatchingEnv"; }
};

}  // namespace

std::shared_ptr<rocksdb::Env> WatchJournals(rocksdb::Env& base, const std::string& directory,
                                            std::shared_ptr<SyncedMark> mark) {
  auto files =
      std::make_shared<WatchingFileSystem>(base.GetFileSystem(), directory, std::move(mark));
  return std::make_shared<WatchingEnv>(std::move(files), base.GetSystemClock());
}

}  // namespace statcollect
