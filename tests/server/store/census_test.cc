#include <rocksdb/perf_context.h>
#include <rocksdb/perf_level.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/store/rocksdb/rocksdb_store.h"
#include "tests/server/store/step_batch.h"
#include "tests/support/append_batch.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::Pair;

class Census : public testing::Test {
 protected:
  Census() {
    std::string pattern = testing::TempDir() + "/statcollect_census_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    Open();
  }
  ~Census() override {
    store_.reset();
    fs::remove_all(directory_);
  }

  void Open() {
    store_.reset();
    auto opened = OpenRocksDbStore(directory_, {.fsync = false});
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    store_ = *std::move(opened);
  }
  AttemptId Create(const std::string& run, std::uint32_t world = 1) {
    return store_->CreateAttempt({.run = run, .world_size = world, .start_unix_nanos = 5})->id;
  }
  void Append(AttemptId attempt, std::uint32_t rank, std::uint64_t step, std::uint32_t activations,
              const RankMeta& state = {}) {
    const RecordBatch batch = MakeBatch(1, step, 0, activations);
    RankMeta meta = state;
    meta.info.rank = rank;
    meta.records = batch.records();
    ASSERT_TRUE(AppendBatch(*store_, attempt, rank, batch, meta).ok());
  }
  std::vector<AttemptTally> Take() {
    auto tallies = store_->Census();
    EXPECT_TRUE(tallies.ok()) << tallies.status().message();
    return *std::move(tallies);
  }
  // Keys that RocksDB stepped over, because they are deleted, while `what` ran.
  template <typename F>
  static std::uint64_t Skipped(F what) {
    rocksdb::SetPerfLevel(rocksdb::PerfLevel::kEnableCount);
    rocksdb::get_perf_context()->Reset();
    what();
    const auto* context = rocksdb::get_perf_context();
    return context->internal_delete_skipped_count + context->internal_key_skipped_count;
  }

  std::string directory_;
  std::unique_ptr<Store> store_;
};

TEST_F(Census, TellsWhatIsStoredOfEachAttempt) {
  const AttemptId base = Create("base", 2), ort = Create("ort"), empty = Create("empty");
  Append(base, 0, 0, 3,
         {.dropped = {{"closed", 2}}, .last_write_unix_nanos = 70, .finished = true});
  Append(base, 1, 0, 3,
         {.dropped = {{"closed", 3}}, .last_write_unix_nanos = 80, .finished = true});
  Append(ort, 0, 0, 500, {.last_write_unix_nanos = 90});
  const auto tallies = Take();
  ASSERT_EQ(tallies.size(), 3u);
  EXPECT_EQ(tallies[0].meta.id, base);
  EXPECT_EQ(tallies[0].ranks, 2u);
  EXPECT_EQ(tallies[0].records, 12u);
  EXPECT_THAT(tallies[0].dropped, ElementsAre(Pair("closed", 5)));
  EXPECT_EQ(tallies[0].last_write_unix_nanos, 80);
  EXPECT_TRUE(tallies[0].finished);
  EXPECT_EQ(tallies[1].meta.id, empty);
  EXPECT_EQ(tallies[1].last_write_unix_nanos, 5);
  EXPECT_FALSE(tallies[1].finished);
  EXPECT_EQ(tallies[2].meta.id, ort);
  EXPECT_FALSE(tallies[2].finished);
  EXPECT_GT(tallies[2].bytes, 0u) << "records not yet in a table count, too";
  Open();  // into tables
  const auto reopened = Take();
  EXPECT_GT(reopened[2].bytes, 10 * reopened[0].bytes);
  EXPECT_EQ(reopened[1].bytes, 0u);
}

TEST_F(Census, KeptStaysOverAReopenAndEndsWithTheRun) {
  const AttemptId first = Create("base"), other = Create("base2");
  Create("base");
  ASSERT_TRUE(store_->KeepRun("base", true).ok());
  ASSERT_TRUE(store_->KeepRun("base2", true).ok());
  ASSERT_TRUE(store_->KeepRun("base2", false).ok());
  EXPECT_EQ(store_->KeepRun("absent", true).code(), Code::kNotFound);
  Open();
  for (const AttemptTally& tally : Take()) EXPECT_EQ(tally.kept, tally.meta.run == "base");
  ASSERT_TRUE(store_->DropAttempts({&first, 1}).ok());
  EXPECT_TRUE(Take()[0].kept) << "another attempt is there";
  const AttemptId last = Take()[0].meta.id;
  ASSERT_TRUE(store_->DropAttempts({&last, 1}).ok());
  EXPECT_EQ(Take()[0].meta.id, other);
  Create("base");
  EXPECT_FALSE(Take()[0].kept) << "a new run of that name";
}

TEST_F(Census, ManyDroppedRunsLeaveNothingToStepOver) {
  constexpr int kRuns = 700;
  constexpr std::uint64_t kSkippedMax = 5 * 64;  // of 64 runs between two tidyings
  const AttemptId kept = Create("a-first");
  Append(kept, 0, 0, 3);
  for (int run = 0; run < kRuns; ++run) {
    const AttemptId id = Create("run" + std::to_string(run));
    Append(id, 0, 0, 3);
    ASSERT_TRUE(store_->DropAttempts({&id, 1}).ok());
  }
  const AttemptId last = Create("z-last");
  Append(last, 0, 0, 3);
  const auto steps_over = [this, kept, last] {
    return Skipped([&] {
      EXPECT_THAT(*store_->ListRuns(), ElementsAre("a-first", "z-last"));
      EXPECT_EQ(Take().size(), 2u);
      for (const AttemptId id : {kept, last}) {
        const auto scan = store_->ScanStats(id, 0, {});
        EXPECT_TRUE(scan->Next());
        EXPECT_FALSE(scan->Next());
        EXPECT_EQ((*store_->Definitions(id, 0))->activations.size(), 3u);
      }
    });
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::uint64_t skipped = steps_over();  // the tidying runs in the background
  while (skipped > kSkippedMax && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    skipped = steps_over();
  }
  EXPECT_LE(skipped, kSkippedMax) << kRuns << " runs were dropped";
  Open();
  EXPECT_LE(steps_over(), kSkippedMax) << "after opening again";
}

}  // namespace
}  // namespace statcollect
