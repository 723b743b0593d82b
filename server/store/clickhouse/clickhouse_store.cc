#include "server/store/clickhouse/clickhouse_store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "common/thread_annotations.h"
#include "server/store/clickhouse/attempts.h"
#include "server/store/clickhouse/claims.h"
#include "server/store/clickhouse/entries.h"
#include "server/store/clickhouse/rank_rows.h"
#include "server/store/clickhouse/records.h"
#include "server/store/clickhouse/scan.h"
#include "server/store/clickhouse/schema.h"
#include "server/store/clickhouse/sharded_store.h"
#include "server/store/clickhouse/small_writes.h"
#include "server/store/codec/batch_encoder.h"
#include "server/store/codec/catalogue.h"
#include "server/store/tally.h"

namespace statcollect {
namespace {

// In keys of events: agents number their records from 1, the collector from here.
constexpr std::uint64_t kOwnEvents = std::uint64_t{1} << 63;

std::string TokenOf(const AppendItem& item, const RowStamp& stamp) {
  return std::to_string(item.attempt) + "-" + std::to_string(item.rank) + "-" +
         std::to_string(stamp.epoch) + "-" + std::to_string(stamp.n);
}

std::string NameOf(AttemptId attempt, std::uint32_t rank) {
  return "rank " + std::to_string(rank) + " of attempt " + std::to_string(attempt);
}

void AddBlockRows(const AppendItem& item, const EncodedStatBlock& block, const RowStamp& stamp,
                  ByteWriter* to) {
  RecordRow row{.family = RowFamily::kSums,
                .step = block.key.step,
                .item = block.key.activation,
                .value = block.own.sums};
  if (!row.value.empty()) AddRecordRow(item.attempt, item.rank, row, stamp, to);
  row.family = RowFamily::kBlock;
  row.records = static_cast<std::uint32_t>(block.records);
  row.digest = block.digest;
  row.value = block.own.stats;
  AddRecordRow(item.attempt, item.rank, row, stamp, to);
}

// Puts the parts together, and writes records. Each part's header says who may call it.
//
// The rows of an attempt in a group of batches are one insert into one partition, in pieces of
// whole batches: a batch becomes visible with its watermark, or not at all.
//
// Threads: any. Locks, of which none is taken under another: catalogue_mutex_ and purge_mutex_,
// which may be held while the engine is asked, and mutex_ and those of the parts, which are not.
class ClickHouseStore final : public ClickHouseShard {
 public:
  ClickHouseStore(ClickHouseDsn dsn, const EngineOptions& options)
      : engine_(std::move(dsn), options),
        attempts_(engine_),
        ranks_(engine_),
        writes_(engine_),
        claims_(engine_, ranks_, writes_) {}

  Engine& engine() override { return engine_; }
  AttemptTable& attempts() override { return attempts_; }

  // Once, before anything else.
  Status Open() {
    STATCOLLECT_RETURN_IF_ERROR(engine_.Connect());
    STATCOLLECT_ASSIGN_OR_RETURN(identity_, OpenSchema(engine_));
    engine_.Log("opened " + engine_.dsn().Describe() + ", ClickHouse " + engine_.version() +
                ", format version " + std::to_string(kClickHouseFormatVersion));
    return Status::Ok();
  }

  Result<std::vector<std::string>> ListRuns() override { return attempts_.ListRuns(); }
  Result<std::vector<AttemptMeta>> Attempts(const std::string& run) override {
    return attempts_.Attempts(run);
  }
  Result<AttemptMeta> CreateAttempt(const AttemptMeta& wanted) override {
    MutexLock lock(catalogue_mutex_);
    return attempts_.CreateAttempt(wanted);
  }
  Status RetireAttempts(std::span<const AttemptId> ids) override {
    MutexLock lock(catalogue_mutex_);
    return attempts_.RetireAttempts(ids);
  }
  Status PurgeRetired(const std::function<bool()>& stopped) override {
    MutexLock lock(purge_mutex_);
    return attempts_.PurgeRetired(stopped);
  }
  Result<std::vector<AttemptTally>> Census() override {
    auto tallies = EmptyTallies(attempts_);
    if (!tallies.ok()) return tallies;
    STATCOLLECT_RETURN_IF_ERROR(AddRanks(engine_, &*tallies));
    for (AttemptTally& tally : *tallies) FinishTally(&tally);
    return tallies;
  }
  Status KeepRun(const std::string& run, bool keep) override {
    MutexLock lock(catalogue_mutex_);
    return attempts_.KeepRun(run, keep);
  }
  Status PutDocument(const std::string& run, const std::string& name,
                     const std::optional<std::string>& content) override {
    MutexLock lock(catalogue_mutex_);
    return attempts_.PutDocument(run, name, content);
  }
  Result<std::optional<std::string>> Document(const std::string& run,
                                              const std::string& name) override {
    return attempts_.Document(run, name);
  }
  Result<std::map<std::uint32_t, RankMeta>> Ranks(AttemptId attempt) override {
    return ranks_.ReadAll(attempt);
  }
  Result<std::optional<RankMeta>> Rank(AttemptId attempt, std::uint32_t rank) override;
  Result<SharedDefinitions> Definitions(AttemptId attempt, std::uint32_t rank) override {
    RankDefinitions read;
    PageRange range{.attempt = attempt, .rank = rank, .family = RowFamily::kActivation};
    STATCOLLECT_ASSIGN_OR_RETURN(read.activations,
                                 ReadRows<TensorDef>(engine_, attempts_, "activations", range));
    range.family = RowFamily::kLayout;
    STATCOLLECT_ASSIGN_OR_RETURN(read.layouts,
                                 ReadRows<Layout>(engine_, attempts_, "layouts", range));
    return std::make_shared<const RankDefinitions>(std::move(read));
  }

  Result<std::optional<RankMeta>> ClaimRank(AttemptId attempt, std::uint32_t rank) override;
  Result<bool> EndRank(AttemptId attempt, std::uint32_t rank) override {
    return claims_.End({attempt, rank});
  }
  Status PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta) override;
  std::unique_ptr<StreamWriter> NewWriter(AttemptId attempt, std::uint32_t rank) override;
  Status Append(std::span<const AppendItem> items) override;
  Status PutEvents(AttemptId attempt, std::span<const CollectorEvent> events) override {
    MutexLock lock(catalogue_mutex_);  // the attempt stays, unless another collector removes it
    STATCOLLECT_RETURN_IF_ERROR(attempts_.CheckLive("add events", attempt));
    return PutEventsOf(attempt, events);
  }
  Status PutEventsOf(AttemptId attempt, std::span<const CollectorEvent> events) override;
  // The last failure of an Append, or why the engine still accepts nothing; Ok once it does.
  Status Recover() override;

  std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank,
                                      StepBounds steps) override {
    return ScanClickHouseBlocks(engine_, attempts_, attempt, rank, steps);
  }
  Status VisitSeries(AttemptId attempt, std::uint32_t rank, std::uint32_t activation,
                     StepBounds steps, const Visitor<StatPoint>& visitor) override {
    return VisitClickHouseSeries(engine_, attempts_, attempt, rank, activation, steps, visitor);
  }
  Status VisitStatSteps(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                        const Visitor<std::uint64_t>& visitor) override {
    return VisitClickHouseSteps(engine_, attempt, rank, steps, visitor);
  }
  Status VisitRecords(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                      RecordVisitor visitor) override {
    return statcollect::VisitRecords(engine_, attempts_, attempt, rank, steps, visitor);
  }
  Result<std::string> CaptureChunkAt(AttemptId attempt, std::uint32_t rank, std::uint64_t step,
                                     std::uint32_t activation, std::uint32_t offset) override {
    return ReadChunk(engine_, attempt, rank, step, activation, offset);
  }

  Result<StoreUsage> Usage() override { return ReadUsage(engine_, attempts_); }
  // Releases before 22 leave it to the operating system when a part reaches the disk.
  bool fsync() const override { return engine_.is_modern() || engine_.dsn().quorum > 1; }
  Result<std::optional<std::int64_t>> EngineUnixNanos() override { return ReadClock(engine_); }
  StoreIdentity identity() const override { return identity_; }
  // The more, the more share a request.
  void BeginStop() override { engine_.BeginStop(); }
  std::size_t hellos_at_once() const override { return 64; }
  Result<CheckpointReport> Checkpoint(const std::string& directory) override {
    return Status(Code::kFailedPrecondition,
                  "write a checkpoint to '" + directory + "': found a store in ClickHouse (" +
                      engine_.dsn().Describe() +
                      "); expected the embedded one; back ClickHouse up with its own means, such "
                      "as BACKUP DATABASE or ALTER TABLE ... FREEZE");
  }

 private:
  // Rows of one attempt, not written yet.
  struct Piece {
    ByteWriter rows;
    std::size_t count = 0;
    std::string token;
  };

  Status AppendItems(std::span<const AppendItem> items);
  void ReportOutcome(const Status& appended);
  Status AddBatch(const AppendItem& item, Piece* piece);
  Status AddHello(const AppendItem& item, const RowStamp& stamp, Piece* piece);
  Status Write(Piece* piece);

  Engine engine_;
  AttemptTable attempts_;
  RankReads ranks_;
  SmallWrites writes_;
  Claims claims_;
  std::atomic<std::size_t> key_frame_bytes_{0};  // shared by the streams' encoders
  std::atomic<std::uint64_t> own_events_{0};     // rises with each event of the collector's own
  std::string reported_;  // the last failure that was logged; of the committer's thread
  Mutex mutex_;           // not held while the engine is asked
  Status failure_ STATCOLLECT_GUARDED_BY(mutex_);
  std::set<Claims::Place> with_hello_
      STATCOLLECT_GUARDED_BY(mutex_);  // whose hello is known to be stored
  StoreIdentity identity_;             // written by Open
  Mutex catalogue_mutex_;              // one attempt is created or hidden at a time by this process
  Mutex purge_mutex_;                  // held while data is deleted
};

Result<std::optional<RankMeta>> ClickHouseStore::Rank(AttemptId attempt, std::uint32_t rank) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto rows, claims_.Read({attempt, rank}));
  return rows.Meta(NameOf(attempt, rank));
}

Result<std::optional<RankMeta>> ClickHouseStore::ClaimRank(AttemptId attempt, std::uint32_t rank) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto rows, claims_.Claim({attempt, rank}));
  if (rows.has_hello()) {
    MutexLock lock(mutex_);
    with_hello_.emplace(attempt, rank);
  }
  return rows.Meta(NameOf(attempt, rank));
}

std::unique_ptr<StreamWriter> ClickHouseStore::NewWriter(AttemptId attempt, std::uint32_t rank) {
  // No block is an alias of another run's: each run's partition stands alone, and is dropped alone.
  return std::make_unique<BatchEncoder>(
      attempt, rank, StatEncoder::Options{.find_twin = {}, .key_frame_bytes = &key_frame_bytes_});
}

Status ClickHouseStore::Append(std::span<const AppendItem> items) {
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
  }
  const Status appended = AppendItems(items);
  ReportOutcome(appended);
  if (appended.ok()) return appended;
  // Some of it may be stored, or may be stored later. A new claim of each rank settles which.
  for (const AppendItem& item : items) claims_.Forget({item.attempt, item.rank});
  MutexLock lock(mutex_);
  for (const AppendItem& item : items) with_hello_.erase({item.attempt, item.rank});
  failure_ =
      appended.code() == Code::kUnavailable ? Status(Code::kAborted, appended.message()) : appended;
  return failure_;
}

void ClickHouseStore::ReportOutcome(const Status& appended) {
  if (appended.ok() && reported_.empty()) return;
  if (appended.ok())
    engine_.Log("store records: it succeeds again");
  else if (appended.message() != reported_)
    engine_.Log(appended.message() + "; agents keep their records and send them again");
  reported_ = appended.ok() ? "" : appended.message();
}

Status ClickHouseStore::AppendItems(std::span<const AppendItem> items) {
  std::map<AttemptId, Piece> pieces;
  std::set<Claims::Place> places;
  for (const AppendItem& item : items) {
    Piece& piece = pieces[item.attempt];
    STATCOLLECT_RETURN_IF_ERROR(AddBatch(item, &piece));
    places.emplace(item.attempt, item.rank);
    if (piece.count >= kInsertRowsMax / 4 || piece.rows.bytes().size() >= kInsertBytesMax)
      STATCOLLECT_RETURN_IF_ERROR(Write(&piece));
  }
  for (auto& [attempt, piece] : pieces) STATCOLLECT_RETURN_IF_ERROR(Write(&piece));
  STATCOLLECT_RETURN_IF_ERROR(claims_.Check(places));
  MutexLock lock(mutex_);
  with_hello_.insert(places.begin(), places.end());
  return Status::Ok();
}

Status ClickHouseStore::Write(Piece* piece) {
  if (piece->count == 0) return Status::Ok();
  const Piece whole = std::exchange(*piece, {});
  return engine_.Insert("store records", RecordsInto(engine_), whole.rows.bytes(), whole.token);
}

Status ClickHouseStore::AddBatch(const AppendItem& item, Piece* piece) {
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto stamp, claims_.NextStamp({item.attempt, item.rank}, item.meta->durable_seq));
  if (item.prepared != nullptr) {
    const EncodedBatch& batch = EncodedOf(*item.prepared);
    for (const EncodedRow& row : batch.rows)
      AddRecordRow(item.attempt, item.rank,
                   {.family = row.family, .step = row.step, .item = row.item, .value = row.value},
                   stamp, &piece->rows);
    for (const EncodedStatBlock& block : batch.blocks)
      AddBlockRows(item, block, stamp, &piece->rows);
    piece->count += batch.rows.size() + 2 * batch.blocks.size();
  }
  STATCOLLECT_RETURN_IF_ERROR(AddHello(item, stamp, piece));
  AddRecordRow(item.attempt, item.rank, {.family = RowFamily::kRank, .value = Encode(*item.meta)},
               stamp, &piece->rows);
  piece->count += 2;
  piece->token += (piece->token.empty() ? "" : "+") + TokenOf(item, stamp);
  return Status::Ok();
}

// The content of a hello is large and does not change, so it is written once and not with each
// append.
Status ClickHouseStore::AddHello(const AppendItem& item, const RowStamp& stamp, Piece* piece) {
  {
    MutexLock lock(mutex_);
    if (!with_hello_.emplace(item.attempt, item.rank).second) return Status::Ok();
  }
  bool stored = false;
  STATCOLLECT_RETURN_IF_ERROR(
      SelectOne(engine_, "read the hello of rank " + std::to_string(item.rank),
                "SELECT count() AS hellos FROM " + TableName(engine_, "records") + " WHERE " +
                    SqlPlace(item.attempt, RowFamily::kHello, item.rank),
                [&](ByteReader& in) { stored = in.U64() > 0; }));
  if (!stored)
    AddRecordRow(item.attempt, item.rank,
                 {.family = RowFamily::kHello, .value = Encode(item.meta->info)}, stamp,
                 &piece->rows);
  return Status::Ok();
}

Status ClickHouseStore::PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta) {
  const Claims::Place place(attempt, rank);
  STATCOLLECT_ASSIGN_OR_RETURN(const auto stamp, claims_.NextStamp(place, meta.durable_seq));
  ByteWriter rows;
  AddRecordRow(attempt, rank, {.family = RowFamily::kHello, .value = Encode(meta.info)}, stamp,
               &rows);
  AddRecordRow(attempt, rank, {.family = RowFamily::kRank, .value = Encode(meta)}, stamp, &rows);
  const Status written = writes_.Write(attempt, "write rank " + std::to_string(rank), rows.bytes(),
                                       TokenOf({.attempt = attempt, .rank = rank}, stamp));
  if (!written.ok()) {
    claims_.Forget(place);
    return written;
  }
  MutexLock lock(mutex_);
  with_hello_.insert(place);
  return Status::Ok();
}

Status ClickHouseStore::PutEventsOf(AttemptId attempt, std::span<const CollectorEvent> events) {
  // A later call replaces an event of the same number; in this process always, and between
  // collectors by their clocks.
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  std::uint64_t before = own_events_.load();
  std::uint64_t n = 0;
  do {
    n = std::max(before + 1, static_cast<std::uint64_t>(now.count()));
  } while (!own_events_.compare_exchange_weak(before, n));
  ByteWriter rows;
  for (const CollectorEvent& own : events) {
    AddRecordRow(attempt, own.rank,
                 {.family = RowFamily::kEvent,
                  .step = own.event.step,
                  .item = kOwnEvents | own.number,
                  .value = Encode(own.event)},
                 {.epoch = 0, .n = n}, &rows);
  }
  return engine_.Insert("add " + std::to_string(events.size()) + " events", RecordsInto(engine_),
                        rows.bytes(),
                        "events-" + std::to_string(attempt) + "-" + std::to_string(n));
}

Status ClickHouseStore::Recover() {
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) return failure_;
  }
  // An engine that is full, or short of replicas, still answers a question.
  const Status probed = ProbeWrite(engine_, "store records");
  MutexLock lock(mutex_);
  if (probed.ok())
    failure_ = Status::Ok();
  else if (!failure_.ok())
    failure_ =
        probed.code() == Code::kUnavailable ? Status(Code::kAborted, probed.message()) : probed;
  return failure_;
}

Status SameTables(const Engine& engine, std::size_t other) {
  return {Code::kFailedPrecondition,
          "open the store " + engine.dsn().Describe() + ": found that shards " +
              std::to_string(other) + " and " + std::to_string(engine.dsn().number) +
              " have the same tables; expected tables of its own for each; where they are "
              "replicated, the servers of each shard need a macro {shard} of their own"};
}

// All of them are checked before anything is written. The first, whose list counts, is written
// last.
Status TakeShardPlaces(std::vector<std::unique_ptr<ClickHouseShard>>& shards, ShardPlace place) {
  for (std::size_t i = 0; i < shards.size(); ++i) {
    place.number = i + 1;
    STATCOLLECT_RETURN_IF_ERROR(CheckShardPlace(shards[i]->engine(), place));
  }
  for (std::size_t i = shards.size(); i-- > 0;) {
    place.number = i + 1;
    STATCOLLECT_RETURN_IF_ERROR(TakeShardPlace(shards[i]->engine(), place));
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Store>> OpenClickHouseStore(const std::string& dsn,
                                                   const EngineOptions& options) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto parsed, ParseClickHouseDsn(dsn));
  std::vector<std::unique_ptr<ClickHouseShard>> shards;
  ShardPlace place;
  for (ClickHouseDsn& each : parsed) {
    auto store = std::make_unique<ClickHouseStore>(std::move(each), options);
    STATCOLLECT_RETURN_IF_ERROR(store->Open());
    const auto same =
        std::find(place.identities.begin(), place.identities.end(), store->identity());
    if (same != place.identities.end())
      return SameTables(store->engine(),
                        static_cast<std::size_t>(same - place.identities.begin()) + 1);
    place.identities.push_back(store->identity());
    shards.push_back(std::move(store));
  }
  STATCOLLECT_RETURN_IF_ERROR(TakeShardPlaces(shards, place));
  if (shards.size() == 1) return std::unique_ptr<Store>(std::move(shards.front()));
  return MakeShardedStore(std::move(shards));
}

}  // namespace statcollect
