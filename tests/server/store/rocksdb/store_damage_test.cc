// What the store says of files that are missing, cut or damaged: the table of docs/reliability.md,
// line by line.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <rocksdb/db.h>
#include <rocksdb/file_system.h>

#include "server/store/format_file.h"
#include "server/store/rocksdb/journal_check.h"
#include "server/store/rocksdb/rocksdb_store.h"
#include "server/store/rocksdb/synced_mark.h"
#include "tests/server/store/stream_ledger.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::StreamLedger;

const std::vector<std::string> kDamages = {"missing", "cut to half", "one bit"};

std::string Contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void Replace(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// The lines of the table: by the file, then by the damage, what docs/reliability.md says.
std::map<std::string, std::map<std::string, std::string>> TableOnThePage() {
  std::map<std::string, std::map<std::string, std::string>> table;
  std::istringstream page(Contents(RELIABILITY_PAGE));
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.find("<!-- table of damages") != std::string::npos) inside = true;
    if (line.find("<!-- end of the table") != std::string::npos) inside = false;
    if (!inside || !line.starts_with("| ")) continue;
    std::vector<std::string> cells;
    std::istringstream row(line.substr(2));
    for (std::string cell; std::getline(row, cell, '|');) {
      const std::size_t end = cell.find_last_not_of(' ');
      const std::size_t begin = cell.find_first_not_of(' ');
      cells.push_back(begin == std::string::npos ? "" : cell.substr(begin, end - begin + 1));
    }
    if (cells.size() != 1 + kDamages.size() || cells[0] == "file") continue;
    for (std::size_t i = 0; i < kDamages.size(); ++i) table[cells[0]][kDamages[i]] = cells[1 + i];
  }
  return table;
}

class StoreDamageTest : public ::testing::Test {
 protected:
  StoreDamageTest() : ledger_(7) {
    std::string pattern = ::testing::TempDir() + "/statcollect_damage_XXXXXX";
    root_ = mkdtemp(pattern.data());
    whole_ = root_ / "whole";
    copy_ = root_ / "copy";
  }
  ~StoreDamageTest() override {
    store_.reset();
    fs::remove_all(root_);
  }

  static RocksDbStoreOptions Options(bool accept_loss = false) {
    return {.memtable_bytes = 32 << 10, .accept_loss = accept_loss};
  }
  void Fill(int groups) {
    const Status opened = TryOpen(whole_);
    ASSERT_TRUE(opened.ok()) << opened.message();
    const auto attempt = store_->CreateAttempt({.run = "a", .world_size = 3});
    ASSERT_TRUE(attempt.ok()) << attempt.status().message();
    ledger_.Add(attempt->id, 3);
    for (int i = 0; i < groups; ++i) ASSERT_TRUE(ledger_.AppendGroup(*store_).ok());
  }
  Status TryOpen(const fs::path& directory, bool accept_loss = false) {
    store_.reset();
    auto opened = OpenRocksDbStore(directory, Options(accept_loss));
    if (!opened.ok()) return opened.status();
    store_ = *std::move(opened);
    return Status::Ok();
  }
  void FreshCopy() {
    store_.reset();
    fs::remove_all(copy_);
    fs::copy(whole_, copy_);
  }
  static std::vector<std::string> Names(const fs::path& directory) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  // Those that match, oldest first; empty ones do not count.
  std::vector<std::string> Matching(const std::string& pattern) const {
    std::vector<std::string> found;
    for (const std::string& name : Names(whole_)) {
      if (std::regex_match(name, std::regex(pattern)) && fs::file_size(whole_ / name) > 0)
        found.push_back(name);
    }
    return found;
  }

  fs::path root_, whole_, copy_;
  StreamLedger ledger_;
  std::unique_ptr<Store> store_;
};

// Of each line: which file it is about.
const std::map<std::string, std::function<std::string(const std::vector<std::string>&)>> kChoose = {
    {"first", [](const auto& names) { return names.front(); }},
    {"last", [](const auto& names) { return names.back(); }}};

TEST_F(StoreDamageTest, EachFileMissingCutOrWithABitFlippedIsAnsweredAsTheTableSays) {
  Fill(150);
  store_.reset();
  const std::map<std::string, std::pair<std::string, std::string>> files = {
      {"newest `*.log`", {"[0-9]+\\.log", "last"}},
      {"older `*.log`", {"[0-9]+\\.log", "first"}},
      {"`MANIFEST-*`", {"MANIFEST-.*", "last"}},
      {"`CURRENT`", {"CURRENT", "first"}},
      {"`*.sst`", {"[0-9]+\\.sst", "first"}},
      {"`SYNCED`", {"SYNCED", "first"}},
      {"`FORMAT`", {"FORMAT", "first"}},
      {"`STORE_ID`", {"STORE_ID", "first"}},
      {"`OPTIONS-*`", {"OPTIONS-.*", "last"}},
      {"`IDENTITY`", {"IDENTITY", "first"}},
  };
  ASSERT_GT(Matching("[0-9]+\\.log").size(), 1u);
  ASSERT_GT(Matching("[0-9]+\\.sst").size(), 1u);
  const auto table = TableOnThePage();
  ASSERT_EQ(table.size(), files.size());
  for (const auto& [line, said] : table) {
    ASSERT_TRUE(files.contains(line)) << line;
    const auto& [pattern, which] = files.at(line);
    const std::string name = kChoose.at(which)(Matching(pattern));
    const std::string bytes = Contents(whole_ / name);
    std::map<std::string, std::vector<std::function<void()>>> damages;
    damages["missing"] = {[&] { fs::remove(copy_ / name); }};
    damages["cut to half"] = {[&] { fs::resize_file(copy_ / name, bytes.size() / 2); }};
    for (const std::size_t at :
         {std::size_t{0}, std::size_t{4}, bytes.size() / 2, bytes.size() - 1}) {
      damages["one bit"].emplace_back([&, at] {
        std::string changed = bytes;
        changed[at] = static_cast<char>(changed[at] ^ 0x04);
        Replace(copy_ / name, changed);
      });
    }
    for (const std::string& damage : kDamages) {
      for (const auto& inflict : damages.at(damage)) {
        SCOPED_TRACE(name + ": " + damage);
        FreshCopy();
        inflict();
        const std::string& expected = said.at(damage);
        std::smatch quoted;
        const bool has_quote = std::regex_search(expected, quoted, std::regex("`([^`]*)`"));
        const auto before = Names(copy_);
        const Status opened = TryOpen(copy_);
        if (expected.starts_with("refused: ")) {
          ASSERT_TRUE(has_quote) << expected;
          EXPECT_FALSE(opened.ok()) << "it must not open";
          EXPECT_THAT(opened.message(), HasSubstr(quoted[1].str()));
          auto after = Names(copy_);
          std::erase(after, "statcollectord.pid");
          auto kept = before;
          std::erase(kept, "statcollectord.pid");
          if (name != "FORMAT") {
            EXPECT_EQ(after, kept) << "nothing was deleted";
          }
          continue;
        }
        if (expected.starts_with("refused, or ")) {  // a table: where the bit is decides
          const Status read = opened.ok() ? ledger_.ReadExactly(*store_) : opened;
          if (!read.ok()) {
            EXPECT_EQ(read.code(), Code::kDataLoss) << read.message();
          }
          continue;
        }
        ASSERT_THAT(expected, HasSubstr("nothing is lost"));
        ASSERT_TRUE(opened.ok()) << opened.message();
        const Status read = ledger_.ReadExactly(*store_);
        EXPECT_TRUE(read.ok()) << read.message();
      }
    }
  }
}

TEST_F(StoreDamageTest, ALossThatIsAcceptedIsALossOnceAndGivesTheStoreANewEpoch) {
  Fill(100);
  const StoreIdentity before = store_->identity();
  FreshCopy();
  fs::remove(copy_ / Matching("[0-9]+\\.log").back());
  EXPECT_EQ(TryOpen(copy_).code(), Code::kDataLoss);
  const Status accepted = TryOpen(copy_, /*accept_loss=*/true);
  ASSERT_TRUE(accepted.ok()) << accepted.message();
  EXPECT_EQ(store_->identity().id, before.id);
  EXPECT_NE(store_->identity().epoch, before.epoch) << "agents must not take it for what it was";
  const StoreIdentity after = store_->identity();
  ASSERT_TRUE(store_->CreateAttempt({.run = "b"}).ok());
  const Status again = TryOpen(copy_);
  ASSERT_TRUE(again.ok()) << again.message();
  EXPECT_EQ(store_->identity().epoch, after.epoch);
  EXPECT_EQ(store_->Attempts("b")->size(), 1u);
}

TEST_F(StoreDamageTest, ALossOfEachKindCanBeAccepted) {
  Fill(150);
  store_.reset();
  const auto logs = Matching("[0-9]+\\.log");
  const std::string manifest = Matching("MANIFEST-.*").back();
  for (const std::string& name :
       {logs.front(), logs[logs.size() / 2], logs.back(), manifest, std::string("SYNCED")}) {
    for (const bool missing : {true, false}) {
      if (missing && name == manifest) continue;  // there is nothing to go on with
      SCOPED_TRACE(name + (missing ? " missing" : " cut"));
      FreshCopy();
      missing ? (void)fs::remove(copy_ / name)
              : fs::resize_file(copy_ / name, fs::file_size(copy_ / name) / 2);
      EXPECT_EQ(TryOpen(copy_).code(), Code::kDataLoss);
      const Status accepted = TryOpen(copy_, /*accept_loss=*/true);
      EXPECT_TRUE(accepted.ok()) << accepted.message();
      const Status again = TryOpen(copy_);
      EXPECT_TRUE(again.ok()) << again.message();
      if (again.ok()) {
        EXPECT_TRUE(store_->CreateAttempt({.run = "b"}).ok());
      }
    }
  }
}

TEST_F(StoreDamageTest, ABackupWithoutLogsNamesEachOfThem) {
  Fill(100);
  FreshCopy();
  const auto logs = Matching("[0-9]+\\.log");
  for (const std::string& log : logs) fs::remove(copy_ / log);
  const Status opened = TryOpen(copy_);
  for (const std::string& log : logs)
    EXPECT_THAT(opened.message(), HasSubstr("'" + log + "' is missing"));
  EXPECT_THAT(opened.message(), HasSubstr("--accept-loss"));
}

TEST_F(StoreDamageTest, AManifestCutToHalfInAStoreThatWasKilledIsRefusedBeforeATableIsDeleted) {
  Fill(150);
  fs::copy(whole_, copy_);  // as a kill leaves it: the store is open
  const std::string manifest = Matching("MANIFEST-.*").back();
  fs::resize_file(copy_ / manifest, fs::file_size(copy_ / manifest) / 2);
  const auto before = Names(copy_);
  const Status opened = TryOpen(copy_);
  EXPECT_EQ(opened.code(), Code::kDataLoss) << opened.message();
  EXPECT_THAT(opened.message(), HasSubstr(manifest));
  EXPECT_EQ(Names(copy_), before);
}

// A store of before the file SYNCED: only its tables can tell.
TEST_F(StoreDamageTest, AManifestCutInAStoreOfAnEarlierBuildIsSeenByTheTablesThatItHasLost) {
  Fill(150);
  ASSERT_TRUE(store_->Checkpoint(root_ / "any")
                  .ok());  // what was in logs is in tables now, and the logs are gone
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(ledger_.AppendGroup(*store_).ok());
  store_.reset();
  const std::string manifest = Matching("MANIFEST-.*").back();
  const auto size = fs::file_size(whole_ / manifest);
  int seen = 0;
  for (std::uintmax_t twentieths = 1; twentieths <= 20; ++twentieths) {
    SCOPED_TRACE(std::to_string(twentieths) + " twentieths of the MANIFEST");
    FreshCopy();
    fs::remove(copy_ / "SYNCED");
    ASSERT_TRUE(SetFormatWord(copy_, kStoreFormatVersion, kSyncedWord, false).ok());
    fs::resize_file(copy_ / manifest, size * twentieths / 20);
    const auto before = Names(copy_);
    const Status opened = TryOpen(copy_);
    if (opened.ok()) {
      EXPECT_TRUE(ledger_.ReadExactly(*store_).ok()) << "what it opens is whole";
      EXPECT_TRUE(fs::exists(copy_ / "SYNCED"));
    } else {
      seen += opened.message().find(".sst' holds records that the MANIFEST does not know") !=
              std::string::npos;
      for (const std::string& name : before)
        EXPECT_TRUE(fs::exists(copy_ / name)) << name << " was deleted";
    }
  }
  EXPECT_GT(seen, 0);
}

// As a collector of before the file SYNCED: it opens the store, makes a MANIFEST, and knows nothing
// of the mark.
TEST_F(StoreDamageTest, AStoreThatABuildWithoutTheMarkHasOpenedInBetweenOpens) {
  Fill(100);
  store_.reset();
  {
    std::vector<std::string> names;
    ASSERT_TRUE(rocksdb::DB::ListColumnFamilies({}, whole_, &names).ok());
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    for (const std::string& name : names)
      families.emplace_back(name, rocksdb::ColumnFamilyOptions());
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* opened = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open({}, whole_, families, &handles, &opened).ok());
    const std::unique_ptr<rocksdb::DB> db(opened);
    for (auto* family : handles) (void)db->DestroyColumnFamilyHandle(family);
    ASSERT_TRUE(db->Close().ok());
  }
  const Status opened = TryOpen(whole_);
  ASSERT_TRUE(opened.ok()) << opened.message();
  const Status read = ledger_.ReadExactly(*store_);
  EXPECT_TRUE(read.ok()) << read.message();
}

TEST_F(StoreDamageTest, AStoreWithoutSyncsThatWasClosedKnowsWhatItHad) {
  auto opened = OpenRocksDbStore(whole_, {.fsync = false});
  ASSERT_TRUE(opened.ok());
  ASSERT_TRUE((*opened)->CreateAttempt({.run = "a"}).ok());
  ledger_.Add((*opened)->Attempts("a")->front().id, 2);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(ledger_.AppendGroup(**opened).ok());
  opened->reset();
  FreshCopy();
  const std::string log = Matching("[0-9]+\\.log").back();
  fs::resize_file(copy_ / log, fs::file_size(copy_ / log) - 1);
  EXPECT_THAT(OpenRocksDbStore(copy_, {.fsync = false}).status().message(), HasSubstr(log));
}

TEST_F(StoreDamageTest, ACheckpointWithoutItsManifestOrCutIsRefusedAndAWholeOneIsRestored) {
  Fill(100);
  ASSERT_TRUE(store_->Checkpoint(root_ / "checkpoint").ok());
  store_.reset();
  EXPECT_TRUE(fs::exists(root_ / "checkpoint" / "SYNCED"));
  ASSERT_TRUE(RestoreCheckpoint(root_ / "checkpoint", root_ / "restored").ok());
  ASSERT_TRUE(TryOpen(root_ / "restored").ok());
  EXPECT_TRUE(ledger_.ReadExactly(*store_).ok());
  for (const std::string& name : Names(root_ / "checkpoint")) {
    if (!IsJournal(name) || fs::file_size(root_ / "checkpoint" / name) == 0) continue;
    SCOPED_TRACE(name);
    const std::string bytes = Contents(root_ / "checkpoint" / name);
    Replace(root_ / "checkpoint" / name, bytes.substr(0, bytes.size() / 2));
    const Status restored = RestoreCheckpoint(root_ / "checkpoint", root_ / "again");
    EXPECT_THAT(restored.message(), HasSubstr(name));
    EXPECT_FALSE(fs::exists(root_ / "again"));
    Replace(root_ / "checkpoint" / name, bytes);
  }
}

TEST(SyncedMark, GoldenBytes) {
  std::string directory = ::testing::TempDir() + "/statcollect_mark_XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const auto files = rocksdb::FileSystem::Default();
  const SyncedLengths lengths = {{"000012.log", 345}, {"MANIFEST-000011", 678}};
  ASSERT_TRUE(WriteSyncedMark(*files, directory, lengths).ok());
  const std::string blank = std::string(63, ' ') + "\n";
  const auto line = [](std::string text) { return text.append(63 - text.size(), ' ') + "\n"; };
  std::string golden = line("statcollect synced 1") + line("000012.log 345 7c7d0ced") +
                       line("MANIFEST-000011 678 05fdde5c");
  for (int i = 3; i < 64; ++i) golden += blank;
  EXPECT_EQ(Contents(directory + "/SYNCED"), golden);
  EXPECT_EQ(*ReadSyncedMark(*files, directory), lengths);
  auto mark = SyncedMark::Open(files, directory, lengths, [](const std::string&) {});
  ASSERT_TRUE(mark.ok());
  (*mark)->Created("000013.log");
  (*mark)->Synced("000013.log", 9);
  EXPECT_EQ(*ReadSyncedMark(*files, directory), lengths)
      << "its name may be gone after a power cut";
  (*mark)->DirectorySynced((*mark)->Unnamed());
  ASSERT_TRUE((*mark)->Forget("000012.log").ok());
  (*mark)->Synced("MANIFEST-000011", 700);
  EXPECT_EQ(*ReadSyncedMark(*files, directory),
            (SyncedLengths{{"000013.log", 9}, {"MANIFEST-000011", 700}}));
  fs::remove_all(directory);
}

}  // namespace
}  // namespace statcollect
