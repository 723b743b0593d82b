// A map whose blocks are read as columns, from a real store, is one whose blocks are read as
// records.
#include "server/query/diff/level_columns.h"

#include <stdlib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/query/answers/stat_map.h"
#include "server/store/rocksdb/rocksdb_store.h"
#include "tests/server/query/ask.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/forwarding_store.h"

namespace statcollect::query {
namespace {

namespace fs = std::filesystem;
using testing::Ask;
using testing::Key;
using testing::RunWriter;
using testing::Tensor;

// Counts blocks that are read as columns and blocks that are read as records; has no columns if so
// asked.
class CountingStore final : public testing::ForwardingStore {
 public:
  CountingStore(Store& store, bool has_columns)
      : ForwardingStore(store), has_columns_(has_columns) {}
  std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank,
                                      StepBounds steps) override {
    return std::make_unique<Scan>(store_.ScanStats(attempt, rank, steps), *this);
  }
  std::atomic<int> columns{0}, records{0};

 private:
  class Scan final : public StatScan {
   public:
    Scan(std::unique_ptr<StatScan> scan, CountingStore& store)
        : scan_(std::move(scan)), store_(store) {}
    bool NextHead() override { return scan_->NextHead(); }
    const BlockHead& head() const override { return scan_->head(); }
    bool Load(bool sketches, StatColumns* columns) override {
      ++store_.records;
      return scan_->Load(sketches, columns);
    }
    bool LoadHashes(HashColumns* columns) override { return scan_->LoadHashes(columns); }
    const NumberColumns* Numbers(NumberSet wanted) override {
      if (!store_.has_columns_) return nullptr;
      ++store_.columns;
      return scan_->Numbers(wanted);
    }
    const Status& status() const override { return scan_->status(); }
    std::uint64_t bytes_read() const override { return scan_->bytes_read(); }

   private:
    const std::unique_ptr<StatScan> scan_;
    CountingStore& store_;
  };
  const bool has_columns_;
};

std::string TextOf(const v1::GetStatMapResponse& map) {
  std::ostringstream out;
  for (int i = 0; i < map.first_steps_size(); ++i)
    out << map.first_steps(i) << '-' << map.last_steps(i) << ' ';
  for (const v1::HeatMapRow& row : map.rows())
    out << '\n' << row.activation() << ' ' << row.kind() << ' ' << row.tensors();
  out << '\n' << map.tensors() << ' ' << map.steps() << '\n';
  for (std::size_t i = 0; i + 1 < map.cells().size(); i += 2)
    out << (static_cast<unsigned char>(map.cells()[i]) << 8 |
            static_cast<unsigned char>(map.cells()[i + 1]))
        << ' ';
  return out.str();
}

constexpr std::array kStatistics = {
    TopBy::kUnspecified, TopBy::kL2,           TopBy::kL1,   TopBy::kAbsMax, TopBy::kRms,
    TopBy::kStd,         TopBy::kMean,         TopBy::kMax,  TopBy::kMin,    TopBy::kNan,
    TopBy::kInf,         TopBy::kZeroFraction, TopBy::kNumel};

class LevelColumnsTest : public ::testing::Test {
 protected:
  LevelColumnsTest() {
    std::string pattern = ::testing::TempDir() + "/statcollect_levels_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    auto opened = OpenRocksDbStore(directory_);
    EXPECT_TRUE(opened.ok());
    store_ = *std::move(opened);
  }
  ~LevelColumnsTest() override {
    store_.reset();
    fs::remove_all(directory_);
  }
  // By columns alone; the same by records.
  v1::GetStatMapResponse Map(const StatMapRequest& request) {
    CountingStore columns(*store_, true), records(*store_, false);
    const auto by_columns = Ask(columns, GetStatMap, request);
    const auto by_records = Ask(records, GetStatMap, request);
    EXPECT_TRUE(by_columns.ok() && by_records.ok());
    EXPECT_EQ(TextOf(*by_columns), TextOf(*by_records)) << static_cast<int>(request.by);
    EXPECT_EQ(columns.records, 0);
    EXPECT_TRUE(by_columns->rows().empty() || columns.columns > 0);
    return *by_columns;
  }
  void MapOfEach(const std::string& run) {
    for (const TopBy by : kStatistics) {
      for (const std::vector<Kind>& kinds : {std::vector<Kind>{}, {Kind::kBatch, Kind::kOutput}})
        (void)Map({.run = run, .by = by, .kinds = kinds});
    }
    EXPECT_FALSE(
        Map({.run = run, .ranks = {1}, .steps = "2-3", .columns = 1, .rows = 7}).rows().empty());
  }

  std::string directory_;
  std::unique_ptr<Store> store_;
};

double RandomValue(std::mt19937_64& rng) {
  const std::uint64_t how = rng() % 40;
  if (how == 0) return std::numeric_limits<double>::quiet_NaN();
  if (how == 1) return rng() % 2 == 0 ? INFINITY : -INFINITY;
  if (how < 6) return rng() % 2 == 0 ? 0.0 : -0.0;
  return std::ldexp(std::normal_distribution<double>()(rng), static_cast<int>(rng() % 60) - 30);
}

Tensor RandomTensor(std::mt19937_64& rng) {
  constexpr std::array kTypes = {DType::kF32, DType::kF32, DType::kBf16, DType::kC64, DType::kI64};
  Tensor tensor{.values = std::vector<double>(rng() % 5), .dtype = kTypes[rng() % kTypes.size()]};
  for (double& value : tensor.values)
    value = tensor.dtype == DType::kI64 ? double(rng() % 9) : RandomValue(rng);
  return tensor;
}

TEST_F(LevelColumnsTest, AreThoseOfTheRecords) {
  std::mt19937_64 rng(7);
  RunWriter run(*store_, "r", 2);
  for (std::uint64_t step = 0; step < 6; ++step) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      for (int i = 0; i < 600; ++i) {
        const Kind kind = i % 9 == 0 ? Kind::kBatch : i % 5 == 0 ? Kind::kWeight : Kind::kOutput;
        if (step % 2 == 1 && i % 50 == 3) continue;
        run.Observe(rank, step, Key("t" + std::to_string(i), kind), RandomTensor(rng));
      }
    }
  }
  run.Commit();
  MapOfEach("r");
}

TEST_F(LevelColumnsTest, AreThoseOfRecordsThatLackStatistics) {
  std::mt19937_64 rng(8);
  for (int at = 0; at < kStatisticCount; ++at) {
    const auto absent = static_cast<Statistic>(at);
    for (const bool some : {false, true}) {
      const std::string name = std::to_string(at) + (some ? " of some" : " of all");
      RunWriter run(*store_, name, 2);
      for (std::uint64_t step = 0; step < 4; ++step) {
        for (std::uint32_t rank = 0; rank < 2; ++rank) {
          for (int i = 0; i < 40; ++i) {
            if (i == 20 || !some) run.Without({absent});
            run.Observe(rank, step, Key("t" + std::to_string(i)), RandomTensor(rng));
          }
        }
      }
      run.Commit();
      MapOfEach(name);
    }
  }
}

// What agents do not send, and a map shows all the same.
TEST_F(LevelColumnsTest, AreThoseOfRecordsThatMakeNoSense) {
  std::mt19937_64 rng(9);
  RunWriter run(*store_, "r", 2, 0);
  for (std::uint64_t step = 0; step < 4; ++step) {
    for (int i = 0; i < 300; ++i) {
      TensorStats stats{
          .numel = rng() % 3, .nan = rng() % 2 * (rng() % 3), .pos_inf = rng() % 20 == 0};
      stats.has_finite = rng() % 8 != 0;
      for (double* const value :
           {&stats.min, &stats.max, &stats.mean, &stats.std, &stats.l1, &stats.l2})
        *value = stats.has_finite ? std::bit_cast<double>(rng()) : 0;
      for (const std::uint32_t rank : {0u, 1u})
        run.Record(rank, step, Key("t" + std::to_string(i)), {.dtype = DType::kF32, .shape = {2}},
                   stats, {});
    }
  }
  run.Commit();
  MapOfEach("r");
}

TEST_F(LevelColumnsTest, ShowWhatALiveRankDefinesLater) {
  RunWriter run(*store_, "r", 2);
  for (const std::uint64_t step : {0u, 1u}) {
    for (const std::uint32_t rank : {0u, 1u})
      run.Observe(rank, step, Key("first"), {.values = {1}});
  }
  run.Commit();
  EXPECT_EQ(Map({.run = "r"}).tensors(), 1u);
  run.Observe(0, 2, Key("first"), {.values = {2, 3}, .dtype = DType::kF64});
  run.Observe(0, 2, Key("second"), {.values = {7}});
  run.Observe(1, 2, Key("third"), {.values = {9}});
  run.Commit();
  const auto map = Map({.run = "r"});
  EXPECT_EQ(map.tensors(), 3u);
  EXPECT_EQ(map.steps(), 3u);
}

TEST(StatLevels, AreThoseOfEachSize) {
  std::mt19937_64 rng(3);
  std::vector<double> sizes = {0, -1, NAN, INFINITY, 1, 10, 5e-324, 2.2e-308, 1.7e308};
  for (int i = 0; i < 200'000; ++i) sizes.push_back(std::bit_cast<double>(rng() >> 1));
  for (int i = 0; i < 200'000; ++i)
    sizes.push_back(std::exp(std::normal_distribution<double>(0, 8)(rng)));
  // The middles between two levels, and what is nearest to them.
  for (int level = kStatLevelMin; level < kStatLevelMax; ++level) {
    const double middle = std::pow(10, (level + 0.5 - kStatLevelOne) / 512);
    for (const double near : {1 - 3e-16, 1.0, 1 + 3e-16, 1 - 1e-11, 1 + 1e-11, 1 + 1e-7})
      sizes.push_back(middle * near);
  }
  std::vector<std::uint64_t> bits(sizes.size());
  std::ranges::transform(sizes, bits.begin(),
                         [](double size) { return std::bit_cast<std::uint64_t>(size); });
  std::vector<std::uint16_t> levels;
  StatLevels(bits, levels);
  ASSERT_EQ(levels.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i)
    ASSERT_EQ(levels[i], StatLevel(sizes[i])) << sizes[i];
}

}  // namespace
}  // namespace statcollect::query
