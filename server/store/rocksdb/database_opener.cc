#include "server/store/rocksdb/database_opener.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include <rocksdb/convenience.h>
#include <rocksdb/file_system.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>

#include "server/store/direct_io.h"
#include "server/store/rocksdb/contents_filter.h"
#include "server/store/rocksdb/families.h"
#include "server/store/rocksdb/log_gap_filter.h"
#include "server/store/rocksdb/util.h"
#include "server/store/rocksdb/zero_tail.h"

#include "common/thread_annotations.h"

namespace statcollect {
namespace {

constexpr std::size_t kBlockCacheBytes = 128 << 20;

rocksdb::CompressionType FastCompression() {
  for (const auto type : rocksdb::GetSupportedCompressions()) {
    if (type == rocksdb::kLZ4Compression) return type;
  }
  return rocksdb::kNoCompression;
}

// Sends RocksDB's warnings to the daemon's log instead of LOG files in the data directory. Remembers warnings
// about damaged logs, because RocksDB's status does not name the file.
class WarningLog final : public rocksdb::Logger {
 public:
  explicit WarningLog(std::function<void(const std::string&)> log)
      : rocksdb::Logger(rocksdb::WARN_LEVEL), log_(std::move(log)) {}

  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}  // lines without a level
  void Logv(rocksdb::InfoLogLevel level, const char* format, va_list arguments) override {
    if (level < GetInfoLogLevel() || level == rocksdb::HEADER_LEVEL) return;
    std::array<char, 512> text{};
    std::vsnprintf(text.data(), text.size(), format, arguments);
    const std::string line(text.data());
    log_(line);
    MutexLock lock(mutex_);
    if (line.find(".log") != std::string::npos) about_logs_ = line;
  }
  std::string about_logs() const {
    MutexLock lock(mutex_);
    return about_logs_;
  }

 private:
  const std::function<void(const std::string&)> log_;
  mutable Mutex mutex_;
  std::string about_logs_ STATCOLLECT_GUARDED_BY(mutex_);
};

rocksdb::DBOptions MakeDbOptions(const std::string& directory, bool fsync, rocksdb::Env* env,
                                 std::shared_ptr<rocksdb::Logger> log, std::shared_ptr<WriteHealth> health) {
  rocksdb::DBOptions options;
  if (env != nullptr) options.env = env;
  options.listeners.push_back(std::make_shared<BackgroundErrors>(std::move(health)));
  options.info_log = std::move(log);
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.db_host_id = "";  // checkpoints may be given to others and must not contain the host's name
  options.max_background_jobs = 2;
  options.max_total_wal_size = 256 << 20;
  // Tables are written once and read much later, if at all: copying them through the page cache costs more
  // than the rest of a flush. Where the file system cannot do without (tmpfs), it is used.
  options.use_direct_io_for_flush_and_compaction = env == nullptr && SupportsDirectIo(directory);
  // A crash may tear the log's last record; nothing in it was acknowledged, so it is dropped. Damage anywhere
  // else could hide acknowledged records: then opening fails, where point-in-time recovery would silently
  // roll back.
  // Without syncs a power cut may damage any log, and only the beginning up to there is sound (LogGapFilter).
  options.wal_recovery_mode = fsync ? rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords
                                    : rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  return options;
}

// Blocks and sketches: written once, in files that are merged seldom and many at a time, so that a byte is
// rewritten about log32(size / 64 MiB) times. They are encoded by us and hardly shrink further.
void TuneBulk(rocksdb::ColumnFamilyOptions& options, rocksdb::BlockBasedTableOptions& table,
              std::size_t memtable_bytes) {
  options.compression = rocksdb::kNoCompression;
  options.write_buffer_size = memtable_bytes;
  options.compaction_style = rocksdb::kCompactionStyleUniversal;
  options.level0_file_num_compaction_trigger = 32;
  options.level0_slowdown_writes_trigger = 96;
  options.level0_stop_writes_trigger = 128;
  options.compaction_options_universal.min_merge_width = 16;
  options.compaction_options_universal.size_ratio = 50;
  // Keys are never overwritten, so merging everything would not reclaim space.
  options.compaction_options_universal.max_size_amplification_percent = 1'000'000;
  table.block_size = 4 << 10;  // a value is mostly a block of its own
  table.checksum = rocksdb::kxxHash64;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
}

rocksdb::ColumnFamilyOptions MakeFamilyOptions(Family family, const std::shared_ptr<LiveAttempts>& live,
                                               std::size_t memtable_bytes,
                                               const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::ColumnFamilyOptions options;
  rocksdb::BlockBasedTableOptions table;
  options.compression = FastCompression();
  options.write_buffer_size = memtable_bytes / 8;
  table.block_size = 8 << 10;
  table.format_version = 5;
  table.block_cache = cache;
  if (family == kStats || family == kSketches) TuneBulk(options, table, memtable_bytes);
  if (family == kContents) {
    table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
    if (live) options.compaction_filter_factory = std::make_shared<ContentsFilterFactory>(live);
  }
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

// What to do when the store does not open.
std::string AfterOpen(Code code) {
  if (code == Code::kDataLoss) {
    return "; expected files as they were written; restore a checkpoint, or start with a different "
           "--data-dir";
  }
  return "; expected a disk with space and a folder this user may write";
}

}  // namespace

DatabaseOpener::DatabaseOpener(std::string directory, const RocksDbStoreOptions& options,
                               std::shared_ptr<LiveAttempts> live)
    : directory_(std::move(directory)),
      log_(options.log),
      fsync_(options.fsync),
      memtable_bytes_(options.memtable_bytes),
      open_files_max_(options.open_files_max),
      env_(options.env),
      live_(std::move(live)),
      cache_(rocksdb::NewLRUCache(kBlockCacheBytes)) {}

Result<std::shared_ptr<Database>> DatabaseOpener::Open(bool read_only,
                                                       const std::shared_ptr<WriteHealth>& health) const {
  const auto log = std::make_shared<WarningLog>(log_);
  rocksdb::DBOptions options = MakeDbOptions(directory_, fsync_, env_.get(), log, health);
  options.max_open_files = open_files_max_;
  const auto database = std::make_shared<Database>();
  rocksdb::Status opened = TryOpen(read_only, options, *database);
  if (opened.IsCorruption() && !read_only && CutZeroTails(*options.env->GetFileSystem(), directory_, log_))
    opened = TryOpen(read_only, options, *database);
  if (opened.ok()) {
    STATCOLLECT_RETURN_IF_ERROR(CheckProperties(*database));
    return database;
  }
  const std::string hint = log->about_logs().empty() ? "" : " (" + log->about_logs() + ")";
  const Status status = FromRocks("open store '" + directory_ + "'", opened);
  return Status(status.code(), status.message() + hint + AfterOpen(status.code()));
}

// RocksDB opens a table whose properties it cannot read with a warning, and then takes its index for one of
// another format: keys would be missing without a word.
Status DatabaseOpener::CheckProperties(const Database& database) const {
  const std::string attempted = "open store '" + directory_ + "'";
  for (auto* family : database.families) {
    rocksdb::TablePropertiesCollection properties;
    STATCOLLECT_RETURN_IF_ERROR(
        FromRocks(attempted, database.db->GetPropertiesOfAllTables(family, &properties)));
    for (const auto& [path, found] : properties) {
      if (found != nullptr && found->num_entries > 0) continue;
      return {Code::kDataLoss, attempted + ": the properties of table '" + path + "' cannot be read" +
                                   AfterOpen(Code::kDataLoss)};
    }
  }
  return Status::Ok();
}

rocksdb::Status DatabaseOpener::TryOpen(bool read_only, rocksdb::DBOptions options,
                                        Database& database) const {
  if (!fsync_) database.log_filter = std::make_unique<LogGapFilter>(log_);
  options.wal_filter = database.log_filter.get();
  // A store of an earlier build lacks the newer families. Opening creates them. If nothing may be changed,
  // `default` is used for them, because it contains none of their keys either.
  std::vector<std::string> existing;
  if (read_only) (void)rocksdb::DB::ListColumnFamilies(options, directory_, &existing);
  std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
  for (int family = 0; family < kFamilyCount; ++family) {
    const std::string& name = kFamilies[static_cast<std::size_t>(family)];
    const bool missing = read_only && std::find(existing.begin(), existing.end(), name) == existing.end();
    descriptors.emplace_back(
        missing ? kFamilies[kDefault] : name,
        MakeFamilyOptions(missing ? kDefault : static_cast<Family>(family), live_, memtable_bytes_, cache_));
  }
  rocksdb::DB* db = nullptr;
  const rocksdb::Status opened =
      read_only ? rocksdb::DB::OpenForReadOnly(options, directory_, descriptors, &database.families, &db)
                : rocksdb::DB::Open(options, directory_, descriptors, &database.families, &db);
  database.db.reset(db);
  return opened;
}

}  // namespace statcollect
