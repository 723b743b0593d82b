// What only a store of several shards has to do, over two real ClickHouses. Rank r lies in shard r
// % 2.
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/store/byte_io.h"
#include "server/store/clickhouse/clickhouse_store.h"
#include "tests/server/store/step_batch.h"
#include "tests/server/store/store_contents.h"
#include "tests/support/append_batch.h"
#include "tests/support/clickhouse_server.h"

namespace statcollect {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

const EngineOptions kImpatience{.connect_timeout = std::chrono::milliseconds(500),
                                .timeout = std::chrono::seconds(20),
                                .read_patience = std::chrono::milliseconds(500),
                                .write_patience = std::chrono::milliseconds(500)};

class ShardedStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::ClickHouseServer::Program().empty())
      GTEST_SKIP() << "clickhouse-server is not installed; scripts/setup.sh installs it";
    for (testing::ClickHouseServer* server : {&first_, &second_})
      ASSERT_TRUE(server->Start()) << "see " << server->log_path();
  }

  static std::string HostOf(const testing::ClickHouseServer& server) {
    return "127.0.0.1:" + std::to_string(server.port());
  }
  std::string Dsn() const {
    return "clickhouse://" + HostOf(first_) + "|" + HostOf(second_) + "/stats";
  }
  static std::unique_ptr<Store> Open(const std::string& dsn) {
    auto opened = OpenClickHouseStore(dsn, kImpatience);
    if (!opened.ok()) throw std::runtime_error(opened.status().message());
    return *std::move(opened);
  }
  static std::string Refusal(const std::string& dsn) {
    const auto opened = OpenClickHouseStore(dsn, kImpatience);
    return opened.ok() ? "opened" : opened.status().message();
  }
  static AttemptMeta Create(Store& store, const std::string& run) {
    const auto made =
        store.CreateAttempt({.run = run, .launch = "L", .world_size = 4, .start_unix_nanos = 1});
    EXPECT_TRUE(made.ok()) << made.status().message();
    return *made;
  }
  // Rows of records in a server, by what is asked of them.
  static std::uint64_t Count(const testing::ClickHouseServer& server, const std::string& where) {
    Engine engine(ParseClickHouseDsn(server.Dsn("stats"))->front(), kImpatience);
    EXPECT_TRUE(engine.Connect().ok());
    const auto answer = engine.Select("count", "SELECT count() AS n FROM stats." + where);
    EXPECT_TRUE(answer.ok()) << answer.status().message();
    return ByteReader(*answer).U64();
  }

  testing::ClickHouseServer first_{CLICKHOUSE_CONFIG}, second_{CLICKHOUSE_CONFIG};
};

TEST_F(ShardedStoreTest, ARankLiesInTheShardOfItsNumberAndTheCatalogueInTheFirst) {
  const auto store = Open(Dsn());
  const AttemptId id = Create(*store, "base").id;
  for (std::uint32_t rank = 0; rank < 4; ++rank) Append(*store, id, rank, MakeBatch(1, 0, 0, 3));
  EXPECT_EQ(Count(first_, "records WHERE rank % 2 = 1"), 0u);
  EXPECT_EQ(Count(second_, "records WHERE rank % 2 = 0"), 0u);
  EXPECT_EQ(Count(first_, "records WHERE family = 98"), 2u);
  EXPECT_EQ(Count(second_, "records WHERE family = 98"), 2u);
  EXPECT_EQ(Count(first_, "attempts"), 1u);
  EXPECT_EQ(Count(second_, "attempts"), 0u);
  EXPECT_EQ(store->Ranks(id)->size(), 4u);
  EXPECT_EQ(store->Rank(id, 3)->value().durable_seq, 6u);
  EXPECT_FALSE(store->Rank(id, 4)->has_value());
  const auto tallies = store->Census();
  ASSERT_TRUE(tallies.ok());
  EXPECT_EQ(tallies->at(0).ranks, 4u);
  EXPECT_GT(tallies->at(0).bytes, store->part(0).Census()->at(0).bytes);
  EXPECT_EQ(store->Usage()->disk_bytes,
            store->part(0).Usage()->disk_bytes + store->part(1).Usage()->disk_bytes);
}

TEST_F(ShardedStoreTest, OneShardDownConcernsOnlyItsRanks) {
  const auto store = Open(Dsn());
  const AttemptId id = Create(*store, "base").id;
  for (std::uint32_t rank = 0; rank < 2; ++rank) Append(*store, id, rank, MakeBatch(1, 0, 0, 3));
  second_.Kill();
  Append(store->part(0), id, 0, MakeBatch(7, 1, 0, 3));
  EXPECT_EQ(Scan(*store, id, 0).size(), 6u);
  EXPECT_TRUE(store->Rank(id, 0)->has_value());
  const RankMeta meta = MetaOf(1, 12);
  const RecordBatch batch = MakeBatch(7, 1, 0, 3);
  const Status failed = AppendBatch(store->part(1), id, 1, batch, meta);
  EXPECT_EQ(failed.code(), Code::kAborted) << "it passes";
  EXPECT_THAT(failed.message(), AllOf(HasSubstr("shard 2 of 2"), HasSubstr(HostOf(second_))));
  for (const Status& whole :
       {store->Ranks(id).status(), store->Census().status(), store->Usage().status()})
    EXPECT_THAT(whole.message(), HasSubstr("shard 2 of 2"));
  EXPECT_THAT(Refusal(Dsn()), HasSubstr("shard 2 of 2"));
  ASSERT_TRUE(second_.Start());
  ASSERT_TRUE(store->part(1).Recover().ok());
  Append(store->part(1), id, 1, batch);
  EXPECT_EQ(Scan(*store, id, 1).size(), 6u);
}

TEST_F(ShardedStoreTest, ARemovalReachesAShardThatWasDown) {
  const auto store = Open(Dsn()), other = Open(Dsn());
  const AttemptId id = Create(*store, "base").id;
  for (std::uint32_t rank = 0; rank < 2; ++rank) Append(*store, id, rank, MakeBatch(1, 0, 0, 3));
  second_.Kill();
  ASSERT_TRUE(store->RetireAttempts({&id, 1}).ok());
  EXPECT_TRUE(store->ListRuns()->empty());
  EXPECT_FALSE(store->PurgeRetired([] { return false; }).ok());
  ASSERT_TRUE(second_.Start());
  EXPECT_EQ(store->Usage()->retired_attempts, 1u) << "until its data is gone everywhere";
  ASSERT_TRUE(store->PurgeRetired([] { return false; }).ok());
  EXPECT_EQ(Count(first_, "records"), 0u);
  EXPECT_EQ(Count(second_, "records"), 0u);
  EXPECT_EQ(store->Usage()->retired_attempts, 0u);
  // A collector that does not know of it yet is stopped at its next write, whichever shard it goes
  // to.
  for (const std::uint32_t rank : {0u, 1u}) {
    const RankMeta meta = MetaOf(rank, 12);
    const RecordBatch batch = MakeBatch(7, 1, 0, 3);
    EXPECT_THAT(AppendBatch(other->part(rank), id, rank, batch, meta).message(),
                HasSubstr("was removed"));
  }
  ASSERT_TRUE(other->PurgeRetired([] { return false; }).ok());
  EXPECT_EQ(Count(second_, "records"), 0u) << "what was written since is deleted, too";
}

TEST_F(ShardedStoreTest, OtherShardsThanEverAreRefused) {
  const std::string a = HostOf(first_), b = HostOf(second_);
  Open(Dsn());
  EXPECT_TRUE(Open(Dsn()));
  const auto refused = [](const std::string& shards) { return Refusal("clickhouse://" + shards); };
  EXPECT_THAT(refused(b + "|" + a + "/stats"),
              AllOf(HasSubstr("shard 2 of 2"), HasSubstr("expected shard 1 of 2"),
                    HasSubstr("statctl move migrate")));
  EXPECT_THAT(refused(a + "/stats"),
              AllOf(HasSubstr("shard 1 of 2"), HasSubstr("expected shard 1 of 1")));
  EXPECT_THAT(refused(b + "/stats"), HasSubstr("shard 2 of 2"));
  EXPECT_THAT(refused(a + "/stats|" + b + "/stats|" + a + "/third"),
              HasSubstr("expected shard 1 of 3"));
  // A new database in the place of the second shard: what that one holds would be missing.
  EXPECT_THAT(refused(a + "/stats|" + b + "/other"),
              HasSubstr("beside other databases than the ones named"));
  EXPECT_THAT(refused(b + "/other|" + b + "/stats"),
              HasSubstr("beside other databases than the ones named"));
}

TEST_F(ShardedStoreTest, AStoreWithoutShardsDoesNotBecomeAShard) {
  const std::string a = HostOf(first_), b = HostOf(second_);
  const auto single = Open("clickhouse://" + a + "/single");
  Create(*single, "base");
  EXPECT_THAT(Refusal("clickhouse://" + a + "/single|" + b + "/empty"),
              AllOf(HasSubstr("shard 1 of 1"), HasSubstr("expected shard 1 of 2")));
  EXPECT_TRUE(Open("clickhouse://" + b + "/empty")) << "the refusal wrote nothing there";
}

TEST_F(ShardedStoreTest, CollectorsThatStartTogetherAgree) {
  constexpr std::size_t kCollectors = 6;
  std::vector<std::unique_ptr<Store>> stores(kCollectors);
  std::vector<std::string> refusals(kCollectors);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kCollectors; ++i) {
    threads.emplace_back([&, i] {
      auto opened = OpenClickHouseStore(Dsn(), kImpatience);
      if (opened.ok())
        stores[i] = *std::move(opened);
      else
        refusals[i] = opened.status().message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_THAT(refusals, Each(std::string()));
  for (const auto& store : stores) {
    EXPECT_EQ(store->identity(), stores.front()->identity());
  }
  // Merges keep what all of them read.
  for (const auto* server : {&first_, &second_}) {
    Engine engine(ParseClickHouseDsn(server->Dsn("stats"))->front(), {});
    ASSERT_TRUE(engine.Connect().ok());
    ASSERT_TRUE(engine.Execute("merge", "OPTIMIZE TABLE stats.store FINAL").ok());
  }
  EXPECT_EQ(Open(Dsn())->identity(), stores.front()->identity());
}

}  // namespace
}  // namespace statcollect
