// Tensors in CUDA graphs, over a device made of host code: capture, replay, the log, and what a
// graph leaves.
#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

#include "agent/stats/cuda/engine.h"
#include "agent/stats/cuda/replay.h"
#include "tests/agent/stats/cuda/fake_cuda.h"
#include "tests/agent/stats/test_tensor.h"

namespace statcollect::stats::cuda {
namespace {

using std::chrono::milliseconds;

void* const kStreamA = reinterpret_cast<void*>(0x100);
void* const kStreamB = reinterpret_cast<void*>(0x200);
constexpr std::uint32_t kRows = 8;

struct Result {
  int tensor = 0;
  std::uint64_t step = 0;
  TensorStats stats;
  std::vector<double> sketch, samples;
};

class CudaReplayTest : public ::testing::Test, protected ReplayListener {
 protected:
  CudaReplayTest() {
    for (int i = 0; i < 100; ++i) cookies_.push_back(i);
    Make();
  }
  void Make(std::uint32_t rows = kRows) {
    engine_ = std::make_unique<CudaEngine>(
        EngineOptions{.sketch = 16, .samples = 4, .records = rows, .records_max = rows},
        std::make_unique<FakeCudaApi>(device_));
    ASSERT_TRUE(engine_->Open(0).ok());
  }

  void Replayed(void* cookie, std::uint64_t step, const TensorStats& stats,
                std::span<const double> sketch, std::span<const double> samples) override {
    results_.push_back({*static_cast<int*>(cookie),
                        step,
                        stats,
                        {sketch.begin(), sketch.end()},
                        {samples.begin(), samples.end()}});
  }
  void Marked(int, std::uint64_t number) override { marks_.push_back(number); }
  void Missed(int, std::uint64_t rows) override { missed_ += rows; }
  void Failed(int) override { failed_ = true; }
  void Gone(void* cookie) override { gone_.push_back(*static_cast<int*>(cookie)); }

  // Captures tensor `number` into the stream's graph.
  Status AddToGraph(int number, const TestTensor& tensor, void* stream = kStreamA,
                    ReplayControl now = {0, 1}) {
    return engine_->AddToGraph(tensor.View(), 0, stream, now, 16, 4,
                               &cookies_[static_cast<std::size_t>(number)], &graph_);
  }
  void Replay(const FakeDevice::Graph& graph, void* stream = kStreamA) {
    device_->Replay(graph, stream);
    device_->RunAll();
  }
  std::size_t Poll() {
    now_ += milliseconds(1);
    return engine_->Poll(
        now_, [](void*, const Status&) {}, this);
  }
  void Expect(const Result& result, int number, std::uint64_t step, const TestTensor& tensor) {
    EXPECT_EQ(result.tensor, number);
    EXPECT_EQ(result.step, step);
    const Emulated expected = Emulate(tensor.View(), 16);
    EXPECT_EQ(result.stats, expected.stats);
    EXPECT_EQ(result.sketch, expected.sketch);
    EXPECT_EQ(result.samples, Compute(tensor, 0, 4).samples);
  }

  std::vector<int> cookies_;
  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  std::unique_ptr<CudaEngine> engine_;
  CudaEngine::TimePoint now_{};
  std::mt19937_64 random_{1};
  std::vector<Result> results_;
  std::vector<std::uint64_t> marks_;
  std::vector<int> gone_;
  std::uint64_t missed_ = 0, graph_ = 0;
  bool failed_ = false;
};

TEST_F(CudaReplayTest, EachReplayTellsTheTensorsOfThatMomentAndItsStep) {
  TestTensor large = RandomNumbers(DType::kF32, {2048 * 40 + 1}, random_);  // two levels of nodes
  TestTensor small = RandomNumbers(DType::kBf16, {5, 3}, random_),
             empty = RandomNumbers(DType::kF32, {0}, random_);
  device_->BeginCapture({kStreamA});
  ASSERT_TRUE(AddToGraph(0, large, kStreamA, {7, 1}).ok());
  ASSERT_TRUE(AddToGraph(1, small).ok());
  ASSERT_TRUE(AddToGraph(2, empty).ok());
  const auto graph = device_->EndCapture(kStreamA);
  device_->RunAll();
  EXPECT_EQ(Poll(), 1u) << "a graph lives, so it is worth looking";
  EXPECT_TRUE(results_.empty()) << "nothing runs while it is captured";

  Replay(*graph);
  (void)Poll();
  ASSERT_EQ(results_.size(), 3u);
  Expect(results_[0], 0, 7, large);
  Expect(results_[1], 1, 7, small);
  EXPECT_EQ(results_[2].stats.numel, 0u);

  ASSERT_TRUE(engine_->MarkReplays(0, kStreamA, {8, 1}, 1));
  const TestTensor other = RandomNumbers(DType::kBf16, {5, 3}, random_);
  std::copy(other.storage.begin(), other.storage.end(),
            small.storage.begin());  // in place, as in a graph
  Replay(*graph);
  (void)Poll();
  ASSERT_EQ(results_.size(), 6u);
  EXPECT_EQ(marks_, std::vector<std::uint64_t>{1});
  Expect(results_[3], 0, 8, large);
  Expect(results_[4], 1, 8, small);
}

TEST_F(CudaReplayTest, SeveralReplaysAStepAndStepsThatAreNotRecorded) {
  const TestTensor tensor = RandomNumbers(DType::kF32, {3 * 8192}, random_);
  device_->BeginCapture({kStreamA});
  ASSERT_TRUE(AddToGraph(0, tensor).ok());
  const auto graph = device_->EndCapture(kStreamA);
  for (std::uint64_t step = 0; step < 6; ++step) {
    // The host is far ahead of the device: everything is enqueued before anything runs.
    for (int i = 0; i < 2; ++i) device_->Replay(*graph, kStreamA);
    ASSERT_TRUE(
        engine_->MarkReplays(0, kStreamA, {step + 1, (step + 1) % 3 == 0 ? 1u : 0u}, step + 1));
  }
  while (device_->RunOne(kStreamA)) (void)Poll();
  (void)Poll();
  ASSERT_EQ(results_.size(), 4u);
  for (const std::size_t i : {0, 1, 2, 3}) Expect(results_[i], 0, i < 2 ? 0 : 3, tensor);
  EXPECT_EQ(marks_, (std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6}));
}

TEST_F(CudaReplayTest, ARunThatBeganRecordedIsFinishedRecorded) {
  const TestTensor tensor = RandomNumbers(DType::kF32, {10 * 8192}, random_);
  device_->BeginCapture({kStreamA});
  ASSERT_TRUE(AddToGraph(0, tensor).ok());
  ASSERT_TRUE(AddToGraph(1, tensor).ok());
  const auto graph = device_->EndCapture(kStreamA);
  device_->Replay(*graph, kStreamA);
  ASSERT_TRUE(device_->RunOne(kStreamA));
  ASSERT_TRUE(engine_->MarkReplays(0, kStreamB, {9, 0}, 1))
      << "in a stream that waits for no other";
  device_->RunAll();
  (void)Poll();
  ASSERT_EQ(results_.size(), 2u);
  Expect(results_[1], 1, 0, tensor);
  Replay(*graph);
  (void)Poll();
  EXPECT_EQ(results_.size(), 2u);
}

TEST_F(CudaReplayTest, TwoGraphsAndTwoStreamsOfOneShareNoScratch) {
  Make(64);
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 4; ++i)
    tensors.push_back(RandomNumbers(DType::kF32, {(i + 2) * 20'000}, random_));
  device_->BeginCapture({kStreamA, kStreamB});
  ASSERT_TRUE(AddToGraph(0, tensors[0], kStreamA).ok());
  ASSERT_TRUE(AddToGraph(1, tensors[1], kStreamB).ok());
  const auto first = device_->EndCapture(kStreamA);
  device_->BeginCapture({kStreamA});
  ASSERT_TRUE(AddToGraph(2, tensors[2], kStreamA).ok());
  ASSERT_TRUE(AddToGraph(3, tensors[3], kStreamA).ok());
  const auto second = device_->EndCapture(kStreamA);
  std::map<const void*, int> scratch;  // by the tensor that used it last
  for (const auto& graph : {first, second}) {
    for (const auto& entry : graph->entries)
      if (FakeDevice::IsLaunch(entry)) ++scratch[entry.scratch];
  }
  EXPECT_EQ(scratch.size(), 3u) << "only launches of one stream in one graph share";
  device_->Replay(*second, kStreamB);
  device_->Replay(*first, kStreamA);
  TensorStats eager;
  ASSERT_TRUE(
      engine_->Enqueue(tensors[0].View(), 0, kStreamB, {&eager, {}, {}, nullptr}, nullptr).ok());
  device_->RunAll();
  (void)Poll();
  ASSERT_EQ(results_.size(), 4u);
  for (const Result& result : results_)
    Expect(result, result.tensor, 0, tensors[static_cast<std::size_t>(result.tensor)]);
  EXPECT_EQ(eager, Emulate(tensors[0].View(), 16).stats)
      << "beside graphs, the rest goes on as ever";
}

TEST_F(CudaReplayTest, WhatIsReplayedFasterThanItIsReadIsCounted) {
  const TestTensor tensor = RandomNumbers(DType::kF32, {100}, random_);
  device_->BeginCapture({kStreamA});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(AddToGraph(i, tensor).ok());
  const auto graph = device_->EndCapture(kStreamA);
  std::uint64_t runs = 0;
  for (const int replays : {1, 2, 3, 7, 1, 40, 2}) {
    for (int i = 0; i < replays; ++i, runs += 3) Replay(*graph);
    const std::size_t before = results_.size();
    (void)Poll();
    EXPECT_EQ(results_.size() + missed_, runs);
    EXPECT_EQ(results_.size() - before, std::min<std::uint64_t>(3u * replays, kRows))
        << "the newest are kept";
    for (std::size_t i = before; i < results_.size(); ++i) {
      const auto from_end = results_.size() - 1 - i;
      EXPECT_EQ(results_[i].tensor, 2 - static_cast<int>(from_end % 3));
    }
  }
}

// The host reads between any two steps of the kernels.
TEST_F(CudaReplayTest, WhatIsReadWhileKernelsRunIsComplete) {
  const TestTensor large = RandomNumbers(DType::kF32, {9000}, random_),
                   small = RandomNumbers(DType::kF32, {70}, random_);
  device_->BeginCapture({kStreamA});
  ASSERT_TRUE(AddToGraph(0, large).ok());
  ASSERT_TRUE(AddToGraph(1, small).ok());
  const auto graph = device_->EndCapture(kStreamA);
  const auto replay = [&](std::uint64_t first, std::uint64_t last, unsigned poll_one_in) {
    cuda_shim::Meanwhile([this, poll_one_in] {
      if (cuda_shim::Random(poll_one_in) == 0) (void)Poll();
    });
    for (std::uint64_t step = first; step < last; ++step) {
      ASSERT_TRUE(engine_->MarkReplays(0, kStreamA, {step, 1}, step + 1));
      Replay(*graph);
    }
    cuda_shim::Meanwhile({});
    (void)Poll();
  };
  replay(0, 40, 1);
  EXPECT_EQ(results_.size(), 80u);
  EXPECT_EQ(missed_, 0u);
#if !defined( \
    __SANITIZE_THREAD__)  // a row that is written again while it is read: Poll notices afterwards
  replay(40, 100, 4000);  // so rarely that rows are written again before they are read
  EXPECT_EQ(results_.size() + marks_.size() + missed_, 300u);
  EXPECT_GT(missed_, 0u);
#endif
  for (const Result& result : results_)
    Expect(result, result.tensor, result.step, result.tensor == 0 ? large : small);
}

TEST_F(CudaReplayTest, ARowThatIsBeingWrittenIsNotRead) {
  const TestTensor tensor = RandomNumbers(DType::kF32, {100}, random_);
  device_->BeginCapture({kStreamA});
  ASSERT_TRUE(AddToGraph(0, tensor).ok());
  const auto graph = device_->EndCapture(kStreamA);
  const Task& task = graph->entries.back().launch.only;
  // Another warp has taken row 0 and not begun it; its successor is complete.
  EXPECT_EQ(FetchAndIncrement(&task.log->taken), 0u);
  Replay(*graph);
  (void)Poll();
  EXPECT_TRUE(results_.empty());
  Record* const row = BeginRow(*task.log, 0, task.ticket, 5);
  (void)Poll();
  EXPECT_TRUE(results_.empty());
  row->totals = task.log->rows[1].totals;
  WriteReady(row, 1);
  (void)Poll();
  ASSERT_EQ(results_.size(), 2u);
  EXPECT_EQ(results_[0].step, 5u);
  EXPECT_EQ(missed_, 0u);
}

TEST_F(CudaReplayTest, AGraphThatIsGoneLeavesItsRoomToOthers) {
  const TestTensor tensor = RandomNumbers(DType::kF32, {30'000}, random_);
  std::size_t allocations = 0;
  for (int round = 0; round < 1000; ++round) {
    device_->BeginCapture({kStreamA});
    ASSERT_TRUE(AddToGraph(round % 50, tensor).ok()) << round;
    ASSERT_TRUE(AddToGraph(50, tensor).ok()) << round;
    auto graph = device_->EndCapture(kStreamA);
    if (round % 2 == 0) Replay(*graph);  // else the capture was thrown away, as after an error
    graph.reset();
    (void)Poll();
    EXPECT_EQ(engine_->ReplayDevices().size(), 1u);
    now_ += CudaEngine::kGrave;
    (void)Poll();
    EXPECT_EQ(Poll(), 0u) << "no graph lives";
    EXPECT_TRUE(engine_->ReplayDevices().empty());
    EXPECT_EQ(gone_.size(), 2u * (static_cast<std::size_t>(round) + 1));
    if (round <= 1) allocations = device_->allocations.size();
    EXPECT_EQ(device_->allocations.size(), allocations);
  }
  EXPECT_EQ(results_.size(), 1000u) << "the last rows of each are read";
  EXPECT_EQ(missed_, 0u);
}

TEST_F(CudaReplayTest, ThereIsRoomForSoManyStreamsOfGraphs) {
  const TestTensor tensor = RandomNumbers(DType::kF32, {10}, random_);
  std::vector<std::shared_ptr<FakeDevice::Graph>> graphs;
  for (std::size_t i = 0; i < CudaEngine::kReplayLanes; ++i) {
    device_->BeginCapture({kStreamA});
    ASSERT_TRUE(AddToGraph(0, tensor).ok());
    graphs.push_back(device_->EndCapture(kStreamA));
  }
  device_->BeginCapture({kStreamA});
  EXPECT_EQ(AddToGraph(0, tensor).code(), Code::kResourceExhausted);
  const auto refused = device_->EndCapture(kStreamA);
  EXPECT_TRUE(refused->entries.empty());
}

TEST_F(CudaReplayTest, ABrokenCaptureGetsNothing) {
  const TestTensor tensor = RandomNumbers(DType::kF32, {10}, random_);
  device_->BeginCapture({kStreamA});
  device_->capture_broken = true;
  EXPECT_EQ(AddToGraph(0, tensor).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(device_->EndCapture(kStreamA)->entries.empty());
  EXPECT_TRUE(engine_->ReplayDevices().empty());
}

TEST_F(CudaReplayTest, MarksAvoidAStreamThatIsBeingCaptured) {
  const TestTensor tensor = RandomNumbers(DType::kF32, {10}, random_);
  device_->BeginCapture({kStreamA});
  ASSERT_TRUE(AddToGraph(0, tensor).ok());
  const auto graph = device_->EndCapture(kStreamA);
  device_->BeginCapture({kStreamA});
  ASSERT_TRUE(engine_->MarkReplays(0, kStreamA, {4, 1}, 1));
  EXPECT_TRUE(device_->EndCapture(kStreamA)->entries.empty());
  device_->RunAll();
  (void)Poll();
  EXPECT_EQ(marks_.size(), 1u);
}

TEST_F(CudaReplayTest, AMarkThatFailsIsRefusedAndNothingElse) {
  const TestTensor tensor = RandomNumbers(DType::kF32, {10}, random_);
  device_->BeginCapture({kStreamA});
  ASSERT_TRUE(AddToGraph(0, tensor).ok());
  const auto graph = device_->EndCapture(kStreamA);
  device_->launch = Status(Code::kInternal, "another thread has begun to capture");
  EXPECT_FALSE(engine_->MarkReplays(0, kStreamA, {1, 1}, 1));
  device_->launch = Status::Ok();
  EXPECT_TRUE(engine_->MarkReplays(0, kStreamA, {2, 1}, 2));
  Replay(*graph);
  EXPECT_GE(Poll(), 1u);
  EXPECT_FALSE(failed_);
  EXPECT_EQ(marks_, std::vector<std::uint64_t>{2});
  ASSERT_EQ(results_.size(), 1u);
  Expect(results_[0], 0, 2, tensor);
}

TEST_F(CudaReplayTest, AMarkInAFullQueueHoldsUpNobodyElse) {
  const TestTensor tensor = RandomNumbers(DType::kF32, {10}, random_);
  device_->BeginCapture({kStreamA});
  ASSERT_TRUE(AddToGraph(0, tensor).ok());
  const auto graph = device_->EndCapture(kStreamA);
  device_->Replay(*graph, kStreamB);
  device_->Block(kStreamA);
  std::thread blocked([&] { EXPECT_TRUE(engine_->MarkReplays(0, kStreamA, {1, 1}, 1)); });
  device_->AwaitBlocked(1);
  device_->RunAll();
  EXPECT_GE(Poll(), 1u);
  EXPECT_EQ(results_.size(), 1u);
  device_->Unblock();
  blocked.join();
  device_->RunAll();
  (void)Poll();
  EXPECT_EQ(marks_, std::vector<std::uint64_t>{1});
}

TEST_F(CudaReplayTest, AFailedDeviceIsToldAndMarksAreRefused) {
  const TestTensor tensor = RandomNumbers(DType::kF32, {10}, random_);
  device_->BeginCapture({kStreamA});
  ASSERT_TRUE(AddToGraph(0, tensor).ok());
  const auto graph = device_->EndCapture(kStreamA);
  device_->health = Status(Code::kInternal, "an illegal memory access");
  now_ += CudaEngine::kHealthInterval;
  (void)Poll();
  EXPECT_TRUE(failed_);
  EXPECT_FALSE(engine_->MarkReplays(0, kStreamA, {1, 1}, 1));
  EXPECT_EQ(Poll(), 0u);
}

TEST_F(CudaReplayTest, AnEngineThatIsClosedStopsReplaysAndKeepsTheirMemory) {
  const TestTensor tensor = RandomNumbers(DType::kF32, {100}, random_);
  device_->BeginCapture({kStreamA});
  ASSERT_TRUE(AddToGraph(0, tensor).ok());
  auto graph = device_->EndCapture(kStreamA);
  engine_->Abandon(true, [](void*, const Status&) {});
  device_->RunAll();
  const ReplayLog* const log = graph->entries.back().launch.only.log;
  Replay(*graph);
  EXPECT_EQ(log->taken, 0u);
  engine_.reset();
  EXPECT_FALSE(device_->allocations.empty());
  Replay(*graph);  // reads memory that is still there

  Make();
  device_->BeginCapture({kStreamA});
  ASSERT_TRUE(AddToGraph(0, tensor).ok());
  const std::size_t before = device_->allocations.size();
  device_->EndCapture(kStreamA).reset();
  engine_.reset();
  EXPECT_LT(device_->allocations.size(), before) << "no graph can use it any more";
}

}  // namespace
}  // namespace statcollect::stats::cuda
