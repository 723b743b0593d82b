#include "server/store/rocksdb/database_opener.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <regex>
#include <string_view>
#include <utility>
#include <vector>

#include <rocksdb/convenience.h>
#include <rocksdb/file_system.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>

#include "common/parse.h"
#include "common/text.h"
#include "common/thread_annotations.h"
#include "server/store/direct_io.h"
#include "server/store/format_file.h"
#include "server/store/rocksdb/contents_filter.h"
#include "server/store/rocksdb/families.h"
#include "server/store/rocksdb/journal_check.h"
#include "server/store/rocksdb/log_gap_filter.h"
#include "server/store/rocksdb/orphan_tables.h"
#include "server/store/rocksdb/synced_files.h"
#include "server/store/rocksdb/util.h"
#include "server/store/rocksdb/zero_tail.h"

namespace statcollect {
namespace {

constexpr std::size_t kBlockCacheBytes = 128 << 20;

rocksdb::CompressionType FastCompression() {
  for (const auto type : rocksdb::GetSupportedCompressions()) {
    if (type == rocksdb::kLZ4Compression) return type;
  }
  return rocksdb::kNoCompression;
}

// Sends RocksDB's warnings to the daemon's log instead of LOG files in the data directory.
// Remembers warnings about damaged logs, because RocksDB's status does not name the file.
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

rocksdb::DBOptions MakeDbOptions(bool whole_logs, std::shared_ptr<rocksdb::Logger> log,
                                 std::shared_ptr<WriteHealth> health) {
  rocksdb::DBOptions options;
  options.listeners.push_back(std::make_shared<BackgroundErrors>(std::move(health)));
  options.info_log = std::move(log);
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.db_host_id =
      "";  // checkpoints may be given to others and must not contain the host's name
  options.max_background_jobs = 2;
  options.max_total_wal_size = 256 << 20;
  // A crash may tear the log's last record; nothing in it was acknowledged, so it is dropped.
  // Damage anywhere else could hide acknowledged records: then opening fails, where point-in-time
  // recovery would silently roll back. Without syncs a power cut may damage any log, and only the
  // beginning up to there is sound (LogGapFilter). So it is where a loss is accepted.
  options.wal_recovery_mode = whole_logs ? rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords
                                         : rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  return options;
}

// Blocks and sketches: written once, in files that are merged seldom and many at a time, so that a
// byte is rewritten about log32(size / 64 MiB) times. They are encoded by us and hardly shrink
// further.
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

rocksdb::ColumnFamilyOptions MakeFamilyOptions(Family family,
                                               const std::shared_ptr<LiveAttempts>& live,
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

// Each opening makes a MANIFEST, and deletes the older ones after their lines in the mark. So where
// those that the mark names are all gone, and there is a newer one, who has opened the store since
// keeps no mark.
bool WrittenByAnEarlierBuild(const SyncedLengths& lengths, const std::vector<std::string>& names) {
  constexpr std::string_view kManifest = "MANIFEST-";
  const auto number = [&](const std::string& name) {
    return ParseNumber<std::uint64_t>(std::string_view(name).substr(kManifest.size())).value_or(0);
  };
  std::uint64_t marked = 0, newest = 0;
  for (const auto& [name, bytes] : lengths) {
    if (name.starts_with(kManifest)) marked = std::max(marked, number(name));
  }
  for (const std::string& name : names) {
    if (!name.starts_with(kManifest)) continue;
    if (lengths.contains(name)) return false;
    newest = std::max(newest, number(name));
  }
  return marked > 0 && newest > marked;
}

Result<std::vector<std::string>> NoLosses() { return std::vector<std::string>(); }

// The name in the file CURRENT; empty: it is missing or damaged.
std::string ManifestOf(rocksdb::FileSystem& files, const std::string& directory) {
  std::string text;
  if (!rocksdb::ReadFileToString(&files, directory + "/CURRENT", &text).ok()) return {};
  if (!text.starts_with("MANIFEST-") || text.back() != '\n') return {};
  text.pop_back();
  return text;
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

DatabaseOpener::DatabaseOpener(const std::string& directory, const RocksDbStoreOptions& options,
                               std::shared_ptr<LiveAttempts> live)
    : directory_(
          directory.substr(0, directory.find_last_not_of('/') + 1)),  // RocksDB puts the slashes
      log_(options.log),
      fsync_(options.fsync),
      memtable_bytes_(options.memtable_bytes),
      open_files_max_(options.open_files_max),
      env_(options.env),
      live_(std::move(live)),
      cache_(rocksdb::NewLRUCache(kBlockCacheBytes)) {}

Result<std::shared_ptr<Database>> DatabaseOpener::Open(
    Access access, const std::shared_ptr<WriteHealth>& health) const {
  const auto database = std::make_shared<Database>();
  rocksdb::Env& base = env_ != nullptr ? *env_ : *rocksdb::Env::Default();
  STATCOLLECT_ASSIGN_OR_RETURN(const auto lengths,
                               CheckJournals(*base.GetFileSystem(), access, *database));
  if (access != Access::kReadOnly) STATCOLLECT_RETURN_IF_ERROR(Watch(base, lengths, *database));
  const auto log = std::make_shared<WarningLog>(log_);
  rocksdb::DBOptions options = MakeDbOptions(fsync_ && !database->lost, log, health);
  options.env = database->env != nullptr ? database->env.get() : &base;
  // Tables are written once and read much later, if at all: copying them through the page cache
  // costs more than the rest of a flush. Where the file system cannot do without (tmpfs), it is
  // used.
  options.use_direct_io_for_flush_and_compaction = env_ == nullptr && SupportsDirectIo(directory_);
  options.max_open_files = open_files_max_;
  rocksdb::Status opened = TryOpen(access, options, *database);
  if (opened.IsCorruption() && access != Access::kReadOnly &&
      CutZeroTails(*options.env->GetFileSystem(), directory_, lengths, log_))
    opened = TryOpen(access, options, *database);
  if (opened.IsCorruption() && database->lost) {  // newer tables exist than the logs lead up to
    options.wal_recovery_mode = rocksdb::WALRecoveryMode::kSkipAnyCorruptedRecords;
    opened = TryOpen(access, options, *database);
  }
  if (opened.ok()) {
    STATCOLLECT_RETURN_IF_ERROR(CheckProperties(*database));
    return database;
  }
  const std::string hint = log->about_logs().empty() ? "" : " (" + log->about_logs() + ")";
  const Status status = FromRocks("open store '" + directory_ + "'", opened);
  // Of a table that is missing RocksDB names the other ending, which it tries last.
  const std::string message =
      std::regex_replace(status.message(), std::regex("([0-9])\\.ldb\\b"), "$1.sst");
  return Status(status.code(), message + hint + AfterOpen(status.code()));
}

// Before RocksDB sees the directory: it would take what is missing for the traces of a crash, and
// delete the tables that the rest of a MANIFEST does not name. The lengths that hold.
Result<SyncedLengths> DatabaseOpener::CheckJournals(rocksdb::FileSystem& files, Access access,
                                                    Database& database) const {
  SyncedLengths lengths;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto losses, FindMissing(files, access, lengths));
  if (losses.empty()) return lengths;
  const std::string found = Joined(losses, "; ");
  if (access != Access::kAcceptLoss) {
    return Status(Code::kDataLoss,
                  "open store '" + directory_ + "': " + found +
                      "; records that were acknowledged may be lost. Expected the files as they "
                      "were when the collector stopped: copy all of them again, or restore a "
                      "checkpoint (--restore-from). Nothing was changed. To go on without what is "
                      "missing: copy the directory, then start with --accept-loss");
  }
  log_("accept the loss: " + found);
  database.lost = true;
  lengths.clear();
  return lengths;
}

Result<std::vector<std::string>> DatabaseOpener::FindMissing(rocksdb::FileSystem& files,
                                                             Access access,
                                                             SyncedLengths& lengths) const {
  std::vector<std::string> names;
  (void)files.GetChildren(directory_, {}, &names, nullptr);
  const auto has = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const bool has_data = std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name.ends_with(".sst") || name.ends_with(".log");
  });
  if (const std::string named = ManifestOf(files, directory_); has_data && !has(named)) {
    return Status(Code::kDataLoss,
                  "open store '" + directory_ + "': the file 'CURRENT' " +
                      (has("CURRENT") ? "does not name a MANIFEST that is there" : "is missing") +
                      "; RocksDB might take the directory for an empty one and delete its tables. "
                      "Nothing was changed. Copy the files of the directory again, or restore a "
                      "checkpoint (--restore-from), or write the name of the newest MANIFEST and a "
                      "line end into CURRENT");
  }
  auto read = ReadSyncedMark(files, directory_);
  const Code code = read.status().code();
  if (code == Code::kDataLoss) return std::vector<std::string>{read.status().message()};
  if (code == Code::kNotFound) {
    if (!FormatFileSays(directory_, kSyncedWord))
      return has_data ? FindLostTables(access) : NoLosses();
    return std::vector<std::string>{"the file '" + std::string(kSyncedName) +
                                    "' is missing, which says which logs there must be"};
  }
  if (!read.ok()) return read.status();
  lengths = *std::move(read);
  if (WrittenByAnEarlierBuild(lengths, names)) {
    log_("'" + directory_ + "' was written by a build that does not keep the file " + kSyncedName +
         ": whether its logs are complete is not known this time");
    lengths.clear();
    return FindLostTables(access);
  }
  return FindLosses(files, directory_, lengths);
}

// Of a store of an earlier build, which says nothing of its logs: what RocksDB would delete
// although it is needed. A store that cannot be read is left to the opening that follows. Without
// syncs, a power cut leaves such tables, too.
Result<std::vector<std::string>> DatabaseOpener::FindLostTables(Access access) const {
  if (access == Access::kReadOnly || !fsync_) return NoLosses();
  const auto readable = Open(Access::kReadOnly, std::make_shared<WriteHealth>());
  if (!readable.ok()) return NoLosses();
  rocksdb::Env& base = env_ != nullptr ? *env_ : *rocksdb::Env::Default();
  STATCOLLECT_ASSIGN_OR_RETURN(auto orphans, FindOrphanTables(**readable, base, directory_));
  for (std::string& orphan : orphans)
    orphan = "the table '" + orphan +
             "' holds records that the MANIFEST does not know, which was cut, it seems";
  return orphans;
}

Status DatabaseOpener::Watch(rocksdb::Env& base, const SyncedLengths& lengths,
                             Database& database) const {
  rocksdb::FileSystem& files = *base.GetFileSystem();
  STATCOLLECT_RETURN_IF_ERROR(WriteSyncedMark(files, directory_, lengths));
  STATCOLLECT_ASSIGN_OR_RETURN(auto mark,
                               SyncedMark::Open(base.GetFileSystem(), directory_, lengths, log_));
  database.env = WatchJournals(base, directory_, std::move(mark));
  database.unsynced = !fsync_;
  return Status::Ok();
}

// RocksDB opens a table whose properties it cannot read with a warning, and then takes its index
// for one of another format: keys would be missing without a word.
Status DatabaseOpener::CheckProperties(const Database& database) const {
  const std::string attempted = "open store '" + directory_ + "'";
  for (auto* family : database.families) {
    rocksdb::TablePropertiesCollection properties;
    STATCOLLECT_RETURN_IF_ERROR(
        FromRocks(attempted, database.db->GetPropertiesOfAllTables(family, &properties)));
    for (const auto& [path, found] : properties) {
      if (found != nullptr && found->num_entries > 0) continue;
      return {Code::kDataLoss, attempted + ": the properties of table '" + path +
                                   "' cannot be read" + AfterOpen(Code::kDataLoss)};
    }
  }
  return Status::Ok();
}

rocksdb::Status DatabaseOpener::TryOpen(Access access, rocksdb::DBOptions options,
                                        Database& database) const {
  const bool read_only = access == Access::kReadOnly;
  if (!fsync_ || database.lost) database.log_filter = std::make_unique<LogGapFilter>(log_);
  options.wal_filter = database.log_filter.get();
  // A store of an earlier build lacks the newer families. Opening creates them. If nothing may be
  // changed, `default` is used for them, because it contains none of their keys either.
  std::vector<std::string> existing;
  if (read_only) (void)rocksdb::DB::ListColumnFamilies(options, directory_, &existing);
  std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
  for (int family = 0; family < kFamilyCount; ++family) {
    const std::string& name = kFamilies[static_cast<std::size_t>(family)];
    const bool missing =
        read_only && std::find(existing.begin(), existing.end(), name) == existing.end();
    descriptors.emplace_back(missing ? kFamilies[kDefault] : name,
                             MakeFamilyOptions(missing ? kDefault : static_cast<Family>(family),
                                               live_, memtable_bytes_, cache_));
  }
  rocksdb::DB* db = nullptr;
  const rocksdb::Status opened =
      read_only
          ? rocksdb::DB::OpenForReadOnly(options, directory_, descriptors, &database.families, &db)
          : rocksdb::DB::Open(options, directory_, descriptors, &database.families, &db);
  database.db.reset(db);
  return opened;
}

}  // namespace statcollect
