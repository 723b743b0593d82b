// Questions about one run that is cut over its ranks.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/query/answers/series.h"
#include "server/query/answers/top.h"
#include "server/query/records/records_reader.h"
#include "tests/server/query/ask.h"
#include "tests/server/query/logical/cut_tensor.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using namespace statcollect::testing;  // NOLINT: the helpers

const Sizes kShape = {6, 10};

class OneRun : public ::testing::Test {
 protected:
  Whole Values(std::uint64_t step) {
    Random random(step + 1);
    return RandomTensor(random, kShape);
  }
  std::vector<v1::SeriesPoint> Series(const std::string& name, bool by_rank = false) {
    SeriesRequest request{.run = "r", .activation = name};
    request.by_rank = by_rank;
    auto points = Ask(store_, GetSeries, request);
    EXPECT_TRUE(points.ok()) << points.status().message();
    return points.ok() ? std::vector(points->records().begin(), points->records().end())
                       : std::vector<v1::SeriesPoint>();
  }
  v1::GetTopResponse Top(bool by_rank = false) {
    TopRequest request{.run = "r"};
    request.by_rank = by_rank;
    auto top = Ask(store_, GetTop, request);
    EXPECT_TRUE(top.ok()) << top.status().message();
    return top.ok() ? *top : v1::GetTopResponse();
  }

  FakeStore store_;
};

TEST_F(OneRun, SeriesAreOfWholeTensors) {
  RunWriter run(store_, "r", 4);
  for (std::uint64_t step = 0; step < 3; ++step)
    Record(run, step, Key("w"), Values(step), Shards(kShape, 1, 4));
  run.Commit();
  const auto points = Series("w");
  ASSERT_THAT(points, SizeIs(3));
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Computed whole = Compute(Values(step), std::nullopt);
    EXPECT_EQ(points[step].step(), step);
    EXPECT_EQ(points[step].stats().hash(), whole.stats.hash);
    EXPECT_NEAR(points[step].stats().l2(), whole.stats.l2, 1e-6 * whole.stats.l2);
    EXPECT_THAT(points[step].stats().shape(), ElementsAre(6, 10));
    EXPECT_THAT(points[step].ranks(), ElementsAre(0, 1, 2, 3));
  }
  const auto parts = Series("w", /*by_rank=*/true);
  ASSERT_THAT(parts, SizeIs(12));
  EXPECT_EQ(parts[3].rank(), 1u);
  EXPECT_EQ(parts[3].stats().place(), "[0:6, 3:6] of (6, 10)");
  EXPECT_THAT(parts[3].ranks(), IsEmpty());
}

// Of a batch in pieces, beside a weight in shards (FSDP).
TEST_F(OneRun, NormsOfABatchInPiecesAreKept) {
  RunWriter run(store_, "r", 2);
  Record(run, 0, Key("w", Kind::kWeight), Values(0), Shards(kShape, 0, 2));
  for (std::uint32_t piece = 0; piece < 2; ++piece)
    Record(run, 0, Key("out"), Values(piece + 5), {{piece, Piece(kShape, piece, 2)}});
  run.Commit();
  const double x = Compute(Values(5), std::nullopt).stats.l2,
               y = Compute(Values(6), std::nullopt).stats.l2;
  const auto points = Series("out");
  ASSERT_THAT(points, SizeIs(1));
  EXPECT_NEAR(points[0].stats().l2(), std::hypot(x, y), 1e-6 * x);
  EXPECT_EQ(points[0].stats().numel(), 120u);
  EXPECT_FALSE(points[0].stats().has_hash());
}

TEST_F(OneRun, RanksWithoutPartsAreShownAsTheyAre) {
  RunWriter run(store_, "r", 2);
  Record(run, 0, Key("w"), Values(0), Copies(kShape, 2));
  run.Commit();
  EXPECT_THAT(Series("w"), SizeIs(2));
  EXPECT_THAT(Top().records(), SizeIs(2));
  EXPECT_THAT(Top().notes(), IsEmpty());
}

TEST_F(OneRun, TopIsOfWholeTensorsInAStepThatAllRanksHaveReached) {
  RunWriter run(store_, "r", 2);
  Record(run, 0, Key("w"), Values(0), Shards(kShape, 0, 2));
  Record(run, 1, Key("w"), Values(1), {Shards(kShape, 0, 2)[1]});
  run.Commit();
  const v1::GetTopResponse top = Top();
  EXPECT_EQ(top.step(), 0u);
  ASSERT_THAT(top.records(), SizeIs(1));
  const double norm = Compute(Values(0), std::nullopt).stats.l2;
  EXPECT_NEAR(top.records(0).value(), norm, 1e-6 * norm);
  EXPECT_THAT(top.records(0).ranks(), ElementsAre(0, 1));
  EXPECT_THAT(top.notes(), Contains(HasSubstr("--by-rank")));
  EXPECT_EQ(Top(/*by_rank=*/true).step(), 1u);
}

TEST_F(OneRun, ATensorOfUnknownPlaceIsShownRankByRank) {
  RunWriter run(store_, "r", 2);
  Record(run, 0, Key("w"), Values(0), Shards(kShape, 0, 2));
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    Record(run, 0, Key("out"), Values(rank), {{rank, std::nullopt}});
  run.Commit();
  EXPECT_THAT(Series("out"), SizeIs(2));
  const v1::GetTopResponse top = Top();
  EXPECT_THAT(top.records(), SizeIs(3));
  EXPECT_EQ(top.considered(), 3u);
  EXPECT_THAT(top.notes(), Contains(HasSubstr("layout not known: 1 tensor ")));
}

// By step; for each record whether it is of a whole tensor, its rank, name and elements.
std::vector<std::string> Exported(FakeStore& store, const RecordsRequest& request) {
  std::map<std::pair<bool, std::uint32_t>, std::pair<std::vector<TensorDef>, std::vector<Layout>>>
      known;
  std::vector<std::string> seen;
  const auto take = [&](const RecordsPart& part) {
    auto& [defs, layouts] = known[{part.ranks.empty(), part.rank}];
    const RecordBatch& records = part.records;
    defs.insert(defs.end(), records.activations.begin(), records.activations.end());
    layouts.insert(layouts.end(), records.layouts.begin(), records.layouts.end());
    for (std::size_t i = 0; i < records.stats.size(); ++i) {
      const Layout& layout = layouts.at(records.stats.layout[i]);
      EXPECT_TRUE(layout.Has(Statistic::kHash) || records.stats.stats[i].hash == 0);
      seen.push_back(std::to_string(records.stats.step[i]) +
                     (part.ranks.empty() ? " rank " : " whole ") + std::to_string(part.rank) + " " +
                     defs.at(records.stats.activation[i]).key.name + " " +
                     std::to_string(NumelOf(layout.shape)));
    }
    for (const ScalarRecord& scalar : records.scalars)
      seen.push_back(std::to_string(scalar.step) + " rank " + std::to_string(part.rank) + " " +
                     scalar.name);
    return Status::Ok();
  };
  const Status status = ReadRecords(store, request, take, {});
  EXPECT_TRUE(status.ok()) << status.message();
  return seen;
}

TEST_F(OneRun, RecordsOfWholeTensorsComeBeforeWhatStaysTheRanks) {
  RunWriter run(store_, "r", 2);
  for (std::uint64_t step = 0; step < 2; ++step) {
    Record(run, step, Key("w", Kind::kWeight), Values(step), Shards(kShape, 0, 2));
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      Record(run, step, Key("piece"), Values(rank + 5), {{rank, Piece(kShape, rank, 2)}});
      Record(run, step, Key("out"), Values(rank), {{rank, std::nullopt}});
      run.Scalar(rank, step, "loss", 1);
    }
  }
  run.Commit();
  EXPECT_THAT(Exported(store_, {.run = "r", .steps = "1", .whole = true}),
              ElementsAre("1 whole 0 w 60", "1 whole 0 piece 120", "1 rank 0 out 60",
                          "1 rank 0 loss", "1 rank 1 out 60", "1 rank 1 loss"));
  EXPECT_THAT(Exported(store_, {.run = "r", .ranks = {1}, .kinds = {Kind::kOutput}, .whole = true}),
              ElementsAre("0 whole 0 piece 120", "0 rank 1 out 60", "1 whole 0 piece 120",
                          "1 rank 1 out 60"));
  EXPECT_THAT(Exported(store_, {.run = "r", .steps = "1", .kinds = {Kind::kWeight}}),
              ElementsAre("1 rank 0 w 30", "1 rank 1 w 30"));
}

// Two stages of a pipeline, each cut over two ranks; launched again on other ranks.
TEST_F(OneRun, RecordsOfWholeTensorsNameTheRanksThatHoldThem) {
  for (const std::uint32_t first_stage : {0u, 2u}) {
    RunWriter run(store_, "r", 4);
    for (std::uint64_t step = first_stage; step < first_stage + 2; ++step) {
      Record(run, step, Key("first", Kind::kWeight), Values(step),
             Shards(kShape, 0, 2, first_stage));
      Record(run, step, Key("last", Kind::kWeight), Values(step),
             Shards(kShape, 0, 2, 2 - first_stage));
      Record(run, step, Key("norm", Kind::kWeight), Values(step), Copies(kShape, 4));
    }
    run.Commit();
  }
  std::vector<TensorDef> defs;
  std::map<std::pair<std::uint64_t, std::string>, std::vector<std::uint32_t>> holders;
  std::uint32_t attempt = 0;
  const auto take = [&](const RecordsPart& part) {
    if (part.ranks.empty()) return Status::Ok();
    if (part.attempt != std::exchange(attempt, part.attempt)) defs.clear();
    const RecordBatch& records = part.records;
    defs.insert(defs.end(), records.activations.begin(), records.activations.end());
    for (std::size_t i = 0; i < records.stats.size(); ++i)
      holders[{records.stats.step[i], defs.at(records.stats.activation[i]).key.name}] = part.ranks;
    return Status::Ok();
  };
  const Status status = ReadRecords(store_, {.run = "r", .whole = true}, take, {});
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(holders.size(), 12u);
  for (const std::uint64_t step : {0u, 1u, 2u, 3u}) {
    const bool again = step > 1;
    EXPECT_THAT((holders[{step, "first"}]), again ? ElementsAre(2, 3) : ElementsAre(0, 1)) << step;
    EXPECT_THAT((holders[{step, "last"}]), again ? ElementsAre(0, 1) : ElementsAre(2, 3)) << step;
    EXPECT_THAT((holders[{step, "norm"}]), ElementsAre(0, 1, 2, 3)) << step;
  }
}

TEST_F(OneRun, RecordsOfRanksWithoutPartsAreTheRanks) {
  RunWriter run(store_, "r", 2);
  Record(run, 0, Key("w"), Values(0), Copies(kShape, 2));
  run.Commit();
  EXPECT_THAT(Exported(store_, {.run = "r", .whole = true}),
              ElementsAre("0 rank 0 w 60", "0 rank 1 w 60"));
}

}  // namespace
}  // namespace statcollect::query
