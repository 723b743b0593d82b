// The engine's parts, for its own files.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_ENGINE_PARTS_H_
#define STATCOLLECT_AGENT_STATS_CUDA_ENGINE_PARTS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "agent/stats/cuda/engine.h"
#include "common/names.h"
#include "common/thread_annotations.h"

namespace statcollect::stats::cuda {

inline constexpr std::uint32_t kNoList = ~0u;

// CUDA's handle of "this thread's default stream" means another stream in each thread.
inline void* LaneKey(void* stream) {
  thread_local char own;
  return stream == reinterpret_cast<void*>(std::uintptr_t{2}) ? &own : stream;
}

inline std::uint64_t Numel(DType dtype, const Task& task) {
  return IsComplex(dtype) ? task.components / 2 : task.components;
}

struct CudaEngine::Flight {
  std::uint32_t list = kNoList;  // whose tasks the kernel reads
  std::uint32_t record = 0;
  std::uint64_t ticket = 0;
  std::uint64_t numel = 0;
  std::uint32_t samples = 0;
  Output output;
  void* cookie = nullptr;
};

struct CudaEngine::Lane {
  void* key = nullptr;
  unsigned char* scratch = nullptr;
  std::uint64_t* exponents = nullptr;  // scratch of the kernel that counts them
  std::vector<Flight> ring;            // flights [head, tail), at their number modulo the size
  std::uint64_t head = 0, tail = 0;
  std::uint64_t last_launch = 0;  // number of the first flight of the last launch

  bool empty() const { return head == tail; }
  Flight& At(std::uint64_t number) { return ring[number % ring.size()]; }
};

// Tasks of one launch. They are written on the host and copied in the stream; free when all flights have
// landed.
struct CudaEngine::List {
  Task* host = nullptr;
  Task* device = nullptr;
  std::size_t in_flight = 0;
};

// One stream's launches in one graph: they run one after the other and share scratch.
struct CudaEngine::ReplayLane {
  std::uint64_t capture = 0;
  void* key = nullptr;
  ReplayControl* latch = nullptr;
  std::multimap<std::size_t, unsigned char*> chunks;  // by size; launches use the largest there was
  std::vector<std::uint64_t> launches;
  std::shared_ptr<std::atomic<bool>> gone;  // shared by the lanes of a graph
  std::optional<TimePoint> gone_since;      // as Poll has noticed
};

// What a device has for replays, from the first tensor in a graph on.
struct CudaEngine::Graphs {
  struct Launched {
    void* cookie = nullptr;
    std::uint64_t numel = 0;
    std::uint32_t sketch = 0, samples = 0;
  };
  ReplayControl* control = nullptr;  // of the device; behind it kReplayLanes latches
  ReplayLog* log = nullptr;
  Record* rows = nullptr;
  double* samples = nullptr;
  std::vector<ReplayControl*> free_latches;
  std::multimap<std::size_t, unsigned char*> free_chunks;  // zero where tickets lie
  std::vector<std::unique_ptr<ReplayLane>> lanes;
  std::map<std::uint64_t, Launched> launches;  // by number; numbers are never used again
  std::uint64_t next_launch = 1;
  std::uint64_t read = 0;  // rows; Poll's alone
};

struct CudaEngine::Pool {
  std::array<List, kLists> lists;
  Task* host_tasks = nullptr;
  Task* device_tasks = nullptr;
  Mutex mutex;
  int device = 0;
  Status status;   // of opening it
  Status failure;  // what has stopped the device for good
  bool stopped = false;
  unsigned char* keys = nullptr;
  unsigned char* scratch = nullptr;
  Record* records = nullptr;
  double* samples = nullptr;
  std::uint64_t* exponent_scratch = nullptr;
  std::uint64_t* exponent_rows = nullptr;  // one a record
  std::vector<std::uint32_t> free;
  std::vector<Lane> lanes;
  std::uint64_t next_ticket = 1;
  TimePoint asked;  // about its health
  std::unique_ptr<Graphs> graphs;
  bool has_graphs() const { return graphs != nullptr && !graphs->lanes.empty(); }
};

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_ENGINE_PARTS_H_
