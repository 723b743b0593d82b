// What only a store that several collectors share has to do, over a real ClickHouse.
#include "server/store/clickhouse/clickhouse_store.h"

#include <array>
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
#include "server/store/clickhouse/chain.h"
#include "server/store/clickhouse/schema.h"
#include "tests/server/store/step_batch.h"
#include "tests/server/store/store_contents.h"
#include "tests/support/append_batch.h"
#include "tests/support/clickhouse_server.h"

namespace statcollect {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ClickHouseStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::ClickHouseServer::Program().empty())
      GTEST_SKIP() << "clickhouse-server is not installed; scripts/setup.sh installs it";
    ASSERT_TRUE(Server().Start()) << "see " << Server().log_path();
    static int databases = 0;
    database_ = "shared_" + std::to_string(++databases);
  }
  static testing::ClickHouseServer& Server() {
    static testing::ClickHouseServer server(CLICKHOUSE_CONFIG);
    return server;
  }
  void TearDown() override { Server().Kill(); }

  // A collector's store; impatient, so that tests of failures are short. `timeout`: of a request
  // that is not answered.
  std::unique_ptr<Store> Open(const std::string& user = "",
                              std::chrono::milliseconds timeout = std::chrono::seconds(20)) const {
    auto opened = OpenClickHouseStore(Server().Dsn(database_, user), Impatient(timeout));
    if (!opened.ok()) throw std::runtime_error(opened.status().message());
    return *std::move(opened);
  }
  static EngineOptions Impatient(std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    return {.connect_timeout = std::chrono::milliseconds(500),
            .timeout = timeout,
            .read_patience = std::chrono::milliseconds(500),
            .write_patience = std::chrono::milliseconds(500)};
  }
  std::string Refusal(const std::string& dsn) const {
    const auto opened = OpenClickHouseStore(dsn, Impatient());
    return opened.ok() ? "opened" : opened.status().message();
  }
  // Rows as an insert that arrives late or twice would leave them.
  std::unique_ptr<Engine> Raw() const {
    auto engine = std::make_unique<Engine>(ParseClickHouseDsn(Server().Dsn(database_))->front(),
                                           EngineOptions{});
    EXPECT_TRUE(engine->Connect().ok());
    return engine;
  }

  std::string database_;
};

AttemptId MakeAttempt(Store& store, const std::string& launch = "") {
  return store
      .CreateAttempt({.run = "base", .launch = launch, .world_size = 1, .start_unix_nanos = 1})
      ->id;
}

Status TryAppend(Store& store, AttemptId attempt, const RecordBatch& batch) {
  const RankMeta meta = MetaOf(0, batch.last_seq());
  return AppendBatch(store, attempt, 0, batch, meta);
}

TEST_F(ClickHouseStoreTest, TwoCollectorsShareRunsAndIdentity) {
  const auto a = Open(), b = Open();
  EXPECT_TRUE(a->identity().known());
  EXPECT_EQ(a->identity(), b->identity());
  const AttemptMeta made =
      *a->CreateAttempt({.number = 1, .run = "base", .launch = "job 7", .world_size = 2});
  const AttemptMeta also =
      *b->CreateAttempt({.number = 1, .run = "base", .launch = "job 7", .world_size = 2});
  EXPECT_EQ(made, also)
      << "the ranks of one launch meet in one attempt, whichever collector they reach";
  const AttemptMeta next =
      *b->CreateAttempt({.number = 2, .run = "base", .launch = "job 8", .world_size = 2});
  EXPECT_EQ(next.number, 2u);
  EXPECT_NE(next.id, made.id);
  Append(*a, made.id, 0, MakeBatch(1, 0, 0, 3));
  Append(*b, made.id, 1, MakeBatch(1, 0, 0, 3));
  for (Store* store : {a.get(), b.get()}) {
    EXPECT_EQ(store->Ranks(made.id)->size(), 2u);
    EXPECT_EQ(Scan(*store, made.id, 1).size(), 3u);
    EXPECT_EQ(store->Attempts("base")->size(), 2u);
  }
  ASSERT_TRUE(b->DropAttempts({&made.id, 1}).ok());
  const AttemptMeta again =
      *a->CreateAttempt({.number = 1, .run = "base", .launch = "job 7", .world_size = 2});
  EXPECT_NE(again.id, made.id) << "a removed attempt's id is not given out again";
  EXPECT_TRUE(Scan(*a, again.id, 0).empty());
}

// A row of the table `store` that stands before every other of its key, as that of a collector
// which looked first and was held up before it wrote.
void InsertFirst(Engine& engine, const std::string& key, const std::string& value) {
  ByteWriter row;
  row.Text(key);
  row.Text(value);
  row.U64(~std::uint64_t{0});
  ASSERT_TRUE(engine
                  .Insert("test", TableName(engine, "store") + " (key, value, made)", row.bytes(),
                          "late " + key)
                  .ok());
}

TEST_F(ClickHouseStoreTest, NoRowChangesTheIdentityThatTheTableWasMadeWith) {
  const auto first = Open();
  InsertFirst(*Raw(), "identity", std::string(24, 'x'));
  EXPECT_EQ(Open()->identity(), first->identity());
}

TEST_F(ClickHouseStoreTest, TablesOfBeforeTheIdentityWasPartOfThemKeepTheirs) {
  const auto raw = Raw();
  ASSERT_TRUE(raw->Execute("test", "CREATE DATABASE " + database_).ok());
  ASSERT_TRUE(raw->Execute("test", "CREATE TABLE " + database_ +
                                       ".store (key String, value String, made UInt64) "
                                       "ENGINE = ReplacingMergeTree(made) ORDER BY key")
                  .ok());
  InsertFirst(*raw, "identity", std::string(16, 'x') + std::string("\x07\0\0\0\0\0\0\0", 8));
  const auto a = Open(), b = Open();
  EXPECT_EQ(a->identity().id,
            std::to_array<std::uint8_t>(
                {'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x'}));
  EXPECT_EQ(a->identity().epoch, 7u);
  EXPECT_EQ(a->identity(), b->identity());
}

TEST_F(ClickHouseStoreTest, ConcurrentLaunchesOfOneRunGetNumbersOfTheirOwn) {
  std::vector<std::unique_ptr<Store>> stores;
  for (int i = 0; i < 4; ++i) stores.push_back(Open());
  std::vector<AttemptMeta> made(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      made[i] = *stores[i]->CreateAttempt(
          {.number = 1, .run = "base", .launch = "job " + std::to_string(i / 2)});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made[0].id, made[1].id);
  EXPECT_EQ(made[2].id, made[3].id);
  EXPECT_NE(made[0].id, made[2].id);
  const auto attempts = *stores[0]->Attempts("base");
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_EQ(attempts[0].number, 1u);
  EXPECT_EQ(attempts[1].number, 2u);
}

// As they are if each launch was held up between its look and its insert.
TEST_F(ClickHouseStoreTest, LaunchesThatWroteTheSameNumberAreReadWithNumbersOfTheirOwn) {
  const auto store = Open(), other = Open();
  const AttemptMeta late = {
      .number = 1, .run = "base", .launch = "late", .world_size = 2, .start_unix_nanos = 8'000};
  const AttemptId id = store->CreateAttempt(late)->id;
  ASSERT_TRUE(Raw()
                  ->Execute("test", "INSERT INTO " + database_ +
                                        ".attempts VALUES (12, 1, 0, 'base', 'first', 1, 2, 5000), "
                                        "(13, 1, 0, 'base', 'next', 2, 2, 9000), "
                                        "(14, 1, 0, 'other', 'first', 1, 2, 5000)")
                  .ok());
  const auto read = [&] {
    const auto attempts = *store->Attempts("base");
    std::string all;
    for (const AttemptMeta& attempt : attempts)
      all += attempt.launch + " " + std::to_string(attempt.number) + ", ";
    return all;
  };
  EXPECT_EQ(read(), "first 1, late 2, next 3, ");
  EXPECT_EQ(store->Attempts("other")->front().number, 1u);
  // A rank of the late launch comes to another collector, which writes the number: it stays when
  // the first one is gone.
  const AttemptMeta joined = *other->CreateAttempt(late);
  EXPECT_EQ(joined.id, id);
  EXPECT_EQ(joined.number, 2u);
  const AttemptId first = 12;
  ASSERT_TRUE(store->RetireAttempts({&first, 1}).ok());
  EXPECT_EQ(read(), "late 2, next 3, ");
}

// The stream moves from a to b. What a still writes is not acknowledged and does not count, also
// once it is there.
TEST_F(ClickHouseStoreTest, StreamThatMovedIsFencedAtTheFirstCollector) {
  const auto a = Open(), b = Open();
  const AttemptId attempt = MakeAttempt(*a);
  Stream of_a(*a, attempt, 0);
  of_a.Append(MakeBatch(1, 0, 0, 10));
  of_a.Append(MakeBatch(14, 1, 0, 10));
  ASSERT_TRUE(b->ClaimRank(attempt, 0).ok());
  EXPECT_EQ(b->Ranks(attempt)->at(0).durable_seq, 26u);
  const Status late = TryAppend(*a, attempt, MakeBatch(27, 2, 0, 10));
  EXPECT_EQ(late.code(), Code::kAborted);
  EXPECT_THAT(late.message(), HasSubstr("taken over by another collector"));
  EXPECT_EQ(b->Ranks(attempt)->at(0).durable_seq, 26u);
  EXPECT_EQ(Scan(*b, attempt, 0).size(), 20u)
      << "the late batch is in the table and does not count";
  // The same records again, cut into other batches, as an agent does that resumes.
  Stream of_b(*b, attempt, 0);
  of_b.Append(MakeBatch(27, 2, 0, 4));
  of_b.Append(MakeBatch(34, 2, 4, 6));
  for (Store* store : {a.get(), b.get()}) {
    EXPECT_EQ(Scan(*store, attempt, 0).size(), 30u);
    EXPECT_EQ(store->Scalars(attempt, 0, {})->size(), 4u);
    EXPECT_EQ(store->Ranks(attempt)->at(0).durable_seq, 42u);
    EXPECT_EQ(store->ActivationSeries(attempt, 0, 3, {})->size(), 3u);
    EXPECT_EQ(store->StatSteps(attempt, 0, {})->size(), 3u);
  }
  ASSERT_TRUE(a->Recover().ok());
  // Back to a: it takes over again, and what it had under the old epoch still does not count.
  ASSERT_TRUE(a->ClaimRank(attempt, 0).ok());
  EXPECT_EQ(a->Ranks(attempt)->at(0).durable_seq, 42u);
  ASSERT_TRUE(TryAppend(*a, attempt, MakeBatch(43, 3, 0, 10)).ok());
  EXPECT_EQ(TryAppend(*b, attempt, MakeBatch(43, 3, 0, 10)).code(), Code::kAborted);
  EXPECT_EQ(Scan(*b, attempt, 0).size(), 40u);
}

// A newer attempt begins at b, while a still writes the rank in the older one.
TEST_F(ClickHouseStoreTest, EndedRankIsNotWrittenOnByAnotherCollector) {
  const auto a = Open(), b = Open();
  const AttemptId attempt = MakeAttempt(*a);
  EXPECT_FALSE(*b->EndRank(attempt, 0)) << "it has no state yet";
  Append(*a, attempt, 0, MakeBatch(1, 0, 0, 10));
  ASSERT_TRUE(*b->EndRank(attempt, 0));
  EXPECT_EQ(TryAppend(*a, attempt, MakeBatch(14, 1, 0, 10)).code(), Code::kAborted);
  EXPECT_EQ(Scan(*b, attempt, 0).size(), 10u);
  EXPECT_EQ(b->Ranks(attempt)->at(0).durable_seq, 13u);
  // One that has finished is left alone.
  RankMeta meta = MetaOf(0, 26);
  meta.finished = true;
  ASSERT_TRUE(b->PutRank(attempt, 0, meta).ok());
  const auto rows = [&] {
    return *Raw()->Select("count", "SELECT count() FROM " + database_ + ".records");
  };
  const std::string before = rows();
  EXPECT_TRUE(*b->EndRank(attempt, 0));
  EXPECT_EQ(rows(), before);
}

TEST_F(ClickHouseStoreTest, RepeatedInsertIsReadOnce) {
  const auto store = Open();
  const AttemptId attempt = MakeAttempt(*store);
  Append(*store, attempt, 0, MakeBatch(1, 0, 0, 300));
  const auto engine = Raw();
  const std::string columns =
      "attempt, family, rank, step, item, epoch, n, seq, cut, parent, records, digest, value";
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(engine
                    ->Execute("double", "INSERT INTO " + RecordsInto(*engine) + " SELECT " +
                                            columns + " FROM " + TableName(*engine, "records"))
                    .ok());
  }
  EXPECT_EQ(Scan(*store, attempt, 0).size(), 300u);
  EXPECT_EQ(store->Scalars(attempt, 0, {})->size(), 1u);
  EXPECT_EQ(store->Events(attempt, 0)->size(), 1u);
  EXPECT_EQ(store->ActivationSeries(attempt, 0, 7, {})->size(), 1u);
  EXPECT_EQ((*store->Definitions(attempt, 0))->activations.size(), 300u);
  EXPECT_EQ(store->Census()->at(0).ranks, 1u);
  ASSERT_TRUE(
      engine->Execute("merge", "OPTIMIZE TABLE " + TableName(*engine, "records") + " FINAL").ok());
  EXPECT_EQ(Scan(*store, attempt, 0).size(), 300u);
  EXPECT_EQ(store->Ranks(attempt)->at(0).durable_seq, 303u);
}

// Merging leaves the last state of each epoch only: what counts stays the same.
TEST_F(ClickHouseStoreTest, MergesKeepWhatCounts) {
  const auto a = Open(), b = Open();
  const AttemptId attempt = MakeAttempt(*a);
  for (std::uint64_t step = 0; step < 6; ++step)
    Append(*a, attempt, 0, MakeBatch(1 + step * 13, step, 0, 10));
  ASSERT_TRUE(b->ClaimRank(attempt, 0).ok());
  EXPECT_FALSE(TryAppend(*a, attempt, MakeBatch(79, 6, 0, 10)).ok());
  const auto engine = Raw();
  ASSERT_TRUE(
      engine->Execute("merge", "OPTIMIZE TABLE " + TableName(*engine, "records") + " FINAL").ok());
  EXPECT_EQ(b->Ranks(attempt)->at(0).durable_seq, 78u);
  EXPECT_EQ(Scan(*b, attempt, 0).size(), 60u);
  ASSERT_TRUE(TryAppend(*b, attempt, MakeBatch(79, 7, 0, 10)).ok());
  EXPECT_EQ(Scan(*b, attempt, 0).size(), 70u);
}

TEST_F(ClickHouseStoreTest, RemovedRunIsNotWrittenOnByAnotherCollector) {
  const auto a = Open(), b = Open();
  const AttemptId attempt = MakeAttempt(*a);
  Append(*a, attempt, 0, MakeBatch(1, 0, 0, 10));
  ASSERT_TRUE(b->DropAttempts({&attempt, 1}).ok());
  const Status late = TryAppend(*a, attempt, MakeBatch(14, 1, 0, 10));
  EXPECT_EQ(late.code(), Code::kAborted);
  EXPECT_THAT(late.message(), HasSubstr("was removed"));
  // What arrived behind the removal goes with the next look.
  ASSERT_TRUE(a->PurgeRetired([] { return false; }).ok());
  const auto parts = Raw()->Select("count", "SELECT count() FROM " + database_ + ".records");
  ASSERT_TRUE(parts.ok());
  EXPECT_EQ(*parts, std::string(8, '\0'));
}

TEST_F(ClickHouseStoreTest, EngineThatDiesAndComesBackLosesAndDoublesNothing) {
  const auto store = Open("", std::chrono::seconds(2));
  const AttemptId attempt = MakeAttempt(*store);
  std::uint64_t acknowledged = 0;
  for (std::uint64_t step = 0; step < 12; ++step) {
    if (step % 4 == 3) {
      const bool killed = step % 8 == 3;
      killed ? Server().Kill() : Server().Freeze();
      const Status failed = TryAppend(*store, attempt, MakeBatch(acknowledged + 1, step, 0, 10));
      EXPECT_EQ(failed.code(), Code::kAborted) << failed.message();
      EXPECT_THAT(failed.message(), HasSubstr(std::to_string(Server().port())))
          << "it names the engine";
      EXPECT_FALSE(store->Recover().ok());
      if (killed) {
        ASSERT_TRUE(Server().Start());
      } else {
        Server().Thaw();
      }
      for (int i = 0; i < 100 && !store->Recover().ok(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      // As ingest does when the agent comes back: the frozen engine may or may not have taken the
      // batch by now.
      for (int i = 0; i < 100 && !store->ClaimRank(attempt, 0).ok(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const std::uint64_t durable = store->Ranks(attempt)->at(0).durable_seq;
      ASSERT_TRUE(durable == acknowledged || durable == acknowledged + 13) << durable;
      acknowledged = durable;
      if (acknowledged == (step + 1) * 13) continue;
    }
    const Status appended = TryAppend(*store, attempt, MakeBatch(acknowledged + 1, step, 0, 10));
    ASSERT_TRUE(appended.ok()) << appended.message();
    acknowledged += 13;
  }
  const auto found = Scan(*store, attempt, 0);
  ASSERT_EQ(found.size(), 120u);
  for (std::uint64_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].first, i / 10);
    EXPECT_EQ(found[i].second, i % 10);
  }
  EXPECT_EQ(store->Scalars(attempt, 0, {})->size(), 12u);
  EXPECT_EQ(store->Ranks(attempt)->at(0).durable_seq, 156u);
}

TEST_F(ClickHouseStoreTest, WhatIsWrongIsSaid) {
  const std::string at = "127.0.0.1:" + std::to_string(Server().port());
  ASSERT_NE(Open(), nullptr);
  EXPECT_THAT(Refusal("clickhouse://reader@" + at + "/elsewhere"),
              AllOf(HasSubstr("readonly"), HasSubstr("expected a user who may create")));
  EXPECT_THAT(Refusal("clickhouse://locked:wrong@" + at + "/elsewhere"),
              AllOf(HasSubstr("check the user and the password"), Not(HasSubstr("sesame")),
                    Not(HasSubstr("wrong@"))));
  EXPECT_THAT(Refusal("clickhouse://locked:ses%61me@" + at + "/elsewhere"), "opened");
  EXPECT_THAT(Refusal("clickhouse://nobody@" + at + "/elsewhere"), HasSubstr("check the user"));
  const auto engine = Raw();
  ASSERT_TRUE(
      engine
          ->Execute("spoil",
                    "INSERT INTO " + database_ +
                        ".store (key, value, made) VALUES ('format', '7', 18446744073709551615)")
          .ok());
  EXPECT_THAT(Refusal(Server().Dsn(database_)),
              AllOf(HasSubstr("format 7"), HasSubstr("expected 1")));
  ASSERT_TRUE(engine->Execute("make", "CREATE DATABASE foreign_tables").ok());
  ASSERT_TRUE(
      engine->Execute("make", "CREATE TABLE foreign_tables.records (a UInt8) ENGINE = Memory")
          .ok());
  EXPECT_THAT(Refusal(Server().Dsn("foreign_tables")),
              HasSubstr("expected an empty database or one of statcollect"));
  Server().Kill();
  EXPECT_THAT(Refusal(Server().Dsn(database_)), AllOf(HasSubstr(at), HasSubstr("is it running")));
}

TEST(ClickHouseDsnTest, ReadsAndRefusesAddresses) {
  const auto dsn =
      ParseClickHouseDsn("clickhouse://me:p%40ss@h1:9000,[::1],10.0.0.1:81/stats_1?quorum=2");
  ASSERT_TRUE(dsn.ok()) << dsn.status().message();
  EXPECT_THAT(dsn->front().urls, ::testing::ElementsAre("http://h1:9000/", "http://[::1]:8123/",
                                                        "http://10.0.0.1:81/"));
  EXPECT_EQ(dsn->front().user, "me");
  EXPECT_EQ(dsn->front().password, "p@ss");
  EXPECT_EQ(dsn->front().database, "stats_1");
  EXPECT_EQ(dsn->front().quorum, 2u);
  EXPECT_EQ(dsn->front().Describe(),
            "clickhouse://h1:9000,[::1]:8123,10.0.0.1:81/stats_1?quorum=2");
  const auto secure =
      ParseClickHouseDsn("clickhouses://u:p@h1,h2:9443/db?ca=/etc/a%20b.pem&quorum=2");
  ASSERT_TRUE(secure.ok()) << secure.status().message();
  EXPECT_THAT(secure->front().urls, ::testing::ElementsAre("https://h1:8443/", "https://h2:9443/"));
  EXPECT_EQ(secure->front().ca_file, "/etc/a b.pem");
  EXPECT_EQ(secure->front().Describe(), "clickhouses://h1:8443,h2:9443/db?quorum=2");
  for (const char* wrong : {"",
                            "clickhouse://",
                            "clickhouse://h",
                            "clickhouse://h/",
                            "clickhouse:///db",
                            "clickhouse://h:0/db",
                            "clickhouse://h:99999/db",
                            "clickhouse://h:x/db",
                            "clickhouse://h/1db",
                            "clickhouse://h/d;b",
                            "clickhouse://h/db?quorum=0",
                            "clickhouse://h/db?quorum=1",
                            "clickhouse://h/db?quorum=99",
                            "clickhouse://h/db?tls=1",
                            "clickhouse://@h/db",
                            "clickhouse://u:%zz@h/db",
                            "clickhouse://u:%0a@h/db",
                            "http://h/db",
                            "clickhouse://a b/db",
                            "clickhouse://h1,h2/db",
                            "clickhouse://h1,h2/db?quorum=1",
                            "clickhouse://h/db?ca=/x",
                            "clickhouses://h/db?ca=",
                            "clickhouses://h/db?ca=%zz",
                            "clickhouses://h/db?ca"}) {
    const auto refused = ParseClickHouseDsn(wrong);
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(refused.status().message(),
                HasSubstr("expected rocksdb, or clickhouse://HOST:PORT/DATABASE"))
        << wrong;
  }
  EXPECT_THAT(ParseClickHouseDsn("clickhouse://u:secret@h/").status().message(),
              Not(HasSubstr("secret")));
  EXPECT_THAT(ParseClickHouseDsn("clikhouse://u:secret@h/db").status().message(),
              Not(HasSubstr("secret")));
}

TEST(ChainTest, OnlyWhatWasThereWhenARankWasClaimedCounts) {
  Chain chain;
  chain.Add({.epoch = 1, .n = 9, .seq = 900, .cut = 0, .value = "a"});
  chain.Add({.epoch = 2, .n = 3, .seq = 700, .cut = 500, .parent = 1, .value = "b"});
  chain.Add({.epoch = 3, .n = 0, .seq = 0});  // a fence alone
  chain.Add({.epoch = 4, .n = 1, .seq = 600, .cut = 600, .parent = 2, .value = "d"});
  chain.Add({.epoch = 5, .n = 0, .seq = 0});
  chain.Finish();
  EXPECT_TRUE(chain.Counts(1, 500));
  EXPECT_FALSE(chain.Counts(1, 501));
  EXPECT_TRUE(chain.Counts(2, 600));
  EXPECT_FALSE(chain.Counts(2, 601));
  EXPECT_TRUE(chain.Counts(4, 10'000));
  EXPECT_FALSE(chain.Counts(7, 1)) << "unknown";
  EXPECT_TRUE(chain.Counts(0, 1)) << "the collectors' own events";
  ASSERT_NE(chain.current(), nullptr);
  EXPECT_EQ(chain.current()->value, "d");
  EXPECT_EQ(chain.newest_epoch(), 5u);
  EXPECT_EQ(Chain().current(), nullptr);
}

// It read the state, the first writer's late batch arrived, another collector claimed the rank with
// it, and only then it wrote down its own state.
TEST(ChainTest, ClaimantThatWasOvertakenCutsNothingOff) {
  Chain chain;
  chain.Add({.epoch = 1, .n = 9, .seq = 130, .cut = 0, .value = "with the late batch"});
  chain.Add({.epoch = 2, .n = 1, .seq = 100, .cut = 100, .parent = 1, .value = "overtaken"});
  chain.Add({.epoch = 3, .n = 4, .seq = 200, .cut = 130, .parent = 1, .value = "stands"});
  chain.Finish();
  EXPECT_TRUE(chain.Counts(1, 130));
  EXPECT_FALSE(chain.Counts(1, 131));
  EXPECT_FALSE(chain.Counts(2, 100));
  EXPECT_TRUE(chain.Counts(3, 200));
  EXPECT_EQ(chain.current()->value, "stands");
}

}  // namespace
}  // namespace statcollect
