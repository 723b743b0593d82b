// The store on a disk that loses power, fails and fills up.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <rocksdb/db.h>

#include "server/store/key.h"
#include "server/store/rocksdb/rocksdb_store.h"
#include "tests/server/store/stream_ledger.h"
#include "tests/support/fault_environment.h"
#include "tests/support/random_batch.h"
#include "tests/support/simulated_disk.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using testing::DiskOperation;
using testing::FaultRounds;
using testing::FaultSeed;
using testing::FileKind;
using ::testing::HasSubstr;
using testing::SimulatedDisk;
using testing::StreamLedger;

constexpr std::uint32_t kRanks = 5;

class StoreFaultTest : public ::testing::Test {
 protected:
  StoreFaultTest() : random_(FaultSeed()), ledger_(FaultSeed() + 1) {
    std::string pattern = ::testing::TempDir() + "/statcollect_faults_XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~StoreFaultTest() override {
    store_.reset();
    fs::remove_all(directory_);
  }

  Status TryOpen() {
    store_.reset();
    auto opened =
        OpenRocksDbStore(directory_, {.fsync = fsync_, .memtable_bytes = 32 << 10, .env = env_});
    if (!opened.ok()) return opened.status();
    store_ = *std::move(opened);
    return Status::Ok();
  }
  void Open() {
    const Status opened = TryOpen();
    ASSERT_TRUE(opened.ok()) << opened.message();
  }
  // Streams of a new attempt, and none of older ones.
  void StartAnew() {
    std::vector<AttemptId> old;
    const auto attempts = store_->Attempts("a");
    ASSERT_TRUE(attempts.ok()) << attempts.status().message();
    for (const AttemptMeta& attempt : *attempts) old.push_back(attempt.id);
    ASSERT_TRUE(store_->DropAttempts(old).ok());
    const auto attempt = store_->CreateAttempt({.run = "a", .world_size = kRanks});
    ASSERT_TRUE(attempt.ok()) << attempt.status().message();
    for (const AttemptId id : old) {
      EXPECT_LT(id, attempt->id) << "ids are never reused";
      ledger_.Remove(id);
    }
    ledger_.Add(attempt->id, kRanks);
  }
  void OpenWithStreams() {
    Open();
    StartAnew();
  }

  // Writes a step of 300 activations, the same for every attempt.
  Status AppendShared(AttemptId attempt) {
    return AppendPrepared(attempt, *store_->NewWriter(attempt, 0)->Prepare(shared_));
  }
  Status AppendPrepared(AttemptId attempt, const PreparedBatch& prepared) {
    const AppendItem item{.attempt = attempt, .rank = 0, .meta = &meta_, .prepared = &prepared};
    return store_->Append({&item, 1});
  }
  // OK: all of it is there.
  Status ReadShared(AttemptId attempt) {
    const auto scan = store_->ScanStats(attempt, 0, {});
    std::size_t found = 0;
    while (scan->Next()) found += scan->block().columns.size();
    if (scan->status().ok()) {
      EXPECT_EQ(found, shared_.stats.size());
    }
    return scan->status();
  }
  // Changes the last byte of the first block of the attempt.
  void DamageBlock(AttemptId attempt) {
    store_.reset();
    rocksdb::DBOptions options;
    options.env = env_.get();
    std::vector<std::string> names;
    ASSERT_TRUE(rocksdb::DB::ListColumnFamilies(options, directory_, &names).ok());
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    for (const std::string& name : names)
      families.emplace_back(name, rocksdb::ColumnFamilyOptions());
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* opened = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(options, directory_, families, &handles, &opened).ok());
    const std::unique_ptr<rocksdb::DB> db(opened);
    bool done = false;
    for (auto* family : handles) {
      if (family->GetName() != "stats") continue;
      const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator({}, family));
      for (it->Seek(KeyBuilder().U32(attempt).Take()); it->Valid() && !done; it->Next()) {
        std::string value = it->value().ToString();
        value.back() ^= 1;
        done = db->Put({}, family, it->key(), value).ok();
      }
    }
    EXPECT_TRUE(done);
    for (auto* family : handles) (void)db->DestroyColumnFamilyHandle(family);
    ASSERT_TRUE(db->Close().ok());
  }

  bool fsync_ = true;
  const RecordBatch shared_ =
      testing::RandomBatch(7, 1, {.activations = 300, .first_step = 0, .steps = 1, .define = true});
  RankMeta meta_ = [this] {
    RankMeta meta;
    meta.durable_seq = meta.records = shared_.last_seq();
    meta.info.config["text"] = std::string(40'000, 'x');  // in a part of the file of its own
    return meta;
  }();
  const std::shared_ptr<SimulatedDisk> disk_ = std::make_shared<SimulatedDisk>();
  const std::shared_ptr<rocksdb::Env> env_ = testing::MakeSimulatedEnv(disk_);
  std::mt19937_64 random_;
  StreamLedger ledger_;
  std::string directory_;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreFaultTest, PowerCutsAtRandomOperationsLoseNothingAcknowledged) {
  Open();
  const std::uint64_t rounds = FaultRounds(120);
  std::uint64_t cut_while_opening = 0;
  for (std::uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    if (round % 20 == 0 && store_ != nullptr) StartAnew();
    disk_->CutPowerAfter(1 + random_() % 60);
    while (disk_->powered())
      ASSERT_TRUE(ledger_.AppendGroup(*store_, [&] { return disk_->powered(); }).ok());
    store_.reset();
    disk_->Restart(random_);
    if (random_() % 3 == 0) {  // and once more, while it starts
      disk_->CutPowerAfter(1 + random_() % 40);
      Open();
      if (!disk_->powered()) ++cut_while_opening;
      store_.reset();
      disk_->Restart(random_);
    }
    Open();
    if (store_ == nullptr) break;
    ledger_.CheckAndResume(*store_);
    EXPECT_EQ(store_->Attempts("a")->size(), 1u) << "dropped attempts stay dropped";
  }
  std::cout << rounds << " power cuts, " << cut_while_opening << " more while opening, "
            << ledger_.acknowledged() << " records acknowledged" << std::endl;
  EXPECT_GT(ledger_.acknowledged(), 0u);
}

TEST_F(StoreFaultTest, WithoutSyncsAPowerCutLosesAnEndAndLeavesNoHole) {
  fsync_ = false;
  const std::uint64_t rounds = FaultRounds(60);
  for (std::uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    OpenWithStreams();
    disk_->CutPowerAfter(1 + random_() % 300);
    while (disk_->powered()) ASSERT_TRUE(ledger_.AppendGroup(*store_, [] { return false; }).ok());
    store_.reset();
    disk_->Restart(random_);
    Open();
    if (store_ != nullptr) ledger_.CheckBeginningsAndResume(*store_);
  }
}

TEST_F(StoreFaultTest, AFailedReadWhileAppendingDoesNotLoseWhoSharesBlocksWithWhom) {
  Open();
  const AttemptId base = store_->CreateAttempt({.run = "base"})->id;
  const AttemptId again = store_->CreateAttempt({.run = "again"})->id;
  ASSERT_TRUE(store_->PutRank(again, 0, meta_).ok());
  ASSERT_TRUE(AppendShared(base).ok());
  Open();  // what was written is in tables now, and not in memory
  const auto writer = store_->NewWriter(again, 0);
  const auto prepared = writer->Prepare(shared_);
  disk_->Inject({.kind = FileKind::kTable, .operation = DiskOperation::kRead});
  EXPECT_FALSE(AppendPrepared(again, *prepared).ok());
  disk_->Heal();
  ASSERT_TRUE(AppendPrepared(again, *prepared).ok());
  ASSERT_TRUE(store_->DropAttempts({&base, 1}).ok());
  const Status read = ReadShared(again);
  EXPECT_TRUE(read.ok()) << read.message();
}

TEST_F(StoreFaultTest, ADamagedSharedBlockDoesNotKeepItsOwnerFromBeingRemoved) {
  Open();
  const AttemptId base = store_->CreateAttempt({.run = "base"})->id;
  const AttemptId again = store_->CreateAttempt({.run = "again"})->id;
  ASSERT_TRUE(AppendShared(base).ok());
  ASSERT_TRUE(AppendShared(again).ok());
  DamageBlock(base);
  Open();
  EXPECT_EQ(ReadShared(again).code(), Code::kDataLoss);
  const Status dropped = store_->DropAttempts({&base, 1});
  EXPECT_TRUE(dropped.ok()) << dropped.message();
  EXPECT_TRUE(store_->Attempts("base")->empty());
  EXPECT_EQ(ReadShared(again).code(), Code::kDataLoss) << "never less than all without saying so";
  EXPECT_EQ(store_->Scalars(again, 0, {})->size(), shared_.scalars.size());
}

TEST_F(StoreFaultTest, AFailedSyncIsNotAcknowledgedAndNothingIsWrittenUntilTheNextStart) {
  OpenWithStreams();
  for (std::uint64_t round = 0; round < 40 && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    disk_->Inject(
        {.kind = FileKind::kLog, .operation = DiskOperation::kSync, .passes = random_() % 8});
    Status failure;
    while ((failure = ledger_.AppendGroup(*store_)).ok()) {
    }
    EXPECT_EQ(failure.code(), Code::kUnavailable) << failure.message();
    EXPECT_THAT(failure.message(), HasSubstr("Input/output error"));
    EXPECT_THAT(failure.message(), HasSubstr("no more writes until statcollectord is restarted"));
    EXPECT_FALSE(store_->Recover().ok());
    EXPECT_FALSE(store_->CreateAttempt({.run = "b"}).ok());
    ledger_.CheckReadable(*store_);
    if (round % 2 == 0) {
      disk_->CutPower();
      store_.reset();
      disk_->Restart(random_);
    }
    Open();
    ledger_.CheckAndResume(*store_);
    EXPECT_TRUE(store_->Attempts("b")->empty());
  }
}

// What fails in the background, and what the store then says.
struct BackgroundFault {
  SimulatedDisk::Fault fault;
  Code code;
};

class BackgroundFaultTest : public StoreFaultTest,
                            public ::testing::WithParamInterface<BackgroundFault> {};

TEST_P(BackgroundFaultTest, WritesAreRefusedAndReadersGoOn) {
  OpenWithStreams();
  disk_->Inject(GetParam().fault);
  Status failure;
  for (int i = 0; i < 100'000 && (failure = ledger_.AppendGroup(*store_)).ok(); ++i) {
  }
  EXPECT_EQ(failure.code(), GetParam().code) << failure.message();
  EXPECT_GT(disk_->struck(), 0);
  ledger_.CheckReadable(*store_);
  disk_->Heal();
  const bool by_itself = GetParam().code == Code::kResourceExhausted;
  EXPECT_EQ(store_->Recover().ok(), by_itself);
  if (!by_itself) Open();
  ledger_.CheckAndResume(*store_);
  EXPECT_TRUE(ledger_.AppendGroup(*store_).ok());
}

INSTANTIATE_TEST_SUITE_P(
    Everywhere, BackgroundFaultTest,
    ::testing::Values(
        BackgroundFault{
            {.kind = FileKind::kTable, .operation = DiskOperation::kAppend, .lasting = true},
            Code::kUnavailable},
        BackgroundFault{
            {.kind = FileKind::kTable, .operation = DiskOperation::kSync, .lasting = true},
            Code::kUnavailable},
        BackgroundFault{{.kind = FileKind::kTable, .operation = DiskOperation::kSync, .passes = 9},
                        Code::kUnavailable},
        BackgroundFault{
            {.kind = FileKind::kTable, .operation = DiskOperation::kCreate, .lasting = true},
            Code::kUnavailable},
        BackgroundFault{
            {.kind = FileKind::kManifest, .operation = DiskOperation::kSync, .lasting = true},
            Code::kUnavailable},
        BackgroundFault{
            {.kind = FileKind::kLog, .operation = DiskOperation::kCreate, .lasting = true},
            Code::kUnavailable},
        BackgroundFault{{.kind = FileKind::kTable,
                         .operation = DiskOperation::kAppend,
                         .lasting = true,
                         .no_space = true},
                        Code::kResourceExhausted},
        BackgroundFault{{.kind = FileKind::kManifest,
                         .operation = DiskOperation::kAppend,
                         .lasting = true,
                         .no_space = true},
                        Code::kResourceExhausted},
        BackgroundFault{{.kind = FileKind::kLog,
                         .operation = DiskOperation::kAppend,
                         .passes = 30,
                         .no_space = true},
                        Code::kResourceExhausted},
        BackgroundFault{{.kind = FileKind::kLog,
                         .operation = DiskOperation::kSync,
                         .passes = 30,
                         .no_space = true},
                        Code::kResourceExhausted},
        BackgroundFault{{.kind = FileKind::kTable,
                         .operation = DiskOperation::kCreate,
                         .lasting = true,
                         .no_descriptor = true},
                        Code::kResourceExhausted},
        BackgroundFault{{.kind = FileKind::kLog,
                         .operation = DiskOperation::kCreate,
                         .lasting = true,
                         .no_descriptor = true},
                        Code::kResourceExhausted}));

// With the system's own files, so that it is RocksDB's own words that are understood.
TEST_F(StoreFaultTest, WithoutDescriptorsItRefusesAndRecoversByItself) {
  std::string directory = ::testing::TempDir() + "/descriptors_XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  auto opened = OpenRocksDbStore(
      directory, {.fsync = false, .memtable_bytes = 256 << 10, .open_files_max = 16});
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const std::unique_ptr<Store> store = *std::move(opened);
  StreamLedger ledger(FaultSeed());
  const auto attempt = store->CreateAttempt({.run = "a", .world_size = 2});
  ASSERT_TRUE(attempt.ok());
  ledger.Add(attempt->id, 2);
  std::vector<int> taken;
  for (int copy = 0; (copy = fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0;) taken.push_back(copy);
  Status failure;
  for (int i = 0; i < 100'000 && (failure = ledger.AppendGroup(*store)).ok(); ++i) {
  }
  for (const int copy : taken) close(copy);
  EXPECT_EQ(failure.code(), Code::kResourceExhausted) << failure.message();
  const Status recovered = store->Recover();
  EXPECT_TRUE(recovered.ok()) << recovered.message();
  ledger.CheckAndResume(*store);
  EXPECT_TRUE(ledger.AppendGroup(*store).ok());
  std::filesystem::remove_all(directory);
}

TEST_F(StoreFaultTest, AFullDiskRefusesKeepsAnsweringAndRecoversByItself) {
  OpenWithStreams();
  int could_not_reopen = 0;
  for (std::uint64_t round = 0; round < FaultRounds(60) && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    disk_->SetCapacity(disk_->used() + random_() % (200 << 10));
    Status failure;
    while ((failure = ledger_.AppendGroup(*store_)).ok()) {
    }
    EXPECT_EQ(failure.code(), Code::kResourceExhausted) << failure.message();
    EXPECT_THAT(failure.message(), HasSubstr("accepts writes again by itself"));
    ledger_.CheckReadable(*store_);
    if (!store_->Recover().ok()) ++could_not_reopen;  // there may be room for that
    ledger_.CheckReadable(*store_);
    if (round % 8 == 7) {
      disk_->CutPower();
      store_.reset();
      disk_->Restart(random_);
      disk_->SetCapacity(1 << 30);
      Open();
    }
    disk_->SetCapacity(1 << 30);
    const Status recovered = store_->Recover();
    EXPECT_TRUE(recovered.ok()) << recovered.message();
    ledger_.CheckAndResume(*store_);
    if (round % 10 == 9) StartAnew();
  }
  EXPECT_GT(could_not_reopen, 0) << "a store that cannot be opened again is read, too";
}

// Removing attempts starts a thread that uses the store, too.
TEST_F(StoreFaultTest, RecoveryDoesNotWaitForTheStoresOwnTidying) {
  OpenWithStreams();
  for (int round = 0; round < 60 && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::vector<AttemptId> removed;  // so many that the catalogue is tidied, too
    for (int i = 0; i < 64; ++i) removed.push_back(store_->CreateAttempt({.run = "b"})->id);
    ASSERT_TRUE(store_->DropAttempts(removed).ok());
    // The log alone has no space: a merge that fails may end the process where RocksDB has
    // assertions.
    disk_->Inject({.kind = FileKind::kLog, .operation = DiskOperation::kAppend, .no_space = true});
    while (ledger_.AppendGroup(*store_).ok()) {
    }
    const Status recovered = store_->Recover();
    EXPECT_TRUE(recovered.ok()) << recovered.message();
    ledger_.CheckAndResume(*store_);
  }
}

TEST_F(StoreFaultTest, AFlushOrCompactionWithoutSpaceRefusesWritesUntilTheStoreHasRecovered) {
  OpenWithStreams();
  for (int round = 0; round < 4 && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    disk_->Inject({.kind = FileKind::kTable,
                   .operation = DiskOperation::kAppend,
                   .passes = random_() % 200,
                   .no_space = true});
    Status failure;
    while ((failure = ledger_.AppendGroup(*store_)).ok()) {
    }
    EXPECT_EQ(failure.code(), Code::kResourceExhausted) << failure.message();
    ledger_.CheckReadable(*store_);
    EXPECT_TRUE(store_->Recover().ok());
    ledger_.CheckAndResume(*store_);
  }
}

TEST_F(StoreFaultTest, AFlippedBitInAnyFileIsNeverAWrongAnswer) {
  OpenWithStreams();
  for (int i = 0; i < 400; ++i)
    ASSERT_TRUE(ledger_.AppendGroup(*store_).ok());  // flushes, compactions
  disk_->CutPower();
  store_.reset();
  disk_->Restart(random_);  // leaves a log that has not been replayed
  const auto whole = disk_->Save();
  std::map<FileKind, std::vector<std::string>> files;
  for (const auto& [path, bytes] : whole) {
    if (!bytes.empty()) files[SimulatedDisk::KindOf(path)].push_back(path);
  }
  std::map<FileKind, std::map<std::string, int>> outcomes;
  for (const auto& [kind, paths] : files) {
    for (std::uint64_t n = FaultRounds(14); n > 0 && !HasFailure(); --n) {
      const std::string& path = paths[random_() % paths.size()];
      const std::string& bytes = whole.at(path);
      const std::uint64_t bit = random_() % (bytes.size() * 8);
      SCOPED_TRACE(path + ", bit " + std::to_string(bit));
      store_.reset();
      disk_->Load(whole);
      disk_->FlipBit(path, bit);
      const Status opened = TryOpen();
      const Status read = opened.ok() ? ledger_.ReadExactly(*store_) : opened;
      ++outcomes[kind][read.ok() ? "right" : opened.ok() ? "read refused" : "start refused"];
      if (read.ok()) continue;
      EXPECT_THAT(read.code(), AnyOf(Code::kDataLoss, Code::kUnavailable)) << read.message();
      const std::string name = path.substr(path.rfind('/') + 1);
      EXPECT_THAT(read.message(), AnyOf(HasSubstr(name), HasSubstr("MANIFEST"),
                                        HasSubstr("block of"), HasSubstr(" key ")));
    }
  }
  store_.reset();
  for (const auto& [kind, found] : outcomes) {
    for (const auto& [outcome, count] : found)
      std::cout << "kind " << static_cast<int>(kind) << ": " << outcome << " " << count
                << std::endl;
  }
  EXPECT_GT(outcomes[FileKind::kTable]["read refused"], 0);
  EXPECT_GT(outcomes[FileKind::kLog]["start refused"], 0);
}

TEST_F(StoreFaultTest, AScanUnderWayDelaysRecoveryAndAForgottenOneEnds) {
  OpenWithStreams();
  ASSERT_TRUE(ledger_.AppendGroup(*store_).ok());
  disk_->SetCapacity(disk_->used() + 1000);
  while (ledger_.AppendGroup(*store_).ok()) {
  }
  disk_->SetCapacity(1 << 30);
  const AttemptId attempt = store_->Attempts("a")->front().id;
  auto scan = store_->ScanStats(attempt, 0, {});
  EXPECT_EQ(store_->Recover().code(), Code::kResourceExhausted);
  while (scan->Next()) {
  }
  EXPECT_TRUE(scan->status().ok()) << scan->status().message();
  scan = store_->ScanStats(attempt, 1, {});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(3500);
  while (std::chrono::steady_clock::now() < deadline) {
    EXPECT_FALSE(store_->Recover().ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_FALSE(scan->Next());
  EXPECT_EQ(scan->status().code(), Code::kUnavailable) << scan->status().message();
  scan.reset();
  EXPECT_TRUE(store_->Recover().ok());
  ledger_.CheckAndResume(*store_);
}

}  // namespace
}  // namespace statcollect
