// The heat map of a diff: rows in the order of execution, columns of steps, a byte for each cell.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "server/query/compare/heat_cell.h"
#include "server/query/query.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::FakeStore;
using testing::Key;
using testing::RunWriter;
using testing::Tensor;

Tensor Wave(double scale) {
  Tensor tensor{.dtype = DType::kF32};
  for (int i = 0; i < 64; ++i) tensor.values.push_back(scale * std::sin(i + 1.0));
  return tensor;
}

class HeatMapTest : public ::testing::Test {
 protected:
  // The factor that a tensor is scaled by; 0 leaves it out.
  using Factor = std::function<double(std::uint64_t step, std::uint32_t rank,
                                      const std::string& name, Kind kind)>;
  void Write(const std::string& name, const Factor& factor, std::uint64_t steps = 4,
             std::uint32_t ranks = 2) {
    RunWriter run(store_, name, ranks, 16);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (std::uint64_t step = 0; step < steps; ++step) {
        double scale = 1 + 0.1 * static_cast<double>(step);
        const auto put = [&](const std::string& tensor, Kind kind) {
          scale += 0.01;
          const double times = factor ? factor(step, rank, tensor, kind) : 1;
          if (times != 0) run.Observe(rank, step, Key(tensor, kind), Wave(scale * times));
        };
        for (const char* module : {"zebra", "ant", "mole"}) put(module, Kind::kOutput);
        for (const char* module : {"mole", "ant", "zebra"}) put(module, Kind::kGradOutput);
        put("ant.weight", Kind::kWeightGrad);
        put("ant.weight", Kind::kWeight);
      }
    }
    run.Commit();
  }
  DiffReport Ask(DiffRequest request = {}) {
    request.run_a = "a";
    request.run_b = "b";
    if (request.heat_map_columns == 0) request.heat_map_columns = 100;
    auto report = QueryEngine(store_).Diff(request);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : DiffReport();
  }
  static int At(const HeatMap& map, std::size_t row, std::size_t column) {
    return static_cast<std::uint8_t>(map.cells.at(row * map.columns.size() + column));
  }
  FakeStore store_;
};

std::vector<std::string> Names(const HeatMap& map) {
  std::vector<std::string> names;
  for (const HeatMapRow& row : map.rows)
    names.push_back(std::string(Name(row.stage)) + " " + row.activation);
  return names;
}

TEST_F(HeatMapTest, RowsAreInTheOrderOfExecution) {
  Write("a", {});
  Write("b", {});
  const DiffReport report = Ask();
  ASSERT_TRUE(report.heat_map);
  EXPECT_THAT(
      Names(*report.heat_map),
      ElementsAre("forward zebra", "forward ant", "forward mole", "backward mole", "backward ant",
                  "backward zebra", "grad ant.weight", "optimizer ant.weight"));
  EXPECT_EQ(report.heat_map->columns.size(), 4u);
  EXPECT_THAT(report.heat_map->cells, Each(static_cast<char>(kHeatIdentical)));
  EXPECT_FALSE(report.heat_map->origin_row);
}

TEST_F(HeatMapTest, OnlyIfRequested) {
  Write("a", {});
  Write("b", {});
  auto report = QueryEngine(store_).Diff({.run_a = "a", .run_b = "b"});
  ASSERT_TRUE(report.ok());
  EXPECT_FALSE(report->heat_map);
}

TEST_F(HeatMapTest, AgreesWithTheReport) {
  const Factor factor = [](std::uint64_t step, std::uint32_t rank, const std::string& name,
                           Kind kind) {
    if (kind == Kind::kOutput && name == "ant" && step >= 2 && rank == 0)
      return 1.5;  // on one rank only, not the last
    return kind == Kind::kOutput && name == "mole" && step == 1 ? 1 + 1e-6 : 1.0;
  };
  Write("a", {});
  Write("b", factor);
  const DiffReport report = Ask();
  ASSERT_TRUE(report.heat_map);
  const HeatMap& map = *report.heat_map;
  EXPECT_EQ(At(map, 1, 1), kHeatIdentical);
  EXPECT_GE(At(map, 1, 2), kHeatDivergedMin);
  EXPECT_GE(At(map, 1, 3), kHeatDivergedMin);
  EXPECT_GE(At(map, 2, 1), kHeatWithinMin);
  EXPECT_LE(At(map, 2, 1), kHeatWithinMax);
  EXPECT_EQ(At(map, 0, 2), kHeatIdentical);
  ASSERT_TRUE(report.root || report.first);
  EXPECT_EQ(map.origin_row, report.root && report.root->at.activation == "mole" ? 2u : 1u);
  EXPECT_EQ(map.origin_column, (report.root ? report.root->at : *report.first).step);
  // The same report without the map: making it must change nothing.
  auto without = QueryEngine(store_).Diff({.run_a = "a", .run_b = "b"});
  ASSERT_TRUE(without.ok());
  EXPECT_EQ(without->verdict, report.verdict);
  EXPECT_EQ(without->compared.records, report.compared.records);
  EXPECT_EQ(without->compared.identical, report.compared.identical);
  EXPECT_EQ(without->compared.diverged, report.compared.diverged);
  EXPECT_EQ(without->diverged.size(), report.diverged.size());
}

TEST_F(HeatMapTest, ShowsWhatOnlyOneRunHas) {
  const Factor without_ant = [](std::uint64_t, std::uint32_t, const std::string& name, Kind kind) {
    return kind == Kind::kGradOutput && name == "ant" ? 0.0 : 1.0;
  };
  const Factor without_mole = [](std::uint64_t, std::uint32_t, const std::string& name, Kind kind) {
    return kind == Kind::kGradOutput && name == "mole" ? 0.0 : 1.0;
  };
  Write("a", without_ant);
  Write("b", without_mole);
  DiffRequest request;
  request.no_alignment = true;
  const DiffReport report = Ask(request);
  ASSERT_TRUE(report.heat_map);
  const HeatMap& map = *report.heat_map;
  for (std::size_t row = 0; row < map.rows.size(); ++row) {
    const bool alone =
        map.rows[row].stage == Stage::kBackward && map.rows[row].activation != "zebra";
    for (std::size_t column = 0; column < map.columns.size(); ++column)
      EXPECT_EQ(At(map, row, column), alone ? kHeatMissing : kHeatIdentical)
          << map.rows[row].activation;
  }
}

TEST_F(HeatMapTest, MergedCellsKeepTheGreatest) {
  const Factor factor = [](std::uint64_t step, std::uint32_t, const std::string& name, Kind kind) {
    return kind == Kind::kOutput && name == "ant" && step == 4 ? 1.5 : 1.0;
  };
  Write("a", {}, 10);
  Write("b", factor, 10);
  DiffRequest request;
  request.heat_map_columns = 4;
  request.heat_map_rows = 3;
  const DiffReport report = Ask(request);
  ASSERT_TRUE(report.heat_map);
  const HeatMap& map = *report.heat_map;
  ASSERT_EQ(map.columns.size(), 4u);  // of three steps, the last one of one
  ASSERT_EQ(map.rows.size(), 3u);
  EXPECT_EQ(map.rows[0].tensors, 3u);
  EXPECT_EQ(map.tensors, 8u);
  EXPECT_EQ(map.steps, 10u);
  EXPECT_EQ(map.columns[1].first, 3u);
  EXPECT_EQ(map.columns[1].last, 5u);
  EXPECT_EQ(map.columns[3].last, 9u);
  EXPECT_GE(At(map, 0, 1), kHeatDivergedMin);
  EXPECT_EQ(map.origin_row, 0u);
  EXPECT_EQ(map.origin_column, 1u);
  for (const std::size_t column : {0, 2, 3}) EXPECT_EQ(At(map, 0, column), kHeatIdentical);
}

TEST(HeatLevelTest, GrowsWithTheDistance) {
  Comparison judged{.agreement = Agreement::kWithinTolerance, .tolerance = 1e-4};
  const auto level = [&](double distance, Agreement agreement) {
    judged.agreement = agreement;
    judged.distance = Distance{.value = distance};
    return static_cast<int>(HeatLevel(judged));
  };
  EXPECT_EQ(level(1e-4, Agreement::kWithinTolerance), kHeatWithinMax);
  EXPECT_EQ(level(1e-5, Agreement::kWithinTolerance), kHeatWithinMax - 16);
  EXPECT_EQ(level(0, Agreement::kWithinTolerance), kHeatWithinMin);
  EXPECT_EQ(level(1, Agreement::kWithinTolerance), kHeatWithinMax);  // within the noise
  EXPECT_EQ(level(1e-4, Agreement::kDiverged), kHeatDivergedMin);
  EXPECT_EQ(level(1e-2, Agreement::kDiverged), kHeatDivergedMin + 32);
  EXPECT_EQ(level(1e-9, Agreement::kDiverged), kHeatDivergedMin);  // only bits were asked for
  EXPECT_EQ(level(INFINITY, Agreement::kDiverged), kHeatDivergedMax);
  EXPECT_EQ(level(NAN, Agreement::kDiverged), kHeatDivergedMin);
  judged.tolerance = 0;
  EXPECT_EQ(level(0.5, Agreement::kDiverged), kHeatDivergedMax);
  judged.distance.reset();
  EXPECT_EQ(static_cast<int>(HeatLevel(judged)), kHeatDivergedMax);
  judged.agreement = Agreement::kIdentical;
  EXPECT_EQ(static_cast<int>(HeatLevel(judged)), kHeatIdentical);
  judged.agreement = Agreement::kIncomparable;
  EXPECT_EQ(static_cast<int>(HeatLevel(judged)), kHeatNoData);
}

}  // namespace
}  // namespace statcollect::query
