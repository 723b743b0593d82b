// What every store has to do: the same tests over the embedded one, over a real ClickHouse, and
// over two shards.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/store/clickhouse/clickhouse_store.h"
#include "server/store/rocksdb/rocksdb_store.h"
#include "tests/server/store/step_batch.h"
#include "tests/server/store/store_contents.h"
#include "tests/support/append_batch.h"
#include "tests/support/clickhouse_server.h"
#include "tests/support/random_batch.h"

namespace statcollect {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

enum class Kept { kRocksDb, kClickHouse, kSharded };

// The hosts of a ClickHouse that runs already, such as "127.0.0.1:8123", and options ("?quorum=2");
// null: tests start one.
const char* OtherServer() { return std::getenv("STATCOLLECT_TEST_CLICKHOUSE"); }

// One server for all tests of this program; each test has a database of its own.
testing::ClickHouseServer& SharedServer() {
  static testing::ClickHouseServer server(CLICKHOUSE_CONFIG);
  static const bool started = server.Start();
  EXPECT_TRUE(started) << "see " << server.log_path();
  return server;
}

// Shards are databases here, because one server is enough to see who writes where.
std::string DsnOf(Kept kept, const std::string& database) {
  std::string other = OtherServer() != nullptr
                          ? OtherServer()
                          : "127.0.0.1:" + std::to_string(SharedServer().port());
  const std::size_t options = std::min(other.find('?'), other.size());
  const std::string hosts = other.substr(0, options);
  const std::string second = kept == Kept::kSharded ? "|" + hosts + "/" + database + "_second" : "";
  return "clickhouse://" + hosts + "/" + database + second + other.substr(options);
}

const char* NameOf(Kept kept) {
  return kept == Kept::kRocksDb ? "RocksDb" : kept == Kept::kClickHouse ? "ClickHouse" : "Sharded";
}

class StoreConformance : public ::testing::TestWithParam<Kept> {
 protected:
  void SetUp() override {
    if (GetParam() != Kept::kRocksDb && OtherServer() == nullptr &&
        testing::ClickHouseServer::Program().empty())
      GTEST_SKIP() << "clickhouse-server is not installed; scripts/setup.sh installs it";
    std::string pattern = ::testing::TempDir() + "/statcollect_conformance_XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  void TearDown() override {
    store_.reset();
    if (!directory_.empty()) fs::remove_all(directory_);
  }

  Store& Open() {
    store_.reset();
    static int databases = 0;
    if (database_.empty())
      database_ = "conformance_" + std::to_string(getpid()) + "_" + std::to_string(++databases);
    auto opened = GetParam() == Kept::kRocksDb ? OpenRocksDbStore(directory_)
                                               : OpenClickHouseStore(DsnOf(GetParam(), database_));
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    store_ = *std::move(opened);
    return *store_;
  }

  AttemptMeta Create(const std::string& run) {
    auto attempt = store_->CreateAttempt({.run = run, .world_size = 2});
    EXPECT_TRUE(attempt.ok()) << attempt.status().message();
    return *attempt;
  }

  std::string directory_, database_;
  std::unique_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(Stores, StoreConformance,
                         ::testing::Values(Kept::kRocksDb, Kept::kClickHouse, Kept::kSharded),
                         [](const auto& tested) { return NameOf(tested.param); });

TEST_P(StoreConformance, KeepsEverythingOverAReopen) {
  Open();
  const AttemptId attempt = Create("base").id;
  Append(*store_, attempt, 1, MakeBatch(1, 0, 0, 3));
  Append(*store_, attempt, 1, MakeBatch(7, 4, 0, 2));
  Open();
  EXPECT_THAT(*store_->ListRuns(), ElementsAre("base"));
  EXPECT_EQ(store_->Attempts("base")->at(0).world_size, 2u);
  EXPECT_EQ(store_->Ranks(attempt)->at(1).durable_seq, 11u);
  EXPECT_EQ((*store_->Definitions(attempt, 1))->activations.at(2).key.name, "layer.2");
  EXPECT_EQ((*store_->Definitions(attempt, 1))->layouts.at(0).dtype, DType::kF32);
  EXPECT_THAT(Scan(*store_, attempt, 1),
              ElementsAre(std::pair(0, 0), std::pair(0, 1), std::pair(0, 2), std::pair(4, 0),
                          std::pair(4, 1)));
  EXPECT_THAT(*store_->StatSteps(attempt, 1, {}), ElementsAre(0, 4));
  EXPECT_EQ(store_->Scalars(attempt, 1, {})->size(), 2u);
  EXPECT_EQ(store_->Events(attempt, 1)->size(), 2u);
  EXPECT_EQ(store_->StepEnds(attempt, 1, {.first = 4, .last = 4})->at(0).step, 4u);
}

TEST_P(StoreConformance, ScansOnlyTheStepsAndTheRankAskedFor) {
  Open();
  const AttemptId attempt = Create("base").id;
  for (std::uint64_t step = 0; step < 5; ++step) {
    Append(*store_, attempt, 0, MakeBatch(1 + step * 4, step, 0, 1));
    Append(*store_, attempt, 256, MakeBatch(1 + step * 4, step, 0, 1));
  }
  EXPECT_THAT(Scan(*store_, attempt, 0, {.first = 1, .last = 2}),
              ElementsAre(std::pair(1, 0), std::pair(2, 0)));
  EXPECT_THAT(*store_->StatSteps(attempt, 256, {.first = 3}), ElementsAre(3, 4));
  EXPECT_THAT(Scan(*store_, attempt, 1), IsEmpty());
  EXPECT_THAT(Scan(*store_, attempt ^ 1, 0), IsEmpty());
}

TEST_P(StoreConformance, CutsLongStepsIntoBlocksAndLosesNone) {
  Open();
  const AttemptId attempt = Create("base").id;
  Append(*store_, attempt, 0, MakeBatch(1, 0, 0, 2500));
  const auto found = Scan(*store_, attempt, 0);
  ASSERT_EQ(found.size(), 2500u);
  for (std::uint32_t i = 0; i < 2500; ++i) EXPECT_EQ(found[i].second, i);
}

TEST_P(StoreConformance, LastStepThereIsCanBeStored) {
  Open();
  const AttemptId attempt = Create("base").id;
  const std::uint64_t last = ~std::uint64_t{0};
  RecordBatch batch = MakeBatch(1, last, 0, 1);
  Append(*store_, attempt, 0, batch);
  EXPECT_THAT(*store_->StatSteps(attempt, 0, {}), ElementsAre(last));
  EXPECT_EQ(store_->Scalars(attempt, 0, {})->size(), 1u);
}

TEST_P(StoreConformance, AttemptGetsTheNumberThatIsAskedForUnlessOthersAreAsHigh) {
  Open();
  const auto create = [&](std::uint32_t number, const std::string& launch) {
    return store_->CreateAttempt({.number = number,
                                  .run = "base",
                                  .launch = launch,
                                  .world_size = 2,
                                  .start_unix_nanos = 5'000});
  };
  EXPECT_EQ(create(3, "x")->number, 3u);
  EXPECT_EQ(create(2, "y")->number, 4u);
  EXPECT_EQ(create(0, "z")->number, 5u);
  EXPECT_EQ(create(9, "w")->start_unix_nanos, 5'000);
  EXPECT_EQ(store_->Attempts("base")->back().number, 9u);
}

TEST_P(StoreConformance, NumbersAttemptsWithinTheRunAndNeverReusesIds) {
  Open();
  const AttemptMeta first = Create("base"), other = Create("ort"), second = Create("base");
  EXPECT_EQ(first.number, 1u);
  EXPECT_EQ(other.number, 1u);
  EXPECT_EQ(second.number, 2u);
  const AttemptId ids[] = {first.id, second.id};
  ASSERT_TRUE(store_->DropAttempts(ids).ok());
  Open();
  const AttemptMeta again = Create("base");
  EXPECT_EQ(again.number, 1u);
  EXPECT_NE(again.id, first.id);
  EXPECT_NE(again.id, other.id);
  EXPECT_NE(again.id, second.id);
}

TEST_P(StoreConformance, RunNamesThatArePrefixesOfOthersAreKeptApart) {
  Open();
  Create("a");
  Create("a.b");
  Create("ab");
  EXPECT_EQ(store_->Attempts("a")->size(), 1u);
  EXPECT_THAT(*store_->ListRuns(), ElementsAre("a", "a.b", "ab"));
}

TEST_P(StoreConformance, DroppedAttemptIsGoneAndOthersStay) {
  Open();
  const AttemptId gone = Create("gone").id, stays = Create("stays").id;
  Append(*store_, gone, 0, MakeBatch(1, 0, 0, 3));
  Append(*store_, stays, 0, MakeBatch(1, 0, 0, 3));
  const auto running = store_->ScanStats(gone, 0, {});
  ASSERT_TRUE(running->NextHead());
  ASSERT_TRUE(store_->DropAttempts({&gone, 1}).ok());
  // A scan under way keeps its snapshot, or says that the run was removed; it never just ends.
  StatColumns columns;
  if (GetParam() == Kept::kRocksDb || running->status().ok()) {
    const bool whole = running->Load(/*sketches=*/true, &columns) && columns.size() == 3;
    EXPECT_TRUE(whole ||
                (GetParam() != Kept::kRocksDb && running->status().code() == Code::kAborted))
        << running->status().message();
  }
  EXPECT_THAT(*store_->ListRuns(), ElementsAre("stays"));
  EXPECT_THAT(Scan(*store_, gone, 0), IsEmpty());
  EXPECT_THAT((*store_->Definitions(gone, 0))->activations, IsEmpty());
  EXPECT_THAT(*store_->Ranks(gone), IsEmpty());
  EXPECT_THAT(*store_->Scalars(gone, 0, {}), IsEmpty());
  EXPECT_EQ(Scan(*store_, stays, 0).size(), 3u);
  EXPECT_EQ(store_->Ranks(stays)->size(), 1u);
}

TEST_P(StoreConformance, ScanMayBeginAtAnyStepOfAStream) {
  Open();
  const AttemptId attempt = Create("base").id;
  WriteRun(*store_, attempt, 0, 40);
  for (const bool reopened : {false, true}) {
    if (reopened) Open();
    const Content all = ReadAll(*store_, attempt, 0);
    ASSERT_EQ(all.step.size(), 40u * 600);
    for (const std::uint64_t first : {1u, 15u, 16u, 17u, 31u, 39u}) {
      const Content part = ReadAll(*store_, attempt, 0, {.first = first});
      ASSERT_EQ(part.step.size(), (40 - first) * 600);
      EXPECT_TRUE(std::equal(part.stats.begin(), part.stats.end(),
                             all.stats.begin() + std::ptrdiff_t(first * 600)));
      EXPECT_TRUE(std::equal(part.sketch.begin(), part.sketch.end(),
                             all.sketch.begin() + std::ptrdiff_t(first * 600 * 16)));
    }
  }
}

TEST_P(StoreConformance, SeriesOfAnActivationEqualsTheScan) {
  Open();
  const AttemptId attempt = Create("base").id;
  WriteRun(*store_, attempt, 0, 40);
  // A gap, a step that arrives in parts and in another order, and one that lacks the activation.
  Stream more(*store_, attempt, 0);
  RecordBatch batch = MakeBatch(40 * 603 + 1, 50, 300, 10);
  more.Append(batch);
  RecordBatch rest = MakeBatch(batch.last_seq() + 1, 50, 0, 300);
  std::ranges::reverse(rest.stats.activation);
  for (std::uint32_t i = 0; i < 300; ++i)
    rest.stats.stats[i].hash = 50 * 1000 + rest.stats.activation[i];
  more.Append(rest);
  more.Append(MakeBatch(rest.last_seq() + 1, 51, 0, 5));
  const Content all = ReadAll(*store_, attempt, 0);
  for (const std::uint32_t activation : {0u, 3u, 255u, 256u, 305u, 599u}) {
    for (const StepBounds steps :
         {StepBounds{}, StepBounds{.first = 5, .last = 36}, StepBounds{.first = 38}}) {
      const auto series = store_->ActivationSeries(attempt, 0, activation, steps);
      ASSERT_TRUE(series.ok()) << series.status().message();
      std::size_t at = 0;
      for (std::size_t i = 0; i < all.step.size(); ++i) {
        if (all.activation[i] != activation || all.step[i] < steps.first ||
            all.step[i] > steps.last)
          continue;
        ASSERT_LT(at, series->size());
        EXPECT_EQ((*series)[at].step, all.step[i]);
        EXPECT_EQ((*series)[at].stats, all.stats[i])
            << "activation " << activation << ", step " << all.step[i];
        ++at;
      }
      EXPECT_EQ(at, series->size());
    }
  }
  EXPECT_THAT(*store_->ActivationSeries(attempt, 0, 600, {}), IsEmpty());
  EXPECT_THAT(*store_->ActivationSeries(attempt, 1, 0, {}), IsEmpty());
}

TEST_P(StoreConformance, EqualRunsShareTheirBlocks) {
  Open();
  const AttemptId base = Create("base").id, again = Create("again").id, other = Create("other").id;
  WriteRun(*store_, base, 0, 20);
  WriteRun(*store_, again, 0, 20);
  WriteRun(*store_, other, 0, 20, 1.5);
  EXPECT_EQ(ReadAll(*store_, again, 0), ReadAll(*store_, base, 0));
  EXPECT_NE(ReadAll(*store_, other, 0), ReadAll(*store_, base, 0));
}

// Blocks beyond those that share an older one's content do not lean on them.
TEST_P(StoreConformance, WhatFollowsSharedBlocksReadsBack) {
  Open();
  const AttemptId base = Create("base").id, branch = Create("branch").id;
  const auto write = [&](AttemptId attempt, std::uint64_t differs_from) {
    Stream stream(*store_, attempt, 0);
    for (std::uint64_t step = 0; step < 70; ++step) {
      RecordBatch batch = MakeBatch(step * 303 + 1, step, 0, 300);
      for (std::uint32_t i = 0; i < 256; ++i) {  // a block that repeats for 40 steps
        batch.stats.stats[i].hash = step < 40 ? i : step * 1000 + i;
        if (step >= differs_from) batch.stats.stats[i].mean = static_cast<double>(step);
      }
      stream.Append(batch);
    }
  };
  write(base, ~std::uint64_t{0});
  write(branch, 5);
  const Content of_base = ReadAll(*store_, base, 0), of_branch = ReadAll(*store_, branch, 0);
  ASSERT_EQ(of_base.stats.size(), 70u * 300);
  ASSERT_EQ(of_branch.stats.size(), 70u * 300);
  for (std::size_t i = 0; i < of_branch.stats.size(); ++i) {
    const std::uint64_t step = of_branch.step[i], activation = of_branch.activation[i];
    ASSERT_EQ(of_base.stats[i].hash, of_branch.stats[i].hash);
    ASSERT_EQ(of_branch.stats[i].hash,
              activation < 256 && step < 40 ? activation : step * 1000 + activation);
    ASSERT_EQ(of_branch.stats[i].mean,
              activation < 256 && step >= 5 ? static_cast<double>(step) : 0.0);
  }
}

TEST_P(StoreConformance, RunThatSharedBlocksStaysWholeWhenTheirOwnerGoes) {
  Open();
  const AttemptId base = Create("base").id, again = Create("again").id, third = Create("third").id;
  WriteRun(*store_, base, 0, 20);
  const Content content = ReadAll(*store_, base, 0);
  WriteRun(*store_, again, 0, 20);
  WriteRun(*store_, third, 0, 20);
  auto running = store_->ScanStats(again, 0, {});
  ASSERT_TRUE(running->Next());
  ASSERT_TRUE(store_->DropAttempts({&base, 1}).ok());
  std::size_t seen = running->block().columns.size();
  while (running->Next()) seen += running->block().columns.size();
  EXPECT_EQ(seen, 20u * 600) << running->status().message();
  running.reset();
  EXPECT_EQ(ReadAll(*store_, again, 0), content);
  ASSERT_TRUE(store_->DropAttempts({&again, 1}).ok());
  EXPECT_EQ(ReadAll(*store_, third, 0), content);
  Open();
  EXPECT_EQ(ReadAll(*store_, third, 0), content);
  const AttemptId fourth = Create("fourth").id;
  WriteRun(*store_, fourth, 0, 20);
  EXPECT_EQ(ReadAll(*store_, fourth, 0), content);
}

// Its writer chose the alias before the owner went, and appends after.
TEST_P(StoreConformance, BatchPreparedBeforeADropHoldsItsOwnContent) {
  Open();
  const AttemptId base = Create("base").id, again = Create("again").id;
  const RecordBatch batch = MakeBatch(1, 0, 0, 300);
  Append(*store_, base, 0, batch);
  const auto writer = store_->NewWriter(again, 0);
  const auto prepared = writer->Prepare(batch);
  ASSERT_TRUE(store_->DropAttempts({&base, 1}).ok());
  const RankMeta meta = MetaOf(0, batch.last_seq());
  const AppendItem item{.attempt = again, .rank = 0, .meta = &meta, .prepared = prepared.get()};
  ASSERT_TRUE(store_->Append({&item, 1}).ok());
  EXPECT_EQ(Scan(*store_, again, 0).size(), 300u);
}

TEST_P(StoreConformance, KeepsMemoryDensitiesSettingsExponentsAndTokensOverAReopen) {
  Open();
  const AttemptId attempt = Create("base").id;
  RecordBatch batch = MakeBatch(1, 0, 0, 3);
  testing::AddObservations(&batch, 7);
  Append(*store_, attempt, 1, batch);
  RecordBatch later = MakeBatch(batch.last_seq() + 1, 1, 0, 3);
  later.settings = {{"empty", "not any more"}};
  Append(*store_, attempt, 1, later);
  Open();
  EXPECT_EQ(*store_->Memory(attempt, 1, {}), batch.memory);
  EXPECT_EQ(*store_->Densities(attempt, 1, {}), batch.densities);
  EXPECT_THAT(*store_->Memory(attempt, 1, {.first = 8, .last = 8}), ElementsAre(batch.memory[2]));
  EXPECT_THAT(*store_->Densities(attempt, 1, {.first = 0, .last = 7}),
              ElementsAre(batch.densities[0]));
  EXPECT_EQ(*store_->Exponents(attempt, 1, {}), batch.exponents);
  EXPECT_THAT(*store_->Exponents(attempt, 1, {.first = 8, .last = 8}),
              ElementsAre(batch.exponents[1]));
  EXPECT_THAT(*store_->Exponents(attempt, 1, {.first = 0, .last = 7}),
              ElementsAre(batch.exponents[0]));
  EXPECT_TRUE(store_->Exponents(attempt, 0, {})->empty());
  const auto tokens = [&](std::uint32_t rank, StepBounds steps) {
    std::vector<TokenRecord> found;
    Visitor<TokenRecord> visitor;
    visitor.take = [&](TokenRecord record) {
      found.push_back(std::move(record));
      return Status::Ok();
    };
    EXPECT_TRUE(store_->Visit(attempt, rank, steps, visitor).ok());
    return found;
  };
  EXPECT_EQ(tokens(1, {}), batch.tokens);
  EXPECT_THAT(tokens(1, {.first = 8, .last = 8}), ElementsAre(batch.tokens[1]));
  EXPECT_THAT(tokens(0, {}), ElementsAre());
  EXPECT_TRUE(store_->Captures(attempt, 1, {})->empty()) << "they share a family, not their keys";
  EXPECT_TRUE(store_->Memory(attempt, 0, {})->empty());
  const auto config = store_->Ranks(attempt)->at(1).info.config;
  EXPECT_EQ(config.at("model.layers"), "4");
  EXPECT_EQ(config.at("empty"), "not any more") << "the newest value stands";

  ASSERT_TRUE(store_->DropAttempts({&attempt, 1}).ok());
  EXPECT_TRUE(store_->Memory(attempt, 1, {})->empty());
  EXPECT_TRUE(store_->Densities(attempt, 1, {})->empty());
  EXPECT_TRUE(store_->Exponents(attempt, 1, {})->empty());
  EXPECT_THAT(tokens(1, {}), ElementsAre());
  EXPECT_TRUE(store_->Ranks(attempt)->empty());
}

TEST_P(StoreConformance, CapturesAreWholeOnlyOnceEveryChunkIsThere) {
  Open();
  const AttemptId attempt = Create("base").id, other = Create("other").id;
  RecordBatch first = MakeBatch(1, 3, 0, 2);
  AddChunks(&first, 3, 1, 4000, 1000, 3);
  Append(*store_, attempt, 1, first);
  RecordBatch alike = MakeBatch(1, 3, 0, 2);
  AddChunks(&alike, 3, 0, 8, 8);
  AddChunks(&alike, 9, 1, 8, 8);
  Append(*store_, other, 1, alike);
  Open();  // in between, as a daemon that was killed
  auto found = store_->Captures(attempt, 1, {});
  ASSERT_TRUE(found.ok() && found->size() == 1);
  EXPECT_EQ(found->at(0).step, 3u);
  EXPECT_EQ(found->at(0).activation, 1u);
  EXPECT_EQ(found->at(0).elements, 1000u);
  EXPECT_EQ(found->at(0).bytes_stored, 3000u);

  RecordBatch rest = MakeBatch(first.last_seq() + 1, 4, 0, 1);
  RecordBatch all;
  AddChunks(&all, 3, 1, 4000, 1000);
  rest.captures = {all.captures[3]};
  Append(*store_, attempt, 1, rest);
  EXPECT_EQ(store_->Captures(attempt, 1, {})->at(0).bytes_stored, 4000u);
  for (const CaptureChunk& chunk : all.captures) {
    const auto data = store_->CaptureChunkAt(attempt, 1, 3, 1, chunk.offset);
    ASSERT_TRUE(data.ok()) << data.status().message();
    EXPECT_EQ(*data, chunk.data);
  }
  EXPECT_EQ(store_->CaptureChunkAt(attempt, 1, 3, 1, 1).status().code(), Code::kNotFound);
  EXPECT_EQ(store_->CaptureChunkAt(attempt, 0, 3, 1, 0).status().code(), Code::kNotFound);

  EXPECT_EQ(store_->Captures(other, 1, {.first = 4, .last = 9})->size(), 1u);
  EXPECT_EQ(store_->Captures(other, 1, {.first = 0, .last = 8})->size(), 1u);
  ASSERT_TRUE(store_->DropAttempts({&attempt, 1}).ok());
  EXPECT_TRUE(store_->Captures(attempt, 1, {})->empty());
  EXPECT_EQ(store_->CaptureChunkAt(attempt, 1, 3, 1, 0).status().code(), Code::kNotFound);
  EXPECT_EQ(store_->Captures(other, 1, {})->size(), 2u);
}

TEST_P(StoreConformance, AGapBetweenChunksIsNoWholeCapture) {
  Open();
  const AttemptId attempt = Create("base").id;
  RecordBatch batch = MakeBatch(1, 3, 0, 2);
  AddChunks(&batch, 3, 1, 4000, 1000);
  batch.captures.erase(batch.captures.begin() + 1);
  Append(*store_, attempt, 0, batch);
  EXPECT_EQ(store_->Captures(attempt, 0, {})->at(0).bytes_stored, 1000u);
}

TEST_P(StoreConformance, EventsOfTheCollectorsOwnStandBesideTheAgentsAndGoWithTheirAttempt) {
  const AttemptMeta attempt = (Open(), Create("run"));
  Append(*store_, attempt.id, 0, MakeBatch(1, 5, 0, 3));  // has an event in step 5
  const std::vector<EventRecord> agents = *store_->Events(attempt.id, 0);
  ASSERT_EQ(agents.size(), 1u);
  const auto ranks = store_->Ranks(attempt.id);
  const auto own = [](std::uint64_t number, std::uint64_t step, const std::string& text) {
    return CollectorEvent{.rank = 0,
                          .number = number,
                          .event = {.kind = "norm_explosion", .step = step, .text = text}};
  };
  ASSERT_TRUE(
      store_->PutEvents(attempt.id, std::vector{own(1, 5, "a"), own(1, 9, "b"), own(2, 3, "c")})
          .ok());
  ASSERT_TRUE(store_->PutEvents(attempt.id, std::vector{own(1, 9, "b again")}).ok());
  Open();
  const auto events = store_->Events(attempt.id, 0);
  ASSERT_EQ(events->size(), 4u) << "the same number in the same step replaces";
  EXPECT_EQ((*events)[0].text, "c");
  EXPECT_EQ((*events)[1], agents[0]) << "the agent's is as it was";
  EXPECT_FALSE((*events)[1].from_collector);
  EXPECT_TRUE((*events)[2].from_collector);
  EXPECT_EQ((*events)[3].text, "b again");
  EXPECT_EQ(store_->Ranks(attempt.id)->at(0).records, ranks->at(0).records)
      << "they count in no tally";
  EXPECT_EQ(store_->Ranks(attempt.id)->at(0).durable_seq, ranks->at(0).durable_seq);
  ASSERT_TRUE(store_->DropAttempts(std::vector{attempt.id}).ok());
  EXPECT_TRUE(store_->Events(attempt.id, 0)->empty());
  EXPECT_EQ(store_->PutEvents(attempt.id, std::vector{own(1, 5, "late")}).code(), Code::kNotFound);
  EXPECT_TRUE(store_->Events(attempt.id, 0)->empty());
}

TEST_P(StoreConformance, AVisitorEndsAReadWhereItWants) {
  Open();
  const AttemptId attempt = Create("base").id;
  std::uint64_t seq = 1;
  for (std::uint64_t step = 0; step < 20; ++step) {
    RecordBatch batch = MakeBatch(seq, step, 0, 3);
    Append(*store_, attempt, 0, batch);
    seq = batch.last_seq() + 1;
  }
  const Status enough(Code::kCancelled, "enough");
  const auto check = [&]<typename T>(const char* what, T, const auto& visit) {
    SCOPED_TRACE(what);
    int reads = 0, takes = 0;
    const Visitor<T> ends_by_read{.read =
                                      [&](std::size_t bytes) {
                                        EXPECT_GT(bytes, 0u);
                                        return ++reads == 5 ? enough : Status::Ok();
                                      },
                                  .take = [&](const T&) { return ++takes, Status::Ok(); }};
    EXPECT_EQ(visit(ends_by_read).message(), "enough");
    EXPECT_EQ(reads, 5);
    EXPECT_LE(takes, 4);
    takes = 0;
    const Visitor<T> ends_by_take{
        .read = {}, .take = [&](const T&) { return ++takes == 3 ? enough : Status::Ok(); }};
    EXPECT_EQ(visit(ends_by_take).message(), "enough");
    EXPECT_EQ(takes, 3);
  };
  const auto records = [&](const auto& visitor) { return store_->Visit(attempt, 0, {}, visitor); };
  check("scalars", ScalarRecord(), records);
  check("events", EventRecord(), records);
  check("step ends", StepRecord(), records);
  check("steps", std::uint64_t(),
        [&](const auto& visitor) { return store_->VisitStatSteps(attempt, 0, {}, visitor); });
  check("series", StatPoint(),
        [&](const auto& visitor) { return store_->VisitSeries(attempt, 0, 1, {}, visitor); });
  // Also where nothing is found: the steps without the activation are read, too.
  int reads = 0;
  const Visitor<StatPoint> none{
      .read = [&](std::size_t) { return ++reads == 5 ? enough : Status::Ok(); },
      .take = [](const StatPoint&) { return Status::Ok(); }};
  EXPECT_EQ(store_->VisitSeries(attempt, 0, 200, {}, none).message(), "enough");
  EXPECT_EQ(reads, 5);
}

TEST_P(StoreConformance, AppendKeepsWhatTheHelloToldAndStoresItWhereThereIsNone) {
  Open();
  const AttemptId attempt = Create("base").id;
  RankMeta told = MetaOf(0, 0);
  told.info.host = "from the hello";
  ASSERT_TRUE(store_->PutRank(attempt, 0, told).ok());
  for (const bool reopened : {false, true}) {
    if (reopened) Open();
    for (const std::uint32_t rank : {0, 1}) {
      RecordBatch batch = MakeBatch(reopened ? 7 : 1, reopened, 0, 3);
      RankMeta meta = MetaOf(rank, batch.last_seq());
      meta.info.host = reopened ? "later" : "first append";
      ASSERT_TRUE(AppendBatch(*store_, attempt, rank, batch, meta).ok());
    }
  }
  const auto ranks = *store_->Ranks(attempt);
  EXPECT_EQ(ranks.at(0).info.host, "from the hello");
  EXPECT_EQ(ranks.at(1).info.host, "first append");
  EXPECT_EQ(ranks.at(1).durable_seq, 12u);
  told.info.host = "from the next hello";
  ASSERT_TRUE(store_->PutRank(attempt, 0, told).ok());
  EXPECT_EQ(store_->Ranks(attempt)->at(0).info.host, "from the next hello");
}

// As text: everything that a store keeps of it.
std::string TextOf(const std::optional<RankMeta>& meta) {
  if (!meta) return "none";
  std::string text = std::to_string(meta->durable_seq) + " " + std::to_string(meta->records) + " " +
                     std::to_string(meta->finished) + " " + std::to_string(meta->info.rank) + " " +
                     meta->info.host + " " + meta->info.launch;
  for (const auto& [name, value] : meta->info.config) text += " " + name + "=" + value;
  return text;
}

TEST_P(StoreConformance, OneRankReadsAsAmongAllOfThem) {
  Open();
  const AttemptId attempt = Create("base").id, other = Create("other").id;
  for (const std::uint32_t rank : {0u, 1u, 256u}) {
    RankMeta meta = MetaOf(rank, 0);
    meta.info.host = "host " + std::to_string(rank);
    meta.info.config = {{"lr", std::to_string(rank)}, {"seed", "7"}};
    if (rank != 1) {
      ASSERT_TRUE(store_->PutRank(attempt, rank, meta).ok());
    }
    RecordBatch batch = MakeBatch(1, 0, 0, 3);
    batch.settings = {{"lr", "later " + std::to_string(rank)}, {"steps", "9"}};
    Append(*store_, attempt, rank, batch);
  }
  for (const bool reopened : {false, true}) {
    if (reopened) Open();
    const auto all = *store_->Ranks(attempt);
    ASSERT_EQ(all.size(), 3u);
    for (const auto& [rank, meta] : all)
      EXPECT_EQ(TextOf(*store_->Rank(attempt, rank)), TextOf(meta)) << "rank " << rank;
    EXPECT_EQ(TextOf(*store_->Rank(attempt, 256)),
              "8 0 0 256 host 256  lr=later 256 seed=7 steps=9");
    EXPECT_EQ(TextOf(*store_->Rank(attempt, 2)), "none");
    EXPECT_EQ(TextOf(*store_->Rank(other, 0)), "none");
  }
}

TEST_P(StoreConformance, TalliesWhatIsStoredOfEachAttempt) {
  Open();
  const auto create = [&](const std::string& run, std::uint32_t world) {
    return store_->CreateAttempt({.run = run, .world_size = world, .start_unix_nanos = 5'000})->id;
  };
  const AttemptId base = create("base", 2), other = create("other", 1);
  create("empty", 1);
  const auto append = [&](AttemptId attempt, std::uint32_t rank, RankMeta meta) {
    const RecordBatch batch = MakeBatch(1, 0, 0, 3);
    meta.info.rank = rank;
    meta.records = batch.records();
    ASSERT_TRUE(AppendBatch(*store_, attempt, rank, batch, meta).ok());
  };
  append(base, 0, {.dropped = {{"closed", 2}}, .last_write_unix_nanos = 70'000, .finished = true});
  append(base, 1, {.dropped = {{"closed", 3}}, .last_write_unix_nanos = 80'000, .finished = true});
  append(other, 0, {.last_write_unix_nanos = 90'000});
  Open();
  const auto tallies = store_->Census();
  ASSERT_TRUE(tallies.ok()) << tallies.status().message();
  ASSERT_EQ(tallies->size(), 3u);
  EXPECT_EQ((*tallies)[0].meta.id, base);
  EXPECT_EQ((*tallies)[0].ranks, 2u);
  EXPECT_EQ((*tallies)[0].records, 12u);
  EXPECT_EQ((*tallies)[0].dropped.at("closed"), 5u);
  EXPECT_EQ((*tallies)[0].last_write_unix_nanos, 80'000);
  EXPECT_TRUE((*tallies)[0].finished);
  EXPECT_GT((*tallies)[0].bytes, 0u);
  EXPECT_EQ((*tallies)[1].meta.run, "empty");
  EXPECT_EQ((*tallies)[1].last_write_unix_nanos, 5'000);
  EXPECT_FALSE((*tallies)[1].finished);
  EXPECT_FALSE((*tallies)[2].finished);
  const auto usage = store_->Usage();
  ASSERT_TRUE(usage.ok()) << usage.status().message();
  EXPECT_GT(usage->disk_bytes, 0u);
}

TEST_P(StoreConformance, KeptAndDocumentsEndWithTheRun) {
  Open();
  const AttemptId first = Create("base").id;
  Create("base2");
  ASSERT_TRUE(store_->KeepRun("base", true).ok());
  ASSERT_TRUE(store_->KeepRun("base2", true).ok());
  ASSERT_TRUE(store_->KeepRun("base2", false).ok());
  EXPECT_EQ(store_->KeepRun("absent", true).code(), Code::kNotFound);
  EXPECT_EQ(store_->PutDocument("absent", "noise", "x").code(), Code::kNotFound);
  const std::string binary("a\0'b\\\n\xff", 7);
  ASSERT_TRUE(store_->PutDocument("base", "noise", "first").ok());
  ASSERT_TRUE(store_->PutDocument("base", "noise", binary).ok());
  ASSERT_TRUE(store_->PutDocument("base", "alarms", "x").ok());
  ASSERT_TRUE(store_->PutDocument("base", "alarms", std::nullopt).ok());
  Open();
  EXPECT_EQ(store_->Document("base", "noise")->value_or(""), binary);
  EXPECT_FALSE(store_->Document("base", "alarms")->has_value());
  EXPECT_FALSE(store_->Document("base2", "noise")->has_value());
  const auto before = *store_->Census();
  for (const AttemptTally& tally : before) EXPECT_EQ(tally.kept, tally.meta.run == "base");
  ASSERT_TRUE(store_->DropAttempts({&first, 1}).ok());
  Create("base");
  EXPECT_FALSE(store_->Document("base", "noise")->has_value()) << "a new run of that name";
  const auto after = *store_->Census();
  for (const AttemptTally& tally : after) EXPECT_FALSE(tally.kept);
}

// Random batches of several ranks, read back value by value.
TEST_P(StoreConformance, RandomBatchesComeBackBitForBit) {
  Open();
  const AttemptId attempt = Create("base").id;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    Stream stream(*store_, attempt, rank);
    std::vector<RecordBatch> written;
    for (std::uint64_t i = 0; i < 4; ++i) {
      const std::uint64_t first_seq = written.empty() ? 1 : written.back().last_seq() + 1;
      written.push_back(
          testing::RandomBatch(rank * 100 + i, first_seq, {.first_step = 2 * i, .define = i == 0}));
      stream.Append(written.back());
    }
    const auto scan = store_->ScanStats(attempt, rank, {});
    StatColumns read;
    while (scan->Next()) {
      const StatColumns& block = scan->block().columns;
      read.stats.insert(read.stats.end(), block.stats.begin(), block.stats.end());
      read.sketch.insert(read.sketch.end(), block.sketch.begin(), block.sketch.end());
      read.layout.insert(read.layout.end(), block.layout.begin(), block.layout.end());
    }
    ASSERT_TRUE(scan->status().ok()) << scan->status().message();
    StatColumns expected;
    std::vector<ScalarRecord> scalars;
    for (const RecordBatch& batch : written) {
      expected.stats.insert(expected.stats.end(), batch.stats.stats.begin(),
                            batch.stats.stats.end());
      expected.sketch.insert(expected.sketch.end(), batch.stats.sketch.begin(),
                             batch.stats.sketch.end());
      expected.layout.insert(expected.layout.end(), batch.stats.layout.begin(),
                             batch.stats.layout.end());
      scalars.insert(scalars.end(), batch.scalars.begin(), batch.scalars.end());
    }
    EXPECT_EQ(read.stats, expected.stats);
    EXPECT_EQ(read.sketch, expected.sketch);
    EXPECT_EQ(read.layout, expected.layout);
    EXPECT_EQ(*store_->Scalars(attempt, rank, {}), scalars);
    EXPECT_EQ(store_->Ranks(attempt)->at(rank).durable_seq, written.back().last_seq());
    EXPECT_EQ((*store_->Definitions(attempt, rank))->layouts, written.front().layouts);
    EXPECT_EQ((*store_->Definitions(attempt, rank))->activations, written.front().activations);
  }
}

// Of blocks that stand alone, lean on a key frame in part, or are shared with another run.
TEST_P(StoreConformance, HashesReadAloneAreThoseOfTheRecords) {
  Open();
  const AttemptId base = Create("base").id, again = Create("again").id, other = Create("other").id;
  const auto write = [&](AttemptId attempt, std::uint64_t differs_from) {
    Stream stream(*store_, attempt, 0);
    for (std::uint64_t step = 0; step < 40; ++step) {
      RecordBatch batch = MakeBatch(step * 303 + 1, step, 0, 300);
      for (std::uint32_t i = 0; i < 300; ++i) {
        batch.stats.stats[i].hash = i % 3 == 0 ? i : step * 1000 + i;
        if (step >= differs_from && i % 2 == 0)
          batch.stats.stats[i].hash = ~batch.stats.stats[i].hash;
      }
      if (step >= 30) std::ranges::reverse(batch.stats.activation);
      stream.Append(batch);
    }
  };
  write(base, 40);
  write(again, 40);
  write(other, 15);
  for (const AttemptId attempt : {base, again, other}) {
    const auto whole = store_->ScanStats(attempt, 0, {}), alone = store_->ScanStats(attempt, 0, {});
    HashColumns hashes;
    std::size_t records = 0;
    while (whole->Next()) {
      ASSERT_TRUE(alone->NextHead() && alone->LoadHashes(&hashes)) << alone->status().message();
      const StatColumns& block = whole->block().columns;
      std::vector<std::uint64_t> expected;
      for (const TensorStats& stats : block.stats) expected.push_back(stats.hash);
      EXPECT_EQ(alone->head().step, whole->block().step);
      EXPECT_EQ(hashes.hash, expected);
      EXPECT_EQ(hashes.activation, block.activation);
      EXPECT_EQ(hashes.layout, block.layout);
      EXPECT_EQ(hashes.order, block.order);
      EXPECT_EQ(hashes.sketch_width, block.sketch_width);
      records += hashes.hash.size();
    }
    EXPECT_FALSE(alone->NextHead());
    EXPECT_EQ(records, 40u * 300);
  }
}

// The same blocks, in turns as columns, as records, or both.
TEST_P(StoreConformance, ColumnsAreThoseOfTheRecords) {
  Open();
  const AttemptId base = Create("base").id, again = Create("again").id, other = Create("other").id;
  const auto write = [&](AttemptId attempt, std::uint64_t differs_from) {
    Stream stream(*store_, attempt, 0);
    for (std::uint64_t step = 0; step < 40; ++step) {
      RecordBatch batch = testing::RandomBatch(
          step, step * 303 + 1,
          {.activations = 300, .first_step = step, .steps = 1, .define = step == 0});
      if (step % 3 != 0)
        batch.stats =
            testing::RandomBatch(0, 1, {.activations = 300, .first_step = step, .steps = 1}).stats;
      for (std::uint32_t i = 0; i < 300 && step >= differs_from; i += 2)
        batch.stats.stats[i].mean = -0.5;
      if (step == 20) batch.stats.sample_count[3] = 2, batch.stats.samples = {1, 2};
      stream.Append(batch);
    }
  };
  write(base, 40);
  write(again, 40);
  write(other, 15);
  using testing::operator==;
  std::mt19937_64 rng(1);
  for (const AttemptId attempt : {base, again, other}) {
    const auto whole = store_->ScanStats(attempt, 0, {}), scan = store_->ScanStats(attempt, 0, {});
    StatColumns records;
    while (whole->Next()) {
      ASSERT_TRUE(scan->NextHead());
      const StatColumns& block = whole->block().columns;
      const bool in_columns = rng() % 3 != 0, as_records = !in_columns || rng() % 3 == 0;
      const NumberColumns* const columns = in_columns ? scan->Columns() : nullptr;
      ASSERT_TRUE(scan->status().ok()) << scan->status().message();
      ASSERT_TRUE(!in_columns || (columns != nullptr) == (GetParam() == Kept::kRocksDb));
      for (std::size_t i = 0; columns != nullptr && i < block.size(); ++i) {
        TensorStats expected = block.stats[i];
        expected.l1 = 0;
        ASSERT_EQ(columns->StatsAt(i), expected);
        ASSERT_EQ(columns->activation[i], block.activation[i]);
        ASSERT_EQ(columns->layout[i], block.layout[i]);
        ASSERT_EQ(columns->order[i], block.order[i]);
        ASSERT_TRUE(std::ranges::equal(columns->SketchOf(i), block.SketchOf(i)));
      }
      if (!as_records) continue;
      ASSERT_TRUE(scan->Load(/*sketches=*/true, &records));
      ASSERT_TRUE(records == block);
    }
    EXPECT_FALSE(scan->NextHead());
  }
}

}  // namespace
}  // namespace statcollect
