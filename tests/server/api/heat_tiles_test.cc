// Tiles of a heat map against the map of the diff itself: every resolution is the maximum of what
// it covers.
#include "server/api/heat_tiles.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/endian.h"
#include "server/query/diff/joined_heat_map.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::api {
namespace {

using testing::FakeStore;
using ::testing::HasSubstr;
using testing::Key;
using testing::RunWriter;
using Json = nlohmann::json;

struct ReadTile {
  std::uint32_t Number(int index) const {
    return LoadLittleEndian<std::uint32_t>(bytes.data() + 8 + 4 * index);
  }
  std::uint32_t columns() const { return Number(1); }
  std::uint32_t rows() const { return Number(3); }
  int At(std::uint32_t row, std::uint32_t column) const {
    return static_cast<unsigned char>(bytes.at(64 + std::size_t{row} * columns() + column));
  }
  Json labels() const { return Json::parse(bytes.substr(64 + std::size_t{rows()} * columns())); }
  std::string bytes;
};

class HeatTilesTest : public ::testing::Test {
 protected:
  static constexpr int kTensors = 7;
  void Write(const std::string& run, std::uint64_t first, std::uint64_t end, double wrong) {
    RunWriter& writer = writers_.try_emplace(run, store_, run).first->second;
    for (std::uint64_t step = first; step < end; ++step) {
      for (int i = 0; i < kTensors; ++i) {
        testing::Tensor tensor{.dtype = DType::kF32};
        for (int v = 0; v < 64; ++v)
          tensor.values.push_back(std::sin(v + 1.0) *
                                  (1 + wrong * static_cast<double>((step * 7 + i) % 11)));
        writer.Observe(0, step, Key("t" + std::to_string(i), Kind::kOutput), tensor);
      }
    }
    writer.Commit();
  }
  static v1::GetHeatMapRequest Ask(std::uint32_t zoom_steps = 0, std::uint32_t zoom_tensors = 0,
                                   std::uint32_t column = 0, std::uint32_t row = 0) {
    v1::GetHeatMapRequest request;
    request.set_run_a("a");
    request.set_run_b("b");
    request.set_zoom_steps(zoom_steps);
    request.set_zoom_tensors(zoom_tensors);
    request.set_column(column);
    request.set_row(row);
    return request;
  }
  ReadTile Get(const v1::GetHeatMapRequest& request) {
    auto tile = tiles_.Get(request, {});
    EXPECT_TRUE(tile.ok()) << tile.status().message();
    return {.bytes = tile.ok() ? *tile : std::string(64, '\0')};
  }
  query::HeatMap Whole() {
    auto report = engine_.Diff({.run_a = "a",
                                .run_b = "b",
                                .heat_map_columns = query::kHeatMapWhole,
                                .heat_map_rows = query::kHeatMapWhole});
    return *report->heat_map;
  }

  FakeStore store_;
  std::map<std::string, RunWriter> writers_;
  bool open_ = false;
  query::QueryEngine engine_{store_, [this](AttemptId, std::uint32_t) { return open_; }};
  HeatTiles tiles_{engine_,
                   {.least = std::chrono::milliseconds(0), .most = std::chrono::milliseconds(1)}};
};

TEST_F(HeatTilesTest, EveryResolutionIsTheMaximumOfTheMapOfTheDiff) {
  Write("a", 0, 700, 0);
  Write("b", 0, 700, 1e-3);
  const query::HeatMap map = Whole();
  ASSERT_EQ(map.columns.size(), 700u);
  ASSERT_EQ(map.rows.size(), std::size_t{kTensors});
  for (const std::uint32_t zoom_steps : {0u, 1u, 5u, 12u}) {
    for (const std::uint32_t zoom_tensors : {0u, 1u, 31u}) {
      const std::uint32_t total = ((700 - 1) >> zoom_steps) + 1;
      for (std::uint32_t column = 0; column * 512 < total; ++column) {
        const ReadTile tile = Get(Ask(zoom_steps, zoom_tensors, column));
        EXPECT_EQ(tile.Number(0), column * 512);
        EXPECT_EQ(tile.Number(4), total);
        EXPECT_EQ(tile.Number(6), 700u);
        ASSERT_EQ(tile.columns(), std::min(512u, total - column * 512));
        const Json labels = tile.labels();
        ASSERT_EQ(labels["rows"].size(), tile.rows());
        ASSERT_EQ(labels["first_steps"].size(), tile.columns());
        ASSERT_EQ(labels["last_steps"].size(), tile.columns());
        for (std::uint64_t x = 0; x < tile.columns(); ++x) {  // the steps are 0, 1, 2 and so on
          const std::uint64_t at = column * 512 + x;
          ASSERT_EQ(labels["first_steps"][x], at << zoom_steps);
          ASSERT_EQ(labels["last_steps"][x],
                    std::min<std::uint64_t>(700, (at + 1) << zoom_steps) - 1);
        }
        for (std::uint64_t y = 0; y < tile.rows(); ++y)
          ASSERT_EQ(labels["rows"][y]["activation"], map.rows[y << zoom_tensors].activation);
        EXPECT_EQ(tile.Number(8), map.origin_column) << "of the finest map";
        EXPECT_EQ(tile.Number(9), map.origin_row);
        for (std::uint32_t y = 0; y < tile.rows(); ++y) {
          for (std::uint32_t x = 0; x < tile.columns(); ++x) {
            int most = 0;
            for (std::uint64_t r = std::uint64_t{y} << zoom_tensors;
                 r < std::min<std::uint64_t>(kTensors, std::uint64_t{y + 1} << zoom_tensors); ++r) {
              for (std::uint64_t c = std::uint64_t{column * 512 + x} << zoom_steps;
                   c <
                   std::min<std::uint64_t>(700, std::uint64_t{column * 512 + x + 1} << zoom_steps);
                   ++c)
                most = std::max(most, int{static_cast<unsigned char>(map.cells[r * 700 + c])});
            }
            ASSERT_EQ(tile.At(y, x), most)
                << zoom_steps << " " << zoom_tensors << " " << y << " " << x;
          }
        }
      }
    }
  }
  EXPECT_EQ(Get(Ask(1, 31)).labels()["rows"][0]["tensors"], kTensors);
}

TEST_F(HeatTilesTest, ALiveMapIsContinuedAndIsWhatTheDiffSays) {
  open_ = true;
  Write("a", 0, 40, 0);
  Write("b", 0, 20, 1e-3);
  EXPECT_EQ(Get(Ask()).columns(), 20u);
  Write("b", 20, 40, 1e-3);  // of the same launch
  ReadTile tile = Get(Ask());
  for (int n = 0; n < 400 && tile.columns() < 40; ++n) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    tile = Get(Ask());
  }
  const query::HeatMap map = Whole();
  ASSERT_EQ(tile.columns(), 40u);
  EXPECT_EQ(tile.bytes.substr(64, map.cells.size()), map.cells);
}

TEST_F(HeatTilesTest, SaysWhatItCannotDo) {
  Write("a", 0, 3, 0);
  Write("b", 0, 3, 1e-3);
  const auto beyond = tiles_.Get(Ask(0, 0, 1), {});
  EXPECT_EQ(beyond.status().code(), Code::kOutOfRange);
  EXPECT_THAT(beyond.status().message(), HasSubstr("expected 0..0"));
  EXPECT_EQ(tiles_.Get(Ask(32), {}).status().code(), Code::kInvalidArgument);
  v1::GetHeatMapRequest unknown = Ask();
  unknown.set_run_b("nobody");
  EXPECT_EQ(tiles_.Get(unknown, {}).status().code(), Code::kNotFound);
  std::stop_source stop;
  stop.request_stop();
  v1::GetHeatMapRequest exact = Ask();
  exact.set_exact(true);
  EXPECT_EQ(tiles_.Get(exact, stop.get_token()).status().code(), Code::kCancelled);
  EXPECT_EQ(Get(exact).columns(), 3u) << "who was stopped leaves the place to the next one";
}

TEST_F(HeatTilesTest, RunsThatShareNothingHaveAnEmptyTile) {
  Write("a", 0, 3, 0);
  RunWriter other(store_, "b", 1);
  other.Observe(0, 0, Key("else", Kind::kOutput), {.values = {1, 2}});
  other.Commit();
  const ReadTile tile = Get(Ask());
  EXPECT_EQ(tile.columns(), 0u);
  EXPECT_EQ(tile.rows(), 0u);
}

TEST(JoinedHeatMap, PutsNewTensorsWhereTheyAreExecuted) {
  using query::HeatMap;
  const auto map = [](std::initializer_list<const char*> names, std::uint64_t first,
                      const std::string& cells) {
    HeatMap made{.cells = cells};
    for (const char* name : names) made.rows.push_back({.activation = name});
    for (std::uint64_t step = first; step < first + cells.size() / names.size(); ++step)
      made.columns.push_back({.first = step, .last = step});
    return made;
  };
  HeatMap old = map({"b", "d"}, 0, std::string("\1\2\3\4\5\6", 6));
  HeatMap tail = map({"a", "b", "c", "d"}, 2, std::string("\11\12\13\14\15\16\17\20", 8));
  tail.origin_row = 2;
  tail.origin_column = 1;
  const HeatMap joined = query::JoinedHeatMap(old, tail);
  std::string names;
  for (const query::HeatMapRow& row : joined.rows) names += row.activation;
  EXPECT_EQ(names, "abcd");
  EXPECT_EQ(joined.columns.size(), 4u);
  EXPECT_EQ(joined.cells, std::string("\0\0\11\12"
                                      "\1\2\13\14"
                                      "\0\0\15\16"
                                      "\4\5\17\20",
                                      16));
  EXPECT_EQ(joined.origin_row, 2u);
  EXPECT_EQ(joined.origin_column, 3u);
  old.origin_row = 1;
  old.origin_column = 0;
  EXPECT_EQ(query::JoinedHeatMap(old, tail).origin_row, 3u);
  EXPECT_EQ(query::JoinedHeatMap(old, HeatMap()).columns.size(), 3u);
}

}  // namespace
}  // namespace statcollect::api
