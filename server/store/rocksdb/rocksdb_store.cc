#include "server/store/rocksdb/rocksdb_store.h"

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "server/store/codec/batch_encoder.h"
#include "server/store/codec/catalogue.h"
#include "server/store/directory_lock.h"
#include "server/store/format_file.h"
#include "server/store/identity_file.h"
#include "server/store/live_attempts.h"
#include "server/store/rocksdb/aliases.h"
#include "server/store/rocksdb/block_source.h"
#include "server/store/rocksdb/catalogue.h"
#include "server/store/rocksdb/catalogue_keys.h"
#include "server/store/rocksdb/checkpoint.h"
#include "server/store/rocksdb/families.h"
#include "server/store/rocksdb/reclaim.h"
#include "server/store/rocksdb/record_keys.h"
#include "server/store/rocksdb/records.h"
#include "server/store/rocksdb/recovery.h"
#include "server/store/rocksdb/remove_attempts.h"
#include "server/store/rocksdb/stat_scan.h"
#include "server/store/rocksdb/values.h"

#include "common/thread_annotations.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;

// About what a batch of them takes, so that it need not grow.
std::size_t BytesOf(std::span<const AppendItem> items) {
  std::size_t bytes = 4096 * items.size();
  for (const AppendItem& item : items) {
    if (item.prepared == nullptr) continue;
    const EncodedBatch& prepared = EncodedOf(*item.prepared);
    for (const EncodedStatBlock& block : prepared.blocks)
      bytes += 128 + block.own.stats.size() + block.own.sums.size();
    for (const EncodedRow& row : prepared.rows) bytes += 48 + row.value.size();
  }
  return bytes;
}

// Puts the parts together, and writes records. Each part's header says who may call it and which
// locks it takes.
//
// Threads: any. Locks, in the order in which they are taken: catalogue_mutex_, purge_mutex_ or
// checkpoint_mutex_, of which none is taken under another; that of
// Aliases::HoldTargets; that of RecoverableDatabase; those of what has been noted (Aliases,
// with_info_mutex_) and of LiveAttempts, under which nothing else is taken.
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

  Status PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta) override;
  std::unique_ptr<StreamWriter> NewWriter(AttemptId attempt, std::uint32_t rank) override;
  Status Append(std::span<const AppendItem> items) override;
  Status PutEvents(AttemptId attempt, std::span<const CollectorEvent> events) override;
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
  // In a batch that is not written yet.
  struct Added {
    Aliases::Pairs pairs;
    std::set<std::pair<AttemptId, std::uint32_t>> with_info;
  };

  Status AddItem(const Database& database, rocksdb::WriteBatch& batch, const AppendItem& item,
                 Added* added);
  Status AddInfo(const Database& database, rocksdb::WriteBatch& batch, const AppendItem& item,
                 Added* added);
  // Loads the attempts of a database that has just been opened and is not used by others yet.
  // Nothing that was noted before is known to be written.
  Status Load(const Database& opened) {
    aliases_.Forget();
    {
      MutexLock lock(with_info_mutex_);
      with_info_.clear();
    }
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
  std::atomic<std::size_t> key_frame_bytes_{0};  // shared by the streams' encoders
  Mutex with_info_mutex_;
  // Ranks whose hello is known to be stored.
  std::set<std::pair<AttemptId, std::uint32_t>> with_info_ STATCOLLECT_GUARDED_BY(with_info_mutex_);
  AskedBefore series_asked_;
  Mutex catalogue_mutex_;  // one attempt is created or hidden at a time
  Mutex purge_mutex_;      // held while data is deleted, which may take long
  Mutex checkpoint_mutex_;
  Reclaimer reclaimer_;  // its thread ends first
};

std::unique_ptr<StreamWriter> RocksDbStore::NewWriter(AttemptId attempt, std::uint32_t rank) {
  return std::make_unique<BatchEncoder>(
      attempt, rank,
      StatEncoder::Options{.find_twin =
                               [this, attempt](const BlockDigest& digest) {
                                 return aliases_.FindTwin(digest, attempt);
                               },
                           .key_frame_bytes = &key_frame_bytes_});
}

Status RocksDbStore::Append(std::span<const AppendItem> items) {
  // Held during the write, so that the removal of an attempt sees all aliases of its blocks.
  const auto targets = aliases_.HoldTargets();
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
  rocksdb::WriteBatch batch(BytesOf(items));
  Added added;
  for (const AppendItem& item : items)
    STATCOLLECT_RETURN_IF_ERROR(AddItem(*database, batch, item, &added));
  STATCOLLECT_RETURN_IF_ERROR(database_.Write("append " + std::to_string(items.size()) + " batches",
                                              *database, batch, fsync_));
  // Only now: what a failed write held has to be written with the next one.
  aliases_.Note(added.pairs);
  MutexLock lock(with_info_mutex_);
  with_info_.insert(added.with_info.begin(), added.with_info.end());
  return Status::Ok();
}

Status RocksDbStore::AddItem(const Database& database, rocksdb::WriteBatch& batch,
                             const AppendItem& item, Added* added) {
  if (item.prepared != nullptr) {
    const EncodedBatch& prepared = EncodedOf(*item.prepared);
    for (const EncodedRow& row : prepared.rows)
      (void)batch.Put(database.families[FamilyOf(row.family)], KeyOf(item.attempt, item.rank, row),
                      row.value);
    for (const EncodedStatBlock& block : prepared.blocks)
      aliases_.Put(database, batch, block, item.attempt, &added->pairs);
  }
  (void)batch.Put(database.families[kCatalogue], RankKey('m', item.attempt, item.rank),
                  Encode(*item.meta));
  return AddInfo(database, batch, item, added);
}

// The content of a hello is large and does not change, so it is written once and not with each
// append.
Status RocksDbStore::AddInfo(const Database& database, rocksdb::WriteBatch& batch,
                             const AppendItem& item, Added* added) {
  {
    MutexLock lock(with_info_mutex_);
    if (with_info_.contains({item.attempt, item.rank})) return Status::Ok();
  }
  if (!added->with_info.emplace(item.attempt, item.rank).second) return Status::Ok();
  const std::string key = RankKey('i', item.attempt, item.rank);
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto stored,
      ReadBytes(database, "the hello" + OfRank(item.attempt, item.rank), kCatalogue, key));
  if (!stored) (void)batch.Put(database.families[kCatalogue], key, Encode(item.meta->info));
  return Status::Ok();
}

Status RocksDbStore::PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
  rocksdb::WriteBatch batch;
  (void)batch.Put(database->families[kCatalogue], RankKey('i', attempt, rank), Encode(meta.info));
  (void)batch.Put(database->families[kCatalogue], RankKey('m', attempt, rank), Encode(meta));
  STATCOLLECT_RETURN_IF_ERROR(
      database_.Write("write rank " + std::to_string(rank), *database, batch, true));
  MutexLock lock(with_info_mutex_);
  with_info_.emplace(attempt, rank);
  return Status::Ok();
}

Status RocksDbStore::PutEvents(AttemptId attempt, std::span<const CollectorEvent> events) {
  MutexLock lock(catalogue_mutex_);  // the attempt stays
  if (!live_->Contains(attempt))
    return {Code::kNotFound,
            "add events: attempt " + std::to_string(attempt) + " has been removed"};
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
  rocksdb::WriteBatch batch;
  for (const CollectorEvent& own : events) {
    const std::string key = StepPrefix(attempt, own.rank, own.event.step) +
                            KeyBuilder().U64(kCollectorsOwn | own.number).Take();
    (void)batch.Put(database->families[kEvents], key, Encode(own.event));
  }
  return database_.Write("add " + std::to_string(events.size()) + " events", *database, batch,
                         true);
}

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
