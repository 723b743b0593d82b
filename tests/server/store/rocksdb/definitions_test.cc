// Definitions that the store keeps for later calls and other ranks are those that are stored.
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "server/store/rocksdb/definition_cache.h"
#include "server/store/rocksdb/rocksdb_store.h"
#include "tests/server/store/step_batch.h"
#include "tests/server/store/store_contents.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;
using Shared = DefinitionCache::Shared;

class DefinitionsTest : public ::testing::Test {
 protected:
  DefinitionsTest() {
    std::string pattern = ::testing::TempDir() + "/statcollect_definitions_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    Open();
    attempt_ = store_->CreateAttempt({.run = "r", .launch = "l", .world_size = 4})->id;
  }
  ~DefinitionsTest() override {
    store_.reset();
    fs::remove_all(directory_);
  }
  void Open() {
    store_.reset();
    auto opened = OpenRocksDbStore(directory_);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    store_ = *std::move(opened);
  }
  void Write(std::uint32_t rank, const RecordBatch& batch) {
    Append(*store_, attempt_, rank, batch);
    const auto add = [](const auto& from, auto& to) {
      for (const auto& each : from) {
        to.resize(std::max<std::size_t>(to.size(), each.id + 1));
        to[each.id] = each;
      }
    };
    add(batch.activations, written_[rank].activations);
    add(batch.layouts, written_[rank].layouts);
  }
  // Of a rank, and whether they are what was written.
  Shared Read(std::uint32_t rank) {
    const auto read = store_->Definitions(attempt_, rank);
    EXPECT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ((*read)->activations, written_[rank].activations);
    EXPECT_EQ((*read)->layouts, written_[rank].layouts);
    return *read;
  }

  std::string directory_;
  std::unique_ptr<Store> store_;
  AttemptId attempt_ = 0;
  std::map<std::uint32_t, RankDefinitions> written_;  // by rank
};

TEST_F(DefinitionsTest, AreReadOnceAndSharedByRanksThatStoreTheSame) {
  for (std::uint32_t rank = 0; rank < 3; ++rank) Write(rank, MakeBatch(1, 0, 0, rank == 2 ? 4 : 3));
  const Shared first = Read(0);
  EXPECT_EQ(first->activations.size(), 3u);
  EXPECT_EQ(Read(0), first);
  EXPECT_EQ(Read(1), first);
  EXPECT_NE(Read(2), first);
  EXPECT_TRUE(Read(3)->activations.empty());
}

TEST_F(DefinitionsTest, OfALiveRankGrow) {
  Write(0, MakeBatch(1, 0, 0, 3));
  Write(1, MakeBatch(1, 0, 0, 3));
  const Shared before = Read(0);
  EXPECT_EQ(Read(1), before);
  RecordBatch more = MakeBatch(7, 1, 3, 2);
  more.layouts.push_back({.id = 1, .dtype = DType::kF16, .shape = {7}});
  Write(0, more);
  const Shared after = Read(0);
  EXPECT_EQ(after->activations.size(), 5u);
  EXPECT_EQ(after->layouts.size(), 2u);
  EXPECT_EQ(before->activations.size(), 3u) << "whoever holds the older ones may go on";
  EXPECT_EQ(Read(1), before);
  RecordBatch layout = MakeBatch(12, 2, 0, 3);
  layout.activations.clear();
  layout.layouts = {{.id = 2, .dtype = DType::kF64, .shape = {9}}};
  Write(0, layout);
  EXPECT_EQ(Read(0)->layouts.size(), 3u);
}

TEST_F(DefinitionsTest, AreGoneWithTheAttempt) {
  Write(0, MakeBatch(1, 0, 0, 3));
  EXPECT_EQ(Read(0)->activations.size(), 3u);
  ASSERT_TRUE(store_->DropAttempts({&attempt_, 1}).ok());
  written_.clear();
  EXPECT_TRUE(Read(0)->activations.empty());
}

RankDefinitions Named(const std::string& name, std::size_t count = 1) {
  RankDefinitions definitions;
  for (std::uint32_t id = 0; id < count; ++id)
    definitions.activations.push_back({.id = id, .key = {.name = name}});
  return definitions;
}

TEST(DefinitionCache, FindsOnlyAsManyAsThereAre) {
  DefinitionCache cache;
  const Shared kept = cache.Keep(1, 0, "stored", Named("a", 2));
  EXPECT_EQ(cache.Find(1, 0, {.activations = 2}), kept);
  EXPECT_EQ(cache.Find(1, 0, {.activations = 3}), nullptr);
  EXPECT_EQ(cache.Find(1, 0, {.activations = 1}), nullptr);
  EXPECT_EQ(cache.Find(1, 0, {.activations = 2, .layouts = 1}), nullptr);
  EXPECT_EQ(cache.Find(1, 1, {.activations = 2}), nullptr);
  EXPECT_EQ(cache.Find(2, 0, {.activations = 2}), nullptr);
}

TEST(DefinitionCache, RanksThatStoreTheSameShareItUntilOneHasMore) {
  DefinitionCache cache;
  const Shared first = cache.Keep(1, 0, "stored", Named("a"));
  EXPECT_EQ(cache.FindStored(1, 1, "other"), nullptr);
  EXPECT_EQ(cache.FindStored(1, 1, "stored"), first);
  EXPECT_EQ(cache.Keep(1, 2, "stored", Named("a")), first) << "another thread was first";
  const std::size_t one = cache.bytes();
  const Shared more = cache.Keep(1, 0, "stored and more", Named("a", 2));
  EXPECT_EQ(cache.Find(1, 0, {.activations = 2}), more);
  EXPECT_EQ(cache.Find(1, 1, {.activations = 1}), first);
  EXPECT_GT(cache.bytes(), 2 * one);
  for (const std::uint32_t rank : {1u, 2u})
    EXPECT_EQ(cache.FindStored(1, rank, "stored and more"), more);
  EXPECT_EQ(cache.FindStored(1, 3, "stored"), nullptr) << "nobody has it";
  EXPECT_LT(cache.bytes(), 2 * one + sizeof(TensorDef));
}

TEST(DefinitionCache, DropsWhatWasNotAskedForTheLongest) {
  const std::string kText(1000, 'x');
  DefinitionCache cache(10'000);
  for (std::uint32_t rank = 0; rank < 100; ++rank) {
    const Shared kept =
        cache.Keep(1, rank, kText + std::to_string(rank), Named("t" + std::to_string(rank)));
    EXPECT_EQ(kept->activations[0].key.name, "t" + std::to_string(rank));
    EXPECT_LE(cache.bytes(), 10'000u);
    EXPECT_NE(cache.Find(1, 0, {.activations = 1}), nullptr) << "it is asked for again and again";
    EXPECT_EQ(cache.Find(1, rank, {.activations = 1}), kept);
  }
  EXPECT_EQ(cache.Find(1, 50, {.activations = 1}), nullptr);
  const Shared large = cache.Keep(2, 0, std::string(20'000, 'y'), Named("large"));
  EXPECT_EQ(large->activations[0].key.name, "large");
  EXPECT_EQ(cache.Find(2, 0, {.activations = 1}), nullptr);
  EXPECT_NE(cache.Find(1, 0, {.activations = 1}), nullptr)
      << "it makes no room for what is too large";
}

TEST(DefinitionCache, KnowsSoManyRanksAtMost) {
  DefinitionCache cache;
  (void)cache.Keep(1, 0, "stored", Named("a"));
  const std::size_t one = cache.bytes();
  for (std::uint32_t rank = 1; rank <= DefinitionCache::kRanksMax; ++rank)
    ASSERT_NE(cache.FindStored(1, rank, "stored"), nullptr);
  EXPECT_EQ(cache.Find(1, 0, {.activations = 1}), nullptr);
  EXPECT_NE(cache.Find(1, DefinitionCache::kRanksMax, {.activations = 1}), nullptr);
  EXPECT_EQ(cache.bytes(), one);
}

}  // namespace
}  // namespace statcollect
