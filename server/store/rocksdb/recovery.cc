#include "server/store/rocksdb/recovery.h"

#include <utility>

#include "server/store/rocksdb/util.h"

namespace statcollect {
namespace {

// A scan that another thread forgets about delays opening the store again for this long.
constexpr std::chrono::seconds kScanPatience{3};

}  // namespace

RecoverableDatabase::RecoverableDatabase(const std::string& directory,
                                         const RocksDbStoreOptions& options,
                                         std::shared_ptr<LiveAttempts> live, OnOpened on_opened)
    : directory_(directory),
      log_(options.log),
      accept_loss_(options.accept_loss),
      opener_(directory, options, std::move(live)),
      on_opened_(std::move(on_opened)) {}

Status RecoverableDatabase::Open() {
  using Access = DatabaseOpener::Access;
  STATCOLLECT_ASSIGN_OR_RETURN(
      auto opened, opener_.Open(accept_loss_ ? Access::kAcceptLoss : Access::kWrite, health_));
  MutexLock lock(mutex_);
  database_ = std::move(opened);
  return on_opened_(*database_);
}

Result<std::shared_ptr<Database>> RecoverableDatabase::Pin() {
  MutexLock lock(mutex_);
  if (database_ != nullptr) return database_;
  return Status(Code::kUnavailable,
                "use the store: it could not be opened again after its disk was full, or "
                "descriptors ran out; free some, and it opens by itself");
}

Status RecoverableDatabase::Write(const std::string& attempted, const Database& database,
                                  rocksdb::WriteBatch& batch, bool sync, bool frees_space) {
  const Status failure = health_->status();
  if (!failure.ok() && !(frees_space && failure.code() == Code::kResourceExhausted)) return failure;
  rocksdb::WriteOptions options;
  options.sync = sync;
  const Status written = FromRocks(attempted, database.db->Write(options, &batch));
  return written.ok() ? written : health_->Fail(written);
}

Status RecoverableDatabase::Recover(const Status& failure) {
  MutexLock lock(mutex_);
  if (health_->status().ok()) return Status::Ok();  // another thread was here first
  if (database_.use_count() > 1) {
    const auto now = std::chrono::steady_clock::now();
    if (!waiting_since_) waiting_since_ = now;
    if (now - *waiting_since_ >= kScanPatience) database_->closing = true;
    return failure;
  }
  waiting_since_.reset();
  return ReopenLocked(failure);
}

// As a restart does: RocksDB replays its log and makes durable what it found before Open returns,
// so what is read from then on is durable whatever became of the write that failed. Readers wait
// meanwhile, and have a read-only RocksDB if there is still no space.
Status RecoverableDatabase::ReopenLocked(const Status& failure) {
  database_.reset();
  health_->Clear();
  auto opened = opener_.Open(DatabaseOpener::Access::kWrite, health_);
  if (opened.ok()) {
    database_ = *std::move(opened);
    if (const Status loaded = on_opened_(*database_); !loaded.ok()) return health_->Fail(loaded);
    log_("opened '" + directory_ + "' again: there is space, and descriptors");
    return health_->status();
  }
  log_("open '" + directory_ + "' again: " + opened.status().message());
  (void)health_->Fail(Status(Code::kResourceExhausted, opened.status().message()));
  auto readable = opener_.Open(DatabaseOpener::Access::kReadOnly, health_);
  if (readable.ok()) database_ = *std::move(readable);
  return failure;
}

}  // namespace statcollect
