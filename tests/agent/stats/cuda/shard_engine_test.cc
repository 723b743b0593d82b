// Shards in the engine's books: where their maps are while launches, lists and graphs may still
// read them.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "agent/stats/cuda/plan.h"
#include "tests/agent/stats/cuda/engine_fixture.h"
#include "tests/agent/stats/random_cuts.h"

namespace statcollect::stats::cuda {
namespace {

class CudaShardEngineTest : public CudaEngineTest, protected ReplayListener {
 protected:
  // A shard whose placement's arrays are somebody's, and gone once it has been observed.
  struct Observed {
    TestTensor tensor;
    Sizes shape, boxes, ranges;
    Answer answer;

    Placement Of() const { return {shape, boxes, ranges}; }
    Emulated Expected() const {
      const Placement placement = Of();
      return Emulate(tensor.View(), 16, 0, &placement);
    }
  };

  // Of a tensor of two dimensions, at a place that moves with `number`; every third is aligned to
  // blocks.
  Observed InBox(DType dtype, std::int64_t rows, std::int64_t row, int number) {
    const std::int64_t column = number % 3 == 0 ? 2048 * (number % 2) : 7 * number;
    return {RandomNumbers(dtype, {rows, row}, random_),
            {rows + 4, row + 8192},
            {3, column, rows, row},
            {},
            {}};
  }
  // With so many ranges, each of three elements.
  Observed InRanges(DType dtype, std::int64_t ranges, int number = 0) {
    Observed shard = {RandomNumbers(dtype, {3 * ranges}, random_), {10 * ranges + 100}, {}, {}, {}};
    for (std::int64_t i = 0; i < ranges; ++i)
      shard.ranges.insert(shard.ranges.end(), {10 * i + number, 10 * i + number + 3});
    return shard;
  }
  static Output OutputOf(Answer& answer) {
    return {&answer.stats, answer.sketch, answer.samples, &answer.sample_count, answer.exponents};
  }
  Status Observe(Observed& shard, void* stream) {
    const Copies copies(shard);
    return engine_->Enqueue(shard.tensor.View(), 0, stream, OutputOf(shard.answer), &shard.answer,
                            &copies.placement);
  }
  std::size_t ObserveList(std::vector<Observed>& shards, void* stream) {
    std::vector<std::unique_ptr<Copies>> copies;
    std::vector<CudaEngine::Item> items;
    for (Observed& shard : shards) {
      copies.push_back(std::make_unique<Copies>(shard));
      items.push_back({shard.tensor.View(), OutputOf(shard.answer), &shard.answer,
                       shard.shape.empty() ? nullptr : &copies.back()->placement});
    }
    std::size_t refused = 0;
    engine_->EnqueueList(items, 0, stream, [&](void* cookie, const Status& status) {
      static_cast<Answer*>(cookie)->status = status;
      ++refused;
    });
    return refused;
  }
  static void ExpectRight(const Observed& shard, int ended = 1) {
    EXPECT_EQ(shard.answer.ended, ended);
    EXPECT_TRUE(shard.answer.status.ok()) << shard.answer.status.message();
    const Emulated expected =
        shard.shape.empty() ? Emulate(shard.tensor.View(), 16) : shard.Expected();
    EXPECT_EQ(shard.answer.stats, expected.stats);
    EXPECT_EQ(shard.answer.sketch, expected.sketch);
  }

  void Replayed(void* cookie, std::uint64_t, const TensorStats& stats,
                std::span<const double> sketch, std::span<const double>) override {
    auto* const answer = static_cast<Answer*>(cookie);
    ++answer->ended;
    answer->stats = stats;
    answer->sketch.assign(sketch.begin(), sketch.end());
  }
  void Marked(int, std::uint64_t) override {}
  void Missed(int, std::uint64_t) override { ADD_FAILURE(); }
  void Failed(int) override { ADD_FAILURE(); }
  void Gone(void*) override {}
  Status AddToGraph(Observed& shard, void* stream) {
    const Copies copies(shard);
    std::uint64_t graph = 0;
    return engine_->AddToGraph(shard.tensor.View(), 0, stream, {1, 1}, 16, 0, &shard.answer, &graph,
                               &copies.placement);
  }
  std::size_t PollReplays() {
    now_ += CudaEngine::kGrave;
    return engine_->Poll(now_, End, this);
  }

 private:
  // The caller's arrays; scribbled over when it has returned.
  struct Copies {
    explicit Copies(const Observed& shard)
        : shape(shard.shape), boxes(shard.boxes), ranges(shard.ranges) {
      placement = {shape, boxes, ranges};
    }
    ~Copies() {
      for (Sizes* sizes : {&shape, &boxes, &ranges}) std::fill(sizes->begin(), sizes->end(), 1);
    }
    Copies(const Copies&) = delete;
    Copies& operator=(const Copies&) = delete;
    Sizes shape, boxes, ranges;
    Placement placement;
  };
};

TEST_F(CudaShardEngineTest, AShardsMapIsKeptUntilItsLaunchHasRun) {
  Make(64);
  std::vector<Observed> shards;
  for (int i = 0; i < 6; ++i) shards.push_back(InBox(kAllDTypes[i], 40, 900, i));
  shards.push_back(InRanges(DType::kF32, 10));
  shards.push_back(InRanges(DType::kBf16, 100));  // no longer in the launch's parameters
  shards.push_back(InRanges(DType::kF32, 300, 1));
  for (int again = 0; again < 3; ++again) {
    for (std::size_t i = 0; i < shards.size(); ++i)
      ASSERT_TRUE(Observe(shards[i], i % 2 == 0 ? kStreamA : kStreamB).ok()) << i;
    EXPECT_EQ(Poll(), shards.size());
    device_->RunAll();
    EXPECT_EQ(Poll(), 0u);
    for (const Observed& shard : shards) ExpectRight(shard, again + 1);
  }
  EXPECT_FALSE(device_->scratch_shared);
}

TEST_F(CudaShardEngineTest, APlacementThatIsAtTheBeginningIsATensor) {
  Make();
  Observed whole = InBox(DType::kF32, 10, 100, 0);
  whole.shape = {20, 100};
  whole.boxes = {0, 0, 10, 100};
  ASSERT_TRUE(Observe(whole, kStreamA).ok());
  EXPECT_FALSE(device_->streams[kStreamA].back().shards);
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  ExpectRight(whole);
}

TEST_F(CudaShardEngineTest, AListHasWholeTensorsAndShards) {
  Make(128);
  std::vector<Observed> list;
  for (int i = 0; i < 30; ++i) {
    const DType dtype = i % 2 == 0 ? DType::kF32 : DType::kBf16;
    if (i % 5 == 0) {
      list.push_back({RandomNumbers(dtype, {3000 * i}, random_), {}, {}, {}, {}});
    } else if (i % 5 == 1) {
      list.push_back(InRanges(dtype, 100 + i, i));
    } else {
      list.push_back(InBox(dtype, i, i == 7 ? 0 : 300, i));
    }
  }
  for (int again = 0; again < 3; ++again) {
    EXPECT_EQ(ObserveList(list, kStreamA), 0u);
    EXPECT_EQ(device_->launches, 4u * (static_cast<std::size_t>(again) + 1))
        << "of each dtype, one of shards";
    device_->RunAll();
    EXPECT_EQ(Poll(), 0u);
    for (std::size_t i = 0; i < list.size(); ++i) {
      SCOPED_TRACE(i);
      ExpectRight(list[i], again + 1);
    }
  }
}

TEST_F(CudaShardEngineTest, MapsTakeTheRoomOfTasks) {
  Make(CudaEngine::kListTasks);
  // Maps of about a third of a list's memory.
  const auto ranges =
      static_cast<std::int64_t>(sizeof(Task) * CudaEngine::kListTasks / 3 / 16 - 20);
  std::vector<Observed> list;
  for (int i = 0; i < 7; ++i) list.push_back(InRanges(DType::kU8, i % 4 == 3 ? 3 : ranges, i % 5));
  EXPECT_EQ(ObserveList(list, kStreamA), 0u);
  EXPECT_EQ(device_->launches, 3u);
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  for (const Observed& shard : list) ExpectRight(shard);
}

TEST_F(CudaShardEngineTest, MapsLargerThanAListsMemoryGetTheirOwn) {
  Make(64);
  const auto ranges = static_cast<std::int64_t>(kMapNumbersMax / 2);
  std::vector<Observed> list;
  list.push_back(InBox(DType::kU8, 9, 100, 1));
  list.push_back(InRanges(DType::kU8, ranges, 3));
  list.push_back(InBox(DType::kU8, 9, 100, 2));
  EXPECT_EQ(ObserveList(list, kStreamA), 0u);
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  for (const Observed& shard : list) ExpectRight(shard);

  // As many as there is memory for, and then no more until one has run.
  std::vector<Observed> many;
  for (std::size_t i = 0; i <= CudaEngine::kLargeLists; ++i)
    many.push_back(i == 0 ? InRanges(DType::kU8, ranges, 1) : many[0]);
  for (std::size_t i = 0; i < CudaEngine::kLargeLists; ++i)
    ASSERT_TRUE(Observe(many[i], kStreamA).ok()) << i;
  EXPECT_EQ(Observe(many.back(), kStreamA).code(), Code::kResourceExhausted);
  Observed small = InRanges(DType::kU8, 100);
  EXPECT_TRUE(Observe(small, kStreamA).ok()) << "others have room";
  const std::size_t allocations = device_->allocations.size();
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  EXPECT_TRUE(Observe(many.back(), kStreamA).ok());
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  EXPECT_EQ(device_->allocations.size(), allocations) << "memory is used again";
  for (const Observed& shard : many) ExpectRight(shard);
  ExpectRight(small);
  engine_.reset();
  EXPECT_TRUE(device_->allocations.empty());
}

TEST_F(CudaShardEngineTest, WhatCannotBePlacedIsRefusedAndNothingElse) {
  Make(16);
  std::vector<Observed> list;
  for (int i = 0; i < 3; ++i) list.push_back(InBox(DType::kF32, 9, 100, i + 1));
  Observed deep = {
      RandomNumbers(DType::kF32, Sizes(13, 1), random_), Sizes(13, 3), Sizes(13, 1), {}, {}};
  deep.tensor = RandomNumbers(DType::kF32, Sizes(13, 2), random_);
  deep.boxes.insert(deep.boxes.end(), 13, 2);
  list.push_back(deep);
  EXPECT_EQ(ObserveList(list, kStreamA), 1u);
  EXPECT_EQ(list[3].answer.status.code(), Code::kUnimplemented);
  EXPECT_EQ(Observe(deep, kStreamA).code(), Code::kUnimplemented);
  device_->BeginCapture({kStreamB});
  EXPECT_EQ(AddToGraph(deep, kStreamB).code(), Code::kUnimplemented);
  EXPECT_TRUE(device_->EndCapture(kStreamB)->entries.empty());
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  for (int i = 0; i < 3; ++i) ExpectRight(list[static_cast<std::size_t>(i)]);
}

TEST_F(CudaShardEngineTest, ALaunchThatFailsLosesItsShardsAndNothingElse) {
  Make(16);
  for (const bool copied : {false, true}) {
    (copied ? device_->launch_only : device_->launch) =
        Status(Code::kInternal, "it does not stick");
    for (int i = 0; i < 20; ++i) {
      Observed alone = InRanges(DType::kF32, 100, i % 7);
      std::vector<Observed> list = {InBox(DType::kF32, 9, 100, i + 1),
                                    InBox(DType::kF32, 9, 100, i + 2)};
      EXPECT_EQ(Observe(alone, kStreamA).code(), Code::kInternal);
      EXPECT_EQ(ObserveList(list, kStreamA), 2u);
    }
    device_->launch = device_->launch_only = Status::Ok();
    // Their maps may still be on their way: others do not take their place.
    std::vector<Observed> list = {InBox(DType::kF32, 9, 100, 4), InRanges(DType::kF32, 100, 2)};
    EXPECT_EQ(ObserveList(list, kStreamB), 0u);
    while (device_->RunOne(kStreamA)) {
    }
    device_->RunAll();
    EXPECT_EQ(Poll(), 0u);
    for (const Observed& shard : list) ExpectRight(shard);
  }
}

TEST_F(CudaShardEngineTest, ExponentsOfShardsAreThoseOfTheirNumbers) {
  Make(16);
  std::vector<Observed> list = {InBox(DType::kF32, 9, 100, 4), InRanges(DType::kF32, 100, 2),
                                InBox(DType::kF32, 20, 100, 5)};
  for (Observed& shard : list) shard.answer.exponents.assign(kBins, 77);
  Observed alone = InRanges(DType::kBf16, 100, 3);
  alone.answer.exponents.assign(kBins, 77);
  EXPECT_EQ(ObserveList(list, kStreamA), 0u);
  EXPECT_TRUE(Observe(alone, kStreamA).ok());
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  list.push_back(alone);
  for (const Observed& shard : list) {
    ExpectRight(shard);
    EXPECT_EQ(shard.answer.exponents, ExponentsOf(shard.tensor, kLowest, kBins));
  }
}

TEST_F(CudaShardEngineTest, GraphsKeepTheMapsOfTheirShards) {
  Make(64);
  std::vector<Observed> shards;
  for (int i = 0; i < 3; ++i) shards.push_back(InBox(DType::kBf16, 50, 900, i + 1));
  for (int i = 0; i < 3; ++i) shards.push_back(InRanges(DType::kF32, 100 * (i + 1), i));
  const std::size_t before = device_->allocations.size();
  std::size_t allocations = 0;
  for (int round = 1; round <= 5; ++round) {
    device_->BeginCapture({kStreamA});
    for (Observed& shard : shards) ASSERT_TRUE(AddToGraph(shard, kStreamA).ok());
    auto graph = device_->EndCapture(kStreamA);
    // Other shards meanwhile, whose maps must lie elsewhere.
    Observed other = InRanges(DType::kF32, 250, 6);
    ASSERT_TRUE(Observe(other, kStreamB).ok());
    for (int replay = 0; replay < 2; ++replay) {
      for (Observed& shard : shards) shard.answer.ended = 0;
      device_->Replay(*graph, kStreamA);
      device_->RunAll();
      (void)engine_->Poll(now_, End, this);
      for (const Observed& shard : shards) ExpectRight(shard);
    }
    ExpectRight(other);
    graph.reset();
    (void)PollReplays();
    (void)PollReplays();
    EXPECT_EQ(PollReplays(), 0u) << "no graph lives";
    if (round == 1) allocations = device_->allocations.size();
    EXPECT_EQ(device_->allocations.size(), allocations)
        << "maps of graphs that are gone are used again";
  }
  EXPECT_GE(allocations, before + 3);
  engine_.reset();
  EXPECT_TRUE(device_->allocations.empty());
}

// Whatever is cut anyhow, observed in any order in several streams.
TEST_F(CudaShardEngineTest, AnyCutsInAnyOrderAddUp) {
  Make(4096, 3);
  for (int round = 0; round < 12; ++round) {
    cuda_shim::Seed(static_cast<std::uint64_t>(round) + 1);
    const DType dtype = kAllDTypes[random_() % std::size(kAllDTypes)];
    const TestTensor whole = RandomNumbers(dtype, CutShape(random_), random_);
    std::vector<Observed> shards;
    for (Shard& shard : AnyCut(random_, whole).shards)
      shards.push_back({std::move(shard.tensor), whole.shape, shard.boxes, shard.ranges, {}});
    if (round % 3 == 0) {
      EXPECT_EQ(ObserveList(shards, kStreamC), 0u);
    } else {
      for (Observed& shard : shards)
        ASSERT_TRUE(Observe(shard, random_() % 2 == 0 ? kStreamA : kStreamB).ok());
    }
    device_->RunAll();
    EXPECT_EQ(Poll(), 0u);
    std::uint64_t hash = 0;
    for (const Observed& shard : shards) {
      ExpectRight(shard);
      hash += shard.answer.stats.hash;
    }
    EXPECT_EQ(hash, HashOf(whole));
  }
}

}  // namespace
}  // namespace statcollect::stats::cuda
