// Statistics of tensors in the memory of CUDA devices: launches kernels in the streams that the tensors come
// from, and collects the results when they are there. Nothing here waits for a device; the tensor may be
// freed in stream order right after Enqueue, as any kernel's input may.
//
// A device's pool is allocated when it is first used: `records` pinned records, into which results are
// written, and `lanes`, each with the scratch that the kernels of one stream share (they run one after the
// other). A stream gets a lane with its first tensor and loses it to another one once all its results are
// there.
//
//   record: free -> in flight (one ticket) -> ready (the device wrote the ticket, last) -> free
//
// Invariants: (1) A lane's flights are launched in order, and become ready in the order of their launches.
// (2) A lane's scratch is used by one stream at a time. (3) Every flight ends in exactly one call of `done`.
// Threads: Enqueue and Compute from any; Poll from one at a time. One mutex is held for a launch, never while
// computing or waiting.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_ENGINE_H_
#define STATCOLLECT_AGENT_STATS_CUDA_ENGINE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "agent/stats/cuda/cuda_api.h"
#include "agent/stats/cuda/task.h"
#include "agent/stats/stats.h"
#include "common/status.h"

namespace statcollect::stats::cuda {

struct EngineOptions {
  std::uint32_t sketch = 16;  // sums: 0, 16, 32, 64
  std::uint32_t samples = 0;  // at most kSamplesMax
  std::uint32_t records = 4096;
  std::uint32_t lanes = 4;  // about 4 MiB each of the device's memory, 10 MiB if sketch is 64
};

// Where a result goes; must stay valid until `done`. The sketch has at most EngineOptions::sketch sums (16,
// if that is 0).
struct Output {
  TensorStats* stats = nullptr;
  std::span<double> sketch;
  std::span<double> samples;
  std::uint32_t* sample_count = nullptr;
};

class CudaEngine {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kHealthInterval{100};
  static constexpr std::size_t kListTasks = 512;  // of a launch
  static constexpr std::size_t kLists = 8;  // launches of lists in flight, a device; others go one by one

  // `api` may be null: then every device is refused.
  CudaEngine(const EngineOptions& options, std::unique_ptr<CudaApi> api);
  // Waits a moment for what is in flight; memory that a device may still write is not given back.
  ~CudaEngine();
  CudaEngine(const CudaEngine&) = delete;
  CudaEngine& operator=(const CudaEngine&) = delete;

  // Whether tensors on the device can be computed; remembered. The first call for a device allocates its
  // pool.
  Status Open(int device);
  // Open, and whether the tensor's data are memory that the device can read. Precondition: Validate(tensor)
  // is OK.
  Status Check(const CpuTensor& tensor, int device);

  // Computes the tensor in the stream: its result comes from Poll, under `cookie`. Precondition:
  // Check(tensor, device) was OK. Errors (there will be no `done`): kResourceExhausted, no
  // free record or lane; kFailedPrecondition, the stream is being captured; kInternal, the device has failed;
  // kUnimplemented, strides; kAborted, given up for good.
  Status Enqueue(const CpuTensor& tensor, int device, void* stream, const Output& output, void* cookie);

  // One tensor of a list.
  struct Item {
    CpuTensor tensor;
    Output output;
    void* cookie = nullptr;
  };
  // As Enqueue for each, but one launch for all of a dtype, if at most kListTasks: what many small tensors
  // cost is the launches. All outputs have sketches of one width. Calls refused(cookie, why) for those that
  // will not be computed, with Enqueue's reasons. Precondition: Check was OK for each.
  void EnqueueList(std::span<const Item> items, int device, void* stream,
                   const std::function<void(void* cookie, const Status&)>& refused);

  // Calls done(cookie, OK or kInternal if the device has failed) for each result that is there. Returns how
  // many are still in flight.
  std::size_t Poll(TimePoint now, const std::function<void(void* cookie, const Status&)>& done);
  // Ends all flights: done(cookie, kAborted) for each. Their records are lost. `for_good`: from now on
  // Enqueue returns kAborted.
  void Abandon(bool for_good, const std::function<void(void* cookie, const Status&)>& done);

 private:
  struct Flight;
  struct Lane;
  struct List;
  struct Pool;

  Status Fill(Pool& pool);
  void Free(Pool& pool);
  Lane* LaneFor(Pool& pool, void* stream);
  // Why nothing can be enqueued in the stream now, if so.
  Status CheckOpen(const Pool& pool) const;
  // Gives the task a record and a ticket, and its samples a place. Precondition: there is a free record.
  void TakeRecord(Pool& pool, const Output& output, Task* task, std::uint32_t* record) const;
  // Launches as many of the items, of one dtype, as fit into one launch; returns how many, 0 if the first one
  // has to go alone.
  std::size_t TryList(std::span<const Item* const> items, int device, void* stream);
  bool IsReady(const Pool& pool, const Flight& flight) const;
  bool IsBusy(const Pool& pool, Lane& lane) const;
  void Land(const Pool& pool, const Flight& flight) const;
  std::size_t PollPool(Pool& pool, TimePoint now, const std::function<void(void*, const Status&)>& done);

  const EngineOptions options_;
  const std::uint32_t width_;  // of the sketches that kernels compute
  const std::unique_ptr<CudaApi> api_;

  std::mutex mutex_;  // guards what follows; each pool has its own
  bool stopped_ = false;
  std::map<int, std::unique_ptr<Pool>> pools_;
};

// One tensor's statistics, waited for. `output` as above, without options: sketch of 0, 16, 32, 64 and up to
// kSamplesMax samples. kDeadlineExceeded: not there in time.
Status ComputeCuda(const CpuTensor& tensor, int device, void* stream, const Output& output,
                   std::chrono::milliseconds timeout);

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_ENGINE_H_
