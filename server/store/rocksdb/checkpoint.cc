#include "server/store/rocksdb/checkpoint.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>
#include <vector>

#include <rocksdb/file_system.h>
#include <rocksdb/utilities/checkpoint.h>

#include "server/store/checkpoint_files.h"
#include "server/store/format_file.h"
#include "server/store/identity_file.h"
#include "server/store/rocksdb/database_opener.h"
#include "server/store/rocksdb/journal_check.h"
#include "server/store/rocksdb/remove_attempts.h"
#include "server/store/rocksdb/rocksdb_store.h"
#include "server/store/rocksdb/synced_mark.h"
#include "server/store/rocksdb/util.h"
#include "server/store/rocksdb/write_health.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;

Status WriteTables(const std::string& attempted, const Database& database,
                   const std::string& directory) {
  rocksdb::Checkpoint* made = nullptr;
  STATCOLLECT_RETURN_IF_ERROR(
      FromRocks(attempted, rocksdb::Checkpoint::Create(database.db.get(), &made)));
  const std::unique_ptr<rocksdb::Checkpoint> checkpoint(made);
  const Status written = FromRocks(attempted, checkpoint->CreateCheckpoint(directory));
  if (written.code() != Code::kUnavailable) return written;
  return Status(
      Code::kFailedPrecondition,
      written.message() + "; expected a folder that the collector's user may write; name another");
}

// What the copy's logs and MANIFEST have now is all there will be; a log may end within a record
// that was being written.
Status MarkAsWhole(const std::string& directory) {
  rocksdb::FileSystem& files = *rocksdb::FileSystem::Default();
  SyncedLengths lengths;
  std::vector<std::string> names;
  STATCOLLECT_RETURN_IF_ERROR(
      FromRocks("list '" + directory + "'", files.GetChildren(directory, {}, &names, nullptr)));
  for (const std::string& name : names) {
    if (!IsJournal(name)) continue;
    STATCOLLECT_ASSIGN_OR_RETURN(const auto whole, WholeBytes(files, directory + "/" + name));
    if (whole > 0) lengths[name] = whole;
  }
  return WriteSyncedMark(files, directory, lengths);
}

// Reads every block of every table.
Status VerifyTables(const std::string& directory, const RocksDbStoreOptions& options) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, DatabaseOpener(directory, options, nullptr)
                                                        .Open(DatabaseOpener::Access::kReadOnly,
                                                              std::make_shared<WriteHealth>()));
  return FromRocks("verify '" + directory + "'", database->db->VerifyChecksum());
}

// The system's error message; empty if it is a folder and its FORMAT file, if any, can be read.
std::string WhyUnreadable(const std::string& directory) {
  struct stat found {};
  if (stat(directory.c_str(), &found) != 0) return std::strerror(errno);
  if (!S_ISDIR(found.st_mode)) return std::strerror(ENOTDIR);
  if (access(directory.c_str(), R_OK | X_OK) != 0) return std::strerror(errno);
  if (access((directory + "/FORMAT").c_str(), R_OK) != 0 && errno != ENOENT)
    return std::strerror(errno);
  return "";
}

// Checks that `checkpoint` is a readable checkpoint of a format that this build knows.
Status CheckSource(const std::string& attempted, const std::string& checkpoint) {
  if (const std::string why = WhyUnreadable(checkpoint); !why.empty()) {
    return {Code::kNotFound,
            attempted + ": cannot read '" + checkpoint + "': " + why +
                "; expected a folder that statctl admin checkpoint made, which this user may read"};
  }
  if (!HasFormatFile(checkpoint)) {
    return {Code::kInvalidArgument, attempted + ": '" + checkpoint +
                                        "' has no file FORMAT; expected a checkpoint that statctl "
                                        "admin checkpoint made, or a copy of one"};
  }
  return CheckFormatFile(checkpoint, kStoreFormatVersion);
}

}  // namespace

Result<StoreUsage> MeasureUsage(const std::string& data_dir, const Database* database) {
  StoreUsage usage;
  std::error_code error;
  const fs::space_info space = fs::space(data_dir, error);
  if (error) return Status(Code::kUnavailable, "measure '" + data_dir + "': " + error.message());
  usage.disk_free_bytes = space.available;
  usage.disk_capacity_bytes = space.capacity;
  if (database != nullptr) {
    for (auto* family : database->families) {
      std::uint64_t bytes = 0;
      (void)database->db->GetIntProperty(family, rocksdb::DB::Properties::kCurSizeAllMemTables,
                                         &bytes);
      usage.unflushed_bytes += bytes;
    }
    STATCOLLECT_ASSIGN_OR_RETURN(const auto retired, HiddenAttempts(*database));
    usage.retired_attempts = retired.size();
  }
  for (fs::directory_iterator entry(data_dir, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;  // RocksDB removes files at any time
    const auto bytes = entry->file_size(gone);
    if (!gone) usage.disk_bytes += bytes;
  }
  return usage;
}

Result<CheckpointReport> MakeCheckpoint(RecoverableDatabase& store, const std::string& data_dir,
                                        const std::string& directory,
                                        const StoreIdentity& identity) {
  const std::string attempted = "checkpoint to '" + directory + "'";
  STATCOLLECT_ASSIGN_OR_RETURN(auto target, ParseTarget(attempted, directory, data_dir));
  STATCOLLECT_ASSIGN_OR_RETURN(auto usage, MeasureUsage(data_dir, nullptr));
  const bool links = SameFileSystem(target, data_dir);
  STATCOLLECT_RETURN_IF_ERROR(CheckFreeSpace(attempted, target, links ? 0 : usage.disk_bytes));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, store.Pin());
  StagedDirectory staged(target);
  STATCOLLECT_RETURN_IF_ERROR(WriteTables(attempted, *database, staged.path()));
  STATCOLLECT_RETURN_IF_ERROR(MarkAsWhole(staged.path()));
  std::set<std::string> words = {kSyncedWord};
  if (FormatFileSays(data_dir, kTokensWord)) words.insert(kTokensWord);
  STATCOLLECT_RETURN_IF_ERROR(WriteFormatFile(staged.path(), kStoreFormatVersion, words));
  STATCOLLECT_RETURN_IF_ERROR(WriteCheckpointIdentity(staged.path(), identity));
  STATCOLLECT_ASSIGN_OR_RETURN(auto report, MeasureCheckpoint(staged.path()));
  report.directory = target;
  STATCOLLECT_RETURN_IF_ERROR(staged.Publish());
  return report;
}

Status RestoreCheckpoint(const std::string& checkpoint, const std::string& data_dir,
                         const RocksDbStoreOptions& options) {
  const std::string attempted = "restore '" + checkpoint + "' into '" + data_dir + "'";
  STATCOLLECT_RETURN_IF_ERROR(CheckSource(attempted, checkpoint));
  std::error_code error;
  const fs::path absolute = fs::absolute(data_dir, error);
  fs::create_directories(absolute.lexically_normal().parent_path(), error);
  STATCOLLECT_ASSIGN_OR_RETURN(auto target, ParseTarget(attempted, absolute, ""));
  const std::string source = fs::weakly_canonical(checkpoint, error).string() + "/";
  if ((target + "/").starts_with(source)) {
    return {Code::kInvalidArgument, attempted +
                                        ": the data directory would lie in the checkpoint, which "
                                        "is only read; name a folder elsewhere with --data-dir"};
  }
  STATCOLLECT_ASSIGN_OR_RETURN(auto found, MeasureCheckpoint(checkpoint));
  STATCOLLECT_RETURN_IF_ERROR(CheckFreeSpace(attempted, target, found.bytes));
  StagedDirectory staged(target);
  STATCOLLECT_RETURN_IF_ERROR(CopyFiles(checkpoint, staged.path(), options.stopped));
  if (Status verified = VerifyTables(staged.path(), options); !verified.ok()) {
    return {verified.code(), attempted + ": " + verified.message() +
                                 "; the data directory is left as it was; use another checkpoint"};
  }
  if (options.stopped && options.stopped()) return Stopped(attempted);
  STATCOLLECT_RETURN_IF_ERROR(staged.Publish());
  options.log("restored '" + checkpoint + "' into '" + target +
              "': " + std::to_string(found.files) + " files, " + std::to_string(found.bytes) +
              " bytes, verified");
  return Status::Ok();
}

}  // namespace statcollect
