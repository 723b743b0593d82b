// Statistics of tensors in the memory of CUDA devices: launches kernels in the streams that the
// tensors come from, and collects the results when they are there. Nothing here waits for a device;
// the tensor may be freed in stream order right after Enqueue, as any kernel's input may.
//
// A device's pool is allocated when it is first used: `records` pinned records, into which results
// are written, and `lanes`, each with the scratch that the kernels of one stream share (they run
// one after the other). A stream takes a lane with its first tensor. Once all its results have
// arrived, another stream may take the lane over. CUDA keeps what a destroyed stream has until its
// work is done, so a stream that gets the handle of one before finds the lane's scratch unused.
// Records, and places for lists, grow on demand.
//
//   record: free -> in flight (one ticket) -> ready (the device wrote the ticket, last) -> free
//
// While its stream is captured into a CUDA graph, a tensor is not computed: AddToGraph makes its
// computation a part of the graph. The host never sees a replay; results come through a log
// (replay.h), each with the step that the device was told by MarkReplays. What a graph needs
// belongs to it, as long as it lives: scratch for each captured stream, and a latch. Tensors are
// memory of the graph's, in its own order.
//
// An error of a launch or a mark loses what it was for, and no more, unless the device has failed
// for good (CudaApi::Health): many errors do not stick, such as that of a stream which another
// thread has just begun to capture.
//
// Invariants: (1) A lane's flights are launched in order, and become ready in the order of their
// launches. (2) A lane's scratch is used by one stream at a time. (3) Every flight ends in exactly
// one call of `done`. Threads: Enqueue and Compute from any; Poll from one at a time. No mutex is
// held while CUDA enqueues, which blocks as long as the stream's queue is full; other threads with
// tensors of that stream wait for their turn.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_ENGINE_H_
#define STATCOLLECT_AGENT_STATS_CUDA_ENGINE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "agent/stats/cuda/cuda_api.h"
#include "agent/stats/cuda/task.h"
#include "agent/stats/stats.h"
#include "common/status.h"
#include "common/thread_annotations.h"

namespace statcollect::stats::cuda {

struct EngineOptions {
  std::uint32_t sketch = 16;          // sums: 0, 16, 32, 64
  std::uint32_t samples = 0;          // at most kSamplesMax
  std::int32_t exponent_lowest = 0;   // of the histograms, if somebody asks for one
  std::uint32_t exponents = 0;        // bins of each; 0: nobody will
  std::uint32_t records = 8192;       // in flight at first; rows of the log of replays
  std::uint32_t records_max = 65536;  // in flight
  std::uint32_t lanes = 4;  // about 4 MiB each of the device's memory, 10 MiB if sketch is 64
};

// Where a result goes; must stay valid until `done`. The sketch has at most EngineOptions::sketch
// sums (16, if that is 0).
struct Output {
  TensorStats* stats = nullptr;
  std::span<double> sketch;
  std::span<double> samples;
  std::uint32_t* sample_count = nullptr;
  // EngineOptions::exponents counts, as BinOf has them, or none: not asked for.
  std::span<std::uint64_t> exponents = {};
};

// What Poll finds in the logs of replays. Called on its thread.
class ReplayListener {
 public:
  virtual ~ReplayListener() = default;
  // A graph's tensor was computed at a replay, in this step. Spans hold during the call; as many
  // sums and at most as many samples as were asked for.
  virtual void Replayed(void* cookie, std::uint64_t step, const TensorStats& stats,
                        std::span<const double> sketch, std::span<const double> samples) = 0;
  // The device has reached this mark, and with it everything enqueued before it in its stream.
  virtual void Marked(int device, std::uint64_t number) = 0;
  // Replays were faster than Poll: so many results or marks are lost.
  virtual void Missed(int device, std::uint64_t rows) = 0;
  // There will be no more marks of this device. May come several times.
  virtual void Failed(int device) = 0;
  // The graph is gone: the tensor will never be replayed again.
  virtual void Gone(void* cookie) = 0;
};

class CudaEngine {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kHealthInterval{100};
  static constexpr std::size_t kListTasks = 512;  // of a launch
  static constexpr std::size_t kLists = 16;       // launches of lists in flight, a device, at first
  static constexpr std::size_t kListsMax = 128;   // others go one by one
  static constexpr std::size_t kLargeLists =
      16;  // for shards whose map is larger than a list's memory, a device
  static constexpr std::size_t kReplayLanes = 256;  // captured streams of living graphs, a device
  static constexpr std::size_t kGraphTensorsMax = 1u << 16;  // tensors in living graphs, a device
  // How long a graph's things are kept after it has gone, for its last rows to be read.
  static constexpr std::chrono::milliseconds kGrave{1000};

  // `api` may be null: then every device is refused.
  CudaEngine(const EngineOptions& options, std::unique_ptr<CudaApi> api);
  // Waits a moment for what is in flight; memory that a device may still write is not given back.
  ~CudaEngine();
  CudaEngine(const CudaEngine&) = delete;
  CudaEngine& operator=(const CudaEngine&) = delete;

  // Whether tensors on the device can be computed; remembered. The first call for a device
  // allocates its pool.
  Status Open(int device);
  // Open, and whether the tensor's data are memory that the device can read. Precondition:
  // Validate(tensor) is OK.
  Status Check(const CpuTensor& tensor, int device);

  // Computes the tensor in the stream: its result comes from Poll, under `cookie`. Precondition:
  // Check(tensor, device) was OK and IsCapturing(device, stream) is false. Errors (there will be no
  // `done`): kResourceExhausted, no free record or lane; kInternal, CUDA refuses or the device has
  // failed; kUnimplemented, strides or placement (MakeIndexMap); kAborted, given up for good.
  // `placement` (null: the tensor is the whole) decides where hash and sketch take the components,
  // and is not needed afterwards. Precondition: Validate(tensor, *placement) was OK.
  Status Enqueue(const CpuTensor& tensor, int device, void* stream, const Output& output,
                 void* cookie, const Placement* placement = nullptr);

  // One tensor of a list.
  struct Item {
    CpuTensor tensor;
    Output output;
    void* cookie = nullptr;
    const Placement* placement = nullptr;
  };
  // As Enqueue for each, but one launch for all whole tensors of a dtype and one for all its
  // shards, if at most kListTasks (fewer shards: their maps take room): what many small tensors
  // cost is the launches. All outputs have sketches of one width. Calls refused(cookie, why) for
  // those that will not be computed, with Enqueue's reasons. Precondition: Check was OK for each.
  void EnqueueList(std::span<const Item> items, int device, void* stream,
                   const std::function<void(void* cookie, const Status&)>& refused);

  // Whether what is enqueued in the stream now becomes part of a graph. Precondition: Open(device)
  // was OK.
  bool IsCapturing(int device, void* stream) { return api_->IsCapturing(device, stream); }
  // For a stream that is being captured: the tensor will be computed whenever the graph is replayed
  // while the control says `wanted`; results go to the listener under `cookie`. `now`: what the
  // control is to say if no other graph lives. *graph: the number of the capture. The tensor must
  // be memory that the graph keeps. A graph may not run beside itself (instantiated twice).
  // Allocates memory if the stream needs more scratch than graphs before it have left; waits for
  // nothing but its own small copy. Errors as Enqueue; kFailedPrecondition: the capture is not to
  // be added to.
  Status AddToGraph(const CpuTensor& tensor, int device, void* stream, const ReplayControl& now,
                    std::uint32_t sketch, std::uint32_t samples, void* cookie, std::uint64_t* graph,
                    const Placement* placement = nullptr);
  // Devices with graphs that live.
  std::vector<int> ReplayDevices();
  // From here on in the stream, replays find `now`. The listener hears of `number` (not 0) once the
  // device is here. A stream that is being captured is not used: then the order to replays is not
  // defined. False: there will be no such mark.
  bool MarkReplays(int device, void* stream, const ReplayControl& now, std::uint64_t number);

  // Calls done(cookie, OK, or kInternal if it or the device has failed) for each result that is
  // there, and tells `listener` what replays have left. Returns how many are still in flight, at
  // least 1 while a graph lives.
  std::size_t Poll(TimePoint now, const std::function<void(void* cookie, const Status&)>& done,
                   ReplayListener* listener = nullptr);
  // Ends all flights: done(cookie, kAborted) for each. Their records are lost. `for_good`: from now
  // on Enqueue and AddToGraph return kAborted, and replays compute nothing as soon as the device
  // hears of it.
  void Abandon(bool for_good, const std::function<void(void* cookie, const Status&)>& done);

 private:
  struct Flight;
  struct Graphs;
  struct Lane;
  struct List;
  struct ListPlan;
  struct Listed;
  struct Place;
  struct Pool;
  struct ReplayLane;

  // Of functions with a pool the mutex is the caller's, unless they say otherwise.
  Status Fill(Pool& pool);
  void Free(Pool& pool);
  void FreeGraphs(int device, const Graphs& graphs);
  Lane* LaneFor(Pool& pool, void* stream);
  // Why nothing can be enqueued in the stream now, if so.
  Status CheckOpen(const Pool& pool) const;
  // Makes the stream's lane this thread's, until EndLaunch. There is at least one free record then,
  // `wanted` if there may be so many. Releases the mutex while it waits or allocates.
  Status BeginLaunch(Pool& pool, void* stream, std::size_t wanted, Lane** lane);
  // `enqueued`: whether the kernel that writes the flights' records was. Otherwise the records are
  // free again, and `status` is returned.
  Status EndLaunch(Pool& pool, Lane& lane, std::span<const Flight> flights, bool enqueued,
                   const Status& status);
  void GiveBack(Pool& pool, const Flight& flight) const;
  // Whether there may be more now. Without the mutex while it allocates.
  bool GrowRecords(Pool& pool, std::size_t wanted);
  bool GrowLists(Pool& pool, std::size_t bytes);
  struct Wanted {
    bool on_device = false;
    std::size_t bytes = 0;  // 0: none
    void** memory = nullptr;
  };
  Status Allocate(Pool& pool, std::span<const Wanted> wanted);
  Status AddRecords(Pool& pool, std::uint32_t count);
  Status AddLists(Pool& pool, std::size_t count, std::size_t bytes);
  // With room for so many bytes of tasks and maps.
  List* FreeList(Pool& pool, void* stream, std::size_t bytes);
  // Gives the task a record and a ticket, and its samples a place. Precondition: there is a free
  // record.
  Flight TakeRecord(Pool& pool, DType dtype, const Output& output, void* cookie, Task* task) const;
  // Enqueues a second kernel that counts the tensor's exponents, if that was asked for. Without the
  // mutex, as the next ones.
  Status CountExponents(const Pool& pool, const Lane& lane, DType dtype, const Task& task,
                        const Flight& flight, void* stream) const;
  static void Require(const Status& part, Flight* flight, Status* status);
  // After an error of CUDA's: whether it sticks.
  Status HealthAfter(const Status& status, int device) const;
  // Bytes of a list, of tasks and maps.
  std::size_t ListBytes() const;
  // `map`: the tensor's, of any size.
  Status EnqueueAlone(const Item& item, std::span<const std::uint64_t> map, int device,
                      void* stream);
  Status EnqueueKernel(int device, DType dtype, const Launch& launch,
                       std::span<const std::uint64_t> map, bool shards, void* stream) const;
  ListPlan PlanList(std::span<const Listed> items) const;
  // Launches as many of the items, all whole or all shards of one dtype, as fit into one launch, or
  // calls `refused` for them; returns how many, 0 if the first one has to go alone.
  std::size_t TryList(std::span<const Listed> items, int device, void* stream,
                      const std::function<void(void*, const Status&)>& refused);
  static void WriteList(const Lane& lane, const List& list, const ListPlan& plan,
                        std::span<const Listed> items);
  Status LaunchList(const Pool& pool, const Lane& lane, const List& list, const ListPlan& plan,
                    std::span<Flight> flights, void* stream, bool* copied, bool* enqueued) const;
  bool IsReady(const Flight& flight) const;
  bool IsBusy(Lane& lane) const;
  void Land(const Flight& flight) const;
  std::size_t PollPool(Pool& pool, TimePoint now,
                       const std::function<void(void*, const Status&)>& done);

  Pool& PoolOf(int device);
  Status OpenGraphs(Pool& pool);
  Result<ReplayLane*> ReplayLaneFor(Pool& pool, void* stream, std::uint64_t capture);
  // Memory of the lane for the launch's scratch and samples.
  Status GiveScratch(Pool& pool, ReplayLane& lane, std::uint32_t width, Task* task);
  // And for its map, if that is too large for the parameters of a launch.
  Status GiveMap(Pool& pool, ReplayLane& lane, std::span<const std::uint64_t> map, Task* task);
  struct Rows;
  // Copies rows of the log until `rows` is full or there are no more; true: there may be more.
  bool ReadRows(Pool& pool, Rows* rows) const;
  void PollReplays(Pool& pool, ReplayListener* listener);
  void BuryGraphs(Pool& pool, TimePoint now, ReplayListener* listener);

  const EngineOptions options_;
  const std::uint32_t width_;  // of the sketches that kernels compute
  const std::unique_ptr<CudaApi> api_;

  Mutex mutex_;  // guards what follows; each pool has its own
  bool stopped_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::map<int, std::unique_ptr<Pool>> pools_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_ENGINE_H_
