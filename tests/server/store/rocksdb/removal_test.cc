// Removing attempts in two parts: hidden at once, their data deleted later, by whoever comes.
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/store/rocksdb/rocksdb_store.h"
#include "tests/support/append_batch.h"
#include "tests/support/fault_environment.h"
#include "tests/support/random_batch.h"
#include "tests/support/simulated_disk.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::FaultRounds;
using testing::FaultSeed;
using testing::SimulatedDisk;

bool Never() { return false; }

class RemovalTest : public ::testing::Test {
 protected:
  RemovalTest() : random_(FaultSeed()) {
    std::string pattern = ::testing::TempDir() + "/statcollect_removal_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    Open();
  }
  ~RemovalTest() override {
    store_.reset();
    fs::remove_all(directory_);
  }
  void Open() {
    store_.reset();
    auto opened = OpenRocksDbStore(directory_, {.memtable_bytes = 32 << 10, .env = env_});
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    store_ = *std::move(opened);
  }
  // A run whose blocks are those of every other one: the first to be written owns them.
  AttemptId Add(const std::string& run) {
    const AttemptId id = store_->CreateAttempt({.run = run})->id;
    RankMeta meta;
    meta.durable_seq = meta.records = shared_.last_seq();
    EXPECT_TRUE(AppendBatch(*store_, id, 0, shared_, meta).ok());
    return id;
  }
  std::size_t Read(AttemptId attempt) {
    const auto scan = store_->ScanStats(attempt, 0, {});
    std::size_t found = 0;
    while (scan->Next()) found += scan->block().columns.size();
    EXPECT_TRUE(scan->status().ok()) << scan->status().message();
    return found;
  }
  bool IsThere(const std::string& run) { return !store_->Attempts(run)->empty(); }

  const RecordBatch shared_ =
      testing::RandomBatch(7, 1, {.activations = 300, .first_step = 0, .steps = 3, .define = true});
  const std::size_t all_ = shared_.stats.size();
  const std::shared_ptr<SimulatedDisk> disk_ = std::make_shared<SimulatedDisk>();
  const std::shared_ptr<rocksdb::Env> env_ = testing::MakeSimulatedEnv(disk_);
  std::mt19937_64 random_;
  std::string directory_;
  std::unique_ptr<Store> store_;
};

TEST_F(RemovalTest, ARetiredRunIsGoneItsNameIsFreeAndItsTwinReadsOn) {
  const AttemptId base = Add("base"), again = Add("again");
  ASSERT_TRUE(store_->KeepRun("base", true).ok());
  ASSERT_TRUE(store_->PutDocument("base", "noise", "profile").ok());
  ASSERT_TRUE(store_->RetireAttempts({&base, 1}).ok());
  for (const bool reopened : {false, true}) {
    SCOPED_TRACE(reopened);
    if (reopened) Open();
    EXPECT_THAT(*store_->ListRuns(), ElementsAre("again"));
    EXPECT_EQ(store_->Census()->size(), 1u);
    EXPECT_EQ(store_->Usage()->retired_attempts, 1u);
    EXPECT_EQ(Read(again), all_) << "its blocks are still those of the run that was removed";
    EXPECT_EQ(store_->PutEvents(base, std::vector<CollectorEvent>(1)).code(), Code::kNotFound);
  }
  const AttemptId next = Add("base");
  EXPECT_GT(next, base);
  EXPECT_EQ(store_->Attempts("base")->front().number, 1u);
  EXPECT_FALSE(store_->Document("base", "noise")->has_value());
  EXPECT_FALSE(store_->Census()->at(1).kept);
  ASSERT_TRUE(store_->PutDocument("base", "noise", "of the new one").ok());

  ASSERT_TRUE(store_->PurgeRetired(Never).ok());
  EXPECT_EQ(store_->Usage()->retired_attempts, 0u);
  EXPECT_EQ(Read(base), 0u);
  EXPECT_EQ(Read(again), all_);
  EXPECT_EQ(Read(next), all_);
  EXPECT_EQ(store_->Document("base", "noise")->value(), "of the new one");
  ASSERT_TRUE(store_->RetireAttempts({&again, 1}).ok());
  ASSERT_TRUE(store_->PurgeRetired(Never).ok());
  Open();
  EXPECT_EQ(Read(next), all_);
}

// Everything else that a collector does with the store, from the middle of a purge.
TEST_F(RemovalTest, APurgeHoldsNobodyUp) {
  const AttemptId base = Add("base"), again = Add("again");
  ASSERT_TRUE(store_->RetireAttempts({&base, 1}).ok());
  std::vector<std::string> late;
  const auto must_return = [&](const std::string& what, const std::function<void()>& call) {
    auto done = std::make_shared<std::packaged_task<void()>>(call);
    std::future<void> returned = done->get_future();
    std::thread([done] { (*done)(); }).detach();
    if (returned.wait_for(std::chrono::seconds(20)) != std::future_status::ready)
      late.push_back(what);
  };
  bool first = true;
  const Status purged = store_->PurgeRetired([&] {
    if (!std::exchange(first, false)) return !late.empty();
    must_return("create and append", [&] { Add("new"); });
    if (!late.empty()) return true;  // the others would wait as well
    must_return("keep", [&] { EXPECT_TRUE(store_->KeepRun("again", true).ok()); });
    must_return("document", [&] { EXPECT_TRUE(store_->PutDocument("again", "noise", "n").ok()); });
    must_return("event", [&] {
      EXPECT_TRUE(store_->PutEvents(again, std::vector<CollectorEvent>(1)).ok());
    });
    must_return("read", [&] { EXPECT_EQ(Read(again), all_); });
    must_return("usage and census", [&] {
      EXPECT_EQ(store_->Usage()->retired_attempts, 1u);
      EXPECT_EQ(store_->Census()->size(), 2u);
    });
    must_return("retire", [&] { EXPECT_TRUE(store_->RetireAttempts({&again, 1}).ok()); });
    return false;
  });
  EXPECT_THAT(late, ElementsAre()) << "waited for the purge";
  EXPECT_TRUE(purged.ok()) << purged.message();
  EXPECT_FALSE(first) << "nothing was taken over, so nothing was tried";
  EXPECT_EQ(Read(again), all_) << "retired meanwhile: a query that reads it is still answered";
  EXPECT_EQ(store_->Usage()->retired_attempts, 1u);
  ASSERT_TRUE(store_->PurgeRetired(Never).ok());
  EXPECT_EQ(Read(again), 0u);
  EXPECT_EQ(Read(store_->Attempts("new")->front().id), all_);
}

TEST_F(RemovalTest, APurgeThatIsStoppedIsContinued) {
  const AttemptId base = Add("base"), again = Add("again");
  ASSERT_TRUE(store_->RetireAttempts({&base, 1}).ok());
  int blocks = 0;
  EXPECT_EQ(store_->PurgeRetired([&] { return ++blocks == 3; }).code(), Code::kCancelled);
  EXPECT_EQ(store_->Usage()->retired_attempts, 1u);
  EXPECT_EQ(Read(again), all_);
  ASSERT_TRUE(store_->PurgeRetired(Never).ok());
  EXPECT_EQ(store_->Usage()->retired_attempts, 0u);
  EXPECT_EQ(Read(base), 0u);
  EXPECT_EQ(Read(again), all_);
}

TEST_F(RemovalTest, AfterAPowerCutTheRunIsThereOrGoneAndTheNextStartFinishesTheRest) {
  const AttemptId stays = Add("owner of nothing");
  ASSERT_TRUE(store_->RetireAttempts({&stays, 1}).ok());  // an id that is not in the next rounds
  ASSERT_TRUE(store_->PurgeRetired(Never).ok());
  std::set<int> reached;
  for (std::uint64_t round = 0; round < FaultRounds(80) && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const std::string tag = std::to_string(round);
    const AttemptId base = Add("base" + tag), again = Add("again" + tag);
    // Early, in the middle, or not before all is done.
    disk_->CutPowerAfter(1 + random_() % (round % 4 == 0 ? 3 : round % 4 == 1 ? 10'000 : 24));
    int done = 0;
    if (store_->RetireAttempts({&base, 1}).ok() && disk_->powered()) {
      done = 1;
      if (store_->PurgeRetired(Never).ok() && disk_->powered()) done = 2;
    }
    reached.insert(done);
    store_.reset();
    disk_->CutPower();
    disk_->Restart(random_);
    Open();
    ASSERT_NE(store_, nullptr);
    const bool there = IsThere("base" + tag);
    if (done >= 1) {
      EXPECT_FALSE(there) << "what was removed comes back";
    }
    EXPECT_EQ(Read(again), all_);
    if (there) {
      EXPECT_EQ(Read(base), all_) << "not removed, so it is whole";
      ASSERT_TRUE(store_->RetireAttempts({&base, 1}).ok());
    }
    ASSERT_TRUE(store_->PurgeRetired(Never).ok());
    EXPECT_EQ(store_->Usage()->retired_attempts, 0u);
    EXPECT_EQ(Read(base), 0u);
    EXPECT_TRUE(store_->Ranks(base)->empty());
    EXPECT_EQ(Read(again), all_);
    ASSERT_TRUE(store_->DropAttempts({&again, 1}).ok());
  }
  EXPECT_EQ(reached, (std::set<int>{0, 1, 2})) << "cut before, between and after the two parts";
}

}  // namespace
}  // namespace statcollect
