#include "server/store/rocksdb_store.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <utility>

#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include "server/store/codec/catalogue.h"
#include "server/store/codec/stat_block.h"
#include "server/store/directory_lock.h"
#include "server/store/key.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;

constexpr char kFormatFile[] = "FORMAT";
constexpr char kNextAttemptKey[] = "next_attempt";

// Column families, in the order of kFamilies.
enum Family { kDefault, kCatalogue, kStats, kScalars, kEvents, kSteps, kFamilyCount };
const std::array<std::string, kFamilyCount> kFamilies = {"default", "catalogue", "stats",
                                                         "scalars", "events",    "steps"};

Status FromRocks(const std::string& attempted, const rocksdb::Status& status) {
  if (status.ok()) return Status::Ok();
  Code code = Code::kInternal;
  if (status.IsCorruption()) code = Code::kDataLoss;
  if (status.IsIOError()) code = Code::kUnavailable;
  if (status.IsNoSpace()) code = Code::kResourceExhausted;
  if (status.IsNotFound()) code = Code::kNotFound;
  return {code, attempted + ": " + status.ToString()};
}

rocksdb::Slice Slice(std::string_view text) { return {text.data(), text.size()}; }
std::string_view View(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

rocksdb::CompressionType FastCompression() {
  for (const auto type : rocksdb::GetSupportedCompressions()) {
    if (type == rocksdb::kLZ4Compression) return type;
  }
  return rocksdb::kNoCompression;
}

rocksdb::DBOptions MakeDbOptions() {
  rocksdb::DBOptions options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.max_background_jobs = 2;
  options.keep_log_file_num = 3;
  options.max_log_file_size = 1 << 20;
  options.info_log_level = rocksdb::WARN_LEVEL;
  options.max_total_wal_size = 256 << 20;
  // A crash may tear the log's last record; nothing in it was acknowledged, so it is dropped. Damage anywhere
  // else could hide acknowledged records: then opening fails, where point-in-time recovery would silently
  // roll back.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  return options;
}

rocksdb::ColumnFamilyOptions MakeFamilyOptions(bool bulk) {
  rocksdb::ColumnFamilyOptions options;
  options.compression = FastCompression();
  options.write_buffer_size = bulk ? 64 << 20 : 8 << 20;
  // Keys of a stream only grow: files hardly overlap, so merging whole files seldom beats leaving them.
  options.compaction_style = bulk ? rocksdb::kCompactionStyleUniversal : rocksdb::kCompactionStyleLevel;
  rocksdb::BlockBasedTableOptions table;
  table.block_size = bulk ? 64 << 10 : 8 << 10;
  table.format_version = 5;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

// Reads or writes the FORMAT file: "statcollect store <version>".
Status CheckFormat(const std::string& directory) {
  const fs::path path = fs::path(directory) / kFormatFile;
  if (!fs::exists(path)) {
    if (fs::exists(fs::path(directory) / "CURRENT")) {
      return {Code::kFailedPrecondition,
              "open store '" + directory +
                  "': found a RocksDB without a FORMAT file; expected an empty folder or one "
                  "that statcollectord made; choose another with --data-dir"};
    }
    std::ofstream out(path);
    out << "statcollect store " << kStoreFormatVersion << "\n";
    out.close();
    return out ? Status::Ok()
               : Status(Code::kUnavailable, "write '" + path.string() + "': failed; is the disk full?");
  }
  std::string word1, word2;
  int version = 0;
  std::ifstream in(path);
  in >> word1 >> word2 >> version;
  if (!in || word1 != "statcollect" || word2 != "store" || version < 1) {
    return {Code::kDataLoss, "open store '" + directory +
                                 "': the file FORMAT does not say 'statcollect store <version>'; " +
                                 "restore it from a backup of this store"};
  }
  if (version > kStoreFormatVersion) {
    return {Code::kFailedPrecondition, "open store '" + directory + "': format version is " +
                                           std::to_string(version) + "; this build reads 1.." +
                                           std::to_string(kStoreFormatVersion) + "; upgrade statcollectord"};
  }
  return Status::Ok();
}

// Keys [begin, end); an iterator keeps views of both, so they live as long as it does.
struct KeyRange {
  std::string begin, end;
  rocksdb::Slice end_slice;
  KeyRange(std::string b, std::string e) : begin(std::move(b)), end(std::move(e)), end_slice(end) {}
  KeyRange(const KeyRange&) = delete;
};

KeyRange RankRange(AttemptId attempt, std::uint32_t rank, StepBounds steps) {
  std::string end = steps.last == ~std::uint64_t{0} ? PrefixEnd(KeyBuilder().U32(attempt).U32(rank).Take())
                                                    : StepPrefix(attempt, rank, steps.last + 1);
  return KeyRange(StepPrefix(attempt, rank, steps.first), std::move(end));
}

std::unique_ptr<rocksdb::Iterator> Iterate(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family,
                                           const KeyRange& range) {
  rocksdb::ReadOptions options;
  if (!range.end.empty()) options.iterate_upper_bound = &range.end_slice;
  std::unique_ptr<rocksdb::Iterator> it(db.NewIterator(options, family));
  it->Seek(range.begin);
  return it;
}

class RocksStatScan final : public StatScan {
 public:
  RocksStatScan(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family, AttemptId attempt, std::uint32_t rank,
                StepBounds steps)
      : range_(RankRange(attempt, rank, steps)), it_(Iterate(db, family, range_)) {}

  bool Next() override {
    if (!status_.ok()) return false;
    if (started_) it_->Next();
    started_ = true;
    if (!it_->Valid()) {
      status_ = FromRocks("scan statistics", it_->status());
      return false;
    }
    return Read();
  }
  const StatBlock& block() const override { return block_; }
  const Status& status() const override { return status_; }
  std::uint64_t bytes_read() const override { return bytes_read_; }

 private:
  bool Read() {
    bytes_read_ += it_->value().size();
    const auto key = DecodeStatKey(View(it_->key()));
    if (!key) {
      status_ = Status(Code::kDataLoss, "scan statistics: found a key of " +
                                            std::to_string(it_->key().size()) + " bytes; expected 20");
      return false;
    }
    auto columns = DecodeStatBlock("block of " + Describe(*key), View(it_->value()), key->step);
    if (!columns.ok()) {
      status_ = columns.status();
      return false;
    }
    block_ = StatBlock{key->step, *std::move(columns)};
    return true;
  }

  KeyRange range_;
  std::unique_ptr<rocksdb::Iterator> it_;
  bool started_ = false;
  StatBlock block_;
  Status status_;
  std::uint64_t bytes_read_ = 0;
};

class RocksDbStore final : public Store {
 public:
  RocksDbStore(std::string directory, bool fsync, std::unique_ptr<DirectoryLock> lock,
               std::unique_ptr<rocksdb::DB> db, std::vector<rocksdb::ColumnFamilyHandle*> families)
      : directory_(std::move(directory)),
        fsync_(fsync),
        lock_(std::move(lock)),
        db_(std::move(db)),
        families_(std::move(families)) {}

  ~RocksDbStore() override {
    for (auto* family : families_) (void)db_->DestroyColumnFamilyHandle(family);
    (void)db_->Close();
  }

  Result<std::vector<std::string>> ListRuns() override {
    std::vector<std::string> runs;
    auto attempts = ReadAll<AttemptMeta>("attempts", kCatalogue, KeyRange("r", "s"));
    if (!attempts.ok()) return attempts.status();
    for (const AttemptMeta& attempt : *attempts) {
      if (runs.empty() || runs.back() != attempt.run) runs.push_back(attempt.run);
    }
    return runs;
  }

  Result<std::vector<AttemptMeta>> Attempts(const std::string& run) override {
    std::string prefix = AttemptPrefix(run);
    std::string end = PrefixEnd(prefix);
    return ReadAll<AttemptMeta>("attempts of run '" + run + "'", kCatalogue,
                                KeyRange(std::move(prefix), std::move(end)));
  }

  Result<AttemptMeta> CreateAttempt(const AttemptMeta& wanted) override {
    std::lock_guard lock(catalogue_mutex_);
    auto existing = Attempts(wanted.run);
    if (!existing.ok()) return existing.status();
    auto next = NextAttemptId();
    if (!next.ok()) return next.status();
    AttemptMeta attempt = wanted;
    attempt.id = *next;
    attempt.number = existing->empty() ? 1 : existing->back().number + 1;
    rocksdb::WriteBatch batch;
    (void)batch.Put(families_[kDefault], kNextAttemptKey, std::to_string(attempt.id + 1));
    (void)batch.Put(families_[kCatalogue], AttemptKey(attempt), Encode(attempt));
    STATCOLLECT_RETURN_IF_ERROR(Write("create attempt of run '" + wanted.run + "'", batch, true));
    return attempt;
  }

  Status DropAttempts(std::span<const AttemptId> ids) override {
    std::lock_guard lock(catalogue_mutex_);
    auto attempts = ReadAll<AttemptMeta>("attempts", kCatalogue, KeyRange("r", "s"));
    if (!attempts.ok()) return attempts.status();
    rocksdb::WriteBatch batch;
    for (const AttemptMeta& attempt : *attempts) {
      if (std::find(ids.begin(), ids.end(), attempt.id) == ids.end()) continue;
      (void)batch.Delete(families_[kCatalogue], AttemptKey(attempt));
      for (const char prefix : {'m', 'a', 'l'})
        DeleteAttempt(batch, kCatalogue, std::string(1, prefix), attempt.id);
      for (const Family family : {kStats, kScalars, kEvents, kSteps})
        DeleteAttempt(batch, family, "", attempt.id);
    }
    STATCOLLECT_RETURN_IF_ERROR(Write("drop attempts", batch, true));
    for (const AttemptId id : ids) FreeFiles(id);
    return Status::Ok();
  }

  Result<std::map<std::uint32_t, RankMeta>> Ranks(AttemptId attempt) override {
    const std::string prefix = KeyBuilder('m').U32(attempt).Take();
    std::map<std::uint32_t, RankMeta> ranks;
    auto metas = ReadAll<RankMeta>("ranks of attempt " + std::to_string(attempt), kCatalogue,
                                   KeyRange(prefix, PrefixEnd(prefix)));
    if (!metas.ok()) return metas.status();
    for (RankMeta& meta : *metas) ranks[meta.info.rank] = std::move(meta);
    return ranks;
  }

  Status PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta) override {
    rocksdb::WriteBatch batch;
    (void)batch.Put(families_[kCatalogue], RankKey(attempt, rank), Encode(meta));
    return Write("write rank " + std::to_string(rank), batch, true);
  }

  Result<std::vector<ActivationDef>> Activations(AttemptId attempt, std::uint32_t rank) override {
    const std::string prefix = KeyBuilder('a').U32(attempt).U32(rank).Take();
    return ReadAll<ActivationDef>("activations", kCatalogue, KeyRange(prefix, PrefixEnd(prefix)));
  }

  Result<std::vector<Layout>> Layouts(AttemptId attempt, std::uint32_t rank) override {
    const std::string prefix = KeyBuilder('l').U32(attempt).U32(rank).Take();
    return ReadAll<Layout>("layouts", kCatalogue, KeyRange(prefix, PrefixEnd(prefix)));
  }

  Status Append(std::span<const AppendItem> items) override {
    rocksdb::WriteBatch batch;
    for (const AppendItem& item : items) Add(batch, item);
    return Write("append " + std::to_string(items.size()) + " batches", batch, fsync_);
  }

  std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank, StepBounds steps) override {
    return std::make_unique<RocksStatScan>(*db_, families_[kStats], attempt, rank, steps);
  }

  Result<std::vector<std::uint64_t>> StatSteps(AttemptId attempt, std::uint32_t rank,
                                               StepBounds bounds) override {
    std::vector<std::uint64_t> steps;
    const KeyRange range = RankRange(attempt, rank, bounds);
    auto it = Iterate(*db_, families_[kStats], range);
    while (it->Valid()) {
      const auto key = DecodeStatKey(View(it->key()));
      if (!key) return Status(Code::kDataLoss, "list steps: found a key of another length than 20 bytes");
      steps.push_back(key->step);
      if (key->step == ~std::uint64_t{0}) break;
      it->Seek(StepPrefix(attempt, rank, key->step + 1));
    }
    STATCOLLECT_RETURN_IF_ERROR(FromRocks("list steps", it->status()));
    return steps;
  }

  Result<std::vector<ScalarRecord>> Scalars(AttemptId attempt, std::uint32_t rank,
                                            StepBounds steps) override {
    return ReadAll<ScalarRecord>("scalars", kScalars, RankRange(attempt, rank, steps));
  }
  Result<std::vector<EventRecord>> Events(AttemptId attempt, std::uint32_t rank) override {
    return ReadAll<EventRecord>("events", kEvents, RankRange(attempt, rank, {}));
  }
  Result<std::vector<StepRecord>> StepEnds(AttemptId attempt, std::uint32_t rank, StepBounds steps) override {
    return ReadAll<StepRecord>("step ends", kSteps, RankRange(attempt, rank, steps));
  }

  Result<StoreUsage> Usage() override {
    StoreUsage usage;
    std::error_code error;
    const fs::space_info space = fs::space(directory_, error);
    if (error) return Status(Code::kUnavailable, "measure '" + directory_ + "': " + error.message());
    usage.disk_free_bytes = space.available;
    for (const auto& entry : fs::directory_iterator(directory_, error)) {
      std::error_code gone;  // RocksDB removes files at any time
      const auto bytes = entry.file_size(gone);
      if (!gone) usage.disk_bytes += bytes;
    }
    return usage;
  }
  bool fsync() const override { return fsync_; }

 private:
  static std::string AttemptPrefix(const std::string& run) {
    return KeyBuilder('r').Text(run).Text({"\0", 1}).Take();
  }
  static std::string AttemptKey(const AttemptMeta& attempt) {
    return AttemptPrefix(attempt.run) + KeyBuilder().U32(attempt.number).Take();
  }
  static std::string RankKey(AttemptId attempt, std::uint32_t rank) {
    return KeyBuilder('m').U32(attempt).U32(rank).Take();
  }

  Result<AttemptId> NextAttemptId() {
    std::string text;
    const rocksdb::Status read = db_->Get({}, families_[kDefault], kNextAttemptKey, &text);
    if (read.IsNotFound()) return AttemptId{1};
    STATCOLLECT_RETURN_IF_ERROR(FromRocks("read the next attempt's number", read));
    AttemptId id = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    if (error != std::errc() || end != text.data() + text.size() || id == 0) {
      return Status(Code::kDataLoss, "read the next attempt's number: it is no number; restore a checkpoint");
    }
    return id;
  }

  template <typename T>
  Result<std::vector<T>> ReadAll(const std::string& what, Family family, const KeyRange& range) {
    std::vector<T> values;
    auto it = Iterate(*db_, families_[family], range);
    for (; it->Valid(); it->Next()) {
      auto value = Decode<T>(what, View(it->value()));
      if (!value.ok()) return value.status();
      values.push_back(*std::move(value));
    }
    STATCOLLECT_RETURN_IF_ERROR(FromRocks("read " + what, it->status()));
    return values;
  }

  void Add(rocksdb::WriteBatch& batch, const AppendItem& item) {
    const RecordBatch& records = *item.batch;
    for (const ActivationDef& def : records.activations) {
      (void)batch.Put(families_[kCatalogue],
                      KeyBuilder('a').U32(item.attempt).U32(item.rank).U32(def.id).Take(), Encode(def));
    }
    for (const Layout& layout : records.layouts) {
      (void)batch.Put(families_[kCatalogue],
                      KeyBuilder('l').U32(item.attempt).U32(item.rank).U32(layout.id).Take(), Encode(layout));
    }
    AddStats(batch, item);
    // Sequence numbers make keys of scalars and events unique, in the order in which they were recorded.
    std::uint64_t seq = records.first_seq + records.stats.size();
    for (const ScalarRecord& scalar : records.scalars) {
      (void)batch.Put(families_[kScalars], SequenceKey(item, scalar.step, seq++), Encode(scalar));
    }
    for (const EventRecord& event : records.events) {
      (void)batch.Put(families_[kEvents], SequenceKey(item, event.step, seq++), Encode(event));
    }
    for (const StepRecord& step : records.steps) {
      (void)batch.Put(families_[kSteps], StepPrefix(item.attempt, item.rank, step.step), Encode(step));
    }
    (void)batch.Put(families_[kCatalogue], RankKey(item.attempt, item.rank), Encode(*item.meta));
  }

  void AddStats(rocksdb::WriteBatch& batch, const AppendItem& item) {
    const StatColumns& stats = item.batch->stats;
    for (std::size_t first = 0; first < stats.size();) {
      std::size_t end = first + 1;
      while (end < stats.size() && end - first < kBlockRecordsMax && stats.step[end] == stats.step[first])
        ++end;
      const StatKey key{item.attempt, item.rank, stats.step[first], stats.activation[first]};
      (void)batch.Put(families_[kStats], EncodeStatKey(key), EncodeStatBlock(stats, first, end - first));
      first = end;
    }
  }

  static std::string SequenceKey(const AppendItem& item, std::uint64_t step, std::uint64_t seq) {
    return KeyBuilder().U32(item.attempt).U32(item.rank).U64(step).U64(seq).Take();
  }

  void DeleteAttempt(rocksdb::WriteBatch& batch, Family family, const std::string& prefix, AttemptId id) {
    const std::string begin = prefix + KeyBuilder().U32(id).Take();
    (void)batch.DeleteRange(families_[family], begin, PrefixEnd(begin));
  }

  // Gives back whole files of a dropped attempt at once; the rest goes with the next compaction.
  void FreeFiles(AttemptId id) {
    const std::string begin = KeyBuilder().U32(id).Take();
    const std::string end = PrefixEnd(begin);
    const rocksdb::Slice begin_slice = Slice(begin), end_slice = Slice(end);
    (void)rocksdb::DeleteFilesInRange(db_.get(), families_[kStats], &begin_slice, &end_slice,
                                      /*include_end=*/false);
  }

  // A failed write may have reached the disk in part: nothing is written after it, until the store is opened
  // again.
  Status Write(const std::string& attempted, rocksdb::WriteBatch& batch, bool sync) {
    {
      std::lock_guard lock(failure_mutex_);
      if (!failure_.ok()) return failure_;
    }
    rocksdb::WriteOptions options;
    options.sync = sync;
    Status written = FromRocks(attempted, db_->Write(options, &batch));
    if (!written.ok()) {
      std::lock_guard lock(failure_mutex_);
      if (failure_.ok()) {
        failure_ =
            Status(written.code(), written.message() +
                                       "; the store takes no more writes until statcollectord is started "
                                       "again");
      }
      return failure_;
    }
    return written;
  }

  const std::string directory_;
  const bool fsync_;
  const std::unique_ptr<DirectoryLock> lock_;
  const std::unique_ptr<rocksdb::DB> db_;
  const std::vector<rocksdb::ColumnFamilyHandle*> families_;  // by Family
  std::mutex catalogue_mutex_;                                // one attempt is created or dropped at a time
  std::mutex failure_mutex_;
  Status failure_;
};

}  // namespace

Result<std::unique_ptr<Store>> OpenRocksDbStore(const std::string& directory,
                                                const RocksDbStoreOptions& options) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error || !fs::is_directory(directory, error)) {
    return Status(Code::kPermissionDenied,
                  "make folder '" + directory +
                      "': " + (error ? error.message() : "something else has that name") +
                      "; expected a folder this user may write; choose another with --data-dir");
  }
  auto lock = DirectoryLock::Acquire(directory);
  if (!lock.ok()) return lock.status();
  STATCOLLECT_RETURN_IF_ERROR(CheckFormat(directory));

  std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
  for (int family = 0; family < kFamilyCount; ++family) {
    descriptors.emplace_back(kFamilies[family], MakeFamilyOptions(family == kStats));
  }
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status opened = rocksdb::DB::Open(MakeDbOptions(), directory, descriptors, &handles, &db);
  if (!opened.ok()) return FromRocks("open store '" + directory + "'", opened);
  options.log("opened '" + directory + "', format version " + std::to_string(kStoreFormatVersion));
  return std::unique_ptr<Store>(std::make_unique<RocksDbStore>(
      directory, options.fsync, *std::move(lock), std::unique_ptr<rocksdb::DB>(db), std::move(handles)));
}

}  // namespace statcollect
