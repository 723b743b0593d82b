// A store whose files are whole, and whose records are not: some are gone, or something else stands
// in their place, as a fault of the disk under a backup or of a program leaves them. What refers to
// them says so; nothing is answered from them.
#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <rocksdb/db.h>

#include "server/store/codec/catalogue.h"
#include "server/store/key.h"
#include "server/store/rocksdb/families.h"
#include "server/store/rocksdb/rocksdb_store.h"
#include "tests/server/store/store_contents.h"
#include "tests/support/random_batch.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// The closed store, to be changed behind its back.
class RawStore {
 public:
  explicit RawStore(const fs::path& directory) {
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    for (const std::string& name : kFamilies)
      families.emplace_back(name, rocksdb::ColumnFamilyOptions());
    rocksdb::DB* opened = nullptr;
    const rocksdb::Status status = rocksdb::DB::Open({}, directory, families, &families_, &opened);
    EXPECT_TRUE(status.ok()) << status.ToString();
    db_.reset(opened);
  }
  ~RawStore() {
    for (auto* family : families_) (void)db_->DestroyColumnFamilyHandle(family);
    EXPECT_TRUE(db_->Close().ok());
  }
  std::string Get(Family family, const std::string& key) {
    std::string value;
    EXPECT_TRUE(db_->Get({}, families_[family], key, &value).ok()) << "nothing to copy";
    return value;
  }
  void Put(Family family, const std::string& key, const std::string& value) {
    EXPECT_TRUE(db_->Put({}, families_[family], key, value).ok());
  }
  void Delete(Family family, const std::string& key) {
    (void)Get(family, key);
    EXPECT_TRUE(db_->Delete({}, families_[family], key).ok());
  }
  // Flips a bit in the middle of each value whose key `chosen` chooses. Returns their number.
  int FlipBits(Family family, const std::function<bool(std::string_view key)>& chosen) {
    std::map<std::string, std::string> values;
    const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator({}, families_[family]));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      if (it->value().empty() || !chosen(it->key().ToStringView())) continue;
      values[it->key().ToString()] = it->value().ToString();
    }
    for (auto& [key, value] : values) {
      char& byte = value[value.size() / 2];
      byte = static_cast<char>(byte ^ 0x04);
      Put(family, key, value);
    }
    return static_cast<int>(values.size());
  }

 private:
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> families_;
};

// Two equal runs, of which the second refers to the first, in steps that refer to the first step;
// a step's records are two blocks.
class DamagedRecordsTest : public ::testing::Test {
 protected:
  static constexpr AttemptId kBase = 1, kAgain = 2, kSmall = 3;
  static constexpr std::uint64_t kStepCount = 4;

  DamagedRecordsTest() {
    std::string pattern = ::testing::TempDir() + "/statcollect_records_XXXXXX";
    root_ = mkdtemp(pattern.data());
    EXPECT_TRUE(TryOpen(root_ / "whole").ok());
    for (const AttemptId attempt : {kBase, kAgain, kSmall}) {
      const auto made = store_->CreateAttempt({.run = "run" + std::to_string(attempt)});
      EXPECT_EQ(made->id, attempt);
      Stream stream(*store_, attempt, 0);
      std::uint64_t seq = 1;
      for (std::uint64_t step = 0; step < kStepCount; ++step) {
        const RecordBatch batch = MakeBatch(seq, step, 0, attempt == kSmall ? 100 : 300);
        stream.Append(batch);
        seq = batch.last_seq() + 1;
      }
    }
    store_.reset();
  }
  ~DamagedRecordsTest() override {
    store_.reset();
    fs::remove_all(root_);
  }

  static std::string At(AttemptId attempt, std::uint64_t step, std::uint32_t activation = 0) {
    return EncodeStatKey({.attempt = attempt, .step = step, .activation = activation});
  }
  Status TryOpen(const fs::path& directory) {
    store_.reset();
    auto opened = OpenRocksDbStore(
        directory, {.log = [this](const std::string& line) { log_ += line + "\n"; }});
    if (!opened.ok()) return opened.status();
    store_ = *std::move(opened);
    return Status::Ok();
  }
  // Makes a copy of the store with this change.
  void Damage(const std::function<void(RawStore&)>& change) {
    store_.reset();
    fs::remove_all(root_ / "copy");
    fs::copy(root_ / "whole", root_ / "copy");
    RawStore raw(root_ / "copy");
    change(raw);
  }
  // And opens it.
  void Change(const std::function<void(RawStore&)>& change) {
    Damage(change);
    const Status opened = TryOpen(root_ / "copy");
    ASSERT_TRUE(opened.ok()) << opened.message();
  }

  // What each way to read the rank's blocks from `first` on ends with.
  std::map<std::string, Status> Ends(AttemptId attempt, std::uint64_t first) {
    using Read = std::function<bool(StatScan&)>;
    StatColumns columns;
    HashColumns hashes;
    const std::map<std::string, Read> reads = {
        {"all", [&](StatScan& scan) { return scan.Load(/*sketches=*/true, &columns); }},
        {"numbers", [&](StatScan& scan) { return scan.Load(/*sketches=*/false, &columns); }},
        {"hashes", [&](StatScan& scan) { return scan.LoadHashes(&hashes); }},
        {"columns", [](StatScan& scan) { return scan.Columns() != nullptr; }},
        {"norms", [](StatScan& scan) { return scan.Numbers(NumberSet::kNorms) != nullptr; }}};
    std::map<std::string, Status> ends;
    for (const auto& [name, read] : reads) {
      const auto scan = store_->ScanStats(attempt, 0, {.first = first});
      while (scan->NextHead() && read(*scan)) {
      }
      EXPECT_FALSE(!scan->status().ok() && scan->NextHead()) << "nothing after a failure";
      ends[name] = scan->status();
    }
    ends["series"] = store_->ActivationSeries(attempt, 0, 5, {.first = first}).status();
    return ends;
  }
  void ExpectLoss(AttemptId attempt, std::uint64_t first, const std::string& said) {
    for (const auto& [read, end] : Ends(attempt, first)) {
      EXPECT_EQ(end.code(), Code::kDataLoss) << read << ": " << end.message();
      EXPECT_THAT(end.message(), HasSubstr(said)) << read;
    }
  }

  fs::path root_;
  std::string log_;
  std::unique_ptr<Store> store_;
};

TEST_F(DamagedRecordsTest, AWholeStoreIsReadInEachWay) {
  ASSERT_TRUE(TryOpen(root_ / "whole").ok());
  for (const AttemptId attempt : {kBase, kAgain}) {
    for (const auto& [read, end] : Ends(attempt, 1)) EXPECT_TRUE(end.ok()) << read;
  }
}

TEST_F(DamagedRecordsTest, ABlockThatAnotherRunRefersToIsMissedOrNotTakenForAnother) {
  const std::string missing =
      "read the target of block of attempt 2, rank 0, step 0, activation 0: block of attempt 1, "
      "rank 0, step 0, activation 0 is missing";
  Change([](RawStore& raw) { raw.Delete(kStats, At(kBase, 0)); });
  ExpectLoss(kAgain, 0, missing);
  const std::string other = "which has different content; the store is damaged";
  Change([](RawStore& raw) { raw.Put(kStats, At(kBase, 0), raw.Get(kStats, At(kSmall, 0))); });
  ExpectLoss(kAgain, 0, other);
  Change([](RawStore& raw) { raw.Put(kStats, At(kBase, 0), raw.Get(kStats, At(kAgain, 0))); });
  ExpectLoss(kAgain, 0, other);
}

TEST_F(DamagedRecordsTest, AKeyFrameIsMissedOrNotTakenForAnother) {
  const std::string of = "block of attempt 1, rank 0, step 1, activation 0";
  Change([](RawStore& raw) { raw.Delete(kStats, At(kBase, 0)); });
  ExpectLoss(kBase, 1, "read the key frame of " + of + ": ");
  Change([](RawStore& raw) { raw.Put(kStats, At(kBase, 0), raw.Get(kStats, At(kBase, 2))); });
  ExpectLoss(kBase, 1, "read " + of + ": its key frame, ");
  Change([](RawStore& raw) {
    for (const Family family : {kStats, kSketches})
      raw.Put(family, At(kBase, 0), raw.Get(family, At(kSmall, 0)));
  });
  ExpectLoss(kBase, 1, "its key frame has a different size");
}

TEST_F(DamagedRecordsTest, SketchesThatAreGoneAreMissedByThoseThatReadThem) {
  Change([](RawStore& raw) { raw.Delete(kSketches, At(kBase, 1)); });
  for (const auto& [read, end] : Ends(kBase, 1)) {
    const bool reads_sketches = read == "all" || read == "columns";
    EXPECT_EQ(end.code(), reads_sketches ? Code::kDataLoss : Code::kOk) << read;
    if (reads_sketches) {
      EXPECT_THAT(end.message(), HasSubstr("its sketches or samples are missing"));
    }
  }
}

TEST_F(DamagedRecordsTest, AKeyOfAnotherFormIsNamed) {
  Change([](RawStore& raw) {
    raw.Put(kStats, StepPrefix(kBase, 0, 1) + '\0', "value");
    raw.Put(kCaptures, KeyBuilder().U32(kBase).U32(0).Text("h").U64(1).Take(),
            Encode(CaptureHead{.layout = 0, .elements = 4, .bytes = 16}));
  });
  ExpectLoss(kBase, 1, "found a key of 17 bytes; expected 20");
  const Status steps = store_->StatSteps(kBase, 0, {}).status();
  EXPECT_THAT(steps.message(), HasSubstr("found a key of another length than 20 bytes"));
  const Status captures = store_->Captures(kBase, 0, {}).status();
  EXPECT_THAT(captures.message(), HasSubstr("found a key of another form"));
}

// The blocks that can be read are kept for the runs that refer to them.
TEST_F(DamagedRecordsTest, ARunIsRemovedAlthoughSomeOfItsBlocksAreGone) {
  Change([](RawStore& raw) { raw.Delete(kStats, At(kBase, 0)); });
  const AttemptId base = kBase;
  const Status dropped = store_->DropAttempts({&base, 1});
  EXPECT_TRUE(dropped.ok()) << dropped.message();
  EXPECT_THAT(log_, HasSubstr("skipped: read the target of block of attempt 2, rank 0, step 0, "
                              "activation 0"));
  EXPECT_TRUE(store_->ActivationSeries(kAgain, 0, 280, {}).ok());
  EXPECT_EQ(store_->ActivationSeries(kAgain, 0, 280, {})->size(), kStepCount);
  EXPECT_EQ(store_->ActivationSeries(kAgain, 0, 5, {}).status().code(), Code::kDataLoss);
}

TEST_F(DamagedRecordsTest, AStoreThatDoesNotKnowItsNextAttemptIsRefused) {
  for (const char* number : {"", "0", "many"}) {
    Damage([&](RawStore& raw) { raw.Put(kDefault, "next_attempt", number); });
    const Status opened = TryOpen(root_ / "copy");
    EXPECT_EQ(opened.code(), Code::kDataLoss) << number;
    EXPECT_THAT(opened.message(), HasSubstr("read the next attempt's number: it is not a number"));
  }
}

// --- values

// The first error of all reads.
Status ReadEverything(Store& store, AttemptId attempt, const std::string& run) {
  STATCOLLECT_RETURN_IF_ERROR(store.ListRuns().status());
  STATCOLLECT_RETURN_IF_ERROR(store.Census().status());
  STATCOLLECT_RETURN_IF_ERROR(store.Ranks(attempt).status());
  STATCOLLECT_RETURN_IF_ERROR(store.Definitions(attempt, 0).status());
  STATCOLLECT_RETURN_IF_ERROR(store.Document(run, "notes").status());
  STATCOLLECT_RETURN_IF_ERROR(store.Scalars(attempt, 0, {}).status());
  STATCOLLECT_RETURN_IF_ERROR(store.Events(attempt, 0).status());
  STATCOLLECT_RETURN_IF_ERROR(store.StepEnds(attempt, 0, {}).status());
  STATCOLLECT_RETURN_IF_ERROR(store.Memory(attempt, 0, {}).status());
  STATCOLLECT_RETURN_IF_ERROR(store.Densities(attempt, 0, {}).status());
  STATCOLLECT_RETURN_IF_ERROR(store.Exponents(attempt, 0, {}).status());
  STATCOLLECT_RETURN_IF_ERROR(store.Captures(attempt, 0, {}).status());
  STATCOLLECT_RETURN_IF_ERROR(store.CaptureChunkAt(attempt, 0, 7, 1, 0).status());
  Visitor<TokenRecord> tokens;
  tokens.take = [](const TokenRecord&) { return Status::Ok(); };
  STATCOLLECT_RETURN_IF_ERROR(store.Visit(attempt, 0, {}, tokens));
  const auto scan = store.ScanStats(attempt, 0, {});
  while (scan->Next()) {
  }
  return scan->status();
}

TEST_F(DamagedRecordsTest, AFlippedBitInAValueOfAnyKindIsSeen) {
  ASSERT_TRUE(TryOpen(root_ / "whole").ok());
  const AttemptId attempt = store_->CreateAttempt({.run = "full"})->id;
  RankMeta meta = MetaOf(0, 0);
  meta.info.config = {{"lr", "1e-3"}};
  ASSERT_TRUE(store_->PutRank(attempt, 0, meta).ok());
  RecordBatch batch = MakeBatch(1, 7, 0, 3);
  batch.layouts.push_back(testing::MakeLayout(1, DType::kF64, {16}));
  testing::AddObservations(&batch, 7);
  AddChunks(&batch, 7, 1, 64, 64);
  Append(*store_, attempt, 0, batch);
  ASSERT_TRUE(store_->PutDocument("full", "notes", "a note").ok());
  const Status whole = ReadEverything(*store_, attempt, "full");
  ASSERT_TRUE(whole.ok()) << whole.message();
  store_.reset();

  using Chosen = std::function<bool(std::string_view key)>;
  std::vector<std::pair<Family, Chosen>> kinds;
  for (const char letter : {'r', 'i', 'm', 'a', 'l', 'c', 'd'})
    kinds.emplace_back(kCatalogue, [=](std::string_view key) { return key[0] == letter; });
  for (const char part : {'h', 'd', 'e', 't'})
    kinds.emplace_back(kCaptures, [=](std::string_view key) { return key[8] == part; });
  for (const Family family : {kScalars, kEvents, kSteps, kMemory, kDensities, kStats, kSketches})
    kinds.emplace_back(family, [](std::string_view) { return true; });
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    SCOPED_TRACE(kFamilies[kinds[i].first] + ", kind " + std::to_string(i));
    {
      RawStore raw(root_ / "whole");
      if (i > 0) raw.FlipBits(kinds[i - 1].first, kinds[i - 1].second);  // back
      EXPECT_GT(raw.FlipBits(kinds[i].first, kinds[i].second), 0);
    }
    const Status opened = TryOpen(root_ / "whole");
    const Status read = opened.ok() ? ReadEverything(*store_, attempt, "full") : opened;
    EXPECT_EQ(read.code(), Code::kDataLoss) << read.message();
    store_.reset();
  }
  RawStore(root_ / "whole").FlipBits(kinds.back().first, kinds.back().second);
  ASSERT_TRUE(TryOpen(root_ / "whole").ok());
  EXPECT_TRUE(ReadEverything(*store_, attempt, "full").ok());
}

}  // namespace
}  // namespace statcollect
