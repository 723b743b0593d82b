#include "server/store/clickhouse/clickhouse_store.h"

#include <algorithm>
#include <utility>

#include "common/thread_annotations.h"
#include "server/store/clickhouse/append.h"
#include "server/store/clickhouse/attempts.h"
#include "server/store/clickhouse/rank_rows.h"
#include "server/store/clickhouse/records.h"
#include "server/store/clickhouse/scan.h"
#include "server/store/clickhouse/schema.h"
#include "server/store/clickhouse/sharded_store.h"
#include "server/store/tally.h"

namespace statcollect {
namespace {

// Puts the parts together. Each part's header says who may call it.
//
// Threads: any. Locks, of which none is taken under another: catalogue_mutex_ and purge_mutex_,
// which may be held while the engine is asked, and those of the parts, which are not.
class ClickHouseStore final : public ClickHouseShard {
 public:
  ClickHouseStore(ClickHouseDsn dsn, const EngineOptions& options)
      : engine_(std::move(dsn), options),
        attempts_(engine_),
        ranks_(engine_),
        appender_(engine_, ranks_) {}

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
  Result<std::optional<RankMeta>> Rank(AttemptId attempt, std::uint32_t rank) override {
    return appender_.Rank(attempt, rank);
  }
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

  Result<std::optional<RankMeta>> ClaimRank(AttemptId attempt, std::uint32_t rank) override {
    return appender_.ClaimRank(attempt, rank);
  }
  Result<bool> EndRank(AttemptId attempt, std::uint32_t rank) override {
    return appender_.EndRank(attempt, rank);
  }
  Status PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta) override {
    return appender_.PutRank(attempt, rank, meta);
  }
  std::unique_ptr<StreamWriter> NewWriter(AttemptId attempt, std::uint32_t rank) override {
    return appender_.NewWriter(attempt, rank);
  }
  Status Append(std::span<const AppendItem> items) override { return appender_.Append(items); }
  Status PutEvents(AttemptId attempt, std::span<const CollectorEvent> events) override {
    MutexLock lock(catalogue_mutex_);  // the attempt stays, unless another collector removes it
    STATCOLLECT_RETURN_IF_ERROR(attempts_.CheckLive("add events", attempt));
    return appender_.PutEvents(attempt, events);
  }
  Status PutEventsOf(AttemptId attempt, std::span<const CollectorEvent> events) override {
    return appender_.PutEvents(attempt, events);
  }
  Status Recover() override { return appender_.Recover(); }

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
  Engine engine_;
  AttemptTable attempts_;
  RankReads ranks_;
  ClickHouseAppender appender_;
  StoreIdentity identity_;  // written by Open
  Mutex catalogue_mutex_;   // one attempt is created or hidden at a time by this process
  Mutex purge_mutex_;       // held while data is deleted
};

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
