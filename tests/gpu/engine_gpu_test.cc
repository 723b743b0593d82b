// The CUDA engine on a device, against the same code on the host (bit by bit) and the CPU engine.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "agent/stats/cuda/compute.h"
#include "agent/stats/exponent_of.h"
#include "agent/stats/exponents.h"
#include "tests/agent/stats/cuda/emulation.h"
#include "tests/agent/stats/test_tensor.h"
#include "tests/gpu/on_device.h"

namespace statcollect::stats::cuda {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Answer {
  TensorStats stats;
  std::vector<double> sketch, samples;
  std::uint32_t sample_count = 0;
  bool done = false;
  Status status;

  Output To(std::uint32_t width, std::uint32_t sample_max = 0) {
    sketch.assign(width, -1);
    samples.assign(sample_max, -1);
    return {&stats, sketch, samples, &sample_count};
  }
};

void End(void* cookie, const Status& status) {
  static_cast<Answer*>(cookie)->done = true;
  static_cast<Answer*>(cookie)->status = status;
}

class GpuEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    NEEDS_A_GPU();
    engine_ = std::make_unique<CudaEngine>(
        EngineOptions{.sketch = 64, .samples = 8, .records = 512, .lanes = 4}, MakeCudaApi());
    const Status opened = engine_->Open(0);
    ASSERT_TRUE(opened.ok()) << opened.message();
  }
  // Waits for everything in flight.
  void Finish(std::chrono::milliseconds patience = seconds(60)) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (engine_->Poll(std::chrono::steady_clock::now(), End) > 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  // Computes on the device, and compares with the host.
  void Check(const TestTensor& tensor, std::uint32_t width = 16, void* stream = nullptr) {
    const OnDevice device(tensor);
    Answer answer;
    ASSERT_TRUE(engine_->Check(device.View(), 0).ok());
    ASSERT_TRUE(engine_->Enqueue(device.View(), 0, stream, answer.To(width), &answer).ok());
    Finish();
    Compare(answer, tensor, width);
  }
  void Compare(const Answer& answer, const TestTensor& tensor, std::uint32_t width) {
    ASSERT_TRUE(answer.done);
    ASSERT_TRUE(answer.status.ok()) << answer.status.message();
    const Emulated expected = Emulate(tensor.View(), width);
    EXPECT_EQ(answer.stats.hash, expected.stats.hash);
    EXPECT_TRUE(answer.stats == expected.stats) << "the host's emulation has other bits";
    EXPECT_EQ(answer.sketch, expected.sketch);
    const Computed cpu = Compute(tensor, width);
    EXPECT_EQ(answer.stats.hash, cpu.stats.hash);
    EXPECT_EQ(answer.stats.nan, cpu.stats.nan);
    EXPECT_EQ(answer.stats.zero, cpu.stats.zero);
    EXPECT_EQ(answer.stats.neg, cpu.stats.neg);
    if (!cpu.stats.has_finite) return;
    EXPECT_EQ(answer.stats.min, cpu.stats.min);
    EXPECT_EQ(answer.stats.max, cpu.stats.max);
    if (std::isfinite(cpu.stats.l2)) {
      EXPECT_NEAR(answer.stats.l2, cpu.stats.l2, 1e-6 * cpu.stats.l2);
      EXPECT_NEAR(answer.stats.std, cpu.stats.std, 1e-6 * cpu.stats.l2);
    }
  }

  std::unique_ptr<CudaEngine> engine_;
  std::mt19937_64 random_{11};
};

TEST_F(GpuEngineTest, AgreesForEveryDTypeAndSize) {
  for (const DType dtype : kAllDTypes) {
    const auto piece = static_cast<std::int64_t>(kPieceBytes / DTypeBytes(dtype));
    for (const std::int64_t size :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{15}, std::int64_t{17}, std::int64_t{257},
          piece - 1, piece, piece + 1, 7 * piece, 33 * piece + 5, 1100 * piece + 3}) {
      SCOPED_TRACE(std::string(Name(dtype)) + " x " + std::to_string(size));
      Check(RandomNumbers(dtype, {size}, random_));
      if (HasFailure()) return;
    }
  }
}

TEST(GpuExponents, EqualThoseOfTheCpuForEveryDTypeSizeAndStride) {
  NEEDS_A_GPU();
  CudaEngine engine({.exponent_lowest = kExponentMin, .exponents = kExponentCount, .records = 8},
                    MakeCudaApi());
  ASSERT_TRUE(engine.Open(0).ok());
  std::mt19937_64 random(5);
  for (const DType dtype : kAllDTypes) {
    for (const std::int64_t rows : {0, 1, 333, 20000}) {
      SCOPED_TRACE(std::string(Name(dtype)) + " x " + std::to_string(rows));
      TestTensor tensor = RandomBits(dtype, {rows, 70}, random);
      if (rows == 333) {
        tensor.shape = {70, rows};
        tensor.strides = {1, 70};
      }
      const OnDevice device(tensor);
      std::vector<std::uint64_t> expected(kExponentCount), found(kExponentCount, 7);
      CountExponents(tensor.View(), kExponentMin, expected);
      Answer answer;
      Output output = answer.To(16);
      output.exponents = found;
      ASSERT_TRUE(engine.Check(device.View(), 0).ok());
      ASSERT_TRUE(engine.Enqueue(device.View(), 0, nullptr, output, &answer).ok());
      const auto deadline = std::chrono::steady_clock::now() + seconds(60);
      while (engine.Poll(std::chrono::steady_clock::now(), End) > 0)
        ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      ASSERT_TRUE(answer.done && answer.status.ok()) << answer.status.message();
      EXPECT_EQ(found, expected);
    }
  }
}

TEST_F(GpuEngineTest, AgreesForAnyBitsAndWidth) {
  for (const DType dtype : kAllDTypes) {
    for (const std::uint32_t width : {0u, 16u, 32u, 64u}) {
      SCOPED_TRACE(std::string(Name(dtype)) + ", sketch " + std::to_string(width));
      Check(RandomBits(dtype, {70001}, random_), width);
      if (HasFailure()) return;
    }
  }
}

TEST_F(GpuEngineTest, AgreesForAnyStridesAndAlignment) {
  for (const DType dtype : kAllDTypes) {
    for (int round = 0; round < 6; ++round) {
      TestTensor tensor = RandomNumbers(dtype, {60000}, random_);
      const std::size_t dims = 1 + random_() % 4;
      tensor.shape.clear();
      std::int64_t least = 0;
      for (std::size_t d = 0; d < dims; ++d) {
        tensor.shape.push_back(1 + static_cast<std::int64_t>(random_() % (dims == 1 ? 9000 : 20)));
        tensor.strides.push_back(static_cast<std::int64_t>(random_() % 9) - 4);
        least += std::min<std::int64_t>(0, (tensor.shape[d] - 1) * tensor.strides[d]);
      }
      tensor.origin = -least + static_cast<std::int64_t>(random_() % 7);
      SCOPED_TRACE(std::string(Name(dtype)) + ", round " + std::to_string(round));
      Check(tensor);
      if (HasFailure()) return;
    }
  }
}

TEST_F(GpuEngineTest, ListsAgreeWithTheHost) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 20; ++round) {
    std::vector<TestTensor> tensors;
    for (int i = 0; i < 200; ++i) {
      const DType dtype = i % 3 == 0 ? DType::kF32 : i % 3 == 1 ? DType::kBf16 : DType::kI64;
      tensors.push_back(RandomNumbers(
          dtype, {static_cast<std::int64_t>(random() % (i % 10 == 0 ? 300'000 : 3000))}, random));
    }
    std::vector<std::unique_ptr<OnDevice>> devices;
    std::vector<Answer> answers(tensors.size());
    std::vector<CudaEngine::Item> items;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      devices.push_back(std::make_unique<OnDevice>(tensors[i]));
      ASSERT_TRUE(engine_->Check(devices[i]->View(), 0).ok());
      items.push_back({devices[i]->View(), answers[i].To(16, 4), &answers[i]});
    }
    engine_->EnqueueList(items, 0, nullptr,
                         [](void*, const Status& why) { ADD_FAILURE() << why.message(); });
    Finish();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      SCOPED_TRACE(i);
      Compare(answers[i], tensors[i], 16);
    }
    if (HasFatalFailure()) return;
  }
}

TEST_F(GpuEngineTest, KeepsStreamsApart) {
  cudaStream_t streams[3];
  for (cudaStream_t& stream : streams)
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  std::vector<TestTensor> tensors;
  std::vector<std::unique_ptr<OnDevice>> devices;
  for (int i = 0; i < 60; ++i) {
    tensors.push_back(
        RandomNumbers(i % 2 == 0 ? DType::kF32 : DType::kBf16, {100000 + 1000 * i}, random_));
    devices.push_back(std::make_unique<OnDevice>(tensors.back()));
  }
  std::vector<Answer> answers(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_TRUE(
        engine_->Enqueue(devices[i]->View(), 0, streams[i % 3], answers[i].To(16), &answers[i])
            .ok());
  }
  Finish();
  for (std::size_t i = 0; i < tensors.size(); ++i) Compare(answers[i], tensors[i], 16);
  for (cudaStream_t stream : streams) cudaStreamDestroy(stream);
}

TEST_F(GpuEngineTest, GivesTheSameBitsEveryTime) {
  const TestTensor tensor = RandomNumbers(DType::kBf16, {9'000'001}, random_);
  const OnDevice device(tensor);
  std::vector<Answer> answers(20);
  for (Answer& answer : answers) {
    ASSERT_TRUE(engine_->Enqueue(device.View(), 0, nullptr, answer.To(16), &answer).ok());
  }
  Finish();
  for (const Answer& answer : answers) {
    EXPECT_TRUE(answer.stats == answers[0].stats);
    EXPECT_EQ(answer.sketch, answers[0].sketch);
  }
}

// Stream order protects what is freed, and overwritten by the next owner, right after Enqueue.
TEST_F(GpuEngineTest, ReadsATensorThatIsFreedRightAfter) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const TestTensor tensor = RandomNumbers(DType::kF32, {4'000'000}, random_);
  const std::size_t bytes = 16'000'000;
  for (int round = 0; round < 5; ++round) {
    void* memory = nullptr;
    ASSERT_EQ(cudaMallocAsync(&memory, bytes, stream), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(memory, tensor.storage.data(), bytes, cudaMemcpyHostToDevice, stream),
              cudaSuccess);
    CpuTensor view = tensor.View();
    view.data = memory;
    Answer answer;
    ASSERT_TRUE(engine_->Enqueue(view, 0, stream, answer.To(16), &answer).ok());
    ASSERT_EQ(cudaFreeAsync(memory, stream), cudaSuccess);
    void* next = nullptr;
    ASSERT_EQ(cudaMallocAsync(&next, bytes, stream), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(next, 0xff, bytes, stream), cudaSuccess);
    ASSERT_EQ(cudaFreeAsync(next, stream), cudaSuccess);
    Finish();
    Compare(answer, tensor, 16);
  }
  cudaStreamDestroy(stream);
}

TEST_F(GpuEngineTest, CopiesSamples) {
  for (const DType dtype : kAllDTypes) {
    const TestTensor tensor = RandomNumbers(dtype, {3, 50}, random_);
    const OnDevice device(tensor);
    Answer answer;
    ASSERT_TRUE(engine_->Enqueue(device.View(), 0, nullptr, answer.To(16, 8), &answer).ok());
    Finish();
    EXPECT_EQ(answer.sample_count, 8u);
    EXPECT_EQ(answer.samples, Compute(tensor, 0, 8).samples) << Name(dtype);
  }
}

class Heard final : public ReplayListener {
 public:
  void Replayed(void* cookie, std::uint64_t step, const TensorStats& stats,
                std::span<const double> sketch, std::span<const double>) override {
    results.push_back({cookie, step, stats, {sketch.begin(), sketch.end()}});
  }
  void Marked(int, std::uint64_t number) override { mark = number; }
  void Missed(int, std::uint64_t rows) override { missed += rows; }
  void Failed(int) override { failed = true; }
  void Gone(void*) override { ++gone; }

  struct Result {
    void* cookie;
    std::uint64_t step;
    TensorStats stats;
    std::vector<double> sketch;
  };
  std::vector<Result> results;
  std::uint64_t mark = 0, missed = 0;
  bool failed = false;
  int gone = 0;
};

// Captured while another thread asks for the device's health, replayed in steps that are recorded
// and one that is not, with values that change between replays; then the graph is destroyed.
TEST_F(GpuEngineTest, RecordsTheReplaysOfAGraph) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const TestTensor before =
      RandomNumbers(DType::kF32, {3'000'000}, random_);  // several levels of nodes
  const TestTensor after = RandomNumbers(DType::kF32, {3'000'000}, random_);
  const TestTensor small = RandomNumbers(DType::kBf16, {40, 3}, random_);
  const OnDevice large_memory(before), small_memory(small);
  Heard heard;
  int cookies[2] = {};
  const auto poll = [&](milliseconds later = milliseconds(0)) {
    return engine_->Poll(std::chrono::steady_clock::now() + later, End, &heard);
  };

  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  ASSERT_TRUE(engine_->IsCapturing(0, stream));
  std::uint64_t number = 0;
  const Status first =
      engine_->AddToGraph(large_memory.View(), 0, stream, {3, 1}, 16, 0, &cookies[0], &number);
  const Status second =
      engine_->AddToGraph(small_memory.View(), 0, stream, {3, 1}, 16, 0, &cookies[1], &number);
  std::thread([&] { (void)poll(seconds(10)); }).join();
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_TRUE(first.ok()) << first.message();
  ASSERT_TRUE(second.ok()) << second.message();
  cudaGraphExec_t run = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&run, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph),
            cudaSuccess);  // as torch does: what runs keeps everything alive
  (void)poll();
  EXPECT_TRUE(heard.results.empty());

  for (std::uint64_t step = 3; step < 6; ++step) {  // step 4 is not recorded
    ASSERT_EQ(cudaGraphLaunch(run, stream), cudaSuccess);
    ASSERT_TRUE(engine_->MarkReplays(0, stream, {step + 1, step + 1 == 4 ? 0u : 1u}, step));
    if (step == 4) {
      ASSERT_EQ(cudaMemcpyAsync(const_cast<void*>(large_memory.View().data), after.View().data,
                                1'500'000 * sizeof(float), cudaMemcpyHostToDevice, stream),
                cudaSuccess);
    }
  }
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(poll(), 1u);
  EXPECT_EQ(heard.mark, 5u);
  EXPECT_EQ(heard.missed, 0u);
  EXPECT_FALSE(heard.failed);
  ASSERT_EQ(heard.results.size(), 4u);
  const Emulated expected[] = {
      Emulate(before.View(), 16), Emulate(small.View(), 16), {}, Emulate(small.View(), 16)};
  for (const int i : {0, 1, 3}) {
    const Heard::Result& result = heard.results[static_cast<std::size_t>(i)];
    EXPECT_EQ(result.cookie, &cookies[i % 2]);
    EXPECT_EQ(result.step, i < 2 ? 3u : 5u);
    EXPECT_TRUE(result.stats == expected[i].stats);
    EXPECT_EQ(result.sketch, expected[i].sketch);
  }
  EXPECT_NE(heard.results[2].stats.hash, heard.results[0].stats.hash) << "the memory has changed";

  ASSERT_EQ(cudaGraphExecDestroy(run), cudaSuccess);
  for (int i = 0; i < 100 && engine_->ReplayDevices().size() == 1; ++i) {
    std::this_thread::sleep_for(milliseconds(50));  // CUDA tells it from a thread of its own
    (void)poll();
  }
  EXPECT_TRUE(engine_->ReplayDevices().empty());
  EXPECT_EQ(heard.gone, 2);
  Check(before, 16, stream);
  cudaStreamDestroy(stream);
}

TEST_F(GpuEngineTest, RefusesMemoryOfTheHostAndDevicesThatAreNotThere) {
  const TestTensor tensor = RandomNumbers(DType::kF32, {1000}, random_);
  EXPECT_EQ(engine_->Check(tensor.View(), 0).code(), Code::kInvalidArgument);
  EXPECT_EQ(engine_->Check(tensor.View(), 77).code(), Code::kInvalidArgument);
  EXPECT_EQ(engine_->Check(tensor.View(), -1).code(), Code::kInvalidArgument);
  Check(tensor);
}

TEST_F(GpuEngineTest, CountsMoreThanTwoToThe31Elements) {
  const std::int64_t size = (std::int64_t{1} << 31) + 12345;
  std::size_t free_bytes = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
  if (free_bytes < static_cast<std::size_t>(size) + (1u << 30))
    GTEST_SKIP() << "not enough memory on the device";
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, static_cast<std::size_t>(size)), cudaSuccess);
  ASSERT_EQ(cudaMemset(memory, 3, static_cast<std::size_t>(size)), cudaSuccess);
  const std::int64_t shape[] = {size};
  Answer answer;
  ASSERT_TRUE(
      engine_->Enqueue({memory, DType::kU8, shape, {}}, 0, nullptr, answer.To(16), &answer).ok());
  Finish();
  EXPECT_EQ(answer.stats.pos, static_cast<std::uint64_t>(size));
  EXPECT_EQ(answer.stats.l1, 3.0 * static_cast<double>(size));
  EXPECT_EQ(answer.stats.std, 0);
  cudaFree(memory);
}

TEST(GpuCompute, WaitsForItsOwnResult) {
  NEEDS_A_GPU();
  std::mt19937_64 random(3);
  const TestTensor tensor = RandomNumbers(DType::kF16, {100000}, random);
  const OnDevice device(tensor);
  Answer answer;
  const Status computed = ComputeCuda(device.View(), 0, nullptr, answer.To(32, 8), seconds(30));
  ASSERT_TRUE(computed.ok()) << computed.message();
  EXPECT_TRUE(answer.stats == Emulate(tensor.View(), 32).stats);
  EXPECT_EQ(answer.sample_count, 8u);
}

// The limit of shared memory is the process's: each engine needs its own width beside the other's.
TEST(GpuEngine, SketchesOfAnyWidthInAnyOrderBesideAnAgents) {
  NEEDS_A_GPU();
  std::mt19937_64 random(1);
  const TestTensor tensor = RandomNumbers(DType::kF32, {100'000}, random);
  const OnDevice on_device(tensor);
  const TensorStats expected = Emulate(tensor.View(), 16).stats;
  CudaEngine agent({.sketch = 64, .records = 8}, MakeCudaApi());
  ASSERT_TRUE(agent.Open(0).ok());
  for (const std::uint32_t sketch : {64u, 16u, 64u, 0u, 32u, 64u}) {
    TensorStats stats;
    std::vector<double> sums(sketch);
    const Status status =
        ComputeCuda(on_device.View(), 0, nullptr, {&stats, sums, {}, nullptr}, seconds(10));
    ASSERT_TRUE(status.ok()) << sketch << ": " << status.message();
    EXPECT_EQ(stats, expected) << sketch;
    Answer answer;
    ASSERT_TRUE(agent.Enqueue(on_device.View(), 0, nullptr, answer.To(64), &answer).ok()) << sketch;
    const auto end = std::chrono::steady_clock::now() + seconds(10);
    while (!answer.done && std::chrono::steady_clock::now() < end) {
      (void)agent.Poll(std::chrono::steady_clock::now(), [](void* cookie, const Status& ended) {
        static_cast<Answer*>(cookie)->status = ended;
        static_cast<Answer*>(cookie)->done = true;
      });
    }
    EXPECT_TRUE(answer.done && answer.status.ok()) << sketch;
    EXPECT_EQ(answer.stats, expected) << sketch;
  }
}

// Needs two GPUs: this thread's device stays what it was, and results are right.
TEST(GpuEngine, AThreadOfAnotherDeviceKeepsIt) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2)
    GTEST_SKIP() << "fewer than two CUDA devices here";
  std::mt19937_64 random(1);
  const TestTensor tensor = RandomNumbers(DType::kF32, {100'000}, random);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const OnDevice on_device(tensor);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  std::thread([&] {
    TensorStats stats;
    std::vector<double> sums(16);
    const Status status =
        ComputeCuda(on_device.View(), 1, nullptr, {&stats, sums, {}, nullptr}, seconds(10));
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(stats, Emulate(tensor.View(), 16).stats);
    int device = -1;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(device, 0);
  }).join();
}

}  // namespace
}  // namespace statcollect::stats::cuda
