// CUDA's runtime made of host code, which cuda_api.cc is linked with in tests: several devices
// whose primary contexts become active as CUDA's do, attributes of kernels for each device,
// captures that forbid calls, and errors that tests ask for. Kernels are the host's emulation.
// Every call is counted by its name.
#ifndef STATCOLLECT_TESTS_AGENT_STATS_CUDA_FAKE_RUNTIME_H_
#define STATCOLLECT_TESTS_AGENT_STATS_CUDA_FAKE_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "tests/agent/stats/cuda/runtime/cuda_runtime_api.h"

namespace statcollect::stats::cuda {

// One in the process. Threads: any; its members are read and changed while nothing calls it.
class FakeRuntime {
 public:
  static constexpr int kDevices = 8;
  static constexpr std::size_t kSharedDefault =
      48u << 10;  // that a block may have without an attribute

  static FakeRuntime& Get();
  // As in a new process, but for memory that is allocated and what kernels were set to, as the
  // engine knows of those.
  void Reset();

  std::map<std::string, int> calls;
  // All calls since Reset but cudaGetDevice, which reads the calling thread's own state.
  int DriverCalls() const;
  std::set<int> active;             // devices with a primary context
  int driver = 12080;               // version of it that the runtime sees
  bool driver_too_old = false;      // for this runtime
  std::map<int, cudaError_t> dead;  // devices with an error that sticks, and which
  // The next calls of this name return these errors, once each; they do not stick.
  std::map<std::string, std::deque<cudaError_t>> errors;
  bool holds =
      false;  // launches and copies to the host wait for RunAll, instead of running at once
  int waited_for_all = 0;  // calls that wait for all of a device's streams, also one that hangs
  bool capture_invalid = false;  // what another thread captures was broken by a call
  std::size_t host_bytes = 0, device_bytes = 0;  // allocated

  struct Launched {
    const void* kernel = nullptr;
    int device = 0;
    const void* scratch = nullptr;
  };
  std::deque<Launched> launches;

  // A stream of the program's. One that is destroyed gives its handle to the next.
  cudaStream_t NewStream(int device);
  void DestroyStream(cudaStream_t stream);
  // Begins a capture in global mode, of another thread's.
  void BeginCapture(cudaStream_t stream);
  void EndCapture();
  // Memory of a device for a tensor.
  void* NewMemory(int device, std::size_t bytes);
  void RunAll();

  // --- for the functions
  cudaError_t Call(const char* name);
  struct Stream {
    int device = 0;
    unsigned long long id = 0;
  };
  struct Memory {
    std::size_t bytes = 0;
    cudaMemoryType type = cudaMemoryTypeDevice;
    int device = 0;
  };
  struct Event {
    bool done = true;
  };
  std::recursive_mutex mutex;
  std::map<std::pair<int, const void*>, std::size_t> shared;  // of a kernel on a device
  std::map<cudaStream_t, Stream> streams;
  std::map<const void*, Memory> memory;
  std::deque<std::function<void()>> held;
  std::set<cudaStream_t> captured;
  cudaStream_t free_handle = nullptr;
  unsigned long long next_id = 100;
  std::uintptr_t next_handle = 0x1000;
};

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_TESTS_AGENT_STATS_CUDA_FAKE_RUNTIME_H_
