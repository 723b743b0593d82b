// What the hellos of a launch ask a ClickHouse for, and that claims stay exact if they share
// requests.
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
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

constexpr std::uint64_t kBatchRecords = 4;  // one tensor, and what MakeBatch adds

class HellosTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::ClickHouseServer::Program().empty())
      GTEST_SKIP() << "clickhouse-server is not installed; scripts/setup.sh installs it";
    ASSERT_TRUE(server_.Start()) << "see " << server_.log_path();
  }
  std::unique_ptr<Store> Open() const {
    auto opened = OpenClickHouseStore(server_.Dsn("hellos"));
    if (!opened.ok()) throw std::runtime_error(opened.status().message());
    return *std::move(opened);
  }
  // Since the server's start, this one included.
  std::uint64_t Queries() const {
    Engine engine(ParseClickHouseDsn(server_.Dsn("hellos"))->front(), {});
    const auto answer = engine.Select(
        "count", "SELECT toUInt64(value) AS n FROM system.events WHERE event = 'Query'");
    EXPECT_TRUE(answer.ok()) << answer.status().message();
    return ByteReader(*answer).U64();
  }
  template <typename Act>
  std::uint64_t RequestsOf(const Act& act) const {
    const std::uint64_t before = Queries();
    act();
    return Queries() - before - 1;
  }
  static AttemptId Create(Store& store) {
    return store
        .CreateAttempt({.run = "base", .launch = "L", .world_size = 64, .start_unix_nanos = 1})
        ->id;
  }
  // As the registry's hello of a rank that joins an attempt.
  static void Join(Store& store, AttemptId attempt, std::uint32_t rank) {
    ASSERT_EQ(store.Attempts("base")->size(), 1u);
    ASSERT_FALSE(store.Rank(attempt, rank)->has_value());
    const Status put = store.PutRank(attempt, rank, MetaOf(rank, 0));
    ASSERT_TRUE(put.ok()) << put.message();
    ASSERT_FALSE(store.Document("base", "captures")->has_value());
  }
  static void InThreads(std::uint32_t count, const std::function<void(std::uint32_t)>& act) {
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < count; ++i) threads.emplace_back([&act, i] { act(i); });
    for (std::thread& thread : threads) thread.join();
  }

  testing::ClickHouseServer server_{CLICKHOUSE_CONFIG};
};

TEST_F(HellosTest, OneHelloCostsSixRequestsAndAClaimThree) {
  const auto store = Open(), other = Open();
  const AttemptId attempt = Create(*store);
  EXPECT_EQ(RequestsOf([&] { Join(*store, attempt, 0); }), 6u);
  Append(*store, attempt, 0, MakeBatch(1, 0, 0, 1));
  EXPECT_EQ(RequestsOf([&] {
              EXPECT_EQ(other->Rank(attempt, 0)->value().durable_seq, kBatchRecords);
              EXPECT_EQ(other->ClaimRank(attempt, 0)->value().durable_seq, kBatchRecords);
            }),
            4u)
      << "read, fence, read, state";
  EXPECT_EQ(RequestsOf([&] { Append(*other, attempt, 0, MakeBatch(5, 1, 0, 1)); }), 2u)
      << "the claim has seen the hello";
}

TEST_F(HellosTest, HellosAtTheSameTimeShareTheirRequests) {
  const auto store = Open();
  const AttemptId attempt = Create(*store);
  constexpr std::uint32_t kRanks = 64;
  const std::uint64_t requests = RequestsOf(
      [&] { InThreads(kRanks, [&](std::uint32_t rank) { Join(*store, attempt, rank); }); });
  EXPECT_LT(requests, kRanks * 2) << "alone they would be " << kRanks * 6;
  EXPECT_EQ(store->Ranks(attempt)->size(), kRanks);
  // All of them move to another collector.
  const auto other = Open();
  const std::uint64_t moved = RequestsOf([&] {
    InThreads(kRanks, [&](std::uint32_t rank) {
      EXPECT_TRUE(other->ClaimRank(attempt, rank)->has_value());
    });
  });
  EXPECT_LT(moved, kRanks) << "alone they would be " << kRanks * 3;
}

// Several collectors take over the same ranks again and again, from each other, while each appends:
// every acknowledged batch is there, once, and no other.
TEST_F(HellosTest, WhatIsAcknowledgedWhileCollectorsFenceEachOtherCountsOnce) {
  constexpr std::uint32_t kStores = 3, kRanks = 4;
  constexpr std::uint64_t kBatches = 25;
  std::vector<std::unique_ptr<Store>> stores;
  for (std::uint32_t i = 0; i < kStores; ++i) stores.push_back(Open());
  const AttemptId attempt = Create(*stores[0]);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank)
    ASSERT_TRUE(stores[0]->PutRank(attempt, rank, MetaOf(rank, 0)).ok());
  std::mutex mutex;
  std::vector<std::map<std::uint64_t, std::uint64_t>> acknowledged(kRanks);  // step by first record
  std::atomic<std::uint64_t> steps{0};
  InThreads(kStores * kRanks, [&](std::uint32_t i) {
    Store& store = *stores[i % kStores];
    const std::uint32_t rank = i / kStores;
    for (std::uint64_t done = 0; done < kBatches;) {
      auto meta = store.ClaimRank(attempt, rank);
      if (!meta.ok()) {
        EXPECT_EQ(meta.status().code(), Code::kUnavailable) << meta.status().message();
        continue;
      }
      for (std::uint64_t seq = (*meta)->durable_seq + 1; done < kBatches; seq += kBatchRecords) {
        const std::uint64_t step = ++steps;
        const RecordBatch batch = MakeBatch(seq, step, 0, 1);
        const RankMeta after = MetaOf(rank, batch.last_seq());
        ++done;
        // Of one committer at a time; here each item is an append of its own.
        static std::mutex committers[kStores];
        const std::lock_guard committing(committers[i % kStores]);
        if (const Status appended = AppendBatch(store, attempt, rank, batch, after);
            !appended.ok()) {
          EXPECT_EQ(appended.code(), Code::kAborted) << appended.message();
          (void)store.Recover();
          break;
        }
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(acknowledged[rank].emplace(seq, step).second) << "two of record " << seq;
      }
    }
  });
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    const auto loss = *stores[0]->Scalars(attempt, rank, {});
    const std::uint64_t durable = stores[1]->Rank(attempt, rank)->value().durable_seq;
    EXPECT_EQ(loss.size(), durable / kBatchRecords);
    EXPECT_EQ(Scan(*stores[2], attempt, rank).size(), durable / kBatchRecords);
    const auto found = *stores[1]->StatSteps(attempt, rank, {});
    for (const auto& [seq, step] : acknowledged[rank]) {
      EXPECT_LE(seq + kBatchRecords - 1, durable);
      EXPECT_THAT(found, ::testing::Contains(step)) << "rank " << rank << ", record " << seq;
    }
    EXPECT_GT(acknowledged[rank].size(), 0u);
  }
}

}  // namespace
}  // namespace statcollect
