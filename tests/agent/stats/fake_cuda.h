// A CUDA device made of host code: streams are queues of launches, which run when the test says so, with the
// engine's own arithmetic.
#ifndef STATCOLLECT_TESTS_AGENT_STATS_FAKE_CUDA_H_
#define STATCOLLECT_TESTS_AGENT_STATS_FAKE_CUDA_H_

#include <atomic>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "agent/stats/cuda/cuda_api.h"
#include "tests/agent/stats/cuda_emulation.h"

namespace statcollect::stats::cuda {

// What a test holds on to while the engine owns the api.
struct FakeDevice {
  FakeDevice() = default;
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;
  ~FakeDevice() {
    for (void* memory : allocations) std::free(memory);
  }

  std::mutex mutex;
  Status open, launch, health;
  std::set<void*> capturing;
  std::map<void*, std::deque<std::pair<DType, Launch>>> streams;
  std::map<const void*, std::uint64_t> scratch_in_use;  // by launches that have not run
  std::set<void*> allocations;
  std::size_t launches = 0;
  bool scratch_shared = false;  // by two streams at once

  // Runs the oldest launch of the stream; false if there is none.
  bool RunOne(void* stream) {
    std::pair<DType, Launch> next;
    {
      std::lock_guard lock(mutex);
      auto& queue = streams[stream];
      if (queue.empty()) return false;
      next = queue.front();
      queue.pop_front();
      if (--scratch_in_use[next.second.only.scratch.tickets] == 0) {
        scratch_in_use.erase(next.second.only.scratch.tickets);
      }
    }
    Run(next.first, next.second);
    return true;
  }
  void RunAll() {
    std::set<void*> known;
    {
      std::lock_guard lock(mutex);
      for (const auto& [stream, queue] : streams) known.insert(stream);
    }
    for (void* stream : known) {
      while (RunOne(stream)) {
      }
    }
  }

  static void Run(DType dtype, const Launch& launch) {
    const Task& task = launch.only;
    WithComponent(dtype, [&](auto component) {
      using C = decltype(component);
      WarpEmulation<C> warp(launch.width);
      for (std::uint32_t i = 0; i < task.sample_count; ++i) {
        const auto v = static_cast<int>(i / kVectorComponents<C>),
                   j = static_cast<int>(i % kVectorComponents<C>);
        Vector vector;
        GatherVector<C>(task, 0, v, &vector);
        task.samples[i] = static_cast<double>(C::Value(C::Clean(vector), j));
      }
      Record result{};
      for (std::uint32_t unit = task.units; unit-- > 0;) {
        warp.ReduceUnit(task, unit);
        warp.Finish(task, unit, &result);
      }
      if (result.ready != 1) std::abort();
      task.record->totals = result.totals;
      std::copy_n(result.sums, launch.width, task.record->sums);
      std::atomic_ref(task.record->ready).store(task.ticket, std::memory_order_release);
    });
  }
};

class FakeCudaApi final : public CudaApi {
 public:
  explicit FakeCudaApi(std::shared_ptr<FakeDevice> device) : device_(std::move(device)) {}

  Status Open(int number) override {
    if (number != 0) return {Code::kInvalidArgument, "no such device"};
    return device_->open;
  }
  Result<void*> AllocateOnDevice(int, std::size_t bytes) override { return Allocate(bytes); }
  Result<void*> AllocateOnHost(int, std::size_t bytes) override { return Allocate(bytes); }
  void FreeOnDevice(int, void* memory) noexcept override { Free(memory); }
  void FreeOnHost(int, void* memory) noexcept override { Free(memory); }
  Status CopyToDevice(int, void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return Status::Ok();
  }
  Status CheckMemory(int, const void*) noexcept override { return Status::Ok(); }
  bool IsCapturing(int, void* stream) noexcept override { return device_->capturing.contains(stream); }
  Status Enqueue(int, DType dtype, const Launch& launch, void* stream) noexcept override {
    std::lock_guard lock(device_->mutex);
    if (!device_->launch.ok()) return device_->launch;
    for (const auto& [other, queue] : device_->streams) {
      for (const auto& [type, earlier] : queue) {
        if (other != stream && earlier.only.scratch.tickets == launch.only.scratch.tickets)
          device_->scratch_shared = true;
      }
    }
    ++device_->scratch_in_use[launch.only.scratch.tickets];
    ++device_->launches;
    device_->streams[stream].emplace_back(dtype, launch);
    return Status::Ok();
  }
  Status Health(int) noexcept override {
    std::lock_guard lock(device_->mutex);
    return device_->health;
  }

 private:
  Result<void*> Allocate(std::size_t bytes) {
    void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    std::memset(memory, 0, bytes);
    device_->allocations.insert(memory);
    return memory;
  }
  void Free(void* memory) {
    device_->allocations.erase(memory);
    std::free(memory);
  }

  const std::shared_ptr<FakeDevice> device_;
};

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_TESTS_AGENT_STATS_FAKE_CUDA_H_
