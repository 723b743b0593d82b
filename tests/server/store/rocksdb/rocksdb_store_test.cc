#include "server/store/rocksdb/rocksdb_store.h"
#include <cmath>
#include <cstdlib>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/store/rocksdb/stream_writer.h"
#include "tests/server/store/step_batch.h"
#include "tests/support/random_batch.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The program store_appender at work on a directory.
class Appender {
 public:
  Appender(const std::string& directory, AttemptId attempt, std::uint64_t first, std::uint64_t count) {
    std::string arguments[] = {STORE_APPENDER, directory, std::to_string(attempt), std::to_string(first),
                               std::to_string(count)};
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    output_ = ends[0];
  }
  ~Appender() {
    if (output_ >= 0) close(output_);
    if (pid_ > 0) {
      Kill();
      WaitKilled();
    }
  }
  Appender(const Appender&) = delete;

  // The next step that was appended; nothing once the program is gone.
  std::optional<std::uint64_t> NextStep() {
    std::uint64_t step = 0;
    if (read(output_, &step, sizeof(step)) != sizeof(step)) return std::nullopt;
    return step;
  }
  void Kill() { kill(pid_, SIGKILL); }
  // Whether it ended by the signal and not by itself.
  bool WaitKilled() {
    int status = 0;
    const bool waited = waitpid(std::exchange(pid_, -1), &status, 0) > 0;
    return waited && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

class RocksDbStoreTest : public ::testing::Test {
 protected:
  RocksDbStoreTest() {
    std::string pattern = ::testing::TempDir() + "/statcollect_store_XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~RocksDbStoreTest() override {
    store_.reset();
    fs::remove_all(directory_);
  }

  Store& Open() {
    store_.reset();
    auto opened = OpenRocksDbStore(directory_);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    store_ = *std::move(opened);
    return *store_;
  }

  AttemptMeta Create(const std::string& run) {
    auto attempt = store_->CreateAttempt({.run = run, .world_size = 2});
    EXPECT_TRUE(attempt.ok()) << attempt.status().message();
    return *attempt;
  }

  std::string directory_;
  std::unique_ptr<Store> store_;
};

void Append(Store& store, AttemptId attempt, std::uint32_t rank, const RecordBatch& batch) {
  const RankMeta meta = MetaOf(rank, batch.last_seq());
  const AppendItem item{.attempt = attempt, .rank = rank, .batch = &batch, .meta = &meta};
  const Status appended = store.Append({&item, 1});
  ASSERT_TRUE(appended.ok()) << appended.message();
}

// (step, activation) of everything in scan order.
std::vector<std::pair<std::uint64_t, std::uint32_t>> Scan(Store& store, AttemptId attempt, std::uint32_t rank,
                                                          StepBounds steps = {}) {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> found;
  const auto scan = store.ScanStats(attempt, rank, steps);
  while (scan->Next()) {
    const StatBlock& block = scan->block();
    for (std::size_t i = 0; i < block.columns.size(); ++i) {
      EXPECT_EQ(block.columns.stats[i].hash, block.step * 1000 + block.columns.activation[i]);
      found.emplace_back(block.step, block.columns.activation[i]);
    }
  }
  EXPECT_TRUE(scan->status().ok()) << scan->status().message();
  return found;
}

TEST_F(RocksDbStoreTest, KeepsEverythingOverAReopen) {
  Open();
  const AttemptId attempt = Create("base").id;
  Append(*store_, attempt, 1, MakeBatch(1, 0, 0, 3));
  Append(*store_, attempt, 1, MakeBatch(7, 4, 0, 2));
  Open();
  EXPECT_THAT(*store_->ListRuns(), ElementsAre("base"));
  EXPECT_EQ(store_->Attempts("base")->at(0).world_size, 2u);
  EXPECT_EQ(store_->Ranks(attempt)->at(1).durable_seq, 11u);
  EXPECT_EQ(store_->Activations(attempt, 1)->at(2).key.name, "layer.2");
  EXPECT_EQ(store_->Layouts(attempt, 1)->at(0).dtype, DType::kF32);
  EXPECT_THAT(Scan(*store_, attempt, 1), ElementsAre(std::pair(0, 0), std::pair(0, 1), std::pair(0, 2),
                                                     std::pair(4, 0), std::pair(4, 1)));
  EXPECT_THAT(*store_->StatSteps(attempt, 1, {}), ElementsAre(0, 4));
  EXPECT_EQ(store_->Scalars(attempt, 1, {})->size(), 2u);
  EXPECT_EQ(store_->Events(attempt, 1)->size(), 2u);
  EXPECT_EQ(store_->StepEnds(attempt, 1, {.first = 4, .last = 4})->at(0).step, 4u);
}

TEST_F(RocksDbStoreTest, ScansOnlyTheStepsAndTheRankAskedFor) {
  Open();
  const AttemptId attempt = Create("base").id;
  for (std::uint64_t step = 0; step < 5; ++step) {
    Append(*store_, attempt, 0, MakeBatch(1 + step * 4, step, 0, 1));
    Append(*store_, attempt, 256, MakeBatch(1 + step * 4, step, 0, 1));
  }
  EXPECT_THAT(Scan(*store_, attempt, 0, {.first = 1, .last = 2}),
              ElementsAre(std::pair(1, 0), std::pair(2, 0)));
  EXPECT_THAT(*store_->StatSteps(attempt, 256, {.first = 3}), ElementsAre(3, 4));
  EXPECT_THAT(Scan(*store_, attempt, 1), IsEmpty());
  EXPECT_THAT(Scan(*store_, attempt + 1, 0), IsEmpty());
}

TEST_F(RocksDbStoreTest, CutsLongStepsIntoBlocksAndLosesNone) {
  Open();
  const AttemptId attempt = Create("base").id;
  Append(*store_, attempt, 0, MakeBatch(1, 0, 0, 2500));
  const auto found = Scan(*store_, attempt, 0);
  ASSERT_EQ(found.size(), 2500u);
  for (std::uint32_t i = 0; i < 2500; ++i) EXPECT_EQ(found[i].second, i);
}

TEST_F(RocksDbStoreTest, LastStepThereIsCanBeStored) {
  Open();
  const AttemptId attempt = Create("base").id;
  const std::uint64_t last = ~std::uint64_t{0};
  RecordBatch batch = MakeBatch(1, last, 0, 1);
  Append(*store_, attempt, 0, batch);
  EXPECT_THAT(*store_->StatSteps(attempt, 0, {}), ElementsAre(last));
  EXPECT_EQ(store_->Scalars(attempt, 0, {})->size(), 1u);
}

TEST_F(RocksDbStoreTest, NumbersAttemptsWithinTheRunAndNeverReusesIds) {
  Open();
  const AttemptMeta first = Create("base"), other = Create("ort"), second = Create("base");
  EXPECT_EQ(first.number, 1u);
  EXPECT_EQ(other.number, 1u);
  EXPECT_EQ(second.number, 2u);
  const AttemptId ids[] = {first.id, second.id};
  ASSERT_TRUE(store_->DropAttempts(ids).ok());
  Open();
  const AttemptMeta again = Create("base");
  EXPECT_EQ(again.number, 1u);
  EXPECT_GT(again.id, second.id);
}

TEST_F(RocksDbStoreTest, RunNamesThatArePrefixesOfOthersAreKeptApart) {
  Open();
  Create("a");
  Create("a.b");
  Create("ab");
  EXPECT_EQ(store_->Attempts("a")->size(), 1u);
  EXPECT_THAT(*store_->ListRuns(), ElementsAre("a", "a.b", "ab"));
}

TEST_F(RocksDbStoreTest, DroppedAttemptIsGoneAndOthersStay) {
  Open();
  const AttemptId gone = Create("gone").id, stays = Create("stays").id;
  Append(*store_, gone, 0, MakeBatch(1, 0, 0, 3));
  Append(*store_, stays, 0, MakeBatch(1, 0, 0, 3));
  const auto running = store_->ScanStats(gone, 0, {});
  ASSERT_TRUE(store_->DropAttempts({&gone, 1}).ok());
  EXPECT_TRUE(running->Next()) << "a scan under way keeps its snapshot";
  EXPECT_THAT(*store_->ListRuns(), ElementsAre("stays"));
  EXPECT_THAT(Scan(*store_, gone, 0), IsEmpty());
  EXPECT_THAT(*store_->Activations(gone, 0), IsEmpty());
  EXPECT_THAT(*store_->Ranks(gone), IsEmpty());
  EXPECT_THAT(*store_->Scalars(gone, 0, {}), IsEmpty());
  EXPECT_EQ(Scan(*store_, stays, 0).size(), 3u);
  EXPECT_EQ(store_->Ranks(stays)->size(), 1u);
}

// A stream's batches as ingest stores them: prepared one after another.
class Stream {
 public:
  Stream(Store& store, AttemptId attempt, std::uint32_t rank)
      : store_(store), attempt_(attempt), rank_(rank), writer_(store.NewWriter(attempt, rank)) {}

  void Append(const RecordBatch& batch) {
    const auto prepared = writer_->Prepare(batch);
    const RankMeta meta = MetaOf(rank_, batch.last_seq());
    const AppendItem item{.attempt = attempt_, .rank = rank_, .meta = &meta, .prepared = prepared.get()};
    const Status appended = store_.Append({&item, 1});
    ASSERT_TRUE(appended.ok()) << appended.message();
  }

 private:
  Store& store_;
  const AttemptId attempt_;
  const std::uint32_t rank_;
  std::unique_ptr<StreamWriter> writer_;
};

// 600 activations over `steps` steps; every third is the same in all of them.
void WriteRun(Store& store, AttemptId attempt, std::uint32_t rank, std::uint64_t steps, double scale = 1) {
  Stream stream(store, attempt, rank);
  std::uint64_t seq = 1;
  for (std::uint64_t step = 0; step < steps; ++step) {
    RecordBatch batch = MakeBatch(seq, step, 0, 600);
    for (std::uint32_t i = 0; i < 600; ++i) {
      TensorStats& s = batch.stats.stats[i];
      s.mean = scale * (i % 3 == 0 ? 1.0 : std::sin(static_cast<double>(step * 600 + i)));
      s.std = std::abs(s.mean) / 2;
      s.l2 = std::sqrt(2 * (s.mean * s.mean + s.std * s.std));
      if (i % 3 == 0) s.hash = i;
    }
    stream.Append(batch);
    seq = batch.last_seq() + 1;
  }
}

// Everything of a rank, for comparison.
struct Content {
  std::vector<std::uint64_t> step;
  std::vector<std::uint32_t> activation;
  std::vector<TensorStats> stats;
  std::vector<double> sketch;
  bool operator==(const Content&) const = default;
};

Content ReadAll(Store& store, AttemptId attempt, std::uint32_t rank, StepBounds steps = {}) {
  Content content;
  const auto scan = store.ScanStats(attempt, rank, steps);
  while (scan->Next()) {
    const StatColumns& columns = scan->block().columns;
    content.step.insert(content.step.end(), columns.step.begin(), columns.step.end());
    content.activation.insert(content.activation.end(), columns.activation.begin(), columns.activation.end());
    content.stats.insert(content.stats.end(), columns.stats.begin(), columns.stats.end());
    content.sketch.insert(content.sketch.end(), columns.sketch.begin(), columns.sketch.end());
  }
  EXPECT_TRUE(scan->status().ok()) << scan->status().message();
  return content;
}

// Encoded bytes that a scan of the rank goes through.
std::uint64_t BytesRead(Store& store, AttemptId attempt) {
  const auto scan = store.ScanStats(attempt, 0, {});
  while (scan->Next()) {
  }
  return scan->bytes_read();
}

TEST_F(RocksDbStoreTest, ScanMayBeginAtAnyStepOfAStream) {
  Open();
  const AttemptId attempt = Create("base").id;
  WriteRun(*store_, attempt, 0, 40);
  for (const bool reopened : {false, true}) {
    if (reopened) Open();
    const Content all = ReadAll(*store_, attempt, 0);
    ASSERT_EQ(all.step.size(), 40u * 600);
    for (const std::uint64_t first : {1u, 15u, 16u, 17u, 31u, 39u}) {
      const Content part = ReadAll(*store_, attempt, 0, {.first = first});
      ASSERT_EQ(part.step.size(), (40 - first) * 600);
      EXPECT_TRUE(
          std::equal(part.stats.begin(), part.stats.end(), all.stats.begin() + std::ptrdiff_t(first * 600)));
      EXPECT_TRUE(std::equal(part.sketch.begin(), part.sketch.end(),
                             all.sketch.begin() + std::ptrdiff_t(first * 600 * 16)));
    }
  }
}

TEST_F(RocksDbStoreTest, SeriesOfAnActivationEqualsTheScan) {
  Open();
  const AttemptId attempt = Create("base").id;
  WriteRun(*store_, attempt, 0, 40);
  // A gap, a step that arrives in parts and in another order, and one that lacks the activation.
  Stream more(*store_, attempt, 0);
  RecordBatch batch = MakeBatch(40 * 603 + 1, 50, 300, 10);
  more.Append(batch);
  RecordBatch rest = MakeBatch(batch.last_seq() + 1, 50, 0, 300);
  std::ranges::reverse(rest.stats.activation);
  for (std::uint32_t i = 0; i < 300; ++i) rest.stats.stats[i].hash = 50 * 1000 + rest.stats.activation[i];
  more.Append(rest);
  more.Append(MakeBatch(rest.last_seq() + 1, 51, 0, 5));
  const Content all = ReadAll(*store_, attempt, 0);
  for (const std::uint32_t activation : {0u, 3u, 255u, 256u, 305u, 599u}) {
    for (const StepBounds steps :
         {StepBounds{}, StepBounds{.first = 5, .last = 36}, StepBounds{.first = 38}}) {
      const auto series = store_->ActivationSeries(attempt, 0, activation, steps);
      ASSERT_TRUE(series.ok()) << series.status().message();
      std::size_t at = 0;
      for (std::size_t i = 0; i < all.step.size(); ++i) {
        if (all.activation[i] != activation || all.step[i] < steps.first || all.step[i] > steps.last)
          continue;
        ASSERT_LT(at, series->size());
        EXPECT_EQ((*series)[at].step, all.step[i]);
        EXPECT_EQ((*series)[at].stats, all.stats[i])
            << "activation " << activation << ", step " << all.step[i];
        ++at;
      }
      EXPECT_EQ(at, series->size());
    }
  }
  EXPECT_THAT(*store_->ActivationSeries(attempt, 0, 600, {}), IsEmpty());
  EXPECT_THAT(*store_->ActivationSeries(attempt, 1, 0, {}), IsEmpty());
}

TEST_F(RocksDbStoreTest, EqualRunsShareTheirBlocks) {
  Open();
  const AttemptId base = Create("base").id, again = Create("again").id, other = Create("other").id;
  WriteRun(*store_, base, 0, 20);
  WriteRun(*store_, again, 0, 20);
  WriteRun(*store_, other, 0, 20, 1.5);
  EXPECT_EQ(ReadAll(*store_, again, 0), ReadAll(*store_, base, 0));
  EXPECT_NE(ReadAll(*store_, other, 0), ReadAll(*store_, base, 0));
}

// Blocks beyond those that share an older one's content do not lean on them.
TEST_F(RocksDbStoreTest, WhatFollowsSharedBlocksReadsBack) {
  Open();
  const AttemptId base = Create("base").id, branch = Create("branch").id;
  const auto write = [&](AttemptId attempt, std::uint64_t differs_from) {
    Stream stream(*store_, attempt, 0);
    for (std::uint64_t step = 0; step < 70; ++step) {
      RecordBatch batch = MakeBatch(step * 303 + 1, step, 0, 300);
      for (std::uint32_t i = 0; i < 256; ++i) {  // a block that repeats for 40 steps
        batch.stats.stats[i].hash = step < 40 ? i : step * 1000 + i;
        if (step >= differs_from) batch.stats.stats[i].mean = static_cast<double>(step);
      }
      stream.Append(batch);
    }
  };
  write(base, ~std::uint64_t{0});
  write(branch, 5);
  const Content of_base = ReadAll(*store_, base, 0), of_branch = ReadAll(*store_, branch, 0);
  ASSERT_EQ(of_base.stats.size(), 70u * 300);
  ASSERT_EQ(of_branch.stats.size(), 70u * 300);
  for (std::size_t i = 0; i < of_branch.stats.size(); ++i) {
    const std::uint64_t step = of_branch.step[i], activation = of_branch.activation[i];
    ASSERT_EQ(of_base.stats[i].hash, of_branch.stats[i].hash);
    ASSERT_EQ(of_branch.stats[i].hash, activation < 256 && step < 40 ? activation : step * 1000 + activation);
    ASSERT_EQ(of_branch.stats[i].mean, activation < 256 && step >= 5 ? static_cast<double>(step) : 0.0);
  }
}

TEST_F(RocksDbStoreTest, RunThatSharedBlocksStaysWholeWhenTheirOwnerGoes) {
  Open();
  const AttemptId base = Create("base").id, again = Create("again").id, third = Create("third").id;
  WriteRun(*store_, base, 0, 20);
  const Content content = ReadAll(*store_, base, 0);
  WriteRun(*store_, again, 0, 20);
  WriteRun(*store_, third, 0, 20);
  auto running = store_->ScanStats(again, 0, {});
  ASSERT_TRUE(running->Next());
  ASSERT_TRUE(store_->DropAttempts({&base, 1}).ok());
  std::size_t seen = running->block().columns.size();
  while (running->Next()) seen += running->block().columns.size();
  EXPECT_EQ(seen, 20u * 600) << running->status().message();
  running.reset();
  EXPECT_EQ(ReadAll(*store_, again, 0), content);
  ASSERT_TRUE(store_->DropAttempts({&again, 1}).ok());
  EXPECT_EQ(ReadAll(*store_, third, 0), content);
  Open();
  EXPECT_EQ(ReadAll(*store_, third, 0), content);
  const AttemptId fourth = Create("fourth").id;
  WriteRun(*store_, fourth, 0, 20);
  EXPECT_EQ(ReadAll(*store_, fourth, 0), content);
}

TEST_F(RocksDbStoreTest, BlocksAreSharedWithinAProjectOnly) {
  Open();
  const RecordBatch batch = MakeBatch(1, 0, 0, 300);
  const auto twin_of = [&](AttemptId attempt) -> std::optional<AttemptId> {
    const auto prepared = store_->NewWriter(attempt, 0)->Prepare(batch);
    const auto& blocks = static_cast<const RocksPreparedBatch&>(*prepared).blocks;
    return blocks.at(0).twin ? std::optional(blocks[0].twin->attempt) : std::nullopt;
  };
  const AttemptId base = Create("base").id;
  Append(*store_, base, 0, batch);
  const AttemptId foreign = Create("vision/base").id;
  EXPECT_EQ(twin_of(Create("again").id), base);
  EXPECT_EQ(twin_of(foreign), std::nullopt);
  Append(*store_, foreign, 0, batch);
  EXPECT_EQ(twin_of(Create("vision/again").id), foreign);
  EXPECT_EQ(twin_of(Create("again").id), base) << "another project's block does not take its place";
  EXPECT_EQ(twin_of(Create("speech/again").id), std::nullopt);
  Open();
  EXPECT_EQ(twin_of(Create("vision/later").id), foreign) << "over a restart";
  const AttemptId user = Create("vision/user").id;
  Append(*store_, user, 0, batch);
  const Content content = ReadAll(*store_, foreign, 0);
  ASSERT_TRUE(store_->DropAttempts({&foreign, 1}).ok());
  EXPECT_EQ(ReadAll(*store_, user, 0), content);
  EXPECT_EQ(twin_of(Create("vision/last").id), user) << "what was taken over is listed for the project";
  EXPECT_EQ(twin_of(Create("again").id), base);
}

// Its writer chose the alias before the owner went, and appends after.
TEST_F(RocksDbStoreTest, BatchPreparedBeforeADropHoldsItsOwnContent) {
  Open();
  const AttemptId base = Create("base").id, again = Create("again").id;
  const RecordBatch batch = MakeBatch(1, 0, 0, 300);
  Append(*store_, base, 0, batch);
  const auto writer = store_->NewWriter(again, 0);
  const auto prepared = writer->Prepare(batch);
  ASSERT_TRUE(store_->DropAttempts({&base, 1}).ok());
  const RankMeta meta = MetaOf(0, batch.last_seq());
  const AppendItem item{.attempt = again, .rank = 0, .meta = &meta, .prepared = prepared.get()};
  ASSERT_TRUE(store_->Append({&item, 1}).ok());
  EXPECT_EQ(Scan(*store_, again, 0).size(), 300u);
}

TEST_F(RocksDbStoreTest, WhatRepeatsTakesFewBytes) {
  Open();
  const AttemptId base = Create("base").id, again = Create("again").id, frozen = Create("frozen").id;
  WriteRun(*store_, base, 0, 20);
  WriteRun(*store_, again, 0, 20);
  {
    Stream stream(*store_, frozen, 0);  // its writer must not outlive the store
    RecordBatch batch = MakeBatch(1, 0, 0, 256);
    for (std::uint64_t step = 0; step < 16; ++step) {
      batch.first_seq = step * 259 + 1;
      for (std::uint64_t& s : batch.stats.step) s = step;
      stream.Append(batch);
    }
  }
  store_.reset();
  std::uint64_t aliases = 0;
  {
    // Nothing but block values count here; what a scan reads follows aliases, so it is not the measure.
    Open();
    aliases = BytesRead(*store_, frozen);
  }
  EXPECT_LT(aliases, 256u * 150 + 15u * 100) << "one whole block, and 15 that say: as before";
}

// One step in parts, now and then, costs its own blocks and no others'.
TEST_F(RocksDbStoreTest, StepInPartsLeavesTheKeyFrame) {
  Open();
  const AttemptId whole = Create("whole").id, parts = Create("parts").id;
  for (const AttemptId attempt : {whole, parts}) {
    Stream stream(*store_, attempt, 0);
    std::uint64_t seq = 1;
    for (std::uint64_t step = 0; step < 16; ++step) {
      const std::uint32_t cut = attempt == parts && step % 4 == 2 ? 100 : 0;
      for (const auto& [first, count] : {std::pair(0u, cut), std::pair(cut, 256u - cut)}) {
        if (count == 0) continue;
        RecordBatch batch = MakeBatch(seq, step, first, count);
        for (std::uint32_t i = 0; i < count; ++i) batch.stats.stats[i].hash = attempt * 1000 + first + i;
        stream.Append(batch);
        seq = batch.last_seq() + 1;
      }
    }
  }
  const std::uint64_t usual = BytesRead(*store_, whole);
  EXPECT_GT(usual, 20'000u);
  EXPECT_LT(BytesRead(*store_, parts), 5 * usual) << "4 steps of 16 in whole blocks, the others as they were";
}

// What the stores under fixtures/ hold: two equal runs and, in the first, a second rank. Numbers that every
// machine computes alike.
void WriteFixture(Store& store) {
  for (const char* run : {"base", "again"}) {
    const AttemptId attempt = store.CreateAttempt({.run = run, .world_size = 2})->id;
    for (std::uint32_t rank = 0; rank < (run[0] == 'b' ? 2u : 1u); ++rank) {
      Stream stream(store, attempt, rank);
      std::uint64_t seq = 1;
      for (std::uint64_t step = 0; step < 18; ++step) {
        RecordBatch batch = MakeBatch(seq, step, 0, 12);
        for (std::uint32_t i = 0; i < 12; ++i) {
          TensorStats& s = batch.stats.stats[i];
          s.mean = 0.375 * static_cast<double>((step * 7 + i * 5 + rank) % 11) - 1;
          s.std = 0.5 + 0.125 * static_cast<double>(i);
          s.l1 = 3.5 * s.std;
          s.l2 = 1.5 * s.std;
          batch.stats.sketch[i * 16] += 1.0 / static_cast<double>(1 + step % 3);
        }
        batch.stats.sample_count[3] = 2;
        batch.stats.samples = {static_cast<double>(step), -0.0};
        stream.Append(batch);
        seq = batch.last_seq() + 1;
      }
    }
  }
}

TEST_F(RocksDbStoreTest, KeepsMemoryDensitiesSettingsAndExponentsOverAReopen) {
  Open();
  const AttemptId attempt = Create("base").id;
  RecordBatch batch = MakeBatch(1, 0, 0, 3);
  testing::AddObservations(&batch, 7);
  Append(*store_, attempt, 1, batch);
  RecordBatch later = MakeBatch(batch.last_seq() + 1, 1, 0, 3);
  later.settings = {{"empty", "not any more"}};
  Append(*store_, attempt, 1, later);
  Open();
  EXPECT_EQ(*store_->Memory(attempt, 1, {}), batch.memory);
  EXPECT_EQ(*store_->Densities(attempt, 1, {}), batch.densities);
  EXPECT_THAT(*store_->Memory(attempt, 1, {.first = 8, .last = 8}), ElementsAre(batch.memory[2]));
  EXPECT_THAT(*store_->Densities(attempt, 1, {.first = 0, .last = 7}), ElementsAre(batch.densities[0]));
  EXPECT_EQ(*store_->Exponents(attempt, 1, {}), batch.exponents);
  EXPECT_THAT(*store_->Exponents(attempt, 1, {.first = 8, .last = 8}), ElementsAre(batch.exponents[1]));
  EXPECT_THAT(*store_->Exponents(attempt, 1, {.first = 0, .last = 7}), ElementsAre(batch.exponents[0]));
  EXPECT_TRUE(store_->Exponents(attempt, 0, {})->empty());
  EXPECT_TRUE(store_->Captures(attempt, 1, {})->empty()) << "they share a family, not their keys";
  EXPECT_TRUE(store_->Memory(attempt, 0, {})->empty());
  const auto config = store_->Ranks(attempt)->at(1).info.config;
  EXPECT_EQ(config.at("model.layers"), "4");
  EXPECT_EQ(config.at("empty"), "not any more") << "the newest value stands";

  ASSERT_TRUE(store_->DropAttempts({&attempt, 1}).ok());
  EXPECT_TRUE(store_->Memory(attempt, 1, {})->empty());
  EXPECT_TRUE(store_->Densities(attempt, 1, {})->empty());
  EXPECT_TRUE(store_->Exponents(attempt, 1, {})->empty());
  EXPECT_TRUE(store_->Ranks(attempt)->empty());
}

// A checkpoint of a build that did not know memory and densities: it is verified without being changed.
// Chunks of `bytes` bytes of one f32 tensor, in the batch's step.
void AddChunks(RecordBatch* batch, std::uint64_t step, std::uint32_t activation, std::size_t bytes,
               std::size_t chunk_bytes, std::size_t chunks = ~std::size_t{0}) {
  std::string values(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) values[i] = static_cast<char>(i * 7 + activation);
  for (std::size_t at = 0; at < bytes && chunks-- > 0; at += chunk_bytes) {
    batch->captures.push_back({.step = step,
                               .activation = activation,
                               .layout = 0,
                               .elements = bytes / 4,
                               .offset = static_cast<std::uint32_t>(at),
                               .data = values.substr(at, chunk_bytes)});
  }
}

TEST_F(RocksDbStoreTest, CapturesAreWholeOnlyOnceEveryChunkIsThere) {
  Open();
  const AttemptId attempt = Create("base").id, other = Create("other").id;
  RecordBatch first = MakeBatch(1, 3, 0, 2);
  AddChunks(&first, 3, 1, 4000, 1000, 3);
  Append(*store_, attempt, 1, first);
  RecordBatch alike = MakeBatch(1, 3, 0, 2);
  AddChunks(&alike, 3, 0, 8, 8);
  AddChunks(&alike, 9, 1, 8, 8);
  Append(*store_, other, 1, alike);
  Open();  // in between, as a daemon that was killed
  auto found = store_->Captures(attempt, 1, {});
  ASSERT_TRUE(found.ok() && found->size() == 1);
  EXPECT_EQ(found->at(0).step, 3u);
  EXPECT_EQ(found->at(0).activation, 1u);
  EXPECT_EQ(found->at(0).elements, 1000u);
  EXPECT_EQ(found->at(0).bytes_stored, 3000u);

  RecordBatch rest = MakeBatch(first.last_seq() + 1, 4, 0, 1);
  RecordBatch all;
  AddChunks(&all, 3, 1, 4000, 1000);
  rest.captures = {all.captures[3]};
  Append(*store_, attempt, 1, rest);
  EXPECT_EQ(store_->Captures(attempt, 1, {})->at(0).bytes_stored, 4000u);
  for (const CaptureChunk& chunk : all.captures) {
    const auto data = store_->CaptureChunkAt(attempt, 1, 3, 1, chunk.offset);
    ASSERT_TRUE(data.ok()) << data.status().message();
    EXPECT_EQ(*data, chunk.data);
  }
  EXPECT_EQ(store_->CaptureChunkAt(attempt, 1, 3, 1, 1).status().code(), Code::kNotFound);
  EXPECT_EQ(store_->CaptureChunkAt(attempt, 0, 3, 1, 0).status().code(), Code::kNotFound);

  EXPECT_EQ(store_->Captures(other, 1, {.first = 4, .last = 9})->size(), 1u);
  EXPECT_EQ(store_->Captures(other, 1, {.first = 0, .last = 8})->size(), 1u);
  ASSERT_TRUE(store_->DropAttempts({&attempt, 1}).ok());
  EXPECT_TRUE(store_->Captures(attempt, 1, {})->empty());
  EXPECT_EQ(store_->CaptureChunkAt(attempt, 1, 3, 1, 0).status().code(), Code::kNotFound);
  EXPECT_EQ(store_->Captures(other, 1, {})->size(), 2u);
}

TEST_F(RocksDbStoreTest, AGapBetweenChunksIsNoWholeCapture) {
  Open();
  const AttemptId attempt = Create("base").id;
  RecordBatch batch = MakeBatch(1, 3, 0, 2);
  AddChunks(&batch, 3, 1, 4000, 1000);
  batch.captures.erase(batch.captures.begin() + 1);
  Append(*store_, attempt, 0, batch);
  EXPECT_EQ(store_->Captures(attempt, 0, {})->at(0).bytes_stored, 1000u);
}

TEST_F(RocksDbStoreTest, CapturesCountInTheCensusAndComeAlongInACheckpoint) {
  Open();
  const AttemptId attempt = Create("base").id;
  RecordBatch batch = MakeBatch(1, 3, 0, 2);
  AddChunks(&batch, 3, 1, 1u << 20, 1u << 19);
  batch.exponents = {{.step = 3, .activation = 1, .layout = 0, .lowest = -3, .counts = {2, 1}}};
  Append(*store_, attempt, 0, batch);
  EXPECT_GT(store_->Census()->at(0).bytes, 100'000u);
  const std::string copy = directory_ + "-copy";
  fs::remove_all(copy);
  const auto made = store_->Checkpoint(copy);
  ASSERT_TRUE(made.ok()) << made.status().message();
  {
    auto restored = OpenRocksDbStore(copy);
    ASSERT_TRUE(restored.ok()) << restored.status().message();
    EXPECT_EQ((*restored)->Captures(attempt, 0, {})->at(0).bytes_stored, 1u << 20);
    EXPECT_EQ(*(*restored)->Exponents(attempt, 0, {}), batch.exponents);
    EXPECT_EQ(*(*restored)->CaptureChunkAt(attempt, 0, 3, 1, 1u << 19), batch.captures[1].data);
  }
  fs::remove_all(copy);
}

TEST_F(RocksDbStoreTest, EventsOfTheCollectorsOwnStandBesideTheAgentsAndGoWithTheirAttempt) {
  const AttemptMeta attempt = (Open(), Create("run"));
  Append(*store_, attempt.id, 0, MakeBatch(1, 5, 0, 3));  // has an event in step 5
  const std::vector<EventRecord> agents = *store_->Events(attempt.id, 0);
  ASSERT_EQ(agents.size(), 1u);
  const auto ranks = store_->Ranks(attempt.id);
  const auto own = [](std::uint64_t number, std::uint64_t step, const std::string& text) {
    return CollectorEvent{
        .rank = 0, .number = number, .event = {.kind = "norm_explosion", .step = step, .text = text}};
  };
  ASSERT_TRUE(
      store_->PutEvents(attempt.id, std::vector{own(1, 5, "a"), own(1, 9, "b"), own(2, 3, "c")}).ok());
  ASSERT_TRUE(store_->PutEvents(attempt.id, std::vector{own(1, 9, "b again")}).ok());
  Open();
  const auto events = store_->Events(attempt.id, 0);
  ASSERT_EQ(events->size(), 4u) << "the same number in the same step replaces";
  EXPECT_EQ((*events)[0].text, "c");
  EXPECT_EQ((*events)[1], agents[0]) << "the agent's is as it was";
  EXPECT_FALSE((*events)[1].from_collector);
  EXPECT_TRUE((*events)[2].from_collector);
  EXPECT_EQ((*events)[3].text, "b again");
  EXPECT_EQ(store_->Ranks(attempt.id)->at(0).records, ranks->at(0).records) << "they count in no tally";
  EXPECT_EQ(store_->Ranks(attempt.id)->at(0).durable_seq, ranks->at(0).durable_seq);
  ASSERT_TRUE(store_->DropAttempts(std::vector{attempt.id}).ok());
  EXPECT_TRUE(store_->Events(attempt.id, 0)->empty());
  EXPECT_EQ(store_->PutEvents(attempt.id, std::vector{own(1, 5, "late")}).code(), Code::kNotFound);
  EXPECT_TRUE(store_->Events(attempt.id, 0)->empty());
}

TEST_F(RocksDbStoreTest, CheckpointOfAnEarlierBuildIsRestored) {
  const std::string target = directory_ + "_restored";
  const Status restored = RestoreCheckpoint(STORE_FIXTURES "/format-2", target, {});
  ASSERT_TRUE(restored.ok()) << restored.message();
  const auto store = OpenRocksDbStore(target);
  ASSERT_TRUE(store.ok()) << store.status().message();
  EXPECT_THAT(*(*store)->ListRuns(), ElementsAre("again", "base"));
  EXPECT_TRUE((*store)->Memory(1, 0, {})->empty());
  fs::remove_all(target);
}

// A store of this format, written by the build that introduced it, is part of the sources: it must open for
// ever. A new format adds a folder (run this test with STATCOLLECT_WRITE_FIXTURE=DIR) and keeps this one.
TEST_F(RocksDbStoreTest, StoreOfFormat2OpensAndReadsAsWritten) {
  if (const char* to = std::getenv("STATCOLLECT_WRITE_FIXTURE"); to != nullptr) {
    Open();
    WriteFixture(*store_);
    Open();  // from the log into tables
    store_.reset();
    fs::copy(directory_, to, fs::copy_options::recursive);
    return;
  }
  const std::string expected_directory = directory_;
  Open();
  WriteFixture(*store_);
  const std::unique_ptr<Store> expected = std::move(store_);
  directory_ += "_fixture";
  fs::copy(STORE_FIXTURES "/format-2", directory_, fs::copy_options::recursive);
  Open();
  ASSERT_THAT(*store_->ListRuns(), ElementsAre("again", "base"));
  for (const auto& [attempt, rank] :
       std::vector<std::pair<AttemptId, std::uint32_t>>{{1, 0}, {1, 1}, {2, 0}}) {
    const Content content = ReadAll(*store_, attempt, rank);
    EXPECT_EQ(content.step.size(), 18u * 12);
    EXPECT_EQ(content, ReadAll(*expected, attempt, rank));
    EXPECT_EQ(*store_->Scalars(attempt, rank, {}), *expected->Scalars(attempt, rank, {}));
    EXPECT_EQ(*store_->Events(attempt, rank), *expected->Events(attempt, rank));
    EXPECT_EQ(*store_->StepEnds(attempt, rank, {}), *expected->StepEnds(attempt, rank, {}));
    EXPECT_EQ(*store_->Activations(attempt, rank), *expected->Activations(attempt, rank));
    // Written before definition 3 of the hash, and read as such.
    std::vector<Layout> layouts = *expected->Layouts(attempt, rank);
    for (Layout& layout : layouts) layout.hash_kind = HashKind::kContent2;
    EXPECT_EQ(*store_->Layouts(attempt, rank), layouts);
    EXPECT_EQ(store_->Ranks(attempt)->at(rank).durable_seq, 18u * 15);
  }
  const AttemptId more = Create("more").id;
  Append(*store_, more, 0, MakeBatch(1, 0, 0, 3));
  EXPECT_EQ(Scan(*store_, more, 0).size(), 3u);
  fs::remove_all(expected_directory);
}

TEST_F(RocksDbStoreTest, AVisitorEndsAReadWhereItWants) {
  Open();
  const AttemptId attempt = Create("base").id;
  std::uint64_t seq = 1;
  for (std::uint64_t step = 0; step < 20; ++step) {
    RecordBatch batch = MakeBatch(seq, step, 0, 3);
    Append(*store_, attempt, 0, batch);
    seq = batch.last_seq() + 1;
  }
  const Status enough(Code::kCancelled, "enough");
  const auto check = [&]<typename T>(const char* what, T, const auto& visit) {
    SCOPED_TRACE(what);
    int reads = 0, takes = 0;
    const Visitor<T> ends_by_read{.read =
                                      [&](std::size_t bytes) {
                                        EXPECT_GT(bytes, 0u);
                                        return ++reads == 5 ? enough : Status::Ok();
                                      },
                                  .take = [&](const T&) { return ++takes, Status::Ok(); }};
    EXPECT_EQ(visit(ends_by_read).message(), "enough");
    EXPECT_EQ(reads, 5);
    EXPECT_LE(takes, 4);
    takes = 0;
    const Visitor<T> ends_by_take{.read = {},
                                  .take = [&](const T&) { return ++takes == 3 ? enough : Status::Ok(); }};
    EXPECT_EQ(visit(ends_by_take).message(), "enough");
    EXPECT_EQ(takes, 3);
  };
  const auto records = [&](const auto& visitor) { return store_->Visit(attempt, 0, {}, visitor); };
  check("scalars", ScalarRecord(), records);
  check("events", EventRecord(), records);
  check("step ends", StepRecord(), records);
  check("steps", std::uint64_t(),
        [&](const auto& visitor) { return store_->VisitStatSteps(attempt, 0, {}, visitor); });
  check("series", StatPoint(),
        [&](const auto& visitor) { return store_->VisitSeries(attempt, 0, 1, {}, visitor); });
  // Also where nothing is found: the steps without the activation are read, too.
  int reads = 0;
  const Visitor<StatPoint> none{.read = [&](std::size_t) { return ++reads == 5 ? enough : Status::Ok(); },
                                .take = [](const StatPoint&) { return Status::Ok(); }};
  EXPECT_EQ(store_->VisitSeries(attempt, 0, 200, {}, none).message(), "enough");
  EXPECT_EQ(reads, 5);
}

// Runs that share files with one that stays.
TEST_F(RocksDbStoreTest, SpaceOfRemovedRunsComesBack) {
  Open();
  std::vector<AttemptId> ids;
  for (int run = 0; run < 6; ++run) ids.push_back(Create("run" + std::to_string(run)).id);
  std::vector<std::uint64_t> seqs(ids.size(), 1);
  for (std::uint64_t step = 0; step < 60; ++step) {
    for (std::size_t run = 0; run < ids.size(); ++run) {
      RecordBatch batch = MakeBatch(seqs[run], step, 0, 1000);
      for (std::uint32_t i = 0; i < 1000; ++i)
        batch.stats.sketch[16 * i] = static_cast<double>(run * 977 + step + i) / 7;
      Append(*store_, ids[run], 0, batch);
      seqs[run] = batch.last_seq() + 1;
    }
  }
  Open();  // into tables
  const std::uint64_t before = store_->Usage()->disk_bytes;
  ASSERT_GT(before, std::uint64_t{40} << 20);
  ASSERT_TRUE(store_->DropAttempts(std::span(ids).first(5)).ok());
  std::uint64_t after = before;
  for (int wait = 0; wait < 200 && after > before / 2; ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    after = store_->Usage()->disk_bytes;
  }
  EXPECT_LT(after, before / 2);
  EXPECT_EQ(Scan(*store_, ids[5], 0).size(), 60'000u);
}

TEST_F(RocksDbStoreTest, SecondHolderIsRefusedWithThePid) {
  Open();
  const auto second = OpenRocksDbStore(directory_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr("process " + std::to_string(getpid()) + " holds it"));
}

TEST_F(RocksDbStoreTest, NewerFormatIsRefused) {
  Open();
  store_.reset();
  std::ofstream(directory_ + "/FORMAT") << "statcollect store 3\n";
  const auto opened = OpenRocksDbStore(directory_);
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().message(),
              HasSubstr("format version is 3; this build reads 2..2; upgrade statcollectord"));
}

TEST_F(RocksDbStoreTest, FormatOfBeforeTheFirstReleaseIsRefused) {
  Open();
  store_.reset();
  std::ofstream(directory_ + "/FORMAT") << "statcollect store 1\n";
  const auto opened = OpenRocksDbStore(directory_);
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().message(), HasSubstr("format version is 1, from before the first release"));
}

TEST_F(RocksDbStoreTest, DamagedFormatFileIsRefused) {
  Open();
  store_.reset();
  std::ofstream(directory_ + "/FORMAT") << "statcol";
  const auto opened = OpenRocksDbStore(directory_);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), Code::kDataLoss);
  EXPECT_THAT(opened.status().message(), HasSubstr("FORMAT"));
}

TEST_F(RocksDbStoreTest, AppendKeepsWhatTheHelloToldAndStoresItWhereThereIsNone) {
  Open();
  const AttemptId attempt = Create("base").id;
  RankMeta told = MetaOf(0, 0);
  told.info.host = "from the hello";
  ASSERT_TRUE(store_->PutRank(attempt, 0, told).ok());
  for (const bool reopened : {false, true}) {
    if (reopened) Open();
    for (const std::uint32_t rank : {0, 1}) {
      RecordBatch batch = MakeBatch(reopened ? 7 : 1, reopened, 0, 3);
      RankMeta meta = MetaOf(rank, batch.last_seq());
      meta.info.host = reopened ? "later" : "first append";
      const AppendItem item{.attempt = attempt, .rank = rank, .batch = &batch, .meta = &meta};
      ASSERT_TRUE(store_->Append({&item, 1}).ok());
    }
  }
  const auto ranks = *store_->Ranks(attempt);
  EXPECT_EQ(ranks.at(0).info.host, "from the hello");
  EXPECT_EQ(ranks.at(1).info.host, "first append");
  EXPECT_EQ(ranks.at(1).durable_seq, 12u);
  told.info.host = "from the next hello";
  ASSERT_TRUE(store_->PutRank(attempt, 0, told).ok());
  EXPECT_EQ(store_->Ranks(attempt)->at(0).info.host, "from the next hello");
}

TEST_F(RocksDbStoreTest, LargeConfigurationIsNotWrittenWithEveryAppend) {
  Open();
  const AttemptId attempt = Create("base").id;
  RankMeta meta = MetaOf(0, 0);
  for (int i = 0; i < 1000; ++i) meta.info.config["key" + std::to_string(i)] = std::string(1000, 'x');
  ASSERT_TRUE(store_->PutRank(attempt, 0, meta).ok());
  const std::uint64_t before = store_->Usage()->disk_bytes;
  for (std::uint64_t step = 0; step < 20; ++step) {
    const RecordBatch batch = MakeBatch(1 + step * 4, step, 0, 1);
    meta.durable_seq = batch.last_seq();
    const AppendItem item{.attempt = attempt, .rank = 0, .batch = &batch, .meta = &meta};
    ASSERT_TRUE(store_->Append({&item, 1}).ok());
  }
  EXPECT_LT(store_->Usage()->disk_bytes, before + 500'000) << "a megabyte each would be 20 of them";
}

TEST_F(RocksDbStoreTest, ForeignRocksDbIsLeftAlone) {
  std::ofstream(directory_ + "/CURRENT") << "MANIFEST-000001\n";
  const auto opened = OpenRocksDbStore(directory_);
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().message(), HasSubstr("without a FORMAT file"));
}

TEST_F(RocksDbStoreTest, FolderThatCannotBeMadeIsNamed) {
  std::ofstream(directory_ + "/file") << "x";
  const auto opened = OpenRocksDbStore(directory_ + "/file/data");
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().message(), HasSubstr("--data-dir"));
}

TEST_F(RocksDbStoreTest, FlippedBitInTheFilesIsNeverAWrongAnswer) {
  Open();
  const AttemptId attempt = Create("base").id;
  for (std::uint64_t step = 0; step < 20; ++step)
    Append(*store_, attempt, 0, MakeBatch(1 + step * 103, step, 0, 100));
  store_.reset();
  Open();  // replays the log into a table file
  store_.reset();
  int damaged = 0;
  for (const auto& entry : fs::directory_iterator(directory_)) {
    if (entry.path().extension() != ".sst") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(entry.file_size() / 3));
    const auto at = file.tellg();
    char byte = 0;
    file.get(byte);
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 0x10));
    ++damaged;
  }
  ASSERT_GT(damaged, 0);
  const auto opened = OpenRocksDbStore(directory_);
  if (!opened.ok()) {
    EXPECT_EQ(opened.status().code(), Code::kDataLoss) << opened.status().message();
    return;
  }
  const auto scan = (*opened)->ScanStats(attempt, 0, {});
  std::size_t records = 0;
  while (scan->Next()) {
    for (std::size_t i = 0; i < scan->block().columns.size(); ++i, ++records) {
      EXPECT_EQ(scan->block().columns.stats[i].hash,
                scan->block().step * 1000 + scan->block().columns.activation[i]);
    }
  }
  EXPECT_TRUE(records == 2000 || scan->status().code() == Code::kDataLoss)
      << records << " " << scan->status().message();
}

// The write-ahead log as a child that is killed leaves it: nothing is in a table file yet.
class WriteAheadLogTest : public RocksDbStoreTest {
 protected:
  static constexpr std::uint64_t kSteps = 5;

  void SetUp() override {
    Appender appender(directory_, 0, 0, kSteps);
    for (std::uint64_t step = 0; step < kSteps; ++step) ASSERT_EQ(appender.NextStep(), step);
    ASSERT_TRUE(appender.WaitKilled());
    copy_ = directory_ + "_copy";
    log_ = Log(directory_);
  }
  ~WriteAheadLogTest() override { fs::remove_all(copy_); }

  // The one log of a directory.
  static std::string Log(const std::string& directory) {
    std::string name;
    std::uintmax_t size = 0;
    for (const auto& entry : fs::directory_iterator(directory)) {
      if (entry.path().extension() == ".log" && entry.file_size() >= size) {
        name = entry.path().filename();
        size = entry.file_size();
      }
    }
    return name;
  }
  std::string FreshCopy() {
    fs::remove_all(copy_);
    fs::copy(directory_, copy_);
    return copy_ + "/" + log_;
  }
  // Steps found, all of them whole; the watermark must agree.
  static std::uint64_t StepsIn(Store& store) {
    const auto ranks = store.Ranks(1);
    const std::uint64_t steps = store.StatSteps(1, 0, {})->size();
    EXPECT_EQ(Scan(store, 1, 0).size(), steps * kAppendedActivations);
    EXPECT_EQ(ranks->empty() ? 0 : ranks->at(0).durable_seq, steps * kAppendedRecords);
    return steps;
  }

  std::string copy_, log_;
};

TEST_F(WriteAheadLogTest, TornLastWriteIsDroppedAndEarlierOnesStay) {
  const auto size = fs::file_size(directory_ + "/" + log_);
  std::uint64_t last = 0;
  for (std::uintmax_t cut = size / 2; cut <= size; cut += size / 24) {
    fs::resize_file(FreshCopy(), cut);
    auto opened = OpenRocksDbStore(copy_);
    ASSERT_TRUE(opened.ok()) << cut << ": " << opened.status().message();
    const std::uint64_t steps = StepsIn(**opened);
    EXPECT_GE(steps, last);
    last = steps;
  }
  FreshCopy();
  EXPECT_EQ(StepsIn(**OpenRocksDbStore(copy_)), kSteps);
}

TEST_F(WriteAheadLogTest, FlippedBitNeverRollsBackSilently) {
  const auto size = fs::file_size(directory_ + "/" + log_);
  int refused = 0;
  for (std::uintmax_t at = 0; at < size; at += size / 30) {
    const std::string path = FreshCopy();
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ 0x04));
    file.close();
    auto opened = OpenRocksDbStore(copy_);
    if (opened.ok()) {
      EXPECT_EQ(StepsIn(**opened), kSteps) << "byte " << at;
    } else {
      ++refused;
      EXPECT_EQ(opened.status().code(), Code::kDataLoss) << opened.status().message();
      EXPECT_THAT(opened.status().message(), HasSubstr(log_));
    }
  }
  EXPECT_GT(refused, 0);
}

TEST_F(RocksDbStoreTest, WhatWasAppendedSurvivesAKill) {
  Open();
  const AttemptId attempt = Create("base").id;
  std::uint64_t stored = 0;
  for (int round = 0; round < 4; ++round) {
    store_.reset();
    Appender appender(directory_, attempt, stored, 1'000'000);
    const std::uint64_t wanted = stored + 20 + 7 * static_cast<std::uint64_t>(round);
    std::uint64_t acknowledged = 0;
    while (const auto step = appender.NextStep()) {
      acknowledged = *step + 1;
      if (acknowledged == wanted) appender.Kill();
    }
    ASSERT_TRUE(appender.WaitKilled());
    ASSERT_GE(acknowledged, wanted);
    Open();
    const auto steps = *store_->StatSteps(attempt, 0, {});
    ASSERT_GE(steps.size(), acknowledged);
    for (std::uint64_t step = 0; step < steps.size(); ++step)
      ASSERT_EQ(steps[step], step) << "a gap-free prefix";
    EXPECT_EQ(Scan(*store_, attempt, 0).size(), steps.size() * kAppendedActivations);
    EXPECT_EQ(store_->Ranks(attempt)->at(0).durable_seq, steps.size() * kAppendedRecords)
        << "records and watermark are one write";
    stored = steps.size();
  }
}

TEST_F(RocksDbStoreTest, ReadersOfAStreamThatIsBeingWrittenFindNothingDamaged) {
  Open();
  const AttemptId attempt = Create("live").id;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    const auto prepare = store_->NewWriter(attempt, 0);  // as a stream: with key frames
    for (std::uint64_t step = 0; !stop; ++step) {
      const RecordBatch batch = MakeBatch(1 + step * 13, step, 0, 10);
      const RankMeta meta = MetaOf(0, batch.last_seq());
      const auto prepared = prepare->Prepare(batch);
      const AppendItem item{
          .attempt = attempt, .rank = 0, .batch = &batch, .meta = &meta, .prepared = prepared.get()};
      ASSERT_TRUE(store_->Append({&item, 1}).ok());
    }
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(700);
  while (std::chrono::steady_clock::now() < deadline && !HasFailure()) {
    const auto points = store_->ActivationSeries(attempt, 0, 3, {});
    EXPECT_TRUE(points.ok()) << points.status().message();
    for (std::size_t i = 0; points.ok() && i < points->size(); ++i) EXPECT_EQ((*points)[i].step, i);
    EXPECT_EQ(Scan(*store_, attempt, 0).size() % 10, 0u);
  }
  stop = true;
  writer.join();
}

TEST_F(RocksDbStoreTest, ReportsItsSize) {
  Open();
  const auto usage = store_->Usage();
  ASSERT_TRUE(usage.ok());
  EXPECT_GT(usage->disk_bytes, 0u);
  EXPECT_GT(usage->disk_free_bytes, 0u);
}

}  // namespace
}  // namespace statcollect
