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

#include <rocksdb/file_system.h>
#include <rocksdb/perf_context.h>
#include <rocksdb/perf_level.h>

#include "server/store/codec/batch_encoder.h"
#include "server/store/rocksdb/asked_before.h"
#include "server/store/rocksdb/journal_check.h"
#include "server/store/rocksdb/synced_mark.h"
#include "tests/server/store/step_batch.h"
#include "tests/server/store/store_contents.h"
#include "tests/support/append_batch.h"
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
  Appender(const std::string& directory, AttemptId attempt, std::uint64_t first,
           std::uint64_t count) {
    std::string arguments[] = {STORE_APPENDER, directory, std::to_string(attempt),
                               std::to_string(first), std::to_string(count)};
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

// Encoded bytes that a scan of the rank goes through.
std::uint64_t BytesRead(Store& store, AttemptId attempt) {
  const auto scan = store.ScanStats(attempt, 0, {});
  while (scan->Next()) {
  }
  return scan->bytes_read();
}

TEST_F(RocksDbStoreTest, BlocksAreSharedWithinAProjectOnly) {
  Open();
  const RecordBatch batch = MakeBatch(1, 0, 0, 300);
  const auto twin_of = [&](AttemptId attempt) -> std::optional<AttemptId> {
    const auto prepared = store_->NewWriter(attempt, 0)->Prepare(batch);
    const auto& blocks = EncodedOf(*prepared).blocks;
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
  EXPECT_EQ(twin_of(Create("vision/last").id), user)
      << "what was taken over is listed for the project";
  EXPECT_EQ(twin_of(Create("again").id), base);
}

TEST_F(RocksDbStoreTest, WhatRepeatsTakesFewBytes) {
  Open();
  const AttemptId base = Create("base").id, again = Create("again").id,
                  frozen = Create("frozen").id;
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
    // Nothing but block values count here; what a scan reads follows aliases, so it is not the
    // measure.
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
        for (std::uint32_t i = 0; i < count; ++i)
          batch.stats.stats[i].hash = attempt * 1000 + first + i;
        stream.Append(batch);
        seq = batch.last_seq() + 1;
      }
    }
  }
  const std::uint64_t usual = BytesRead(*store_, whole);
  EXPECT_GT(usual, 20'000u);
  EXPECT_LT(BytesRead(*store_, parts), 5 * usual)
      << "4 steps of 16 in whole blocks, the others as they were";
}

// What the stores under fixtures/ hold: two equal runs and, in the first, a second rank. Numbers
// that every machine computes alike.
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

// A store of this format, written by the build that introduced it, is part of the sources: it must
// open for ever. A new format adds a folder (run this test with STATCOLLECT_WRITE_FIXTURE=DIR) and
// keeps this one.
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
    EXPECT_EQ((*store_->Definitions(attempt, rank))->activations,
              (*expected->Definitions(attempt, rank))->activations);
    // Written before definition 3 of the hash, and read as such.
    std::vector<Layout> layouts = (*expected->Definitions(attempt, rank))->layouts;
    for (Layout& layout : layouts) layout.hash_kind = HashKind::kContent2;
    EXPECT_EQ((*store_->Definitions(attempt, rank))->layouts, layouts);
    EXPECT_EQ(store_->Ranks(attempt)->at(rank).durable_seq, 18u * 15);
  }
  const AttemptId more = Create("more").id;
  Append(*store_, more, 0, MakeBatch(1, 0, 0, 3));
  EXPECT_EQ(Scan(*store_, more, 0).size(), 3u);
  fs::remove_all(expected_directory);
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
  EXPECT_THAT(second.status().message(),
              HasSubstr("process " + std::to_string(getpid()) + " holds it"));
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
  EXPECT_THAT(opened.status().message(),
              HasSubstr("format version is 1, from before the first release"));
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

TEST_F(RocksDbStoreTest, LargeConfigurationIsNotWrittenWithEveryAppend) {
  Open();
  const AttemptId attempt = Create("base").id;
  RankMeta meta = MetaOf(0, 0);
  for (int i = 0; i < 1000; ++i)
    meta.info.config["key" + std::to_string(i)] = std::string(1000, 'x');
  ASSERT_TRUE(store_->PutRank(attempt, 0, meta).ok());
  const std::uint64_t before = store_->Usage()->disk_bytes;
  for (std::uint64_t step = 0; step < 20; ++step) {
    const RecordBatch batch = MakeBatch(1 + step * 4, step, 0, 1);
    meta.durable_seq = batch.last_seq();
    ASSERT_TRUE(AppendBatch(*store_, attempt, 0, batch, meta).ok());
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

TEST_F(WriteAheadLogTest, WhatWasTornBehindTheLastSyncIsDroppedAndWhatWasSyncedIsMissed) {
  const auto size = fs::file_size(directory_ + "/" + log_);
  const auto files = rocksdb::FileSystem::Default();
  std::uint64_t last = 0;
  for (std::uintmax_t cut = size / 2; cut <= size; cut += size / 24) {
    fs::resize_file(FreshCopy(), cut);
    {
      const auto refused = OpenRocksDbStore(copy_);
      EXPECT_EQ(refused.ok(), cut >= size);
      if (!refused.ok()) {
        EXPECT_THAT(refused.status().message(), HasSubstr(log_));
      }
    }
    fs::resize_file(FreshCopy(), cut);
    auto synced = *ReadSyncedMark(*files, copy_);
    synced[log_] = *WholeBytes(*files, copy_ + "/" + log_);  // the write after it was torn
    ASSERT_TRUE(WriteSyncedMark(*files, copy_, synced).ok());
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
          .attempt = attempt, .rank = 0, .meta = &meta, .prepared = prepared.get()};
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

// Blocks that RocksDB reads from files for a series; what it takes from its cache does not count.
std::uint64_t BlocksReadForSeries(Store& store, AttemptId attempt, std::uint32_t activation) {
  rocksdb::SetPerfLevel(rocksdb::kEnableCount);
  rocksdb::get_perf_context()->Reset();
  const auto points = store.ActivationSeries(attempt, 0, activation, {});
  const std::uint64_t read = rocksdb::get_perf_context()->block_read_count;
  rocksdb::SetPerfLevel(rocksdb::kDisable);
  EXPECT_TRUE(points.ok() && points->size() == 100);
  return read;
}

TEST_F(RocksDbStoreTest, ASeriesThatIsAskedForOnceLeavesTheCacheToOthers) {
  Open();
  const AttemptId attempt = Create("series").id;
  const auto writer = store_->NewWriter(attempt, 0);
  std::uint64_t seq = 0;
  for (std::uint64_t step = 0; step < 100; ++step) {
    const RecordBatch batch = MakeBatch(seq + 1, step, 0, 500);  // two blocks a step
    seq = batch.last_seq();
    const RankMeta meta = MetaOf(0, seq);
    const auto prepared = writer->Prepare(batch);
    const AppendItem item{.attempt = attempt, .rank = 0, .meta = &meta, .prepared = prepared.get()};
    ASSERT_TRUE(store_->Append({&item, 1}).ok());
  }
  Open();  // from the log into tables
  EXPECT_GE(BlocksReadForSeries(*store_, attempt, 3), 50u);
  EXPECT_GE(BlocksReadForSeries(*store_, attempt, 4), 50u)
      << "the same blocks; they were not cached";
  EXPECT_LE(BlocksReadForSeries(*store_, attempt, 5), 5u) << "asked for again, so they were";
}

TEST(AskedBefore, KnowsWhatItWasAskedLastAndNothingElse) {
  const auto asked = std::make_unique<AskedBefore>();
  const StatKey blocks{.attempt = 1, .rank = 2, .step = 3, .activation = 256};
  StatKey later = blocks, other_attempt = blocks, other_rank = blocks, other_activation = blocks;
  later.step = 4;
  other_attempt.attempt = 2;
  other_rank.rank = 1;
  other_activation.activation = 0;
  EXPECT_FALSE((*asked)(blocks, 0));
  for (const StatKey& other : {other_attempt, other_rank, other_activation})
    EXPECT_FALSE((*asked)(other, 0));
  EXPECT_FALSE((*asked)(blocks, 16'384)) << "another part of the series";
  EXPECT_TRUE((*asked)(blocks, 0));
  EXPECT_TRUE((*asked)(later, 0)) << "blocks of all steps";
  EXPECT_TRUE((*asked)(blocks, 16'384));
  for (std::uint32_t rank = 10; rank < 200'000; ++rank)
    EXPECT_FALSE((*asked)({.attempt = 9, .rank = rank}, 0));
  EXPECT_FALSE((*asked)(blocks, 0)) << "it remembers a few thousand";
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
