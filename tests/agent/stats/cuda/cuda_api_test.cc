// cuda_api.cc, as it is built with a toolkit, over a runtime made of host code: contexts, limits of
// kernels, calls, errors.
#include "agent/stats/cuda/cuda_api.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "agent/stats/cuda/compute.h"
#include "tests/agent/stats/cuda/emulation.h"
#include "tests/agent/stats/cuda/fake_runtime.h"
#include "tests/agent/stats/test_tensor.h"

namespace statcollect::stats::cuda {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTimeout{10'000};

class CudaApiTest : public ::testing::Test {
 protected:
  // A tensor in the memory of a device.
  struct OnDevice {
    OnDevice(int device, std::int64_t elements) : shape{elements} {
      std::mt19937_64 random{1};
      const TestTensor tensor = RandomNumbers(DType::kF32, shape, random);
      const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(elements);
      data = FakeRuntime::Get().NewMemory(device, bytes);
      std::memcpy(data, tensor.View().data, bytes);
    }
    CpuTensor View() const { return {data, DType::kF32, shape, {}}; }
    void* data = nullptr;
    std::vector<std::int64_t> shape;
  };
  struct Answer {
    TensorStats stats;
    std::vector<double> sketch;
    int ended = 0;
    Status status;
  };

  CudaApiTest() { runtime_.Reset(); }

  static std::unique_ptr<CudaEngine> MakeEngine(std::uint32_t sketch = 16) {
    return std::make_unique<CudaEngine>(EngineOptions{.sketch = sketch, .records = 16, .lanes = 2},
                                        MakeCudaApi());
  }
  // As an agent does for one tensor.
  Status Observe(CudaEngine& engine, const OnDevice& tensor, int device, void* stream,
                 Answer& answer, std::uint32_t sketch = 16) {
    answer.sketch.resize(sketch);
    STATCOLLECT_RETURN_IF_ERROR(engine.Check(tensor.View(), device));
    if (engine.IsCapturing(device, stream)) return {Code::kFailedPrecondition, "captured"};
    return engine.Enqueue(tensor.View(), device, stream,
                          {&answer.stats, answer.sketch, {}, nullptr}, &answer);
  }
  std::size_t Poll(CudaEngine& engine) {
    now_ += CudaEngine::kHealthInterval;  // its health is asked for, too
    return engine.Poll(now_, [](void* cookie, const Status& status) {
      ++static_cast<Answer*>(cookie)->ended;
      static_cast<Answer*>(cookie)->status = status;
    });
  }
  Status Compute(const OnDevice& tensor, int device, std::uint32_t sketch, TensorStats* stats) {
    std::vector<double> sums(sketch);
    return ComputeCuda(tensor.View(), device, nullptr, {stats, sums, {}, nullptr}, kTimeout);
  }
  // In a thread that has used no device.
  template <typename F>
  static void InNewThread(const F& what) {
    std::thread(what).join();
  }
  static int DeviceOfThread() {
    int device = -1;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    return device;
  }

  FakeRuntime& runtime_ = FakeRuntime::Get();
  CudaEngine::TimePoint now_{};
};

TEST_F(CudaApiTest, ComputesSketchesOfAnyWidthInAnyOrder) {
  const OnDevice tensor(0, 5000);
  const TensorStats expected = Emulate(tensor.View(), 16).stats;
  for (const std::uint32_t sketch : {64u, 16u, 64u, 0u, 32u, 64u, 16u}) {
    TensorStats stats;
    const Status status = Compute(tensor, 0, sketch, &stats);
    ASSERT_TRUE(status.ok()) << sketch << ": " << status.message();
    EXPECT_EQ(stats, expected) << sketch;
  }
}

TEST_F(CudaApiTest, ComputesRowsOnAnyDevice) {
  const OnDevice tensor(2, 8 * 700);
  const std::vector<std::int64_t> shape{8, 700};
  const CpuTensor matrix{tensor.data, DType::kF32, shape, {}};
  std::vector<RowStats> expected(8);
  ComputeRows(matrix, 3, expected, nullptr);
  for (int again = 0; again < 2; ++again) {
    std::vector<RowStats> found(8);
    const Status computed = ComputeRowsCuda(matrix, 3, 2, nullptr, found, kTimeout);
    ASSERT_TRUE(computed.ok()) << computed.message();
    for (std::size_t row = 0; row < 8; ++row) EXPECT_EQ(found[row].hash, expected[row].hash);
  }
  EXPECT_EQ(ComputeRowsCuda(matrix, 0, 99, nullptr, expected, kTimeout).code(),
            Code::kInvalidArgument);
}

// Maps in the parameters of a launch, and maps that are copied in the stream.
TEST_F(CudaApiTest, ComputesShards) {
  const OnDevice tensor(2, 6000);
  const auto engine = MakeEngine();
  const std::vector<std::int64_t> shape{100'000};
  std::vector<std::int64_t> one{4096, 10'096}, many;
  for (std::int64_t i = 0; i < 300; ++i) many.insert(many.end(), {100 * i + 7, 100 * i + 27});
  for (const auto& ranges : {one, many}) {
    const Placement placement{shape, {}, ranges};
    ASSERT_TRUE(Validate(tensor.View(), placement).ok());
    const Emulated expected = Emulate(tensor.View(), 16, 0, &placement);
    EXPECT_NE(expected.stats.hash, Emulate(tensor.View(), 16).stats.hash);
    TensorStats stats;
    std::vector<double> sketch(16);
    const Status computed =
        ComputeCuda(tensor.View(), 2, nullptr, {&stats, sketch, {}, nullptr}, kTimeout, &placement);
    ASSERT_TRUE(computed.ok()) << computed.message();
    EXPECT_EQ(stats, expected.stats);
    EXPECT_EQ(sketch, expected.sketch);

    Answer answer;
    answer.sketch.resize(16);
    ASSERT_TRUE(engine->Check(tensor.View(), 2).ok());
    runtime_.calls.clear();
    ASSERT_TRUE(engine
                    ->Enqueue(tensor.View(), 2, nullptr,
                              {&answer.stats, answer.sketch, {}, nullptr}, &answer, &placement)
                    .ok());
    EXPECT_EQ(runtime_.calls["cudaLaunchKernel"], 1);
    EXPECT_EQ(runtime_.calls["cudaMemcpyAsync"], ranges.size() == 2 ? 0 : 1);
    EXPECT_EQ(runtime_.calls["cudaStreamSynchronize"], 0);
    EXPECT_EQ(Poll(*engine), 0u);
    EXPECT_EQ(answer.stats, expected.stats);
  }
}

TEST_F(CudaApiTest, AnAgentAndComputeDoNotTakeEachOthersSharedMemory) {
  const OnDevice tensor(1, 5000);
  const auto engine = MakeEngine(64);
  for (int round = 0; round < 3; ++round) {
    Answer answer;
    const Status status = Observe(*engine, tensor, 1, nullptr, answer, 64);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(Poll(*engine), 0u);
    EXPECT_TRUE(answer.status.ok());
    TensorStats stats;
    const Status computed = Compute(tensor, 1, round == 1 ? 32 : 16, &stats);
    ASSERT_TRUE(computed.ok()) << computed.message();
    EXPECT_EQ(stats, answer.stats);
  }
}

TEST_F(CudaApiTest, TheAgentsThreadsMakeNoContextOnOtherDevices) {
  const auto engine = MakeEngine();
  const auto captures = MakeCudaApi();
  const OnDevice tensor(2, 5000);
  std::vector<unsigned char> copied(20'000);
  void* copy = nullptr;
  runtime_.holds = true;
  Answer answer;
  ASSERT_EQ(cudaSetDevice(2), cudaSuccess);  // as a rank of a training does
  ASSERT_TRUE(Observe(*engine, tensor, 2, nullptr, answer).ok());
  const auto begun =
      captures->CopyToHostInStream(2, copied.data(), tensor.data, copied.size(), nullptr);
  ASSERT_TRUE(begun.ok());
  copy = *begun;
  InNewThread([&] {  // the batcher's
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(Poll(*engine), 1u);
      const auto done = captures->IsDone(2, copy);
      EXPECT_TRUE(done.ok() && !*done);
    }
    runtime_.RunAll();
    EXPECT_EQ(Poll(*engine), 0u);
    const auto done = captures->IsDone(2, copy);
    EXPECT_TRUE(done.ok() && *done);
  });
  EXPECT_EQ(answer.ended, 1);
  EXPECT_EQ(std::memcmp(copied.data(), tensor.data, copied.size()), 0);
  EXPECT_EQ(runtime_.active, std::set<int>{2}) << "devices with contexts";
}

TEST_F(CudaApiTest, AThreadKeepsItsDeviceAndMakesNoContextThere) {
  const auto engine = MakeEngine();
  const OnDevice tensor(3, 5000);
  const cudaStream_t stream = runtime_.NewStream(3);
  InNewThread([&] {  // as one that computes on cuda:3 and has never called set_device
    for (void* in : {static_cast<void*>(nullptr), static_cast<void*>(stream)}) {
      Answer answer;
      const Status status = Observe(*engine, tensor, 3, in, answer);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(Poll(*engine), 0u);
      EXPECT_EQ(answer.ended, 1);
    }
    EXPECT_EQ(DeviceOfThread(), 0);
  });
  EXPECT_EQ(runtime_.active, std::set<int>{3});
  for (const auto& launched : runtime_.launches) EXPECT_EQ(launched.device, 3);
  InNewThread([&] {
    EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
    Answer answer;
    EXPECT_TRUE(Observe(*engine, tensor, 3, nullptr, answer).ok());
    EXPECT_EQ(DeviceOfThread(), 1);
  });
}

TEST_F(CudaApiTest, MemoryIsNotLookedAtBeforeTheDeviceIsSet) {
  const OnDevice tensor(2, 100);
  const auto engine = MakeEngine();
  ASSERT_TRUE(engine->Open(2).ok());
  runtime_.active = {2};
  InNewThread([&] { EXPECT_TRUE(engine->Check(tensor.View(), 2).ok()); });
  EXPECT_EQ(runtime_.active, std::set<int>{2});
}

TEST_F(CudaApiTest, MemoryThatTheDeviceCannotReadIsRefused) {
  const auto engine = MakeEngine();
  const OnDevice there(1, 100), elsewhere(2, 100);
  ASSERT_TRUE(engine->Check(there.View(), 1).ok());
  ASSERT_TRUE(engine->Check(there.View(), 1).ok());
  EXPECT_EQ(engine->Check(elsewhere.View(), 1).code(), Code::kInvalidArgument);
  EXPECT_EQ(engine->Check(there.View(), 2).code(), Code::kInvalidArgument)
      << "known of another device";
  std::mt19937_64 random{1};
  const TestTensor host = RandomNumbers(DType::kF32, {100}, random);
  EXPECT_EQ(engine->Check(host.View(), 1).code(), Code::kInvalidArgument);
}

TEST_F(CudaApiTest, AnObservationTakesTwoCallsOfTheDriver) {
  const auto engine = MakeEngine();
  const OnDevice tensor(0, 5000);
  for (void* stream : {static_cast<void*>(nullptr), static_cast<void*>(runtime_.NewStream(0))}) {
    for (int round = 0; round < 3; ++round) {
      runtime_.calls.clear();
      Answer answer;
      ASSERT_TRUE(Observe(*engine, tensor, 0, stream, answer).ok());
      if (round > 0) {
        EXPECT_EQ(runtime_.calls["cudaStreamIsCapturing"], 1);
        EXPECT_EQ(runtime_.calls["cudaLaunchKernel"], 1);
        EXPECT_EQ(runtime_.DriverCalls(), 2) << ::testing::PrintToString(runtime_.calls);
      }
      EXPECT_EQ(Poll(*engine), 0u);
    }
  }
}

TEST_F(CudaApiTest, MemoryIsLookedAtWithoutBreakingAnotherThreadsCapture) {
  const OnDevice tensor(2, 100);
  const auto engine = MakeEngine();
  ASSERT_TRUE(engine->Open(2).ok());
  const cudaStream_t stream = runtime_.NewStream(2);
  runtime_.BeginCapture(stream);
  InNewThread([&] {  // autograd's
    EXPECT_EQ(cudaSetDevice(2), cudaSuccess);
    EXPECT_TRUE(engine->Check(tensor.View(), 2).ok());
    EXPECT_TRUE(engine->IsCapturing(2, stream));
  });
  EXPECT_FALSE(runtime_.capture_invalid);
}

TEST_F(CudaApiTest, AnAgentThatIsGoneLeavesItsMemoryToTheNextAndWaitsForNoStream) {
  const OnDevice tensor(2, 5000);
  std::size_t device_bytes = 0, host_bytes = 0;
  for (int round = 0; round < 4; ++round) {
    const auto engine = MakeEngine(32);
    Answer answer;
    ASSERT_TRUE(Observe(*engine, tensor, 2, nullptr, answer, 32).ok());
    EXPECT_EQ(Poll(*engine), 0u);
    EXPECT_EQ(answer.stats, Emulate(tensor.View(), 16).stats) << round;
    if (round == 0) {
      device_bytes = runtime_.device_bytes;
      host_bytes = runtime_.host_bytes;
    }
    EXPECT_EQ(runtime_.device_bytes, device_bytes);
    EXPECT_EQ(runtime_.host_bytes, host_bytes);
  }
  EXPECT_EQ(runtime_.waited_for_all, 0);
}

TEST_F(CudaApiTest, OnlyAnErrorThatSticksEndsTheDevice) {
  const auto engine = MakeEngine();
  const OnDevice tensor(4, 5000);
  Answer good;
  ASSERT_TRUE(Observe(*engine, tensor, 4, nullptr, good).ok());
  for (int i = 0; i < 20; ++i) {  // there are 16 records
    runtime_.errors["cudaLaunchKernel"].push_back(cudaErrorStreamCaptureUnsupported);
    Answer refused;
    EXPECT_EQ(Observe(*engine, tensor, 4, nullptr, refused).code(), Code::kInternal);
  }
  Answer after;
  ASSERT_TRUE(Observe(*engine, tensor, 4, nullptr, after).ok());
  EXPECT_EQ(Poll(*engine), 0u);
  EXPECT_TRUE(good.status.ok() && after.status.ok());
  EXPECT_EQ(after.stats, good.stats);

  runtime_.holds = true;
  Answer lost, late;
  ASSERT_TRUE(Observe(*engine, tensor, 4, nullptr, lost).ok());
  runtime_.dead[4] = cudaErrorIllegalAddress;
  EXPECT_EQ(Observe(*engine, tensor, 4, nullptr, late).code(), Code::kInternal) << "not: captured";
  runtime_.dead.clear();  // nobody asks again
  EXPECT_EQ(Observe(*engine, tensor, 4, nullptr, late).code(), Code::kInternal);
  EXPECT_EQ(Poll(*engine), 0u);
  EXPECT_EQ(lost.ended, 1);
  EXPECT_EQ(lost.status.code(), Code::kInternal);
}

TEST_F(CudaApiTest, NothingGoesIntoTheDefaultStreamWhileAnotherIsCaptured) {
  const auto api = MakeCudaApi();
  ASSERT_TRUE(api->Open(4).ok());
  ASSERT_EQ(cudaSetDevice(4), cudaSuccess);
  EXPECT_FALSE(api->IsCapturing(4, nullptr));
  runtime_.BeginCapture(runtime_.NewStream(4));
  EXPECT_TRUE(api->IsCapturing(4, nullptr));
  runtime_.EndCapture();
}

TEST_F(CudaApiTest, AStreamWithTheHandleOfOneBeforeGetsItsOwnResults) {
  const auto engine = MakeEngine();
  const OnDevice first(5, 5000), second(5, 6000);
  const cudaStream_t stream = runtime_.NewStream(5);
  Answer before, after;
  ASSERT_TRUE(Observe(*engine, first, 5, stream, before).ok());
  runtime_.DestroyStream(stream);  // its work is done, and nobody has polled
  ASSERT_EQ(runtime_.NewStream(5), stream);
  ASSERT_TRUE(Observe(*engine, second, 5, stream, after).ok());
  EXPECT_EQ(Poll(*engine), 0u);
  EXPECT_EQ(before.stats, Emulate(first.View(), 16).stats);
  EXPECT_EQ(after.stats, Emulate(second.View(), 16).stats);
}

TEST_F(CudaApiTest, SaysWhichDriverIsNeeded) {
  runtime_.driver_too_old = true;
  runtime_.driver = 11080;
  CudaEngine engine({}, MakeCudaApi());
  const Status status = engine.Open(7);  // which no other case opens
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_NE(status.message().find("the driver supports CUDA 11.8"), std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("525"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace statcollect::stats::cuda
