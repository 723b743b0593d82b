#include "server/store/clickhouse/sharded_store.h"

#include <algorithm>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "server/store/clickhouse/records.h"
#include "server/store/tally.h"

namespace statcollect {
namespace {

// Threads: any. Has no state of its own.
class ShardedStore final : public Store {
 public:
  explicit ShardedStore(std::vector<std::unique_ptr<ClickHouseShard>> shards)
      : shards_(std::move(shards)) {}

  std::size_t parts() const override { return shards_.size(); }
  std::size_t PartOf(std::uint32_t rank) const override { return rank % shards_.size(); }
  Store& part(std::size_t index) override { return *shards_[index]; }

  // --- the catalogue, in the first shard
  Result<std::vector<std::string>> ListRuns() override { return first().ListRuns(); }
  Result<std::vector<AttemptMeta>> Attempts(const std::string& run) override {
    return first().Attempts(run);
  }
  Result<AttemptMeta> CreateAttempt(const AttemptMeta& wanted) override {
    return first().CreateAttempt(wanted);
  }
  Status RetireAttempts(std::span<const AttemptId> ids) override {
    return first().RetireAttempts(ids);
  }
  Status KeepRun(const std::string& run, bool keep) override { return first().KeepRun(run, keep); }
  Status PutDocument(const std::string& run, const std::string& name,
                     const std::optional<std::string>& content) override {
    return first().PutDocument(run, name, content);
  }
  Result<std::optional<std::string>> Document(const std::string& run,
                                              const std::string& name) override {
    return first().Document(run, name);
  }

  // --- over all shards
  Status PurgeRetired(const std::function<bool()>& stopped) override;
  Result<std::map<std::uint32_t, RankMeta>> Ranks(AttemptId attempt) override;
  Result<std::vector<AttemptTally>> Census() override;
  Result<StoreUsage> Usage() override;
  Status Append(std::span<const AppendItem> items) override;
  Status PutEvents(AttemptId attempt, std::span<const CollectorEvent> events) override;
  Status Recover() override {
    return FirstFailure(AtAll<Status>([](ClickHouseShard& shard) { return shard.Recover(); }));
  }
  void BeginStop() override {
    for (const auto& shard : shards_) shard->BeginStop();
  }
  bool fsync() const override {
    return std::all_of(shards_.begin(), shards_.end(),
                       [](const auto& shard) { return shard->fsync(); });
  }
  Result<std::optional<std::int64_t>> EngineUnixNanos() override {
    return first().EngineUnixNanos();
  }
  StoreIdentity identity() const override { return shards_.front()->identity(); }
  Result<CheckpointReport> Checkpoint(const std::string& directory) override {
    return first().Checkpoint(directory);
  }

  // --- of one rank, in its shard
  Result<std::optional<RankMeta>> Rank(AttemptId attempt, std::uint32_t rank) override {
    return Of(rank).Rank(attempt, rank);
  }
  Result<bool> EndRank(AttemptId attempt, std::uint32_t rank) override {
    return Of(rank).EndRank(attempt, rank);
  }
  Result<std::optional<RankMeta>> ClaimRank(AttemptId attempt, std::uint32_t rank) override {
    return Of(rank).ClaimRank(attempt, rank);
  }
  Status PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta) override {
    return Of(rank).PutRank(attempt, rank, meta);
  }
  std::unique_ptr<StreamWriter> NewWriter(AttemptId attempt, std::uint32_t rank) override {
    return Of(rank).NewWriter(attempt, rank);
  }
  Result<SharedDefinitions> Definitions(AttemptId attempt, std::uint32_t rank) override {
    return Of(rank).Definitions(attempt, rank);
  }
  std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank,
                                      StepBounds steps) override {
    return Of(rank).ScanStats(attempt, rank, steps);
  }
  Status VisitSeries(AttemptId attempt, std::uint32_t rank, std::uint32_t activation,
                     StepBounds steps, const Visitor<StatPoint>& visitor) override {
    return Of(rank).VisitSeries(attempt, rank, activation, steps, visitor);
  }
  Status VisitStatSteps(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                        const Visitor<std::uint64_t>& visitor) override {
    return Of(rank).VisitStatSteps(attempt, rank, steps, visitor);
  }
  Status VisitRecords(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                      RecordVisitor visitor) override {
    return Of(rank).VisitRecords(attempt, rank, steps, visitor);
  }
  Result<std::string> CaptureChunkAt(AttemptId attempt, std::uint32_t rank, std::uint64_t step,
                                     std::uint32_t activation, std::uint32_t offset) override {
    return Of(rank).CaptureChunkAt(attempt, rank, step, activation, offset);
  }

 private:
  ClickHouseShard& first() { return *shards_.front(); }
  ClickHouseShard& Of(std::uint32_t rank) { return *shards_[PartOf(rank)]; }

  // Asks all shards at the same time; the answers are in their order.
  template <typename Answer, typename Ask>
  std::vector<Answer> AtAll(const Ask& ask) {
    std::vector<std::future<Answer>> asked;
    for (std::size_t i = 1; i < shards_.size(); ++i)
      asked.push_back(
          std::async(std::launch::async, [&ask, shard = shards_[i].get()] { return ask(*shard); }));
    std::vector<Answer> answers;
    answers.push_back(ask(first()));
    for (auto& answer : asked) answers.push_back(answer.get());
    return answers;
  }
  static Status FirstFailure(const std::vector<Status>& found) {
    const auto failed =
        std::find_if(found.begin(), found.end(), [](const Status& s) { return !s.ok(); });
    return failed == found.end() ? Status::Ok() : *failed;
  }
  // `items` by the shard of their ranks, each list handed to its shard.
  template <typename Item, typename Write>
  Status WriteByShard(std::span<const Item> items, const Write& write) {
    std::map<const Store*, std::vector<Item>> mine;
    for (const Item& item : items) mine[&Of(item.rank)].push_back(item);
    return FirstFailure(AtAll<Status>([&](ClickHouseShard& shard) {
      const auto list = mine.find(&shard);
      return list == mine.end() ? Status::Ok() : write(shard, std::span<const Item>(list->second));
    }));
  }

  const std::vector<std::unique_ptr<ClickHouseShard>> shards_;
};

// The first shard, whose rows say what is to be deleted, comes last: until the others are through,
// the attempts count as retired, and the next call continues.
Status ShardedStore::PurgeRetired(const std::function<bool()>& stopped) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto rows, first().attempts().Rows());
  std::vector<AttemptRow> removed;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(removed),
               [](const AttemptRow& row) { return row.state != AttemptState::kLive; });
  STATCOLLECT_RETURN_IF_ERROR(FirstFailure(AtAll<Status>([&](ClickHouseShard& shard) {
    if (&shard == &first()) return Status::Ok();
    STATCOLLECT_RETURN_IF_ERROR(shard.attempts().PutRemoved(removed));
    return shard.PurgeRetired(stopped);
  })));
  return first().PurgeRetired(stopped);
}

Result<std::map<std::uint32_t, RankMeta>> ShardedStore::Ranks(AttemptId attempt) {
  auto found = AtAll<Result<std::map<std::uint32_t, RankMeta>>>(
      [attempt](ClickHouseShard& shard) { return shard.Ranks(attempt); });
  std::map<std::uint32_t, RankMeta> all;
  for (auto& ranks : found) {
    if (!ranks.ok()) return ranks.status();
    all.merge(*ranks);
  }
  return all;
}

Result<std::vector<AttemptTally>> ShardedStore::Census() {
  auto tallies = EmptyTallies(first().attempts());
  if (!tallies.ok()) return tallies;
  const auto found = AtAll<Result<std::vector<AttemptTally>>>(
      [&](ClickHouseShard& shard) -> Result<std::vector<AttemptTally>> {
        std::vector<AttemptTally> mine = *tallies;
        STATCOLLECT_RETURN_IF_ERROR(AddRanks(shard.engine(), &mine));
        return mine;
      });
  for (const auto& mine : found) {
    if (!mine.ok()) return mine.status();
    for (std::size_t i = 0; i < tallies->size(); ++i) AddTally((*mine)[i], &(*tallies)[i]);
  }
  for (AttemptTally& tally : *tallies) FinishTally(&tally);
  return tallies;
}

Result<StoreUsage> ShardedStore::Usage() {
  const auto found =
      AtAll<Result<StoreUsage>>([](ClickHouseShard& shard) { return shard.Usage(); });
  StoreUsage all;
  for (const auto& usage : found) {
    if (!usage.ok()) return usage.status();
    all.disk_bytes += usage->disk_bytes;
    all.disk_free_bytes += usage->disk_free_bytes;
    all.disk_capacity_bytes += usage->disk_capacity_bytes;
    all.disk_known = all.disk_known && usage->disk_known;
    all.retired_attempts = std::max(all.retired_attempts, usage->retired_attempts);
  }
  return all;
}

Status ShardedStore::Append(std::span<const AppendItem> items) {
  return WriteByShard(items, [](ClickHouseShard& shard, std::span<const AppendItem> mine) {
    return shard.Append(mine);
  });
}

Status ShardedStore::PutEvents(AttemptId attempt, std::span<const CollectorEvent> events) {
  STATCOLLECT_RETURN_IF_ERROR(first().attempts().CheckLive("add events", attempt));
  return WriteByShard(events,
                      [attempt](ClickHouseShard& shard, std::span<const CollectorEvent> mine) {
                        return shard.PutEventsOf(attempt, mine);
                      });
}

}  // namespace

std::unique_ptr<Store> MakeShardedStore(std::vector<std::unique_ptr<ClickHouseShard>> shards) {
  return std::make_unique<ShardedStore>(std::move(shards));
}

}  // namespace statcollect
