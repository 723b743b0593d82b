#include "server/store/rocksdb/rocksdb_store.h"

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <variant>

#include "server/store/directory_lock.h"
#include "server/store/format_file.h"
#include "server/store/identity_file.h"
#include "server/store/live_attempts.h"
#include "server/store/rocksdb/aliases.h"
#include "server/store/rocksdb/append.h"
#include "server/store/rocksdb/block_source.h"
#include "server/store/rocksdb/catalogue.h"
#include "server/store/rocksdb/catalogue_keys.h"
#include "server/store/rocksdb/checkpoint.h"
#include "server/store/rocksdb/families.h"
#include "server/store/rocksdb/reclaim.h"
#include "server/store/rocksdb/records.h"
#include "server/store/rocksdb/recovery.h"
#include "server/store/rocksdb/remove_attempts.h"
#include "server/store/rocksdb/stat_scan.h"
#include "server/store/rocksdb/values.h"

#include "common/thread_annotations.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;

// Puts the parts together. Each part's header says who may call it and which locks it takes.
//
// Threads: any. Locks, in the order in which they are taken: catalogue_mutex_, purge_mutex_ or
// checkpoint_mutex_, of which none is taken under another; that of
// Aliases::HoldTargets; that of RecoverableDatabase; those of what has been noted (Aliases,
// Appender) and of LiveAttempts, under which nothing else is taken.
class RocksDbStore final : public Store {
 public:
  RocksDbStore(const std::string& directory, const RocksDbStoreOptions& options,
               std::unique_ptr<DirectoryLock> lock)
      : directory_(directory),
        fsync_(options.fsync),
        lock_(std::move(lock)),
        database_(directory, options, live_,
                  [this](const Database& opened) { return Load(opened); }),
        catalogue_(database_, *live_),
        aliases_(database_, *live_),
        appender_(database_, aliases_, *live_, options.fsync),
        reclaimer_(database_, directory) {}

  // Once, before anything else.
  Status Open() {
    STATCOLLECT_ASSIGN_OR_RETURN(identity_, OpenIdentityFile(directory_));
    STATCOLLECT_RETURN_IF_ERROR(database_.Open());
    return SetFormatWord(directory_, kStoreFormatVersion, kSyncedWord, true);
  }

  Result<std::vector<std::string>> ListRuns() override { return catalogue_.ListRuns(); }
  Result<std::vector<AttemptMeta>> Attempts(const std::string& run) override {
    return catalogue_.Attempts(run);
  }
  Result<AttemptMeta> CreateAttempt(const AttemptMeta& wanted) override {
    MutexLock lock(catalogue_mutex_);
    return catalogue_.CreateAttempt(wanted);
  }
  Status RetireAttempts(std::span<const AttemptId> ids) override {
    MutexLock lock(catalogue_mutex_);
    return HideAttempts(database_, aliases_, *live_, ids);
  }
  Status PurgeRetired(const std::function<bool()>& stopped) override {
    MutexLock lock(purge_mutex_);
    STATCOLLECT_ASSIGN_OR_RETURN(const auto deleted, DeleteHidden(database_, aliases_, stopped));
    if (!deleted.empty()) reclaimer_.StartAfter(deleted);
    return Status::Ok();
  }
  Result<std::vector<AttemptTally>> Census() override { return catalogue_.Census(); }
  Status KeepRun(const std::string& run, bool keep) override {
    MutexLock lock(catalogue_mutex_);
    return catalogue_.KeepRun(run, keep);
  }
  Status PutDocument(const std::string& run, const std::string& name,
                     const std::optional<std::string>& content) override {
    MutexLock lock(catalogue_mutex_);
    return catalogue_.PutDocument(run, name, content);
  }
  Result<std::optional<std::string>> Document(const std::string& run,
                                              const std::string& name) override {
    return catalogue_.Document(run, name);
  }
  Result<std::map<std::uint32_t, RankMeta>> Ranks(AttemptId attempt) override {
    return catalogue_.Ranks(attempt);
  }
  Result<std::optional<RankMeta>> Rank(AttemptId attempt, std::uint32_t rank) override {
    return catalogue_.Rank(attempt, rank);
  }
  Result<SharedDefinitions> Definitions(AttemptId attempt, std::uint32_t rank) override {
    return catalogue_.Definitions(attempt, rank);
  }

  Status PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta) override {
    return appender_.PutRank(attempt, rank, meta);
  }
  std::unique_ptr<StreamWriter> NewWriter(AttemptId attempt, std::uint32_t rank) override {
    return appender_.NewWriter(attempt, rank);
  }
  Status Append(std::span<const AppendItem> items) override { return appender_.Append(items); }
  Status PutEvents(AttemptId attempt, std::span<const CollectorEvent> events) override {
    MutexLock lock(catalogue_mutex_);  // the attempt stays
    return appender_.PutEvents(attempt, events);
  }
  Status Recover() override {
    const Status failure = database_.health();
    if (failure.code() != Code::kResourceExhausted) return failure;
    // Who deletes data uses RocksDB as a scan does, and starts the merges.
    if (!purge_mutex_.try_lock()) return database_.Recover(failure);
    reclaimer_.Pause();
    const Status recovered = database_.Recover(failure);
    if (recovered.ok()) reclaimer_.Resume();
    purge_mutex_.unlock();
    return recovered;
  }

  std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank,
                                      StepBounds steps) override {
    auto pinned = database_.Pin();
    if (!pinned.ok()) return std::make_unique<PinnedScan>(pinned.status());
    const Database& database = **pinned;
    auto scan = ScanBlocks(*database.db, StatFamiliesOf(database), attempt, rank, steps);
    return std::make_unique<PinnedScan>(*std::move(pinned), std::move(scan));
  }
  Status VisitSeries(AttemptId attempt, std::uint32_t rank, std::uint32_t activation,
                     StepBounds steps, const Visitor<StatPoint>& visitor) override {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
    return statcollect::VisitSeries(*database->db, StatFamiliesOf(*database), attempt, rank,
                                    activation, steps, series_asked_, visitor);
  }
  Status VisitStatSteps(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                        const Visitor<std::uint64_t>& visitor) override {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
    return statcollect::VisitStatSteps(*database, attempt, rank, steps, visitor);
  }
  Status VisitRecords(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                      RecordVisitor visitor) override {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
    return statcollect::VisitRecords(*database, attempt, rank, steps, visitor);
  }
  Result<std::string> CaptureChunkAt(AttemptId attempt, std::uint32_t rank, std::uint64_t step,
                                     std::uint32_t activation, std::uint32_t offset) override {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
    return ReadCaptureChunk(*database, attempt, rank, step, activation, offset);
  }

  Result<StoreUsage> Usage() override {
    const auto database = database_.Pin();
    return MeasureUsage(directory_, database.ok() ? database->get() : nullptr);
  }
  bool fsync() const override { return fsync_; }
  StoreIdentity identity() const override { return identity_; }
  Result<CheckpointReport> Checkpoint(const std::string& directory) override {
    MutexLock one_at_a_time(checkpoint_mutex_);
    return MakeCheckpoint(database_, directory_, directory, identity_);
  }

 private:
  // Loads the attempts of a database that has just been opened and is not used by others yet.
  Status Load(const Database& opened) {
    aliases_.Forget();
    appender_.Forget();
    if (opened.lost) {  // only of Open
      STATCOLLECT_ASSIGN_OR_RETURN(identity_, RenewIdentityFile(directory_));
    }
    return Catalogue::LoadAttempts(opened, *live_);
  }

  const std::string directory_;
  const bool fsync_;
  StoreIdentity identity_;  // written by Open
  const std::shared_ptr<LiveAttempts> live_ = std::make_shared<LiveAttempts>();
  const std::unique_ptr<DirectoryLock> lock_;  // outlives the database
  RecoverableDatabase database_;
  Catalogue catalogue_;
  Aliases aliases_;
  Appender appender_;
  AskedBefore series_asked_;
  Mutex catalogue_mutex_;  // one attempt is created or hidden at a time
  Mutex purge_mutex_;      // held while data is deleted, which may take long
  Mutex checkpoint_mutex_;
  Reclaimer reclaimer_;  // its thread ends first
};

}  // namespace

namespace {

// Makes the folder and those above it that are missing, durably: without a sync of the folder that
// holds it, a new folder may be gone after a power cut, with all that was synced in it.
std::error_code MakeFolder(const std::string& directory) {
  std::error_code error;
  fs::path path = fs::absolute(directory, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::vector<fs::path> holders;  // of what is made
  for (; !error && !fs::exists(path, error) && path.has_relative_path(); path = path.parent_path())
    holders.push_back(path.parent_path());
  fs::create_directories(directory, error);
  for (const fs::path& holder : holders) {
    if (error) return error;
    if (!SyncPath(holder)) error.assign(errno, std::generic_category());
  }
  return error;
}

}  // namespace

Result<std::unique_ptr<Store>> OpenRocksDbStore(const std::string& directory,
                                                const RocksDbStoreOptions& options) {
  std::error_code error = MakeFolder(directory);
  if (error || !fs::is_directory(directory, error)) {
    return Status(Code::kPermissionDenied,
                  "make folder '" + directory +
                      "': " + (error ? error.message() : "something else has that name") +
                      "; expected a folder this user may write; choose another with --data-dir");
  }
  STATCOLLECT_ASSIGN_OR_RETURN(
      auto lock, DirectoryLock::Acquire(directory, options.until_unused, options.log));
  STATCOLLECT_RETURN_IF_ERROR(CheckFormatFile(directory, kStoreFormatVersion));

  auto store = std::make_unique<RocksDbStore>(directory, options, std::move(lock));
  STATCOLLECT_RETURN_IF_ERROR(store->Open());
  options.log("opened '" + directory + "', format version " + std::to_string(kStoreFormatVersion));
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace statcollect
