#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/query/records/records_reader.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/append_batch.h"
#include "tests/support/fake_store.h"
#include "tests/support/random_batch.h"

namespace statcollect::query {
namespace {

using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::HasSubstr;
using testing::Key;
using testing::RunWriter;
using testing::SketchOf;

// One record as a reader sees it, with its definitions looked up.
struct Seen {
  std::uint32_t attempt = 0, rank = 0;
  TensorDef def;
  Layout layout;
  std::uint64_t step = 0;
  TensorStats stats;
  std::vector<double> sketch, samples;
};

// Everything of a run, and a check that ids are dense and defined before they are used.
struct Taken {
  Status status;
  std::vector<Seen> stats;
  std::vector<std::string> others;  // "0/1 loss", step and rank
  std::vector<RecordsPart> parts;

  explicit Taken(FakeStore& store, const RecordsRequest& request) {
    const auto take = [this](RecordsPart part) {
      Add(part);
      parts.push_back(std::move(part));
      return Status::Ok();
    };
    status = ReadRecords(store, request, take, {});
  }

 private:
  struct Definitions {
    std::vector<TensorDef> activations;
    std::vector<Layout> layouts;
  };
  void Add(const RecordsPart& part) {
    const RecordBatch& records = part.records;
    Definitions& defs = definitions_[{part.attempt, part.rank}];
    for (const TensorDef& def : records.activations) {
      EXPECT_EQ(def.id, defs.activations.size());
      defs.activations.push_back(def);
    }
    for (const Layout& layout : records.layouts) {
      EXPECT_EQ(layout.id, defs.layouts.size());
      defs.layouts.push_back(layout);
    }
    std::size_t sample = 0;
    for (std::size_t i = 0; i < records.stats.size(); ++i) {
      const StatColumns& c = records.stats;
      const auto sketch = c.SketchOf(i);
      stats.push_back(
          {part.attempt,
           part.rank,
           defs.activations.at(c.activation[i]),
           defs.layouts.at(c.layout[i]),
           c.step[i],
           c.stats[i],
           {sketch.begin(), sketch.end()},
           {c.samples.begin() + static_cast<std::ptrdiff_t>(sample),
            c.samples.begin() + static_cast<std::ptrdiff_t>(sample + c.sample_count[i])}});
      sample += c.sample_count[i];
    }
    const auto place = [&](std::uint64_t step) {
      return std::to_string(step) + "/" + std::to_string(part.rank) + " ";
    };
    for (const ScalarRecord& s : records.scalars) others.push_back(place(s.step) + s.name);
    for (const EventRecord& e : records.events) others.push_back(place(e.step) + e.kind);
    for (const StepRecord& s : records.steps) others.push_back(place(s.step) + "end");
  }
  std::map<std::pair<std::uint32_t, std::uint32_t>, Definitions> definitions_;
};

std::vector<std::string> Places(const Taken& taken) {
  std::vector<std::string> places;
  for (const Seen& s : taken.stats) {
    places.push_back(std::to_string(s.step) + "/" + std::to_string(s.rank) + " " + s.def.key.name +
                     "=" + std::to_string(static_cast<int>(s.stats.max)));
  }
  return places;
}

TEST(Records, ComeByStepThenRankInOrderOfExecution) {
  FakeStore store;
  RunWriter run(store, "r", 2);
  run.Observe(1, 0, Key("b"), {.values = {5}}).Observe(0, 0, Key("b"), {.values = {1}});
  run.Observe(0, 0, Key("a"), {.values = {2}}).Scalar(0, 0, "loss", 3).Event(0, 0, "nan");
  run.Observe(0, 1, Key("a"), {.values = {3}}).Observe(0, 1, Key("b"), {.values = {4}});
  run.Commit();
  const Taken taken(store, {.run = "r"});
  ASSERT_TRUE(taken.status.ok()) << taken.status.message();
  EXPECT_THAT(Places(taken), ElementsAre("0/0 b=1", "0/0 a=2", "0/1 b=5", "1/0 a=3", "1/0 b=4"));
  EXPECT_THAT(taken.others, ElementsAre("0/0 loss", "0/0 nan", "0/0 end", "0/1 end", "1/0 end"));
  EXPECT_EQ(taken.parts.back().progress.done, 4u);
  EXPECT_EQ(taken.parts.back().progress.total, 4u);
}

TEST(Records, TakeEachStepFromTheNewestLaunchThatHasItWithThatLaunchsDefinitions) {
  FakeStore store;
  RunWriter old(store, "r"), now(store, "r");
  for (std::uint64_t step = 0; step < 3; ++step)
    old.Observe(0, step, Key("old"), {.values = {1, 2}})
        .Scalar(0, step, "loss", 1)
        .Event(0, step, "e");
  old.Commit();
  now.Observe(0, 1, Key("x"), {.values = {7}}).Observe(0, 2, Key("y"), {.values = {8}});
  now.Commit();
  const Taken taken(store, {.run = "r"});
  EXPECT_THAT(Places(taken), ElementsAre("0/0 old=2", "1/0 x=7", "2/0 y=8"));
  EXPECT_EQ(taken.stats[0].attempt, 1u);
  EXPECT_EQ(taken.stats[1].attempt, 2u);
  EXPECT_EQ(taken.stats[1].layout.shape, (std::vector<std::int64_t>{1}));
  EXPECT_THAT(taken.others, ElementsAre("0/0 loss", "0/0 e", "0/0 end", "1/0 end", "2/0 end"));
}

TEST(Records, IncludeStepsThatHaveNothingButAnEvent) {
  FakeStore store;
  RunWriter run(store, "r");
  run.Observe(0, 0, Key("a"), {.values = {1}}).Event(0, 5, "records_dropped").Event(0, 7, "late");
  run.Commit();
  EXPECT_THAT(Taken(store, {.run = "r"}).others,
              ElementsAre("0/0 end", "5/0 records_dropped", "7/0 late"));
  EXPECT_THAT(Taken(store, {.run = "r", .steps = "3-6"}).others,
              ElementsAre("5/0 records_dropped"));
}

TEST(Records, AreChosenByRankStepAndKind) {
  FakeStore store;
  RunWriter run(store, "r", 3);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    for (std::uint64_t step = 0; step < 4; ++step) {
      run.Observe(rank, step, Key("a"), {.values = {1}})
          .Observe(rank, step, Key("a", Kind::kGradOutput), {.values = {2}})
          .Scalar(rank, step, "loss", 1);
    }
  }
  run.Commit();
  const Taken taken(store,
                    {.run = "r", .ranks = {2, 0}, .steps = "1-2", .kinds = {Kind::kGradOutput}});
  EXPECT_THAT(Places(taken), ElementsAre("1/0 a=2", "1/2 a=2", "2/0 a=2", "2/2 a=2"));
  EXPECT_TRUE(taken.others.empty()) << "kinds are about statistics only";
}

TEST(Records, HaveSketchesAndSamplesOnRequest) {
  FakeStore store;
  RunWriter run(store, "r");
  run.Observe(0, 0, Key("a"), {.values = {9, 8, 7}, .samples = 2})
      .Observe(0, 0, Key("b"), {.values = {1}});
  run.Observe(0, 0, Key("c"), {.values = {4, 5}, .samples = 1});
  run.Commit();
  const Taken without(store, {.run = "r"});
  EXPECT_TRUE(without.stats[0].sketch.empty() && without.stats[0].samples.empty());
  const Taken with(store, {.run = "r", .sketches = true, .samples = true});
  EXPECT_EQ(with.stats[0].sketch, SketchOf({.values = {9, 8, 7}}, 16));
  EXPECT_THAT(with.stats[0].samples, ElementsAre(9, 8));
  EXPECT_THAT(with.stats[1].samples, ElementsAre());
  EXPECT_THAT(with.stats[2].samples, ElementsAre(4));
}

// A step of many tensors does not come as one message.
TEST(Records, ComeInPartsOfLimitedSize) {
  constexpr std::uint32_t kTensors = 5000;
  FakeStore store;
  RunWriter run(store, "r", 1, /*sketch=*/64);
  for (std::uint32_t i = 0; i < kTensors; ++i)
    run.Observe(0, 0, Key("t" + std::to_string(i)), {.values = {static_cast<double>(i)}});
  run.Scalar(0, 0, "loss", 1);
  run.Commit();
  const Taken taken(store, {.run = "r", .sketches = true});
  ASSERT_EQ(taken.stats.size(), kTensors);
  for (std::uint32_t i = 0; i < kTensors; ++i) ASSERT_EQ(taken.stats[i].stats.max, i);
  EXPECT_GT(taken.parts.size(), 5u);
  for (const RecordsPart& part : taken.parts) {
    EXPECT_LE(part.records.stats.size() * (64 * 8 + 120), 600u << 10);
    EXPECT_LE(part.records.activations.size(), 2048u);
  }
  EXPECT_EQ(taken.parts.back().records.scalars.size(), 1u);
}

// A layout of thousands of ranges is as large as many records.
TEST(Records, CarryPlacementsInPartsOfLimitedSize) {
  FakeStore store;
  const auto attempt = store.CreateAttempt({.run = "r", .launch = "l", .world_size = 1});
  RecordBatch batch;
  batch.first_seq = 1;
  std::mt19937_64 random(1);
  for (std::uint32_t id = 0; id < 40; ++id) {
    Layout layout{.id = id, .dtype = DType::kF32, .shape = {10'000}};
    layout.placement = Placement{.global_shape = {1 << 20}, .pieces = 1};
    for (std::int64_t i = 0; i < 10'000; ++i)
      layout.placement->ranges.insert(layout.placement->ranges.end(),
                                      {id + 50 * i, id + 50 * i + 1});
    batch.layouts.push_back(layout);
  }
  batch.activations = {testing::MakeActivation(0)};
  testing::AddStat(&batch, 0, batch.layouts[39], 0, 0, random);
  RankMeta meta;
  meta.info = {.run = "r", .world_size = 1};
  meta.durable_seq = 1;
  meta.first_step = meta.last_step = 0;
  ASSERT_TRUE(AppendBatch(store, attempt->id, 0, batch, meta).ok());
  const Taken taken(store, {.run = "r"});
  ASSERT_EQ(taken.stats.size(), 1u);
  EXPECT_EQ(taken.stats[0].layout, batch.layouts[39]);
  EXPECT_GE(taken.parts.size(), 7u);
  for (const RecordsPart& part : taken.parts) EXPECT_LE(part.records.layouts.size(), 6u);
}

TEST(Records, EndWhenTheReaderSaysSoOrIsStopped) {
  FakeStore store;
  RunWriter run(store, "r");
  for (std::uint64_t step = 0; step < 4; ++step) run.Observe(0, step, Key("a"), {.values = {1}});
  run.Commit();
  int parts = 0;
  const auto fill = [&](const RecordsPart&) {
    return ++parts < 2 ? Status::Ok() : Status(Code::kResourceExhausted, "disk full");
  };
  const Status full = ReadRecords(store, {.run = "r"}, fill, {});
  EXPECT_EQ(full.message(), "disk full");
  EXPECT_EQ(parts, 2);
  std::stop_source stop;
  parts = 0;
  const auto count = [&](const RecordsPart&) {
    stop.request_stop();
    ++parts;
    return Status::Ok();
  };
  EXPECT_EQ(ReadRecords(store, {.run = "r"}, count, stop.get_token()).code(), Code::kCancelled);
  EXPECT_EQ(parts, 1);
}

TEST(Records, UnknownRunsAndRanksAreNamed) {
  FakeStore store;
  RunWriter run(store, "base", 2);
  run.Observe(0, 0, Key("a"), {.values = {1}}).Observe(1, 0, Key("a"), {.values = {1}}).Commit();
  EXPECT_THAT(Taken(store, {.run = "bsae"}).status.message(), HasSubstr("base"));
  const Taken taken(store, {.run = "base", .ranks = {7}});
  EXPECT_EQ(taken.status.code(), Code::kNotFound);
  EXPECT_THAT(taken.status.message(), HasSubstr("it has 0, 1"));
  EXPECT_EQ(Taken(store, {.run = "base", .steps = "x"}).status.code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace statcollect::query
