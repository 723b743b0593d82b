// The CUDA engine beside the device's own limits, in one run (P3, P4, P5): a copy from device
// memory to device memory, a kernel that only reads, a launch of an empty kernel; over random
// numbers. Prints JSON; exits with 3 where there is no device.
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "agent/stats/cuda/engine.h"
#include "bench/gpu/empty_kernel.h"
#include "bench/gpu/memory_kernels.h"
#include "common/names.h"

namespace {

using statcollect::DType;
using statcollect::stats::CpuTensor;
using statcollect::stats::cuda::CudaEngine;
using Clock = std::chrono::steady_clock;

constexpr int kNoDevice = 3;

void Require(bool good, const std::string& what) {
  if (good) return;
  std::cerr << "statagent_gpu_bench: " << what << ": " << cudaGetErrorString(cudaGetLastError())
            << '\n';
  std::exit(1);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Milliseconds that the device takes for what `enqueue` puts into the default stream; median over
// the rounds.
template <typename F>
double DeviceMilliseconds(int rounds, const F& enqueue) {
  cudaEvent_t begin = nullptr, end = nullptr;
  Require(cudaEventCreate(&begin) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess,
          "make events");
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    Require(cudaEventRecord(begin) == cudaSuccess, "record an event");
    enqueue();
    Require(cudaEventRecord(end) == cudaSuccess && cudaEventSynchronize(end) == cudaSuccess,
            "wait for an event");
    float milliseconds = 0;
    Require(cudaEventElapsedTime(&milliseconds, begin, end) == cudaSuccess, "read an event");
    times.push_back(milliseconds);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return Median(times);
}

NumberFormat FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return {11, 52};
    case DType::kF32:
      return {8, 23};
    case DType::kBf16:
      return {8, 7};
    case DType::kF16:
      return {5, 10};
    case DType::kF8E4M3:
      return {4, 3};
    default:
      return {};
  }
}

class Bench {
 public:
  Bench(std::size_t bytes_max, int processors)
      : bytes_max_(bytes_max),
        processors_(processors),
        engine_({.sketch = 16, .samples = 0, .records = 2048, .records_max = 2048, .lanes = 1},
                statcollect::stats::cuda::MakeCudaApi()) {
    const statcollect::Status opened = engine_.Open(0);
    Require(opened.ok(), opened.message());
    Require(cudaMalloc(&memory_, bytes_max) == cudaSuccess &&
                cudaMalloc(&other_, bytes_max) == cudaSuccess,
            "allocate on the device");
    sketch_.resize(16);
  }

  // What is measured from now on is random numbers of this dtype.
  void Fill(DType dtype) {
    FillRandom(memory_, bytes_max_, FormatOf(dtype));
    Require(cudaDeviceSynchronize() == cudaSuccess, "fill the device's memory");
  }

  nlohmann::json Throughput(DType dtype, std::size_t bytes, int rounds) {
    const int times = bytes >= (std::size_t{64} << 20) ? 5 : 40;
    // Small tensors lie one behind the other through all of the memory, so that they do not come
    // from the cache.
    const std::size_t places = bytes_max_ / bytes;
    std::size_t next = 0;
    const auto each = [&](const auto& what) {
      return [&, what] {
        for (int i = 0; i < times; ++i) what(next++ % places * bytes);
      };
    };
    const auto at = [](void* memory, std::size_t offset) {
      return static_cast<char*>(memory) + offset;
    };
    const double copy =
        DeviceMilliseconds(rounds, each([&](std::size_t offset) {
                             Require(cudaMemcpyAsync(at(other_, offset), at(memory_, offset), bytes,
                                                     cudaMemcpyDeviceToDevice) == cudaSuccess,
                                     "copy");
                           }));
    const double read = DeviceMilliseconds(rounds, each([&](std::size_t offset) {
                                             ReadOnly(at(memory_, offset), bytes, processors_);
                                           }));
    Require(cudaGetLastError() == cudaSuccess, "read the device's memory");
    Enqueue(dtype, bytes, 1);
    const double ours = DeviceMilliseconds(rounds, [&] {
      each([&](std::size_t offset) { Enqueue(dtype, bytes, 1, false, offset); })();
      (void)engine_.Poll(Clock::now(), [](void*, const statcollect::Status&) {});
    });
    Drain();
    const double gigabytes = static_cast<double>(bytes) * times / 1e9;
    const double rate = gigabytes / (ours / 1e3), copy_rate = 2 * gigabytes / (copy / 1e3),
                 read_rate = gigabytes / (read / 1e3);
    return {
        {"dtype", Name(dtype)},       {"mebibytes", bytes >> 20},    {"gb_per_s", rate},
        {"copy_gb_per_s", copy_rate}, {"of_copy", rate / copy_rate}, {"read_gb_per_s", read_rate},
        {"of_read", rate / read_rate}};
  }

  nlohmann::json Small(DType dtype, std::size_t bytes, int rounds) {
    constexpr int kTimes = 500;
    const double empty = DeviceMilliseconds(rounds, [&] {
      for (int i = 0; i < kTimes; ++i) LaunchEmptyKernel();
    });
    const double ours = DeviceMilliseconds(rounds, [&] { Enqueue(dtype, bytes, kTimes); });
    Drain();
    return {{"dtype", Name(dtype)},
            {"kibibytes", bytes >> 10},
            {"us", ours * 1e3 / kTimes},
            {"empty_launch_us", empty * 1e3 / kTimes},
            {"of_empty_launch", ours / empty}};
  }

  // A list of small tensors (weights, gradients), beside one after the other, and a copy of their
  // bytes.
  nlohmann::json List(DType dtype, std::size_t bytes, std::size_t count, int rounds) {
    const std::int64_t shape[] = {
        static_cast<std::int64_t>(bytes / statcollect::DTypeBytes(dtype))};
    std::vector<CudaEngine::Item> items(
        count, {{memory_, dtype, shape, {}}, {&stats_, sketch_, {}, nullptr}, nullptr});
    for (std::size_t i = 0; i < count; ++i)
      items[i].tensor.data = static_cast<char*>(memory_) + i * bytes;
    const auto enqueue = [&] {
      engine_.EnqueueList(items, 0, nullptr, [](void*, const statcollect::Status& why) {
        Require(false, why.message());
      });
    };
    enqueue();
    Drain();
    const auto timed = [&](const auto& what) {  // with all results taken in between
      std::vector<double> times;
      for (int round = 0; round < rounds; ++round) {
        times.push_back(DeviceMilliseconds(1, what));
        Drain();
      }
      return Median(times) * 1e3;
    };
    const double listed = timed(enqueue);
    const double alone = timed([&] { Enqueue(dtype, bytes, static_cast<int>(count), false); });
    const double copy = timed([&] {
      Require(
          cudaMemcpyAsync(other_, memory_, bytes * count, cudaMemcpyDeviceToDevice) == cudaSuccess,
          "copy");
    });
    return {{"dtype", Name(dtype)},    {"kibibytes", bytes >> 10}, {"tensors", count},
            {"list_us", listed},       {"one_by_one_us", alone},   {"copy_us", copy},
            {"of_copy", listed / copy}};
  }

  // Host time of Enqueue alone, and of launching an empty kernel.
  nlohmann::json HostTime(int rounds) {
    constexpr int kTimes = 200;
    const auto microseconds = [&](const auto& enqueue) {
      std::vector<double> times;
      for (int round = 0; round < rounds; ++round) {
        const auto begin = Clock::now();
        enqueue();
        times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count() /
                        kTimes);
        Require(cudaDeviceSynchronize() == cudaSuccess, "wait for the device");
        Drain();
      }
      return Median(times);
    };
    const double empty = microseconds([&] {
      for (int i = 0; i < kTimes; ++i) LaunchEmptyKernel();
    });
    const double ours = microseconds([&] { Enqueue(DType::kF32, 4096, kTimes, false); });
    return {{"enqueue_us", ours}, {"empty_launch_us", empty}, {"own_us", ours - empty}};
  }

 private:
  void Enqueue(DType dtype, std::size_t bytes, int times, bool drain = true,
               std::size_t offset = 0) {
    const std::int64_t shape[] = {
        static_cast<std::int64_t>(bytes / statcollect::DTypeBytes(dtype))};
    for (int i = 0; i < times; ++i) {
      const statcollect::Status status =
          engine_.Enqueue({static_cast<const char*>(memory_) + offset, dtype, shape, {}}, 0,
                          nullptr, {&stats_, sketch_, {}, nullptr}, nullptr);
      Require(status.ok(), status.message());
      if (drain && i % 256 == 255)
        (void)engine_.Poll(Clock::now(), [](void*, const statcollect::Status&) {});
    }
  }
  void Drain() {
    while (engine_.Poll(Clock::now(), [](void*, const statcollect::Status& status) {
      Require(status.ok(), status.message());
    }) > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  const std::size_t bytes_max_;
  const int processors_;
  CudaEngine engine_;
  void* memory_ = nullptr;
  void* other_ = nullptr;
  statcollect::TensorStats stats_;
  std::vector<double> sketch_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "CUDA engine beside a device-to-device copy and an empty launch; JSON on standard output"};
  std::vector<std::size_t> mebibytes = {1, 6, 25, 64, 256, 1024};
  int rounds = 15;
  app.add_option("--mebibytes", mebibytes, "sizes of the large tensors")->delimiter(',');
  app.add_option("--rounds", rounds, "measurements of each figure, of which the median is taken");
  CLI11_PARSE(app, argc, argv);

  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::cerr << "statagent_gpu_bench: no CUDA device or driver here; nothing measured\n";
    return kNoDevice;
  }
  cudaDeviceProp properties{};
  Require(cudaGetDeviceProperties(&properties, 0) == cudaSuccess, "read the device's properties");
  const std::size_t largest =
      std::max<std::size_t>(*std::max_element(mebibytes.begin(), mebibytes.end()), 256);
  Bench bench(largest << 20, properties.multiProcessorCount);
  nlohmann::json result = {{"gpu", properties.name}, {"rounds", rounds}};
  for (const DType dtype :
       {DType::kF32, DType::kBf16, DType::kF16, DType::kF8E4M3, DType::kF64, DType::kI64}) {
    bench.Fill(dtype);
    for (const std::size_t size : mebibytes)
      result["p3"].push_back(bench.Throughput(dtype, size << 20, rounds));
  }
  for (const DType dtype : {DType::kBf16, DType::kF32}) {
    bench.Fill(dtype);
    for (const std::size_t kibibytes : {4, 16, 64, 256, 1024})
      result["p4"].push_back(bench.Small(dtype, kibibytes << 10, rounds));
    for (const std::size_t kibibytes : {4, 64, 256})
      result["p4_lists"].push_back(bench.List(dtype, kibibytes << 10, 1000, rounds));
  }
  result["p5"] = bench.HostTime(rounds);
  std::cout << result.dump(2) << '\n';
  return 0;
}
