// Numbers that a scan decodes in columns are those of the records, whatever else it decodes before
// and after.
#include <stdlib.h>

#include <bit>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "server/store/rocksdb/rocksdb_store.h"
#include "tests/server/store/store_contents.h"
#include "tests/support/random_batch.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;

void WriteSteps(Store& store, AttemptId attempt) {
  Stream stream(store, attempt, 0);
  for (std::uint64_t step = 0; step < 60; ++step) {
    RecordBatch batch = testing::RandomBatch(
        step, step * 303 + 1,
        {.activations = 300, .first_step = step, .steps = 1, .define = step == 0});
    if (step % 5 == 1)
      batch.stats =
          testing::RandomBatch(0, 1, {.activations = 300, .first_step = step, .steps = 1}).stats;
    for (std::uint32_t i = 0; i < 300 && step % 3 != 0; i += 2) batch.stats.stats[i].l1 += 0.5;
    stream.Append(batch);
  }
}

void ExpectNumbersOf(const StatColumns& block, const NumberColumns& numbers, NumberSet which) {
  ASSERT_EQ(numbers.size, block.size());
  const auto same = [](std::uint64_t number, double value) {
    return number == (std::bit_cast<std::uint64_t>(value) & kMagnitude);
  };
  for (std::size_t i = 0; i < block.size(); ++i) {
    const TensorStats& expected = block.stats[i];
    ASSERT_EQ(numbers.activation[i], block.activation[i]);
    ASSERT_EQ(numbers.layout[i], block.layout[i]);
    ASSERT_EQ(numbers.order[i], block.order[i]);
    ASSERT_EQ((numbers.flags[i] & kHasFinite) != 0, expected.has_finite);
    ASSERT_EQ(numbers.numel[i], expected.numel);
    ASSERT_EQ(numbers.nan[i], expected.nan);
    ASSERT_EQ(numbers.zero[i], expected.zero);
    ASSERT_EQ(numbers.pos[i], expected.pos);
    ASSERT_TRUE(same(numbers.mean[i], expected.mean) && same(numbers.std[i], expected.std));
    ASSERT_TRUE(same(numbers.l2[i], expected.l2));
    if (which == NumberSet::kNorms) continue;
    ASSERT_TRUE(same(numbers.l1[i], expected.l1));
    ASSERT_TRUE(same(numbers.min[i], expected.min) && same(numbers.max[i], expected.max));
    ASSERT_EQ(numbers.hash[i], expected.hash);
  }
}

void ReadInTurns(Store& store, AttemptId attempt, std::uint64_t seed) {
  using testing::operator==;
  std::mt19937_64 rng(seed);
  const auto whole = store.ScanStats(attempt, 0, {}), scan = store.ScanStats(attempt, 0, {});
  StatColumns records;
  HashColumns hashes;
  while (whole->Next()) {
    ASSERT_TRUE(scan->NextHead());
    const StatColumns& block = whole->block().columns;
    const std::uint64_t how = rng() % 8;
    if (how < 4) {
      const NumberSet which = how < 2 ? NumberSet::kNorms : NumberSet::kAll;
      const NumberColumns* const numbers = scan->Numbers(which);
      ASSERT_NE(numbers, nullptr) << scan->status().message();
      ASSERT_NO_FATAL_FAILURE(ExpectNumbersOf(block, *numbers, which));
    } else if (how == 4) {
      ASSERT_TRUE(scan->LoadHashes(&hashes));
      ASSERT_EQ(hashes.hash, HashesOf(block).hash);
    } else if (how == 5) {
      const NumberColumns* const columns = scan->Columns();
      ASSERT_NE(columns, nullptr) << scan->status().message();
      ASSERT_EQ(columns->hash[0], block.stats[0].hash);
      ASSERT_EQ(columns->max[1], std::bit_cast<std::uint64_t>(block.stats[1].max));
    } else if (how == 6) {
      ASSERT_TRUE(scan->Load(/*sketches=*/true, &records));
      ASSERT_TRUE(records == block);
    }
  }
  EXPECT_TRUE(scan->status().ok() && !scan->NextHead());
}

// The second attempt's blocks are aliases of the first one's.
TEST(ScanNumbers, AreThoseOfTheRecords) {
  std::string directory = ::testing::TempDir() + "/statcollect_numbers_XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  auto store = OpenRocksDbStore(directory);
  ASSERT_TRUE(store.ok());
  for (const char* const run : {"base", "again"}) {
    const AttemptId attempt =
        (*store)->CreateAttempt({.run = run, .launch = "l", .world_size = 1})->id;
    WriteSteps(**store, attempt);
    for (std::uint64_t seed = 0; seed < 30; ++seed)
      ASSERT_NO_FATAL_FAILURE(ReadInTurns(**store, attempt, seed)) << run << ' ' << seed;
  }
  store->reset();
  fs::remove_all(directory);
}

}  // namespace
}  // namespace statcollect
