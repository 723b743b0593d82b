// The engine's parts, for its own files.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_ENGINE_PARTS_H_
#define STATCOLLECT_AGENT_STATS_CUDA_ENGINE_PARTS_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "agent/stats/cuda/engine.h"
#include "common/names.h"
#include "common/thread_annotations.h"

namespace statcollect::stats::cuda {

// CUDA's handle of "this thread's default stream" means another stream in each thread.
inline void* LaneKey(void* stream) {
  thread_local char own;
  return stream == reinterpret_cast<void*>(std::uintptr_t{2}) ? &own : stream;
}

inline std::uint64_t Numel(DType dtype, const Task& task) {
  return IsComplex(dtype) ? task.components / 2 : task.components;
}

// Where a result goes: pinned memory.
struct CudaEngine::Place {
  Record* record = nullptr;
  double* samples = nullptr;
  std::uint64_t* exponents = nullptr;  // a row
};

struct CudaEngine::Flight {
  List* list = nullptr;  // whose tasks the kernel reads
  Place place;
  std::uint64_t ticket = 0;
  std::uint64_t numel = 0;
  std::uint32_t samples = 0;
  Output output;
  void* cookie = nullptr;
  bool broken = false;  // CUDA refused a part of it, so that the rest is worth nothing
};

struct CudaEngine::Lane {
  void* key = nullptr;
  unsigned char* scratch = nullptr;
  std::uint64_t* exponents = nullptr;  // scratch of the kernel that counts them
  std::vector<Flight> ring;            // flights [head, tail), at their number modulo the size
  std::uint64_t head = 0, tail = 0;
  std::uint64_t last_launch = 0;  // number of the first flight of the last launch
  bool launching = false;         // a thread is, without the pool's mutex

  bool empty() const { return head == tail; }
  Flight& At(std::uint64_t number) { return ring[number % ring.size()]; }
  void Add(const Flight& flight) {
    if (tail - head == ring.size()) {
      std::vector<Flight> larger(std::max<std::size_t>(2 * ring.size(), 64));
      for (std::uint64_t number = head; number < tail; ++number)
        larger[number % larger.size()] = At(number);
      ring = std::move(larger);
    }
    At(tail++) = flight;
  }
};

// Memory for the tasks of one launch and, behind them, the maps of shards. They are written on the
// host and copied in the stream; free when all flights have landed.
struct CudaEngine::List {
  unsigned char* host = nullptr;
  unsigned char* device = nullptr;
  std::size_t bytes = 0;
  std::size_t in_flight = 0;
  void* bound = nullptr;  // to this stream, where a copy without a launch may still be on its way
};

// One stream's launches in one graph: they run one after the other and share scratch.
struct CudaEngine::ReplayLane {
  std::uint64_t capture = 0;
  void* key = nullptr;
  ReplayControl* latch = nullptr;
  std::multimap<std::size_t, unsigned char*> chunks;  // by size; launches use the largest there was
  std::multimap<std::size_t, unsigned char*> maps;    // by size; each of one launch
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
  std::multimap<std::size_t, unsigned char*> free_maps;
  std::vector<std::unique_ptr<ReplayLane>> lanes;
  std::map<std::uint64_t, Launched> launches;  // by number; numbers are never used again
  std::uint64_t next_launch = 1;
  std::uint64_t read = 0;  // rows; Poll's alone
};

struct CudaEngine::Pool {
  Mutex mutex;
  ConditionVariable changed;  // a launch has ended, or the pool has grown
  int device = 0;
  Status status;   // of opening it
  Status failure;  // what has stopped the device for good
  bool stopped = false;
  bool growing = false;  // a thread allocates, without the mutex
  KernelTables* tables = nullptr;
  std::vector<std::pair<bool, void*>> memory;  // all of it; true: the device's
  std::uint32_t records = 0, records_max = 0;  // there are, and there may be
  std::vector<Place> free;
  std::deque<List> lists;  // never moved
  std::size_t lists_max = 0;
  std::size_t large_lists = 0, large_lists_max = kLargeLists;  // beside those
  std::vector<Lane> lanes;
  std::uint64_t next_ticket = 1;
  TimePoint asked;  // about its health
  std::unique_ptr<Graphs> graphs;
  bool has_graphs() const { return graphs != nullptr && !graphs->lanes.empty(); }
};

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_ENGINE_PARTS_H_
