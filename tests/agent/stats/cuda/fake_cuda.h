// A CUDA device made of host code: streams are queues of launches, which run when the test says so,
// with the shipped kernels (shim/cuda_shim.h). Streams are captured into graphs, which are replayed
// into streams.
#ifndef STATCOLLECT_TESTS_AGENT_STATS_CUDA_FAKE_CUDA_H_
#define STATCOLLECT_TESTS_AGENT_STATS_CUDA_FAKE_CUDA_H_

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/stats/cuda/cuda_api.h"
#include "tests/agent/stats/cuda/emulation.h"
#include "tests/agent/stats/cuda/kernels_on_host.h"

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
  // What calls return: launch, of everything that is enqueued; launch_only, of statistics;
  // exponents, of their kernel.
  Status open, launch, launch_only, exponents, health;
  // The stream's queue is full: whoever enqueues in it waits, as with CUDA, until Unblock.
  void Block(void* stream) {
    std::lock_guard lock(mutex);
    full = stream;
  }
  void AwaitBlocked(int threads) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return blocked >= threads; });
  }
  void Unblock() {
    std::lock_guard lock(mutex);
    full = nullptr;
    changed.notify_all();
  }
  void AwaitRoom(void* stream, std::unique_lock<std::mutex>& lock) {
    if (full == nullptr || full != stream) return;
    ++blocked;
    changed.notify_all();
    changed.wait(lock, [&] { return full != stream; });
    --blocked;
  }
  std::condition_variable changed;
  void* full = nullptr;
  int blocked = 0;  // threads
  // A launch, or a copy, mark or latch that is made when its turn comes.
  struct Entry {
    DType dtype = DType::kUnspecified;
    ShardLaunch launch;
    bool shards = false;
    void* to = nullptr;
    const void* from = nullptr;
    std::size_t bytes = 0;
    const void* scratch = nullptr;         // of a launch: where its tickets begin
    std::function<void()> note;            // of a mark or a latch
    std::shared_ptr<bool> done = nullptr;  // of a copy to the host
  };
  std::map<void*, std::shared_ptr<bool>> copies;  // to the host, not asked about to the end
  struct Graph {
    std::uint64_t capture = 0;
    std::vector<Entry> entries;  // of all its streams
    std::vector<std::shared_ptr<std::atomic<bool>>> tied;
    ~Graph() {
      for (const auto& gone : tied) gone->store(true);
    }
  };
  std::map<void*, std::shared_ptr<Graph>> capturing;  // by stream
  std::uint64_t captures = 0;
  bool capture_broken = false;
  char own = 0;  // its address is the engine's own stream

  // Several streams: forked from the first one.
  void BeginCapture(std::initializer_list<void*> of) {
    const auto graph = std::make_shared<Graph>();
    graph->capture = ++captures;
    for (void* stream : of) capturing[stream] = graph;
  }
  std::shared_ptr<Graph> EndCapture(void* stream) {
    const auto graph = capturing.at(stream);
    std::erase_if(capturing, [&](const auto& each) { return each.second == graph; });
    return graph;
  }
  void Replay(const Graph& graph, void* stream) {
    std::lock_guard lock(mutex);
    for (const Entry& entry : graph.entries) {
      streams[stream].push_back(entry);
      if (IsLaunch(entry)) ++scratch_in_use[entry.scratch];
    }
  }
  static bool IsLaunch(const Entry& entry) { return entry.to == nullptr && !entry.note; }
  std::map<void*, std::deque<Entry>> streams;
  std::map<const void*, std::uint64_t> scratch_in_use;  // by launches that have not run
  std::set<void*> allocations;
  std::size_t launches = 0, exponent_launches = 0;
  bool scratch_shared = false;  // by two streams at once

  // Runs the oldest launch of the stream; false if there is none.
  bool RunOne(void* stream) {
    while (true) {
      Entry next;
      {
        std::lock_guard lock(mutex);
        auto& queue = streams[stream];
        if (queue.empty()) return false;
        next = queue.front();
        queue.pop_front();
        if (IsLaunch(next) && --scratch_in_use[next.scratch] == 0)
          scratch_in_use.erase(next.scratch);
      }
      if (next.note) {
        next.note();
        continue;
      }
      if (next.to != nullptr) {
        if (next.bytes > 0)
          std::memcpy(next.to, next.from, next.bytes);  // an empty tensor has no address
        std::lock_guard lock(mutex);
        if (next.done != nullptr) *next.done = true;
        continue;
      }
      Run(next.dtype, next.launch, next.shards);
      return true;
    }
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

  static void Run(DType dtype, const ShardLaunch& launch, bool shards) {
    if (launch.tasks != nullptr) {
      std::uint32_t unit = 0;
      for (std::uint32_t i = 0; i < launch.task_count; ++i) {
        if (launch.tasks[i].first_unit != unit) std::abort();
        unit += launch.tasks[i].units;
      }
      if (unit != launch.units) std::abort();
      CheckDisjoint(launch);
    }
    if (shards) {
      RunShardKernel(dtype, launch);
    } else {
      RunKernel(dtype, launch);
    }
  }

  // Tensors of one launch are computed at the same time: nothing of their scratch may be shared.
  static void CheckDisjoint(const Launch& launch) {
    std::map<const void*, const void*> taken;  // begin -> end
    const auto take = [&](const auto* begin, std::size_t n) {
      if (n > 0 && !taken.emplace(begin, begin + n).second) std::abort();
    };
    for (std::uint32_t i = 0; i < launch.task_count; ++i) {
      const Task& task = launch.tasks[i];
      if (task.units < 2) continue;
      const Tree tree(task.units);
      take(task.scratch.tickets, tree.size() - task.units);
      take(task.scratch.totals, tree.size());
      take(task.scratch.sums, std::size_t{tree.size()} * launch.width);
    }
    const void* end = nullptr;
    for (const auto& [begin, its_end] : taken) {
      if (begin < end) std::abort();
      end = its_end;
    }
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
  bool IsCapturing(int, void* stream) noexcept override {
    return device_->capturing.contains(stream);
  }
  Result<std::uint64_t> CaptureOf(int, void* stream) noexcept override {
    if (device_->capture_broken) return Status(Code::kFailedPrecondition, "the capture is broken");
    return device_->capturing.at(stream)->capture;
  }
  Status TieToGraph(int, void* stream, std::shared_ptr<std::atomic<bool>> gone) noexcept override {
    device_->capturing.at(stream)->tied.push_back(std::move(gone));
    return Status::Ok();
  }
  Status EnqueueMark(int, const Mark& mark, void* stream) noexcept override {
    return Note([mark] { RunKernel(mark); }, stream);
  }
  Status EnqueueLatch(int, ReplayControl* to, const ReplayControl* from,
                      void* stream) noexcept override {
    return Note([to, from] { RunLatch(to, from); }, stream);
  }
  void* OwnStream(int) noexcept override { return &device_->own; }
  Status Enqueue(int, DType dtype, const Launch& launch, void* stream) noexcept override {
    return Enqueue(dtype, {launch, {}}, false, stream);
  }
  Status EnqueueShards(int, DType dtype, const ShardLaunch& launch,
                       void* stream) noexcept override {
    return Enqueue(dtype, launch, true, stream);
  }
  Status Enqueue(DType dtype, const ShardLaunch& launch, bool shards, void* stream) {
    std::unique_lock lock(device_->mutex);
    device_->AwaitRoom(stream, lock);
    if (!device_->launch.ok()) return device_->launch;
    if (!device_->launch_only.ok()) return device_->launch_only;
    if (const auto captured = device_->capturing.find(stream);
        captured != device_->capturing.end()) {
      if (launch.tasks != nullptr) std::abort();  // they would be read at each replay
      captured->second->entries.push_back({.dtype = dtype,
                                           .launch = launch,
                                           .shards = shards,
                                           .scratch = launch.only.scratch.tickets});
      return Status::Ok();
    }
    auto& queue = device_->streams[stream];
    const void* scratch = launch.only.scratch.tickets;
    if (launch.tasks != nullptr) {
      if (queue.empty() || queue.back().to != launch.tasks)
        std::abort();  // its tasks come right before it
      scratch = static_cast<const Task*>(queue.back().from)->scratch.tickets;
    }
    for (const auto& [other, entries] : device_->streams) {
      for (const auto& earlier : entries) {
        if (other != stream && FakeDevice::IsLaunch(earlier) && earlier.scratch == scratch)
          device_->scratch_shared = true;
      }
    }
    ++device_->scratch_in_use[scratch];
    ++device_->launches;
    queue.push_back({.dtype = dtype, .launch = launch, .shards = shards, .scratch = scratch});
    return Status::Ok();
  }
  Status EnqueueExponents(int, DType dtype, const ExponentLaunch& launch,
                          void* stream) noexcept override {
    if (device_->capturing.contains(stream))
      std::abort();  // its row would be written at each replay
    if (!device_->exponents.ok()) return device_->exponents;
    ++device_->exponent_launches;
    return Note([dtype, launch] { RunKernel(dtype, launch); }, stream);
  }
  Status EnqueueRows(int, DType dtype, const RowLaunch& launch, void* stream) noexcept override {
    if (device_->capturing.contains(stream))
      std::abort();  // its records would be written at each replay
    return Note([dtype, launch] { RunKernel(dtype, launch); }, stream);
  }
  Status CopyInStream(int, void* to, const void* from, std::size_t bytes,
                      void* stream) noexcept override {
    std::lock_guard lock(device_->mutex);
    if (!device_->launch.ok()) return device_->launch;
    if (device_->capturing.contains(stream)) std::abort();  // it would be copied at each replay
    device_->streams[stream].push_back({.to = to, .from = from, .bytes = bytes});
    return Status::Ok();
  }
  Result<void*> CopyToHostInStream(int, void* to, const void* from, std::size_t bytes,
                                   void* stream) noexcept override {
    std::unique_lock lock(device_->mutex);
    device_->AwaitRoom(stream, lock);
    if (!device_->launch.ok()) return device_->launch;
    auto done = std::make_shared<bool>(false);
    device_->streams[stream].push_back({.to = to, .from = from, .bytes = bytes, .done = done});
    device_->copies[done.get()] = done;
    return static_cast<void*>(done.get());
  }
  Result<bool> IsDone(int, void* copy) noexcept override {
    std::lock_guard lock(device_->mutex);
    const auto found = device_->copies.find(copy);
    if (device_->health.ok() && !*found->second) return false;
    device_->copies.erase(found);
    if (!device_->health.ok()) return device_->health;
    return true;
  }
  Status Health(int) noexcept override {
    std::lock_guard lock(device_->mutex);
    return device_->health;
  }

 private:
  Status Note(std::function<void()> note, void* stream) {
    std::unique_lock lock(device_->mutex);
    device_->AwaitRoom(stream, lock);
    if (!device_->launch.ok()) return device_->launch;
    const auto captured = device_->capturing.find(stream);
    auto* const into = captured != device_->capturing.end() ? &captured->second->entries : nullptr;
    FakeDevice::Entry entry;
    entry.note = std::move(note);
    if (into != nullptr) {
      into->push_back(std::move(entry));
    } else {
      device_->streams[stream].push_back(std::move(entry));
    }
    return Status::Ok();
  }
  Result<void*> Allocate(std::size_t bytes) {
    void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    std::memset(memory, 0, bytes);
    std::lock_guard lock(device_->mutex);
    device_->allocations.insert(memory);
    return memory;
  }
  void Free(void* memory) {
    std::lock_guard lock(device_->mutex);
    device_->allocations.erase(memory);
    std::free(memory);
  }

  const std::shared_ptr<FakeDevice> device_;
};

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_TESTS_AGENT_STATS_CUDA_FAKE_CUDA_H_
