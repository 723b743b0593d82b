#include "server/store/rocksdb/rocksdb_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <numeric>
#include <set>
#include <shared_mutex>
#include <thread>
#include <utility>

#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/experimental.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/write_batch.h>

#include "common/failpoint.h"
#include "server/store/checkpoint_files.h"
#include "server/store/codec/catalogue.h"
#include "server/store/codec/sealed.h"
#include "server/store/codec/stat_encoder.h"
#include "server/store/directory_lock.h"
#include "server/store/format_file.h"
#include "server/store/key.h"
#include "server/store/live_attempts.h"
#include "server/store/rocksdb/block_source.h"
#include "server/store/rocksdb/database.h"
#include "server/store/rocksdb/database_opener.h"
#include "server/store/rocksdb/families.h"
#include "server/store/rocksdb/stat_scan.h"
#include "server/store/rocksdb/stream_writer.h"
#include "server/store/rocksdb/util.h"
#include "server/store/rocksdb/write_health.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;

constexpr char kNextAttemptKey[] = "next_attempt";
constexpr std::size_t kEventKeyBytes = 24;
constexpr std::uint64_t kCollectorsOwn = std::uint64_t{1} << 63;  // agents number their records from 1
constexpr std::size_t kRankAt = 5;                                // in catalogue keys of ranks
constexpr std::uint8_t kKeptVersion = 1;
constexpr std::uint8_t kDocumentVersion = 1;
// Dropped attempts leave tombstones where the catalogue is scanned; so many at most.
constexpr std::size_t kDropsPerTidy = 64;
// Space that is not worth a merge, and space that a merge leaves free beside what it writes.
constexpr std::uint64_t kReclaimMin = std::uint64_t{16} << 20;
constexpr std::uint64_t kReclaimSpare = std::uint64_t{256} << 20;

// A scan that another thread forgets about delays opening the store anew for this long.
constexpr std::chrono::seconds kScanPatience{3};

// Every use of RocksDB goes over Pin(), so that Recover() can tell when nobody uses it.
class RocksDbStore final : public Store {
 public:
  RocksDbStore(std::string directory, const RocksDbStoreOptions& options, std::unique_ptr<DirectoryLock> lock)
      : directory_(directory),
        fsync_(options.fsync),
        log_(options.log),
        lock_(std::move(lock)),
        opener_(std::move(directory), options, live_) {}

  ~RocksDbStore() override {
    if (const auto database = Pin()) database->db->DisableManualCompaction();
    if (tidy_.joinable()) tidy_.join();
  }

  // Once, before anything else.
  Status Open() {
    auto opened = opener_.Open(/*read_only=*/false, health_);
    if (!opened.ok()) return opened.status();
    database_ = *std::move(opened);
    return LoadAttempts(*database_);
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
    const auto database = Pin();
    if (database == nullptr) return Closed();
    auto next = NextAttemptId(*database);
    if (!next.ok()) return next.status();
    AttemptMeta attempt = wanted;
    attempt.id = *next;
    attempt.number = existing->empty() ? 1 : existing->back().number + 1;
    rocksdb::WriteBatch batch;
    (void)batch.Put(database->families[kDefault], kNextAttemptKey, std::to_string(attempt.id + 1));
    (void)batch.Put(database->families[kCatalogue], AttemptKey(attempt), Encode(attempt));
    STATCOLLECT_RETURN_IF_ERROR(Write("create attempt of run '" + wanted.run + "'", *database, batch, true));
    live_->Add(attempt.id);
    return attempt;
  }

  Status DropAttempts(std::span<const AttemptId> ids) override {
    std::lock_guard lock(catalogue_mutex_);
    auto attempts = ReadAll<AttemptMeta>("attempts", kCatalogue, KeyRange("r", "s"));
    if (!attempts.ok()) return attempts.status();
    const auto database = Pin();
    if (database == nullptr) return Closed();
    {
      std::unique_lock aliases(alias_mutex_);  // from here on, no block becomes an alias of one of theirs
      for (const AttemptId id : ids) live_->Remove(id);
    }
    if (Status taken = TakeOver(*database, ids); !taken.ok()) {
      for (const AttemptMeta& attempt : *attempts) {
        if (std::find(ids.begin(), ids.end(), attempt.id) != ids.end()) live_->Add(attempt.id);
      }
      return taken;
    }
    const auto dropped = [&](const AttemptMeta& a) {
      return std::find(ids.begin(), ids.end(), a.id) != ids.end();
    };
    std::set<std::string> remaining;
    for (const AttemptMeta& attempt : *attempts) {
      if (!dropped(attempt)) remaining.insert(attempt.run);
    }
    rocksdb::WriteBatch batch;
    for (const AttemptMeta& attempt : *attempts) {
      if (!dropped(attempt)) continue;
      auto* catalogue = database->families[kCatalogue];
      if (!remaining.contains(attempt.run)) {
        (void)batch.Delete(catalogue, KeptKey(attempt.run));
        const std::string documents = DocumentKey(attempt.run, "");
        (void)batch.DeleteRange(catalogue, documents, PrefixEnd(documents));
      }
      (void)batch.Delete(catalogue, AttemptKey(attempt));
      for (const char prefix : {'m', 'i', 'c', 'a', 'l', 'x'})
        DeleteAttempt(batch, database->families[kCatalogue], std::string(1, prefix), attempt.id);
      for (const Family family : kOfAttempts)
        DeleteAttempt(batch, database->families[family], "", attempt.id);
    }
    STATCOLLECT_FAILPOINT("drop.shared_blocks_taken_over");
    STATCOLLECT_RETURN_IF_ERROR(Write("drop attempts", *database, batch, true, /*frees_space=*/true));
    STATCOLLECT_FAILPOINT("drop.written");
    for (const AttemptId id : ids) FreeFiles(*database, id);
    drops_ += ids.size();
    StartTidyLocked();
    return Status::Ok();
  }

  Result<std::vector<AttemptTally>> Census() override {
    auto attempts = ReadAll<AttemptMeta>("attempts", kCatalogue, KeyRange("r", "s"));
    if (!attempts.ok()) return attempts.status();
    const auto database = Pin();
    if (database == nullptr) return Closed();
    std::set<std::string> kept;
    const KeyRange kept_range("k", "l");
    auto it = Iterate(*database->db, database->families[kCatalogue], kept_range);
    for (; it->Valid(); it->Next()) kept.emplace(View(it->key()).substr(1));
    STATCOLLECT_RETURN_IF_ERROR(FromRocks("read which runs are kept", it->status()));

    std::vector<AttemptTally> tallies;
    std::map<AttemptId, std::size_t> places;
    for (AttemptMeta& attempt : *attempts) {
      places[attempt.id] = tallies.size();
      const bool is_kept = kept.contains(attempt.run);
      tallies.push_back({.meta = std::move(attempt), .finished = true, .kept = is_kept});
      tallies.back().last_write_unix_nanos = tallies.back().meta.start_unix_nanos;
    }
    STATCOLLECT_RETURN_IF_ERROR(ForEach<RankMeta>("ranks", kCatalogue, KeyRange("m", "n"),
                                                  [&](std::string_view key, const RankMeta& rank) {
                                                    const auto place = places.find(ReadU32(key.substr(1)));
                                                    if (place != places.end())
                                                      Add(rank, &tallies[place->second]);
                                                  }));
    for (AttemptTally& tally : tallies)
      tally.finished = tally.finished && tally.ranks >= tally.meta.world_size;
    STATCOLLECT_RETURN_IF_ERROR(AddSizes(*database, &tallies));
    return tallies;
  }

  Status KeepRun(const std::string& run, bool keep) override {
    std::lock_guard lock(catalogue_mutex_);
    const std::string attempted = "keep run '" + run + "'";
    STATCOLLECT_RETURN_IF_ERROR(CheckRun(attempted, run));
    const auto database = Pin();
    if (database == nullptr) return Closed();
    rocksdb::WriteBatch batch;
    if (keep) {
      (void)batch.Put(database->families[kCatalogue], KeptKey(run), Seal(kKeptVersion, ""));
    } else {
      (void)batch.Delete(database->families[kCatalogue], KeptKey(run));
    }
    return Write(attempted, *database, batch, true);
  }

  Status PutDocument(const std::string& run, const std::string& name,
                     const std::optional<std::string>& content) override {
    std::lock_guard lock(catalogue_mutex_);
    const std::string attempted = "store " + name + " of run '" + run + "'";
    if (content && content->size() > kDocumentBytesMax) {
      return {Code::kInvalidArgument, attempted + ": found " + std::to_string(content->size()) +
                                          " bytes; expected at most " + std::to_string(kDocumentBytesMax)};
    }
    STATCOLLECT_RETURN_IF_ERROR(CheckRun(attempted, run));
    const auto database = Pin();
    if (database == nullptr) return Closed();
    rocksdb::WriteBatch batch;
    if (content) {
      (void)batch.Put(database->families[kCatalogue], DocumentKey(run, name),
                      Seal(kDocumentVersion, *content));
    } else {
      (void)batch.Delete(database->families[kCatalogue], DocumentKey(run, name));
    }
    return Write(attempted, *database, batch, true);
  }

  Result<std::optional<std::string>> Document(const std::string& run, const std::string& name) override {
    const auto database = Pin();
    if (database == nullptr) return Closed();
    const std::string attempted = "read " + name + " of run '" + run + "'";
    std::string sealed;
    const rocksdb::Status read =
        database->db->Get({}, database->families[kCatalogue], DocumentKey(run, name), &sealed);
    if (read.IsNotFound()) return std::optional<std::string>();
    STATCOLLECT_RETURN_IF_ERROR(FromRocks(attempted, read));
    auto payload = Unseal(attempted, sealed, kDocumentVersion);
    if (!payload.ok()) return payload.status();
    return std::optional(std::string(*payload));
  }

  Result<std::map<std::uint32_t, RankMeta>> Ranks(AttemptId attempt) override {
    const std::string what = "ranks of attempt " + std::to_string(attempt);
    std::map<std::uint32_t, RankMeta> ranks;
    STATCOLLECT_RETURN_IF_ERROR(ForEach<RankMeta>(
        what, kCatalogue, AttemptRange('m', attempt),
        [&](std::string_view key, RankMeta meta) { ranks[ReadU32(key.substr(kRankAt))] = std::move(meta); }));
    STATCOLLECT_RETURN_IF_ERROR(ForEach<SessionInfo>(
        what, kCatalogue, AttemptRange('i', attempt), [&](std::string_view key, SessionInfo info) {
          if (const auto found = ranks.find(ReadU32(key.substr(kRankAt))); found != ranks.end()) {
            found->second.info = std::move(info);
          }
        }));
    STATCOLLECT_RETURN_IF_ERROR(ForEach<SettingRecord>(
        what, kCatalogue, AttemptRange('c', attempt), [&](std::string_view key, SettingRecord setting) {
          if (const auto found = ranks.find(ReadU32(key.substr(kRankAt))); found != ranks.end())
            found->second.info.config[std::move(setting.name)] = std::move(setting.value);
        }));
    return ranks;
  }

  Status PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta) override {
    const auto database = Pin();
    if (database == nullptr) return Closed();
    rocksdb::WriteBatch batch;
    (void)batch.Put(database->families[kCatalogue], RankKey('i', attempt, rank), Encode(meta.info));
    (void)batch.Put(database->families[kCatalogue], RankKey('m', attempt, rank), Encode(meta));
    STATCOLLECT_RETURN_IF_ERROR(Write("write rank " + std::to_string(rank), *database, batch, true));
    std::lock_guard lock(with_info_mutex_);
    with_info_.emplace(attempt, rank);
    return Status::Ok();
  }

  Result<std::vector<TensorDef>> Activations(AttemptId attempt, std::uint32_t rank) override {
    const std::string prefix = KeyBuilder('a').U32(attempt).U32(rank).Take();
    return ReadAll<TensorDef>("activations" + Of(attempt, rank), kCatalogue,
                              KeyRange(prefix, PrefixEnd(prefix)));
  }

  Result<std::vector<Layout>> Layouts(AttemptId attempt, std::uint32_t rank) override {
    const std::string prefix = KeyBuilder('l').U32(attempt).U32(rank).Take();
    return ReadAll<Layout>("layouts" + Of(attempt, rank), kCatalogue, KeyRange(prefix, PrefixEnd(prefix)));
  }

  std::unique_ptr<StreamWriter> NewWriter(AttemptId attempt, std::uint32_t rank) override {
    return std::make_unique<RocksStreamWriter>(
        attempt, rank,
        StatEncoder::Options{.find_twin = [this](const BlockDigest& digest) { return FindTwin(digest); },
                             .key_frame_bytes = &key_frame_bytes_});
  }

  Status Append(std::span<const AppendItem> items) override {
    // Held over the write: whoever removes an attempt knows all aliases of its blocks.
    std::shared_lock aliases(alias_mutex_);
    const auto database = Pin();
    if (database == nullptr) return Closed();
    rocksdb::WriteBatch batch(BytesOf(items));
    for (const AppendItem& item : items) {
      Add(*database, batch, item);
      STATCOLLECT_RETURN_IF_ERROR(AddInfo(*database, batch, item));
    }
    return Write("append " + std::to_string(items.size()) + " batches", *database, batch, fsync_);
  }

  Status PutEvents(AttemptId attempt, std::span<const CollectorEvent> events) override {
    std::lock_guard lock(catalogue_mutex_);  // the attempt stays
    if (!live_->Contains(attempt))
      return {Code::kNotFound, "add events: attempt " + std::to_string(attempt) + " has been removed"};
    const auto database = Pin();
    if (database == nullptr) return Closed();
    rocksdb::WriteBatch batch;
    for (const CollectorEvent& own : events) {
      const std::string key = StepPrefix(attempt, own.rank, own.event.step) +
                              KeyBuilder().U64(kCollectorsOwn | own.number).Take();
      (void)batch.Put(database->families[kEvents], key, Encode(own.event));
    }
    return Write("add " + std::to_string(events.size()) + " events", *database, batch, true);
  }

  Status Recover() override {
    const Status failure = health_->status();
    if (failure.code() != Code::kResourceExhausted) return failure;
    // Who creates or drops attempts uses RocksDB as a scan does, and starts the tidying.
    std::unique_lock catalogue(catalogue_mutex_, std::try_to_lock);
    if (catalogue.owns_lock()) StopTidyingLocked();
    const Status recovered = RecoverUnused(failure);
    if (recovered.ok() && catalogue.owns_lock() && tidy_wanted_) StartTidyLocked();
    return recovered;
  }

  std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank, StepBounds steps) override {
    auto database = Pin();
    if (database == nullptr) return std::make_unique<PinnedScan>(Closed());
    auto scan = ScanBlocks(*database->db, StatFamiliesOf(*database), attempt, rank, steps);
    return std::make_unique<PinnedScan>(std::move(database), std::move(scan));
  }

  Result<std::vector<StatPoint>> ActivationSeries(AttemptId attempt, std::uint32_t rank,
                                                  std::uint32_t activation, StepBounds steps) override {
    const auto database = Pin();
    if (database == nullptr) return Closed();
    return ReadSeries(*database->db, StatFamiliesOf(*database), attempt, rank, activation, steps);
  }

  Result<std::vector<std::uint64_t>> StatSteps(AttemptId attempt, std::uint32_t rank,
                                               StepBounds bounds) override {
    const auto database = Pin();
    if (database == nullptr) return Closed();
    std::vector<std::uint64_t> steps;
    const KeyRange range = RankRange(attempt, rank, bounds);
    auto it = Iterate(*database->db, database->families[kStats], range);
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
    return ReadAll<ScalarRecord>("scalars" + Of(attempt, rank), kScalars, RankRange(attempt, rank, steps));
  }
  Result<std::vector<EventRecord>> Events(AttemptId attempt, std::uint32_t rank) override {
    std::vector<EventRecord> events;
    STATCOLLECT_RETURN_IF_ERROR(ForEach<EventRecord>(
        "events" + Of(attempt, rank), kEvents, RankRange(attempt, rank, {}),
        [&](std::string_view key, EventRecord event) {
          event.from_collector = key.size() == kEventKeyBytes && ReadU64(key.substr(16)) >= kCollectorsOwn;
          events.push_back(std::move(event));
        }));
    return events;
  }
  Result<std::vector<MemoryRecord>> Memory(AttemptId attempt, std::uint32_t rank, StepBounds steps) override {
    return ReadAll<MemoryRecord>("memory" + Of(attempt, rank), kMemory, RankRange(attempt, rank, steps));
  }
  Result<std::vector<DensityRecord>> Densities(AttemptId attempt, std::uint32_t rank,
                                               StepBounds steps) override {
    return ReadAll<DensityRecord>("densities" + Of(attempt, rank), kDensities,
                                  RankRange(attempt, rank, steps));
  }
  Result<std::vector<StepRecord>> StepEnds(AttemptId attempt, std::uint32_t rank, StepBounds steps) override {
    return ReadAll<StepRecord>("step ends" + Of(attempt, rank), kSteps, RankRange(attempt, rank, steps));
  }

  Result<std::vector<ExponentRecord>> Exponents(AttemptId attempt, std::uint32_t rank,
                                                StepBounds steps) override {
    return ReadAll<ExponentRecord>("exponents" + Of(attempt, rank), kCaptures,
                                   CaptureRange(attempt, rank, 'e', steps));
  }

  Result<std::vector<StoredCapture>> Captures(AttemptId attempt, std::uint32_t rank,
                                              StepBounds steps) override {
    std::vector<StoredCapture> captures;
    Status malformed;
    STATCOLLECT_RETURN_IF_ERROR(ForEach<CaptureHead>(
        "captures" + Of(attempt, rank), kCaptures, CaptureRange(attempt, rank, 'h', steps),
        [&](std::string_view text, const CaptureHead& head) {
          const auto key = DecodeCaptureKey(text);
          if (!key) {
            malformed = {Code::kDataLoss, "list captures: found a key of another form"};
            return;
          }
          if (captures.empty() || captures.back().step != key->step ||
              captures.back().activation != key->activation) {
            captures.push_back({.step = key->step,
                                .activation = key->activation,
                                .layout = head.layout,
                                .elements = head.elements});
          }
          if (captures.back().bytes_stored == key->offset) captures.back().bytes_stored += head.bytes;
        }));
    if (!malformed.ok()) return malformed;
    return captures;
  }

  Result<std::string> CaptureChunkAt(AttemptId attempt, std::uint32_t rank, std::uint64_t step,
                                     std::uint32_t activation, std::uint32_t offset) override {
    const auto database = Pin();
    if (database == nullptr) return Closed();
    const std::string what = "capture" + Of(attempt, rank) + ", step " + std::to_string(step) +
                             ", activation " + std::to_string(activation) + ", byte " +
                             std::to_string(offset);
    std::string sealed;
    const rocksdb::Status read = database->db->Get({}, database->families[kCaptures],
                                                   EncodeCaptureKey({.attempt = attempt,
                                                                     .rank = rank,
                                                                     .part = 'd',
                                                                     .step = step,
                                                                     .activation = activation,
                                                                     .offset = offset}),
                                                   &sealed);
    if (read.IsNotFound()) return Status(Code::kNotFound, "read " + what + ": it is not stored");
    STATCOLLECT_RETURN_IF_ERROR(FromRocks("read " + what, read));
    const auto payload = Unseal(what, sealed, kCaptureDataVersion);
    if (!payload.ok()) return payload.status();
    return std::string(*payload);
  }

  Result<StoreUsage> Usage() override {
    StoreUsage usage;
    std::error_code error;
    const fs::space_info space = fs::space(directory_, error);
    if (error) return Status(Code::kUnavailable, "measure '" + directory_ + "': " + error.message());
    usage.disk_free_bytes = space.available;
    usage.disk_capacity_bytes = space.capacity;
    if (const auto database = Pin()) {
      for (auto* family : database->families) {
        std::uint64_t bytes = 0;
        (void)database->db->GetIntProperty(family, rocksdb::DB::Properties::kCurSizeAllMemTables, &bytes);
        usage.unflushed_bytes += bytes;
      }
    }
    for (fs::directory_iterator entry(directory_, error), end; !error && entry != end;
         entry.increment(error)) {
      std::error_code gone;  // RocksDB removes files at any time
      const auto bytes = entry->file_size(gone);
      if (!gone) usage.disk_bytes += bytes;
    }
    return usage;
  }
  bool fsync() const override { return fsync_; }

  Result<CheckpointReport> Checkpoint(const std::string& directory) override {
    const std::string attempted = "checkpoint to '" + directory + "'";
    auto target = ParseTarget(attempted, directory, directory_);
    if (!target.ok()) return target.status();
    auto usage = Usage();
    if (!usage.ok()) return usage.status();
    const bool links = SameFileSystem(*target, directory_);
    STATCOLLECT_RETURN_IF_ERROR(CheckFreeSpace(attempted, *target, links ? 0 : usage->disk_bytes));

    std::lock_guard one_at_a_time(checkpoint_mutex_);
    const auto database = Pin();
    if (database == nullptr) return Closed();
    StagedDirectory staged(*target);
    rocksdb::Checkpoint* made = nullptr;
    STATCOLLECT_RETURN_IF_ERROR(FromRocks(attempted, rocksdb::Checkpoint::Create(database->db.get(), &made)));
    const std::unique_ptr<rocksdb::Checkpoint> checkpoint(made);
    if (Status made_it = FromRocks(attempted, checkpoint->CreateCheckpoint(staged.path())); !made_it.ok()) {
      if (made_it.code() != Code::kUnavailable) return made_it;
      return Status(
          Code::kFailedPrecondition,
          made_it.message() + "; expected a folder that the collector's user may write; name another");
    }
    STATCOLLECT_RETURN_IF_ERROR(WriteFormatFile(staged.path(), kStoreFormatVersion));
    auto report = MeasureCheckpoint(staged.path());
    if (!report.ok()) return report.status();
    report->directory = *target;
    STATCOLLECT_RETURN_IF_ERROR(staged.Publish());
    return report;
  }

 private:
  static std::string AttemptPrefix(const std::string& run) {
    return KeyBuilder('r').Text(run).Text({"\0", 1}).Take();
  }
  // kNotFound unless there is such a run.
  Status CheckRun(const std::string& attempted, const std::string& run) {
    auto attempts = Attempts(run);
    if (!attempts.ok()) return attempts.status();
    if (!attempts->empty()) return Status::Ok();
    return {Code::kNotFound, attempted + ": there is no such run; statctl runs lists them"};
  }
  static std::string KeptKey(const std::string& run) { return "k" + run; }
  static std::string DocumentKey(const std::string& run, const std::string& name) {
    return KeyBuilder('d').Text(run).Text({"\0", 1}).Text(name).Take();
  }
  static std::string AttemptKey(const AttemptMeta& attempt) {
    return AttemptPrefix(attempt.run) + KeyBuilder().U32(attempt.number).Take();
  }
  static std::string RankKey(char prefix, AttemptId attempt, std::uint32_t rank) {
    return KeyBuilder(prefix).U32(attempt).U32(rank).Take();
  }
  static KeyRange AttemptRange(char prefix, AttemptId attempt) {
    std::string begin = KeyBuilder(prefix).U32(attempt).Take();
    std::string end = PrefixEnd(begin);
    return KeyRange(std::move(begin), std::move(end));
  }
  static std::string Of(AttemptId attempt, std::uint32_t rank) {
    return " of attempt " + std::to_string(attempt) + ", rank " + std::to_string(rank);
  }

  // Which attempts there are, as the catalogue says: after a write that failed it may not be what was wanted.
  Status LoadAttempts(const Database& database) {
    std::set<AttemptId> found;
    STATCOLLECT_RETURN_IF_ERROR(ForEach<AttemptMeta>(
        database, "attempts", kCatalogue, KeyRange("r", "s"),
        [&](std::string_view, const AttemptMeta& attempt) { found.insert(attempt.id); }));
    auto next = NextAttemptId(database);
    if (!next.ok()) return next.status();
    for (const AttemptId id : live_->snapshot().live) {
      if (!found.contains(id)) live_->Remove(id);
    }
    for (const AttemptId id : found) live_->Add(id);
    live_->SetNext(*next);
    return Status::Ok();
  }

  static Result<AttemptId> NextAttemptId(const Database& database) {
    std::string text;
    const rocksdb::Status read = database.db->Get({}, database.families[kDefault], kNextAttemptKey, &text);
    if (read.IsNotFound()) return AttemptId{1};
    STATCOLLECT_RETURN_IF_ERROR(FromRocks("read the next attempt's number", read));
    AttemptId id = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    if (error != std::errc() || end != text.data() + text.size() || id == 0) {
      return Status(Code::kDataLoss, "read the next attempt's number: it is no number; restore a checkpoint");
    }
    return id;
  }

  // Calls visit(key, value) for each value of the range, in key order.
  template <typename T, typename Visit>
  Status ForEach(const std::string& what, Family family, const KeyRange& range, Visit visit) {
    const auto database = Pin();
    return database == nullptr ? Closed() : ForEach<T>(*database, what, family, range, std::move(visit));
  }

  template <typename T, typename Visit>
  static Status ForEach(const Database& database, const std::string& what, Family family,
                        const KeyRange& range, Visit visit) {
    auto it = Iterate(*database.db, database.families[family], range);
    for (; it->Valid(); it->Next()) {
      auto value = Decode<T>(what + ", key " + it->key().ToString(/*hex=*/true), View(it->value()));
      if (!value.ok()) return value.status();
      visit(View(it->key()), *std::move(value));
    }
    return FromRocks("read " + what, it->status());
  }

  template <typename T>
  Result<std::vector<T>> ReadAll(const std::string& what, Family family, const KeyRange& range) {
    std::vector<T> values;
    STATCOLLECT_RETURN_IF_ERROR(ForEach<T>(
        what, family, range, [&](std::string_view, T value) { values.push_back(std::move(value)); }));
    return values;
  }

  static StatFamilies StatFamiliesOf(const Database& database) {
    return {.stats = database.families[kStats], .sketches = database.families[kSketches]};
  }

  static std::size_t BytesOf(std::span<const AppendItem> items) {
    std::size_t bytes = 4096 * items.size();
    for (const AppendItem& item : items) {
      if (item.prepared == nullptr) continue;
      const auto& prepared = static_cast<const RocksPreparedBatch&>(*item.prepared);
      for (const EncodedStatBlock& block : prepared.blocks)
        bytes += 128 + block.own.stats.size() + block.own.sums.size();
      for (const auto& entry : prepared.entries) bytes += 16 + entry.key.size() + entry.value.size();
    }
    return bytes;
  }

  void Add(const Database& database, rocksdb::WriteBatch& batch, const AppendItem& item) {
    if (item.prepared != nullptr) {
      AddPrepared(database, batch, item, static_cast<const RocksPreparedBatch&>(*item.prepared));
    } else {
      const auto prepared = NewWriter(item.attempt, item.rank)->Prepare(*item.batch);
      AddPrepared(database, batch, item, static_cast<const RocksPreparedBatch&>(*prepared));
    }
    (void)batch.Put(database.families[kCatalogue], RankKey('m', item.attempt, item.rank), Encode(*item.meta));
  }

  void AddPrepared(const Database& database, rocksdb::WriteBatch& batch, const AppendItem& item,
                   const RocksPreparedBatch& prepared) {
    for (const auto& entry : prepared.entries)
      (void)batch.Put(database.families[entry.family], entry.key, entry.value);
    for (const EncodedStatBlock& block : prepared.blocks) {
      if (block.twin && live_->Contains(block.twin->attempt)) {
        (void)batch.Put(database.families[kStats], EncodeStatKey(block.key), block.alias);
        NoteAlias(database, batch, block.twin->attempt, item.attempt);
      } else {
        AddBlock(database, batch, block.key, block.own, block.worth_listing ? &block.digest : nullptr);
      }
    }
  }

  // `listed_as`: so that equal blocks can be aliases of this one; null: not listed.
  static void AddBlock(const Database& database, rocksdb::WriteBatch& batch, const StatKey& key,
                       const EncodedBlock& block, const BlockDigest* listed_as) {
    const std::string encoded_key = EncodeStatKey(key);
    (void)batch.Put(database.families[kStats], encoded_key, block.stats);
    if (!block.sums.empty()) (void)batch.Put(database.families[kSketches], encoded_key, block.sums);
    if (listed_as != nullptr) (void)batch.Put(database.families[kContents], KeyOf(*listed_as), encoded_key);
  }

  static rocksdb::Slice KeyOf(const BlockDigest& digest) {
    return {reinterpret_cast<const char*>(digest.data()), digest.size()};
  }

  std::optional<StatKey> FindTwin(const BlockDigest& digest) {
    const auto database = Pin();
    if (database == nullptr) return std::nullopt;
    rocksdb::PinnableSlice value;
    if (!database->db->Get({}, database->families[kContents], KeyOf(digest), &value).ok())
      return std::nullopt;
    const auto key = DecodeStatKey(View(value));
    return key && live_->Contains(key->attempt) ? key : std::nullopt;
  }

  // Remembers in the catalogue, once, that blocks of `user` stand for blocks of `owner`.
  void NoteAlias(const Database& database, rocksdb::WriteBatch& batch, AttemptId owner, AttemptId user) {
    if (owner == user) return;
    {
      std::lock_guard lock(noted_mutex_);
      if (!noted_.emplace(owner, user).second) return;
    }
    (void)batch.Put(database.families[kCatalogue], KeyBuilder('x').U32(owner).U32(user).Take(), "");
  }

  static Result<std::vector<AttemptId>> UsersOf(const Database& database, AttemptId owner) {
    std::vector<AttemptId> users;
    const KeyRange range = AttemptRange('x', owner);
    auto it = Iterate(*database.db, database.families[kCatalogue], range);
    for (; it->Valid(); it->Next()) {
      if (it->key().size() == 9) users.push_back(ReadU32(View(it->key()).substr(5)));
    }
    STATCOLLECT_RETURN_IF_ERROR(
        FromRocks("list the runs that share blocks with attempt " + std::to_string(owner), it->status()));
    return users;
  }

  // Blocks of attempts that stay and stand for blocks of attempts that go get their content themselves.
  Status TakeOver(const Database& database, std::span<const AttemptId> going) {
    for (const AttemptId owner : going) {
      auto users = UsersOf(database, owner);
      if (!users.ok()) return users.status();
      for (const AttemptId user : *users) {
        if (!live_->Contains(user)) continue;
        STATCOLLECT_RETURN_IF_ERROR(TakeOverFrom(database, owner, user));
      }
    }
    return Status::Ok();
  }

  Status TakeOverFrom(const Database& database, AttemptId owner, AttemptId user) {
    constexpr std::size_t kBatchBytes = 4 << 20;
    const std::string attempted = "take over shared blocks of attempt " + std::to_string(owner);
    const std::string prefix = KeyBuilder().U32(user).Take();
    const KeyRange range(prefix, PrefixEnd(prefix));
    BlockSource source(*database.db, StatFamiliesOf(database));
    rocksdb::WriteBatch batch;
    auto it = Iterate(*database.db, database.families[kStats], range, /*scan=*/true);
    for (; it->Valid(); it->Next()) {
      const auto key = DecodeStatKey(View(it->key()));
      if (!key) continue;
      auto reader = BlockReader::Open(*key, View(it->value()));
      if (!reader.ok()) return reader.status();
      if (reader->kind() != BlockReader::Kind::kAlias || reader->target().attempt != owner) continue;
      BlockColumns block;
      STATCOLLECT_RETURN_IF_ERROR(source.Read(*key, *reader, /*sketches=*/true, &block));
      AddBlock(database, batch, *key, EncodeBlock(block, reader->digest()), &reader->digest());
      if (batch.GetDataSize() < kBatchBytes) continue;
      STATCOLLECT_RETURN_IF_ERROR(Write(attempted, database, batch, true, /*frees_space=*/true));
      batch.Clear();
    }
    STATCOLLECT_RETURN_IF_ERROR(FromRocks(attempted, it->status()));
    return Write(attempted, database, batch, true, /*frees_space=*/true);
  }

  // What the hello told is large and does not change: written once, not with each append.
  Status AddInfo(const Database& database, rocksdb::WriteBatch& batch, const AppendItem& item) {
    {
      std::lock_guard lock(with_info_mutex_);
      if (!with_info_.emplace(item.attempt, item.rank).second) return Status::Ok();
    }
    std::string stored;
    const std::string key = RankKey('i', item.attempt, item.rank);
    const rocksdb::Status read = database.db->Get({}, database.families[kCatalogue], key, &stored);
    if (!read.IsNotFound()) return FromRocks("read what the hello told" + Of(item.attempt, item.rank), read);
    (void)batch.Put(database.families[kCatalogue], key, Encode(item.meta->info));
    return Status::Ok();
  }

  static void DeleteAttempt(rocksdb::WriteBatch& batch, rocksdb::ColumnFamilyHandle* family,
                            const std::string& prefix, AttemptId id) {
    const std::string begin = prefix + KeyBuilder().U32(id).Take();
    (void)batch.DeleteRange(family, begin, PrefixEnd(begin));
  }

  static void Add(const RankMeta& rank, AttemptTally* tally) {
    ++tally->ranks;
    tally->records += rank.records;
    for (const auto& [cause, count] : rank.dropped) tally->dropped[cause] += count;
    tally->last_write_unix_nanos = std::max(tally->last_write_unix_nanos, rank.last_write_unix_nanos);
    tally->finished = tally->finished && rank.finished;
  }

  static Status AddSizes(const Database& database, std::vector<AttemptTally>* tallies) {
    std::vector<AttemptId> ids;
    for (const AttemptTally& tally : *tallies) ids.push_back(tally.meta.id);
    for (const Family family : kOfAttempts) {
      auto sizes = SizesOf(database, family, ids, /*memtables=*/true);
      if (!sizes.ok()) return sizes.status();
      for (std::size_t i = 0; i < ids.size(); ++i) (*tallies)[i].bytes += (*sizes)[i];
    }
    return Status::Ok();
  }

  // About what each attempt takes in a family, in tables and, if asked for, in memory.
  static Result<std::vector<std::uint64_t>> SizesOf(const Database& database, Family family,
                                                    std::span<const AttemptId> attempts, bool memtables) {
    std::vector<std::string> bounds;
    bounds.reserve(2 * attempts.size());
    for (const AttemptId id : attempts) {
      bounds.push_back(KeyBuilder().U32(id).Take());
      bounds.push_back(PrefixEnd(bounds.back()));
    }
    std::vector<rocksdb::Range> ranges;
    for (std::size_t i = 0; i < attempts.size(); ++i) ranges.emplace_back(bounds[2 * i], bounds[2 * i + 1]);
    std::vector<std::uint64_t> sizes(ranges.size());
    rocksdb::SizeApproximationOptions options;
    options.include_memtables = memtables;
    STATCOLLECT_RETURN_IF_ERROR(
        FromRocks("measure attempts",
                  database.db->GetApproximateSizes(options, database.families[family], ranges.data(),
                                                   static_cast<int>(ranges.size()), sizes.data())));
    return sizes;
  }

  // Takes the tombstones out of the parts of the catalogue that are scanned as a whole, in the background.
  // And gives space back.
  void StartTidyLocked() {
    tidy_wanted_ = true;
    if (tidying_.exchange(true)) return;
    if (tidy_.joinable()) tidy_.join();  // has ended
    tidy_ = std::thread([this] {
      while (tidy_wanted_.exchange(false)) {
        if (drops_ >= kDropsPerTidy) {
          drops_ = 0;  // those that come from here on count for the next tidying
          Tidy();
        }
        Reclaim();
      }
      tidying_ = false;
    });
  }

  // The store's own work ends before Recover; it is begun again after it. A merge under way is waited for:
  // cancelled in the middle, it could meet the same assertions of RocksDB as one that fails.
  void StopTidyingLocked() {
    if (!tidying_) return;
    tidy_.join();
    tidy_wanted_ = true;
  }

  // Files that hold several attempts keep the space of those that were removed until they are merged, which
  // by itself happens once there are many. Where more than half of a family's bytes are of no attempt any
  // more, it is merged as a whole: what is rewritten is less than what was removed.
  void Reclaim() {
    auto attempts = ReadAll<AttemptMeta>("attempts", kCatalogue, KeyRange("r", "s"));
    const auto database = Pin();
    if (!attempts.ok() || database == nullptr) return;
    std::vector<AttemptId> ids;
    for (const AttemptMeta& attempt : *attempts) ids.push_back(attempt.id);
    for (const Family family : {kStats, kSketches, kCaptures}) {
      const auto sizes = SizesOf(*database, family, ids, /*memtables=*/false);
      if (!sizes.ok()) continue;
      std::uint64_t held = 0;
      database->db->GetIntProperty(database->families[family], rocksdb::DB::Properties::kTotalSstFilesSize,
                                   &held);
      const std::uint64_t live = std::accumulate(sizes->begin(), sizes->end(), std::uint64_t{0});
      std::error_code error;
      const fs::space_info space = fs::space(directory_, error);
      if (held <= 2 * live + kReclaimMin || error || space.available < live + kReclaimSpare) continue;
      rocksdb::CompactRangeOptions options;
      options.exclusive_manual_compaction = false;
      options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
      if (!MayFlush()) return;
      (void)database->db->CompactRange(options, database->families[family], nullptr, nullptr);
    }
  }

  void Tidy() {
    const auto database = Pin();
    if (database == nullptr) return;
    for (const auto& [begin, end] : {std::pair("m", "n"), std::pair("r", "s")}) {
      const rocksdb::Slice first(begin), last(end);
      rocksdb::CompactRangeOptions options;
      options.exclusive_manual_compaction = false;
      options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
      if (!MayFlush()) return;
      (void)database->db->CompactRange(options, database->families[kCatalogue], &first, &last);
    }
  }

  // Asked before each merge, which begins with a flush. After a failed write a flush fails, too; where
  // RocksDB has assertions, the second one of the same memtable ends the process (it prepares its range
  // tombstones again). Opening anew gives new memtables.
  bool MayFlush() const { return health_->status().ok(); }

  // Gives back whole files of a dropped attempt at once, and asks for a compaction of files that hold other
  // attempts too. Both are only about space: a dropped attempt's id is never asked for again.
  static void FreeFiles(const Database& database, AttemptId id) {
    const KeyRange range(KeyBuilder().U32(id).Take(), PrefixEnd(KeyBuilder().U32(id).Take()));
    const rocksdb::Slice begin = range.begin;
    for (const Family family : kOfAttempts) {
      (void)rocksdb::DeleteFilesInRange(database.db.get(), database.families[family], &begin,
                                        &range.end_slice,
                                        /*include_end=*/false);
      (void)rocksdb::experimental::SuggestCompactRange(database.db.get(), database.families[family], &begin,
                                                       &range.end_slice);
    }
  }

  // A failed write may have reached the disk in part: nothing is written after it, until the store is opened
  // again. `frees_space`: is left to RocksDB, which refuses it if more than a compaction has failed for want
  // of space.
  Status Write(const std::string& attempted, const Database& database, rocksdb::WriteBatch& batch, bool sync,
               bool frees_space = false) {
    const Status failure = health_->status();
    if (!failure.ok() && !(frees_space && failure.code() == Code::kResourceExhausted)) return failure;
    rocksdb::WriteOptions options;
    options.sync = sync;
    const Status written = FromRocks(attempted, database.db->Write(options, &batch));
    return written.ok() ? written : health_->Fail(written);
  }

  // Keeps RocksDB open until the pointer is gone; null: it could not be opened again. Never held while
  // waiting for something that needs Recover.
  std::shared_ptr<Database> Pin() {
    std::lock_guard lock(database_mutex_);
    return database_;
  }
  static Status Closed() {
    return Status(Code::kUnavailable,
                  "use the store: it could not be opened again after its disk was full; free space, and it "
                  "opens by itself");
  }

  // Opens RocksDB again, unless somebody uses it.
  Status RecoverUnused(const Status& failure) {
    std::lock_guard lock(database_mutex_);
    if (health_->status().ok()) return Status::Ok();  // another thread was here first
    if (database_.use_count() > 1) {
      const auto now = std::chrono::steady_clock::now();
      if (!waiting_since_) waiting_since_ = now;
      if (now - *waiting_since_ >= kScanPatience) database_->closing = true;
      return failure;
    }
    waiting_since_.reset();
    return Reopen(failure);
  }

  // As a restart does: RocksDB replays its log and makes durable what it found before Open returns, so what
  // is read from then on is durable whatever became of the write that failed. Readers wait meanwhile, and
  // have a read-only RocksDB if there is still no space.
  Status Reopen(const Status& failure) {
    database_.reset();
    health_->Clear();
    {
      std::scoped_lock lock(with_info_mutex_, noted_mutex_);
      with_info_.clear();
      noted_.clear();
    }
    auto opened = opener_.Open(/*read_only=*/false, health_);
    if (opened.ok()) {
      database_ = *std::move(opened);
      if (const Status loaded = LoadAttempts(*database_); !loaded.ok()) return health_->Fail(loaded);
      log_("opened '" + directory_ + "' again: there is space");
      return health_->status();
    }
    log_("open '" + directory_ + "' again: " + opened.status().message());
    (void)health_->Fail(Status(Code::kResourceExhausted, opened.status().message()));
    auto readable = opener_.Open(/*read_only=*/true, health_);
    if (readable.ok()) database_ = *std::move(readable);
    return failure;
  }

  const std::string directory_;
  const bool fsync_;
  const std::function<void(const std::string&)> log_;
  const std::shared_ptr<LiveAttempts> live_ = std::make_shared<LiveAttempts>();
  const std::unique_ptr<DirectoryLock> lock_;
  const DatabaseOpener opener_;
  const std::shared_ptr<WriteHealth> health_ = std::make_shared<WriteHealth>();
  std::mutex database_mutex_;  // held while RocksDB is opened again
  std::shared_ptr<Database> database_;
  std::optional<std::chrono::steady_clock::time_point> waiting_since_;  // Recover found scans under way
  std::mutex catalogue_mutex_;         // one attempt is created or dropped at a time
  std::atomic<std::size_t> drops_{0};  // since the last tidying
  std::atomic<bool> tidying_{false};
  std::atomic<bool> tidy_wanted_{false};
  std::thread tidy_;  // started with catalogue_mutex_ held
  std::mutex checkpoint_mutex_;
  std::atomic<std::size_t> key_frame_bytes_{0};
  // Shared: an Append, which may write aliases; unique: attempts cease to be targets of aliases.
  std::shared_mutex alias_mutex_;
  std::mutex noted_mutex_;
  std::set<std::pair<AttemptId, AttemptId>> noted_;  // owner and user of aliases known to be in the catalogue
  std::mutex with_info_mutex_;
  std::set<std::pair<AttemptId, std::uint32_t>> with_info_;  // ranks known to have what the hello told
};

// Reads every block of every table.
Status VerifyTables(const std::string& directory, const RocksDbStoreOptions& options) {
  const auto database =
      DatabaseOpener(directory, options, nullptr).Open(/*read_only=*/true, std::make_shared<WriteHealth>());
  if (!database.ok()) return database.status();
  return FromRocks("verify '" + directory + "'", (*database)->db->VerifyChecksum());
}

// In the system's words; empty: it is a folder, and its FORMAT, if it has one, can be read.
std::string WhyUnreadable(const std::string& directory) {
  struct stat found {};
  if (stat(directory.c_str(), &found) != 0) return std::strerror(errno);
  if (!S_ISDIR(found.st_mode)) return std::strerror(ENOTDIR);
  if (access(directory.c_str(), R_OK | X_OK) != 0) return std::strerror(errno);
  if (access((directory + "/FORMAT").c_str(), R_OK) != 0 && errno != ENOENT) return std::strerror(errno);
  return "";
}

}  // namespace

Status RestoreCheckpoint(const std::string& checkpoint, const std::string& data_dir,
                         const RocksDbStoreOptions& options) {
  const std::string attempted = "restore '" + checkpoint + "' into '" + data_dir + "'";
  if (const std::string why = WhyUnreadable(checkpoint); !why.empty()) {
    return {Code::kNotFound,
            attempted + ": cannot read '" + checkpoint + "': " + why +
                "; expected a folder that statctl checkpoint made, which this user may read"};
  }
  if (!HasFormatFile(checkpoint)) {
    return {Code::kInvalidArgument, attempted + ": '" + checkpoint +
                                        "' has no file FORMAT; expected a checkpoint that statctl checkpoint "
                                        "made, or a copy of one"};
  }
  STATCOLLECT_RETURN_IF_ERROR(CheckFormatFile(checkpoint, kStoreFormatVersion));
  std::error_code error;
  const fs::path absolute = fs::absolute(data_dir, error);
  fs::create_directories(absolute.lexically_normal().parent_path(), error);
  auto target = ParseTarget(attempted, absolute, "");
  if (!target.ok()) return target.status();
  const std::string source = fs::weakly_canonical(checkpoint, error).string() + "/";
  if ((*target + "/").starts_with(source)) {
    return {Code::kInvalidArgument,
            attempted +
                ": the data directory would lie in the checkpoint, which is only read; "
                "name a folder elsewhere with --data-dir"};
  }
  auto found = MeasureCheckpoint(checkpoint);
  if (!found.ok()) return found.status();
  STATCOLLECT_RETURN_IF_ERROR(CheckFreeSpace(attempted, *target, found->bytes));
  StagedDirectory staged(*target);
  STATCOLLECT_RETURN_IF_ERROR(CopyFiles(checkpoint, staged.path(), options.stopped));
  if (Status verified = VerifyTables(staged.path(), options); !verified.ok()) {
    return {verified.code(), attempted + ": " + verified.message() +
                                 "; the data directory is left as it was; use another checkpoint"};
  }
  if (options.stopped && options.stopped()) return Stopped(attempted);
  STATCOLLECT_RETURN_IF_ERROR(staged.Publish());
  options.log("restored '" + checkpoint + "' into '" + *target + "': " + std::to_string(found->files) +
              " files, " + std::to_string(found->bytes) + " bytes, verified");
  return Status::Ok();
}

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
  STATCOLLECT_RETURN_IF_ERROR(CheckFormatFile(directory, kStoreFormatVersion));

  auto store = std::make_unique<RocksDbStore>(directory, options, *std::move(lock));
  STATCOLLECT_RETURN_IF_ERROR(store->Open());
  options.log("opened '" + directory + "', format version " + std::to_string(kStoreFormatVersion));
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace statcollect
