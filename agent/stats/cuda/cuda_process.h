// What all agents of the process share of CUDA: its devices, memory that is used again, and a
// thread's current device. For cuda_api.cc.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_CUDA_PROCESS_H_
#define STATCOLLECT_AGENT_STATS_CUDA_CUDA_PROCESS_H_

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <type_traits>

#include "common/names.h"
#include "common/status.h"
#include "common/thread_annotations.h"
#include "common/types.h"

namespace statcollect::stats::cuda {

// The driver's functions, by their plain C types: the runtime finds them, so that nothing is linked
// to the driver.
struct Driver {
  int (*get_device)(int* device, int ordinal) = nullptr;
  int (*retain_primary)(void** context, int device) = nullptr;
  int (*push)(void* context) = nullptr;
  int (*pop)(void** context) = nullptr;
};

// Addresses at which kernels can read memory of one device, as CUDA once said, so that it is not
// asked for every tensor. CUDA maps memory in pages of 2 MiB, each of one device. Entries of others
// are forgotten.
class KnownPages {
 public:
  bool Has(const void* data) const {
    return At(data).load(std::memory_order_relaxed) == PageOf(data);
  }
  void Add(const void* data) { At(data).store(PageOf(data), std::memory_order_relaxed); }

 private:
  static constexpr int kPageBits = 21;
  static constexpr std::size_t kPages =
      1u << 15;  // 64 GiB of neighbours; 256 KiB of the host's memory
  static std::uintptr_t PageOf(const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) >> kPageBits;
  }
  std::atomic<std::uintptr_t>& At(const void* data) const { return pages_[PageOf(data) % kPages]; }
  const std::unique_ptr<std::atomic<std::uintptr_t>[]> pages_ {
    new std::atomic<std::uintptr_t>[kPages] {}
  };
};

// A device of the process, from its first Open on. Constant but for `known`.
struct DeviceState {
  void* context = nullptr;  // the primary one
  int processors = 0;
  cudaStream_t probe = nullptr;  // for set-up, and to ask for errors; waits for no other stream
  std::array<int, kDTypeCount * 6> blocks{};  // resident at once: BlocksIndex
  KnownPages known;
};

// Of the kernel for tensors, or for shards.
inline std::size_t BlocksIndex(DType dtype, std::uint32_t width, bool shards) {
  return static_cast<std::size_t>(dtype) * 6 + (shards ? 3 : 0) +
         (width >= 64   ? 2
          : width >= 32 ? 1
                        : 0);
}

// What all agents of the process share. Never destroyed: at the process's end CUDA may be gone
// before it.
//
// Memory is not given back to CUDA: cudaFree and cudaFreeHost wait for everything on the device,
// also for another stream's collective that hangs. It is kept for the next agent.
class Process {
 public:
  static constexpr int kDevicesMax = 64;

  static Process& Get() {
    static auto* const process = new Process;
    return *process;
  }

  // Null: it was not opened.
  DeviceState* StateOf(int device) const {
    if (device < 0 || device >= kDevicesMax) return nullptr;
    return devices_[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
  }
  // Calls open(driver, state) once for a device, until it returns OK.
  template <typename Open>
  Status OpenOnce(int device, const Open& open) {
    MutexLock lock(mutex_);
    if (StateOf(device) != nullptr) return Status::Ok();
    STATCOLLECT_RETURN_IF_ERROR(FindDriver());
    auto state = std::make_unique<DeviceState>();
    STATCOLLECT_RETURN_IF_ERROR(open(driver_, *state));
    devices_[static_cast<std::size_t>(device)].store(state.release(), std::memory_order_release);
    return Status::Ok();
  }
  // After a device was opened.
  const Driver& driver() const { return driver_; }

  // Memory of a device, or of the host (kHost), that CUDA has given.
  static constexpr int kHost = -1;
  void Took(int where, void* memory, std::size_t bytes) {
    MutexLock lock(mutex_);
    memory_[memory] = {where, bytes, false};
  }
  void Keep(void* memory) noexcept {
    MutexLock lock(mutex_);
    const auto found = memory_.find(memory);
    if (found != memory_.end()) found->second.kept = true;
  }
  // Memory of exactly this size that was kept, or null.
  void* TakeKept(int where, std::size_t bytes) {
    MutexLock lock(mutex_);
    for (auto& [memory, each] : memory_) {
      if (!each.kept || each.where != where || each.bytes != bytes) continue;
      each.kept = false;
      return memory;
    }
    return nullptr;
  }

 private:
  Status FindDriver() STATCOLLECT_REQUIRES(mutex_) {
    if (driver_.pop != nullptr) return Status::Ok();
    const auto find = [](const char* name, auto* function) {
      cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
      void* address = nullptr;
      const cudaError_t error =
          cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found);
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(address);
      if (error != cudaSuccess) (void)cudaGetLastError();
      return error == cudaSuccess && address != nullptr;
    };
    if (find("cuDeviceGet", &driver_.get_device) &&
        find("cuDevicePrimaryCtxRetain", &driver_.retain_primary) &&
        find("cuCtxPushCurrent", &driver_.push) && find("cuCtxPopCurrent", &driver_.pop))
      return Status::Ok();
    return {Code::kUnimplemented,
            "statistics of a CUDA tensor: the driver lacks functions for contexts; expected one "
            "for CUDA 12 or "
            "newer; copy the tensor to the CPU first"};
  }

  std::array<std::atomic<DeviceState*>, kDevicesMax> devices_{};
  Driver driver_;
  Mutex mutex_;
  struct Memory {
    int where = kHost;
    std::size_t bytes = 0;
    bool kept = false;
  };
  std::map<void*, Memory> memory_ STATCOLLECT_GUARDED_BY(mutex_);
};

// The device is the calling thread's current one meanwhile. Its context is pushed, and popped
// again: cudaSetDevice would make contexts (about 0.5 GB each) on devices that the process does not
// use, first of all when it restores device 0, which is every thread's at first.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    const DeviceState* const state = Process::Get().StateOf(device);
    Enter(device, state == nullptr ? nullptr : state->context);
  }
  CurrentDevice(int device, void* context) { Enter(device, context); }
  ~CurrentDevice() {
    void* popped = nullptr;
    if (pushed_) (void)Process::Get().driver().pop(&popped);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  cudaError_t error() const { return error_; }

 private:
  void Enter(int device, void* context) {
    int before = 0;
    error_ = cudaGetDevice(&before);  // makes no context
    if (error_ != cudaSuccess || before == device) return;
    if (context == nullptr) {
      error_ = cudaErrorInvalidDevice;
      return;
    }
    error_ = static_cast<cudaError_t>(Process::Get().driver().push(context));  // the same numbers
    pushed_ = error_ == cudaSuccess;
  }

  bool pushed_ = false;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_CUDA_PROCESS_H_
