// A disk in memory under RocksDB that loses unsynced data when the power is cut, fails at chosen
// points, runs full, and flips bits. One directory level; FORMAT and the lock of a store are not on
// it.
#ifndef STATCOLLECT_TESTS_SUPPORT_SIMULATED_DISK_H_
#define STATCOLLECT_TESTS_SUPPORT_SIMULATED_DISK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

namespace statcollect::testing {

enum class FileKind { kLog, kTable, kManifest, kOther };
enum class DiskOperation { kCreate, kAppend, kSync, kSyncDirectory, kRename, kRead };

// Invariants: (1) A file's first `synced` bytes survive a power cut; of the rest a prefix may, or
// whole sectors with zeros in the place of the others. Of what was written over since the last
// sync, each sector is as it was after any of its writes. (2) Creations, deletions and renames
// since the last sync of the directory survive as a prefix of their order. Thread-safe.
class SimulatedDisk final : public rocksdb::FileSystem {
 public:
  SimulatedDisk();
  ~SimulatedDisk() override;

  // --- power
  // What is on the disk now is what Restart begins with. Until then who uses the disk notices
  // nothing, as a process that has lost its machine does not, and what it writes is gone.
  void CutPower();
  // The same, in front of the n-th operation from now that would change something.
  void CutPowerAfter(std::uint64_t operations);
  bool powered() const;
  // Forgets, as the random numbers say. Nobody has a file open.
  void Restart(std::mt19937_64& random);

  // --- faults
  struct Fault {
    FileKind kind = FileKind::kLog;
    DiskOperation operation = DiskOperation::kAppend;
    std::uint64_t passes = 0;    // operations let through first
    bool lasting = false;        // else once
    bool no_space = false;       // ENOSPC, else EIO
    bool no_descriptor = false;  // EMFILE
    bool flip = false;           // of kRead: returns the bytes with one bit changed, and no error
  };
  void Inject(const Fault& fault);
  void Heal();  // no more faults
  int struck() const;
  // Bytes that all files together may have; an append beyond writes what fits and fails with
  // ENOSPC.
  void SetCapacity(std::uint64_t bytes);
  std::uint64_t used() const;

  // --- files as they are
  // All of them, while nobody has one open.
  std::map<std::string, std::string> Save() const;
  void Load(const std::map<std::string, std::string>& files);
  std::vector<std::string> Paths() const;
  std::string Read(const std::string& path) const;
  void FlipBit(const std::string& path, std::uint64_t bit);
  static FileKind KindOf(const std::string& path);

  // --- rocksdb::FileSystem
  const char* Name() const override { return "SimulatedDisk"; }
  rocksdb::IOStatus NewSequentialFile(const std::string& path, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* result,
                                      rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewRandomAccessFile(const std::string& path,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                        rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewRandomRWFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSRandomRWFile>* result,
                                    rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus ReuseWritableFile(const std::string& path, const std::string& old_path,
                                      const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSWritableFile>* result,
                                      rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewDirectory(const std::string& path, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* result,
                                 rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus FileExists(const std::string& path, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus GetChildren(const std::string& directory, const rocksdb::IOOptions& options,
                                std::vector<std::string>* result,
                                rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus DeleteFile(const std::string& path, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus Truncate(const std::string& path, std::size_t size,
                             const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus CreateDir(const std::string& path, const rocksdb::IOOptions& options,
                              rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus CreateDirIfMissing(const std::string& path, const rocksdb::IOOptions& options,
                                       rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus DeleteDir(const std::string& path, const rocksdb::IOOptions& options,
                              rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus GetFileSize(const std::string& path, const rocksdb::IOOptions& options,
                                std::uint64_t* size, rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus GetFileModificationTime(const std::string& path,
                                            const rocksdb::IOOptions& options, std::uint64_t* time,
                                            rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus LockFile(const std::string& path, const rocksdb::IOOptions& options,
                             rocksdb::FileLock** lock, rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus UnlockFile(rocksdb::FileLock* lock, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus GetTestDirectory(const rocksdb::IOOptions& options, std::string* path,
                                     rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus GetAbsolutePath(const std::string& path, const rocksdb::IOOptions& options,
                                    std::string* absolute, rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus GetFreeSpace(const std::string& path, const rocksdb::IOOptions& options,
                                 std::uint64_t* bytes, rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus IsDirectory(const std::string& path, const rocksdb::IOOptions& options,
                                bool* is, rocksdb::IODebugContext* debug) override;

 private:
  struct Overwrite {
    std::size_t at = 0;
    std::string before;
  };
  struct File {
    std::string bytes;
    std::size_t synced = 0;
    std::vector<Overwrite> overwrites = {};  // since the last sync
  };
  using FilePointer = std::shared_ptr<File>;
  using Names = std::map<std::string, FilePointer>;
  // Of a directory: `file` appears under `to` and disappears from `from`; either may be empty.
  struct Change {
    std::string from, to;
    FilePointer file;
  };

  struct Handle;  // an open file

  void CountLocked();  // an operation that changes something
  void CutPowerLocked();
  static void Apply(const Change& change, Names* names);
  void ChangeLocked(Change change);
  // OK, or what the fault that strikes says. `flip` is set where a read is to be spoiled.
  rocksdb::IOStatus CheckLocked(const std::string& path, DiskOperation operation,
                                bool* flip = nullptr);
  rocksdb::IOStatus Append(const Handle& handle, const rocksdb::Slice& data);
  rocksdb::IOStatus WriteOver(const Handle& handle, std::uint64_t at, const rocksdb::Slice& data);
  static void UndoSome(File& file, std::mt19937_64& random);
  rocksdb::IOStatus Sync(const Handle& handle);
  rocksdb::IOStatus ReadAt(const Handle& handle, std::uint64_t offset, std::size_t n,
                           rocksdb::Slice* result, char* scratch);
  rocksdb::IOStatus SyncDirectory();
  rocksdb::IOStatus OpenHandle(const std::string& path, Handle* handle);

  class SequentialFile;
  class RandomAccessFile;
  class WritableFile;
  class ReadWriteFile;
  class Directory;

  mutable std::mutex mutex_;
  Names names_, durable_names_;
  std::vector<Change> changes_;  // from durable_names_ to names_
  std::set<std::string> locks_;
  std::vector<std::pair<Fault, std::uint64_t>>
      faults_;  // and how many operations each has let through
  int struck_ = 0;
  std::uint64_t capacity_ = ~std::uint64_t{0};
  bool powered_ = true;
  Names cut_names_;  // of a power cut: what had been durable
  std::vector<Change> cut_changes_;
  std::uint64_t until_cut_ = 0;  // operations that change something; 0: no cut is planned
};

// An Env on the disk in which nobody sleeps long: RocksDB waits a second after a failed flush.
std::shared_ptr<rocksdb::Env> MakeSimulatedEnv(std::shared_ptr<SimulatedDisk> disk);

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SUPPORT_SIMULATED_DISK_H_
