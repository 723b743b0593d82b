#include "tests/support/simulated_disk.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <rocksdb/system_clock.h>

namespace statcollect::testing {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

namespace {

constexpr std::size_t kSectorBytes = 512;

IOStatus NoSpace(const std::string& path) {
  IOStatus status = IOStatus::NoSpace(path, "No space left on device");
  status.SetRetryable(true);  // as the file system of the operating system says it
  return status;
}

class Lock final : public rocksdb::FileLock {
 public:
  explicit Lock(std::string path) : path(std::move(path)) {}
  const std::string path;
};

}  // namespace

struct SimulatedDisk::Handle {
  std::string path;
  FilePointer file;
};

class SimulatedDisk::SequentialFile final : public rocksdb::FSSequentialFile {
 public:
  SequentialFile(SimulatedDisk& disk, Handle handle) : disk_(disk), handle_(std::move(handle)) {}
  IOStatus Read(std::size_t n, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) override {
    IOStatus status = disk_.ReadAt(handle_, at_, n, result, scratch);
    at_ += result->size();
    return status;
  }
  IOStatus Skip(std::uint64_t n) override {
    at_ += n;
    return IOStatus::OK();
  }

 private:
  SimulatedDisk& disk_;
  const Handle handle_;
  std::uint64_t at_ = 0;
};

class SimulatedDisk::RandomAccessFile final : public rocksdb::FSRandomAccessFile {
 public:
  RandomAccessFile(SimulatedDisk& disk, Handle handle) : disk_(disk), handle_(std::move(handle)) {}
  IOStatus Read(std::uint64_t offset, std::size_t n, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) const override {
    return disk_.ReadAt(handle_, offset, n, result, scratch);
  }

 private:
  SimulatedDisk& disk_;
  const Handle handle_;
};

class SimulatedDisk::WritableFile final : public rocksdb::FSWritableFile {
 public:
  WritableFile(SimulatedDisk& disk, Handle handle) : disk_(disk), handle_(std::move(handle)) {}
  using FSWritableFile::Append;
  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override {
    return disk_.Append(handle_, data);
  }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Sync(const IOOptions&, IODebugContext*) override { return disk_.Sync(handle_); }
  std::uint64_t GetFileSize(const IOOptions&, IODebugContext*) override {
    return handle_.file->bytes.size();
  }

 private:
  SimulatedDisk& disk_;
  const Handle handle_;
};

class SimulatedDisk::ReadWriteFile final : public rocksdb::FSRandomRWFile {
 public:
  ReadWriteFile(SimulatedDisk& disk, Handle handle) : disk_(disk), handle_(std::move(handle)) {}
  IOStatus Write(std::uint64_t at, const Slice& data, const IOOptions&, IODebugContext*) override {
    return disk_.WriteOver(handle_, at, data);
  }
  IOStatus Read(std::uint64_t at, std::size_t n, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) const override {
    return disk_.ReadAt(handle_, at, n, result, scratch);
  }
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Sync(const IOOptions&, IODebugContext*) override { return disk_.Sync(handle_); }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }

 private:
  SimulatedDisk& disk_;
  const Handle handle_;
};

class SimulatedDisk::Directory final : public rocksdb::FSDirectory {
 public:
  explicit Directory(SimulatedDisk& disk) : disk_(disk) {}
  IOStatus Fsync(const IOOptions&, IODebugContext*) override { return disk_.SyncDirectory(); }

 private:
  SimulatedDisk& disk_;
};

SimulatedDisk::SimulatedDisk() = default;
SimulatedDisk::~SimulatedDisk() = default;

void SimulatedDisk::CutPower() {
  std::lock_guard lock(mutex_);
  CutPowerLocked();
}

void SimulatedDisk::CutPowerLocked() {
  until_cut_ = 0;
  if (!powered_) return;
  powered_ = false;
  std::map<const File*, FilePointer> copies;
  const auto copy = [&](FilePointer& file) {
    if (file == nullptr) return;
    FilePointer& made = copies[file.get()];
    if (made == nullptr) made = std::make_shared<File>(*file);
    file = made;
  };
  cut_names_ = durable_names_;
  cut_changes_ = changes_;
  for (auto& [path, file] : cut_names_) copy(file);
  for (Change& change : cut_changes_) copy(change.file);
}

void SimulatedDisk::CutPowerAfter(std::uint64_t operations) {
  std::lock_guard lock(mutex_);
  until_cut_ = operations;
}

bool SimulatedDisk::powered() const {
  std::lock_guard lock(mutex_);
  return powered_;
}

void SimulatedDisk::CountLocked() {
  if (until_cut_ > 0 && --until_cut_ == 0) CutPowerLocked();
}

void SimulatedDisk::Restart(std::mt19937_64& random) {
  std::lock_guard lock(mutex_);
  CutPowerLocked();
  const std::size_t kept = random() % (cut_changes_.size() + 1);
  for (std::size_t i = 0; i < kept; ++i) Apply(cut_changes_[i], &cut_names_);
  for (auto& [path, file] : cut_names_) {
    const std::size_t size = file->bytes.size(), loose = size - file->synced;
    std::size_t left = file->synced + (random() % 3 == 0 ? 0 : random() % (loose + 1));
    const bool zeros = random() % 4 == 0;
    if (zeros) left = std::max(left / kSectorBytes * kSectorBytes, file->synced);
    UndoSome(*file, random);
    file->bytes.resize(left);
    if (zeros) file->bytes.resize(size, '\0');
    file->synced = file->bytes.size();
  }
  names_ = durable_names_ = std::move(cut_names_);
  changes_.clear();
  locks_.clear();
  powered_ = true;
}

void SimulatedDisk::Inject(const Fault& fault) {
  std::lock_guard lock(mutex_);
  faults_.emplace_back(fault, 0);
}

void SimulatedDisk::Heal() {
  std::lock_guard lock(mutex_);
  faults_.clear();
}

int SimulatedDisk::struck() const {
  std::lock_guard lock(mutex_);
  return struck_;
}

void SimulatedDisk::SetCapacity(std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  capacity_ = bytes;
}

std::uint64_t SimulatedDisk::used() const {
  std::lock_guard lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [path, file] : names_) bytes += file->bytes.size();
  return bytes;
}

std::vector<std::string> SimulatedDisk::Paths() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> paths;
  for (const auto& [path, file] : names_) paths.push_back(path);
  return paths;
}

std::string SimulatedDisk::Read(const std::string& path) const {
  std::lock_guard lock(mutex_);
  const auto found = names_.find(path);
  return found == names_.end() ? std::string() : found->second->bytes;
}

void SimulatedDisk::FlipBit(const std::string& path, std::uint64_t bit) {
  std::lock_guard lock(mutex_);
  char& byte = names_.at(path)->bytes.at(bit / 8);
  byte = static_cast<char>(byte ^ (1 << (bit % 8)));
}

std::map<std::string, std::string> SimulatedDisk::Save() const {
  std::lock_guard lock(mutex_);
  std::map<std::string, std::string> files;
  for (const auto& [path, file] : names_) files[path] = file->bytes;
  return files;
}

void SimulatedDisk::Load(const std::map<std::string, std::string>& files) {
  std::lock_guard lock(mutex_);
  names_.clear();
  for (const auto& [path, bytes] : files)
    names_[path] = std::make_shared<File>(File{.bytes = bytes, .synced = bytes.size()});
  durable_names_ = names_;
  changes_.clear();
  locks_.clear();
}

FileKind SimulatedDisk::KindOf(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  if (name.ends_with(".log")) return FileKind::kLog;
  if (name.ends_with(".sst")) return FileKind::kTable;
  if (name.starts_with("MANIFEST")) return FileKind::kManifest;
  return FileKind::kOther;
}

void SimulatedDisk::Apply(const Change& change, Names* names) {
  if (!change.from.empty()) names->erase(change.from);
  if (!change.to.empty()) (*names)[change.to] = change.file;
}

void SimulatedDisk::ChangeLocked(Change change) {
  Apply(change, &names_);
  changes_.push_back(std::move(change));
}

IOStatus SimulatedDisk::CheckLocked(const std::string& path, DiskOperation operation, bool* flip) {
  if (operation != DiskOperation::kRead) CountLocked();
  for (auto it = faults_.begin(); it != faults_.end(); ++it) {
    auto& [fault, passed] = *it;
    if (fault.operation != operation || fault.flip != (flip != nullptr)) continue;
    if (operation != DiskOperation::kSyncDirectory && fault.kind != KindOf(path)) continue;
    if (passed++ < fault.passes) continue;
    ++struck_;
    const bool no_space = fault.no_space, no_descriptor = fault.no_descriptor, spoil = fault.flip;
    if (!fault.lasting) faults_.erase(it);
    if (spoil) {
      *flip = true;
      return IOStatus::OK();
    }
    if (no_space) return NoSpace(path);
    return IOStatus::IOError(path, no_descriptor ? "Too many open files" : "Input/output error");
  }
  return IOStatus::OK();
}

IOStatus SimulatedDisk::Append(const Handle& handle, const Slice& data) {
  std::lock_guard lock(mutex_);
  IOStatus status = CheckLocked(handle.path, DiskOperation::kAppend);
  if (!status.ok()) {
    // As a short write: some of it may have got there.
    handle.file->bytes.append(data.data(), data.size() / 2);
    return status;
  }
  std::uint64_t used = 0;
  if (capacity_ != ~std::uint64_t{0}) {
    for (const auto& [path, file] : names_) used += file->bytes.size();
  }
  const std::uint64_t room = capacity_ > used ? capacity_ - used : 0;
  handle.file->bytes.append(data.data(), std::min<std::uint64_t>(room, data.size()));
  return room < data.size() ? NoSpace(handle.path) : IOStatus::OK();
}

IOStatus SimulatedDisk::Sync(const Handle& handle) {
  std::lock_guard lock(mutex_);
  IOStatus status = CheckLocked(handle.path, DiskOperation::kSync);
  if (status.ok()) handle.file->synced = handle.file->bytes.size();
  if (status.ok()) handle.file->overwrites.clear();
  return status;
}

// Within a sector, and within what the file has.
IOStatus SimulatedDisk::WriteOver(const Handle& handle, std::uint64_t at, const Slice& data) {
  std::lock_guard lock(mutex_);
  IOStatus status = CheckLocked(handle.path, DiskOperation::kAppend);
  if (!status.ok()) return status;
  File& file = *handle.file;
  if (at / kSectorBytes != (at + data.size() - 1) / kSectorBytes ||
      at + data.size() > file.bytes.size())
    return IOStatus::NotSupported(handle.path, "writes over more than a sector");
  file.overwrites.push_back({.at = at, .before = file.bytes.substr(at, data.size())});
  file.bytes.replace(at, data.size(), data.data(), data.size());
  return status;
}

// Each sector loses its newest writes, from a random one on.
void SimulatedDisk::UndoSome(File& file, std::mt19937_64& random) {
  std::map<std::size_t, std::vector<Overwrite>> by_sector;
  for (Overwrite& overwrite : file.overwrites)
    by_sector[overwrite.at / kSectorBytes].push_back(std::move(overwrite));
  file.overwrites.clear();
  for (auto& [sector, overwrites] : by_sector) {
    for (std::size_t kept = random() % (overwrites.size() + 1); overwrites.size() > kept;
         overwrites.pop_back())
      file.bytes.replace(overwrites.back().at, overwrites.back().before.size(),
                         overwrites.back().before);
  }
}

IOStatus SimulatedDisk::ReadAt(const Handle& handle, std::uint64_t offset, std::size_t n,
                               Slice* result, char* scratch) {
  std::lock_guard lock(mutex_);
  *result = Slice(scratch, 0);
  if (IOStatus status = CheckLocked(handle.path, DiskOperation::kRead); !status.ok()) return status;
  const std::string& bytes = handle.file->bytes;
  if (offset >= bytes.size()) return IOStatus::OK();
  const std::size_t size = std::min<std::size_t>(n, bytes.size() - offset);
  std::memcpy(scratch, bytes.data() + offset, size);
  *result = Slice(scratch, size);
  bool flip = false;
  if (IOStatus status = CheckLocked(handle.path, DiskOperation::kRead, &flip); !status.ok())
    return status;
  if (flip) scratch[size / 2] = static_cast<char>(scratch[size / 2] ^ 0x10);
  return IOStatus::OK();
}

IOStatus SimulatedDisk::SyncDirectory() {
  std::lock_guard lock(mutex_);
  IOStatus status = CheckLocked({}, DiskOperation::kSyncDirectory);
  if (!status.ok()) return status;
  durable_names_ = names_;
  changes_.clear();
  return status;
}

IOStatus SimulatedDisk::OpenHandle(const std::string& path, Handle* handle) {
  std::lock_guard lock(mutex_);
  const auto found = names_.find(path);
  if (found == names_.end()) return IOStatus::PathNotFound(path);
  *handle = {.path = path, .file = found->second};
  return IOStatus::OK();
}

IOStatus SimulatedDisk::NewSequentialFile(const std::string& path, const FileOptions&,
                                          std::unique_ptr<rocksdb::FSSequentialFile>* result,
                                          IODebugContext*) {
  Handle handle;
  IOStatus status = OpenHandle(path, &handle);
  if (status.ok()) *result = std::make_unique<SequentialFile>(*this, std::move(handle));
  return status;
}

IOStatus SimulatedDisk::NewRandomAccessFile(const std::string& path, const FileOptions&,
                                            std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                            IODebugContext*) {
  Handle handle;
  IOStatus status = OpenHandle(path, &handle);
  if (status.ok()) *result = std::make_unique<RandomAccessFile>(*this, std::move(handle));
  return status;
}

IOStatus SimulatedDisk::NewWritableFile(const std::string& path, const FileOptions&,
                                        std::unique_ptr<rocksdb::FSWritableFile>* result,
                                        IODebugContext*) {
  std::lock_guard lock(mutex_);
  IOStatus status = CheckLocked(path, DiskOperation::kCreate);
  if (!status.ok()) return status;
  Handle handle{.path = path, .file = std::make_shared<File>()};
  ChangeLocked({.from = {}, .to = path, .file = handle.file});
  *result = std::make_unique<WritableFile>(*this, std::move(handle));
  return status;
}

IOStatus SimulatedDisk::NewRandomRWFile(const std::string& path, const FileOptions&,
                                        std::unique_ptr<rocksdb::FSRandomRWFile>* result,
                                        IODebugContext*) {
  Handle handle;
  IOStatus status = OpenHandle(path, &handle);
  if (status.ok()) *result = std::make_unique<ReadWriteFile>(*this, std::move(handle));
  return status;
}

IOStatus SimulatedDisk::ReuseWritableFile(const std::string&, const std::string&,
                                          const FileOptions&,
                                          std::unique_ptr<rocksdb::FSWritableFile>*,
                                          IODebugContext*) {
  return IOStatus::NotSupported("logs are not recycled");
}

IOStatus SimulatedDisk::NewDirectory(const std::string&, const IOOptions&,
                                     std::unique_ptr<rocksdb::FSDirectory>* result,
                                     IODebugContext*) {
  *result = std::make_unique<Directory>(*this);
  return IOStatus::OK();
}

IOStatus SimulatedDisk::FileExists(const std::string& path, const IOOptions&, IODebugContext*) {
  std::lock_guard lock(mutex_);
  return names_.contains(path) ? IOStatus::OK() : IOStatus::NotFound(path);
}

IOStatus SimulatedDisk::GetChildren(const std::string& directory, const IOOptions&,
                                    std::vector<std::string>* result, IODebugContext*) {
  std::lock_guard lock(mutex_);
  result->clear();
  for (const auto& [path, file] : names_) {
    if (path.starts_with(directory + "/")) result->push_back(path.substr(directory.size() + 1));
  }
  return IOStatus::OK();
}

IOStatus SimulatedDisk::DeleteFile(const std::string& path, const IOOptions&, IODebugContext*) {
  std::lock_guard lock(mutex_);
  CountLocked();
  if (!names_.contains(path)) return IOStatus::PathNotFound(path);
  ChangeLocked({.from = path, .to = {}, .file = nullptr});
  return IOStatus::OK();
}

IOStatus SimulatedDisk::Truncate(const std::string& path, std::size_t size, const IOOptions&,
                                 IODebugContext*) {
  std::lock_guard lock(mutex_);
  CountLocked();
  File& file = *names_.at(path);
  file.bytes.resize(size);
  file.synced = std::min(file.synced, size);
  return IOStatus::OK();
}

IOStatus SimulatedDisk::CreateDir(const std::string&, const IOOptions&, IODebugContext*) {
  return IOStatus::OK();
}
IOStatus SimulatedDisk::CreateDirIfMissing(const std::string&, const IOOptions&, IODebugContext*) {
  return IOStatus::OK();
}
IOStatus SimulatedDisk::DeleteDir(const std::string&, const IOOptions&, IODebugContext*) {
  return IOStatus::OK();
}

IOStatus SimulatedDisk::GetFileSize(const std::string& path, const IOOptions&, std::uint64_t* size,
                                    IODebugContext*) {
  std::lock_guard lock(mutex_);
  const auto found = names_.find(path);
  if (found == names_.end()) return IOStatus::PathNotFound(path);
  *size = found->second->bytes.size();
  return IOStatus::OK();
}

IOStatus SimulatedDisk::GetFileModificationTime(const std::string&, const IOOptions&,
                                                std::uint64_t* time, IODebugContext*) {
  *time = 0;
  return IOStatus::OK();
}

IOStatus SimulatedDisk::RenameFile(const std::string& from, const std::string& to, const IOOptions&,
                                   IODebugContext*) {
  std::lock_guard lock(mutex_);
  IOStatus status = CheckLocked(to, DiskOperation::kRename);
  if (!status.ok()) return status;
  const auto found = names_.find(from);
  if (found == names_.end()) return IOStatus::PathNotFound(from);
  ChangeLocked({.from = from, .to = to, .file = found->second});
  return status;
}

IOStatus SimulatedDisk::LockFile(const std::string& path, const IOOptions&,
                                 rocksdb::FileLock** lock, IODebugContext*) {
  std::lock_guard guard(mutex_);
  if (!locks_.insert(path).second) return IOStatus::IOError(path, "held already");
  *lock = new Lock(path);
  return IOStatus::OK();
}

IOStatus SimulatedDisk::UnlockFile(rocksdb::FileLock* lock, const IOOptions&, IODebugContext*) {
  const std::unique_ptr<Lock> owned(static_cast<Lock*>(lock));
  std::lock_guard guard(mutex_);
  locks_.erase(owned->path);
  return IOStatus::OK();
}

IOStatus SimulatedDisk::GetTestDirectory(const IOOptions&, std::string* path, IODebugContext*) {
  *path = "/simulated";
  return IOStatus::OK();
}

IOStatus SimulatedDisk::GetAbsolutePath(const std::string& path, const IOOptions&,
                                        std::string* absolute, IODebugContext*) {
  *absolute = path;
  return IOStatus::OK();
}

namespace {

class ImpatientClock final : public rocksdb::SystemClockWrapper {
 public:
  using SystemClockWrapper::SystemClockWrapper;
  const char* Name() const override { return "ImpatientClock"; }
  void SleepForMicroseconds(int micros) override {
    SystemClockWrapper::SleepForMicroseconds(std::min(micros, 100));
  }
};

class SimulatedEnv final : public rocksdb::EnvWrapper {
 public:
  explicit SimulatedEnv(std::shared_ptr<SimulatedDisk> disk)
      : EnvWrapper(rocksdb::NewCompositeEnv(disk)) {
    file_system_ = std::move(disk);
    system_clock_ = std::make_shared<ImpatientClock>(rocksdb::SystemClock::Default());
  }
  const char* Name() const override { return "SimulatedEnv"; }
};

}  // namespace

std::shared_ptr<rocksdb::Env> MakeSimulatedEnv(std::shared_ptr<SimulatedDisk> disk) {
  return std::make_shared<SimulatedEnv>(std::move(disk));
}

IOStatus SimulatedDisk::GetFreeSpace(const std::string&, const IOOptions&, std::uint64_t* bytes,
                                     IODebugContext*) {
  const std::uint64_t full = used();
  std::lock_guard lock(mutex_);
  *bytes = capacity_ > full ? capacity_ - full : 0;
  return IOStatus::OK();
}

IOStatus SimulatedDisk::IsDirectory(const std::string& path, const IOOptions&, bool* is,
                                    IODebugContext*) {
  std::lock_guard lock(mutex_);
  *is = !names_.contains(path);
  return IOStatus::OK();
}

}  // namespace statcollect::testing
