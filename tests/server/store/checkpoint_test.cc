#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
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
using ::testing::HasSubstr;

constexpr std::uint32_t kActivations = 3;
constexpr std::uint64_t kRecordsOfStep = kActivations + 3;

class Checkpoint : public testing::Test {
 protected:
  Checkpoint() {
    std::string pattern = testing::TempDir() + "/statcollect_checkpoint_XXXXXX";
    root_ = mkdtemp(pattern.data());
    data_ = root_ / "data";
    store_ = MustOpen(data_);
    attempt_ = store_->CreateAttempt({.run = "base", .world_size = 2})->id;
  }
  ~Checkpoint() override {
    store_.reset();
    fs::remove_all(root_);
  }

  static std::unique_ptr<Store> MustOpen(const fs::path& directory) {
    auto opened = OpenRocksDbStore(directory);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? *std::move(opened) : nullptr;
  }

  void AppendStep(std::uint32_t rank, std::uint64_t step) {
    const RecordBatch batch = MakeBatch(step * kRecordsOfStep + 1, step, 0, kActivations);
    const RankMeta meta = MetaOf(rank, batch.last_seq());
    const Status appended = AppendBatch(*store_, attempt_, rank, batch, meta);
    ASSERT_TRUE(appended.ok()) << appended.message();
  }

  // The rank's watermark, after checking that the records up to it are there, none missing and none
  // beyond.
  std::uint64_t Watermark(Store& store, std::uint32_t rank) {
    const auto ranks = store.Ranks(attempt_);
    const std::uint64_t durable = ranks->contains(rank) ? ranks->at(rank).durable_seq : 0;
    EXPECT_EQ(durable % kRecordsOfStep, 0u) << "a batch is there whole or not at all";
    std::uint64_t expected_step = 0, blocks = 0;
    const auto scan = store.ScanStats(attempt_, rank, {});
    for (; scan->Next(); ++blocks, ++expected_step) {
      EXPECT_EQ(scan->block().step, expected_step);
      EXPECT_EQ(scan->block().columns.size(), kActivations);
    }
    EXPECT_TRUE(scan->status().ok()) << scan->status().message();
    EXPECT_EQ(blocks, durable / kRecordsOfStep);
    EXPECT_EQ(store.Scalars(attempt_, rank, {})->size(), blocks);
    EXPECT_EQ(store.StepEnds(attempt_, rank, {})->size(), blocks);
    return durable;
  }

  std::string ErrorOf(const std::string& directory) {
    const auto made = store_->Checkpoint(directory);
    EXPECT_FALSE(made.ok()) << directory;
    return made.ok() ? "" : made.status().message();
  }

  fs::path root_, data_;
  std::unique_ptr<Store> store_;
  AttemptId attempt_ = 0;
};

TEST_F(Checkpoint, UnderLoadHoldsAPrefixOfEachRankAtLeastAsLongAsWasDurableBefore) {
  std::array<std::atomic<std::uint64_t>, 2> durable{};
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    writers.emplace_back([&, rank] {
      for (std::uint64_t step = 0; !stop; ++step) {
        AppendStep(rank, step);
        durable[rank] = (step + 1) * kRecordsOfStep;
      }
    });
  }
  std::map<fs::path, std::array<std::uint64_t, 2>> checkpoints;
  for (const char* name : {"first", "second", "third"}) {
    const std::uint64_t more = durable[0] + 5 * kRecordsOfStep;
    while (durable[0] < more || durable[1] < more) std::this_thread::yield();
    const std::array<std::uint64_t, 2> before{durable[0], durable[1]};
    const auto made = store_->Checkpoint(root_ / name);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(made->directory, fs::canonical(root_) / name);
    EXPECT_TRUE(made->linked);
    checkpoints[root_ / name] = before;
  }
  stop = true;
  for (auto& writer : writers) writer.join();
  store_.reset();
  for (const auto& [checkpoint, before] : checkpoints) {
    const fs::path restored = checkpoint.string() + "-restored";
    const Status status = RestoreCheckpoint(checkpoint, restored);
    ASSERT_TRUE(status.ok()) << status.message();
    const auto store = MustOpen(restored);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      EXPECT_GE(Watermark(*store, rank), before[rank]) << checkpoint;
      EXPECT_LE(Watermark(*store, rank), durable[rank]) << checkpoint;
    }
  }
}

TEST_F(Checkpoint, IsAStoreOfItsOwn) {
  AppendStep(0, 0);
  ASSERT_TRUE(store_->Checkpoint(root_ / "copy").ok());
  AppendStep(0, 1);
  const auto copy = MustOpen(root_ / "copy");  // while the first is open
  EXPECT_EQ(Watermark(*copy, 0), kRecordsOfStep);
  ASSERT_TRUE(copy->DropAttempts({&attempt_, 1}).ok());
  EXPECT_EQ(Watermark(*store_, 0), 2 * kRecordsOfStep);
}

TEST_F(Checkpoint, HasTheIdOfItsStoreAndAnEpochOfItsOwnOnceItIsOpened) {
  const StoreIdentity own = store_->identity();
  ASSERT_TRUE(own.known());
  ASSERT_TRUE(store_->Checkpoint(root_ / "copy").ok());
  ASSERT_TRUE(RestoreCheckpoint(root_ / "copy", root_ / "restored").ok());
  ASSERT_TRUE(RestoreCheckpoint(root_ / "copy", root_ / "again").ok());
  const StoreIdentity restored = MustOpen(root_ / "restored")->identity();
  const StoreIdentity again = MustOpen(root_ / "again")->identity();
  EXPECT_EQ(restored.id, own.id);
  EXPECT_EQ(again.id, own.id);
  EXPECT_NE(restored.epoch, own.epoch);
  EXPECT_NE(restored.epoch, again.epoch);
  EXPECT_EQ(MustOpen(root_ / "restored")->identity(), restored) << "the same after a restart";
  EXPECT_NE(MustOpen(root_ / "new")->identity().id, own.id);
  for (const char* damaged :
       {"", "statcollect identity", "statcollect identity 00ff 7\n", "\xff\xfe"}) {
    std::ofstream(root_ / "new" / "STORE_ID", std::ios::trunc) << damaged;
    EXPECT_TRUE(MustOpen(root_ / "new")->identity().known()) << damaged;
  }
}

TEST_F(Checkpoint, TakesAnEmptyFolder) {
  fs::create_directory(root_ / "empty");
  AppendStep(0, 0);
  const auto made = store_->Checkpoint((root_ / "empty" / "").string());
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_GT(made->bytes, 0u);
  EXPECT_TRUE(fs::exists(root_ / "empty" / "FORMAT"));
}

TEST_F(Checkpoint, RefusesOtherPlacesAndLeavesNothingBehind) {
  std::ofstream(root_ / "file") << "mine";
  fs::create_directory(root_ / "full");
  std::ofstream(root_ / "full" / "file") << "mine";
  fs::create_directory_symlink(root_ / "full", root_ / "link");
  EXPECT_THAT(ErrorOf("backup"), HasSubstr("relative"));
  EXPECT_THAT(ErrorOf("../backup"), HasSubstr("relative"));
  EXPECT_THAT(ErrorOf("/"), HasSubstr("root"));
  EXPECT_THAT(ErrorOf(root_ / "file"), HasSubstr("not a folder"));
  EXPECT_THAT(ErrorOf(root_ / "full"), HasSubstr("not empty"));
  EXPECT_THAT(ErrorOf(root_ / "link"), HasSubstr("not a folder"));
  EXPECT_THAT(ErrorOf(root_ / "absent" / "backup"), HasSubstr("absent"));
  EXPECT_THAT(ErrorOf(data_ / "backup"), HasSubstr("in the collector's data"));
  EXPECT_THAT(ErrorOf(root_ / "full" / ".." / "data"), HasSubstr("in the collector's data"));
  EXPECT_THAT(ErrorOf((root_ / "a\nb").string()), HasSubstr("control characters"));
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root_)) names.push_back(entry.path().filename());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("data", "file", "full", "link"));
}

TEST_F(Checkpoint, RestoreRefusesADamagedCopyAndNamesTheFile) {
  for (std::uint64_t step = 0; step < 50; ++step) AppendStep(0, step);
  ASSERT_TRUE(store_->Checkpoint(root_ / "copy").ok());
  store_.reset();
  std::string damaged;
  std::uintmax_t largest = 0;
  for (const auto& entry : fs::directory_iterator(root_ / "copy")) {
    if (entry.path().extension() != ".sst" || entry.file_size() < largest) continue;
    largest = entry.file_size();
    damaged = entry.path().filename();
  }
  ASSERT_FALSE(damaged.empty());
  std::fstream file(root_ / "copy" / damaged, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(100);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(100);
  file.put(byte);
  file.close();
  const Status status = RestoreCheckpoint(root_ / "copy", root_ / "restored");
  EXPECT_EQ(status.code(), Code::kDataLoss) << status.message();
  EXPECT_THAT(status.message(), HasSubstr(damaged));
  EXPECT_FALSE(fs::exists(root_ / "restored"));
}

TEST_F(Checkpoint, RestoreSaysWhyAFolderCannotBeRead) {
  const Status missing = RestoreCheckpoint(root_ / "absent", root_ / "restored");
  EXPECT_THAT(missing.message(),
              HasSubstr("cannot read '" + (root_ / "absent").string() + "': No such file"));
  std::ofstream(root_ / "file") << "x";
  EXPECT_THAT(RestoreCheckpoint(root_ / "file", root_ / "restored").message(),
              HasSubstr("Not a directory"));
  fs::create_directory_symlink(root_ / "circle", root_ / "circle");
  EXPECT_THAT(RestoreCheckpoint(root_ / "circle", root_ / "restored").message(),
              HasSubstr("Too many levels"));
  EXPECT_FALSE(fs::exists(root_ / "restored"));
}

TEST_F(Checkpoint, ARestoreThatIsStoppedLeavesNothingBehind) {
  AppendStep(0, 0);
  ASSERT_TRUE(store_->Checkpoint(root_ / "copy").ok());
  for (const int after : {0, 1, 3}) {
    int asked = 0;
    const Status stopped = RestoreCheckpoint(root_ / "copy", root_ / "restored",
                                             {.stopped = [&] { return asked++ >= after; }});
    EXPECT_EQ(stopped.code(), Code::kCancelled) << stopped.message();
    EXPECT_THAT(stopped.message(), HasSubstr("stopped by a signal"));
    for (const auto& entry : fs::directory_iterator(root_))
      EXPECT_FALSE(entry.path().filename().string().starts_with("restored")) << entry.path();
  }
  EXPECT_TRUE(
      RestoreCheckpoint(root_ / "copy", root_ / "restored", {.stopped = [] { return false; }})
          .ok());
}

TEST_F(Checkpoint, RestoreWantsACheckpointAndAnEmptyPlace) {
  ASSERT_TRUE(store_->Checkpoint(root_ / "copy").ok());
  fs::create_directory(root_ / "nothing");
  const Status none = RestoreCheckpoint(root_ / "nothing", root_ / "restored");
  EXPECT_EQ(none.code(), Code::kInvalidArgument);
  EXPECT_THAT(none.message(), HasSubstr("FORMAT"));
  const Status taken = RestoreCheckpoint(root_ / "copy", data_);
  EXPECT_EQ(taken.code(), Code::kInvalidArgument);
  EXPECT_THAT(taken.message(), HasSubstr("not empty"));
  const Status inside = RestoreCheckpoint(root_ / "copy", root_ / "copy" / "data");
  EXPECT_EQ(inside.code(), Code::kInvalidArgument);
  EXPECT_THAT(inside.message(), HasSubstr("would lie in the checkpoint"));
  EXPECT_FALSE(fs::exists(root_ / "copy" / "data"));
}

}  // namespace
}  // namespace statcollect
