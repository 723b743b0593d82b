// Statistics of the rows of matrices in the memory of CUDA devices (rows.h): launches the kernel in
// the stream that the matrix comes from, and collects the results when they are there. Nothing here
// waits for a device; the matrix may be freed in stream order right after Enqueue.
//
// The kernel writes into pinned memory, which is allocated on demand in chunks of powers of two of
// rows and used again. A chunk whose kernel may still write it is never used again.
//
// Threads: Check and Enqueue from any; Poll from one at a time; Abandon when nobody polls. No mutex
// is held while CUDA enqueues.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_ROW_ENGINE_H_
#define STATCOLLECT_AGENT_STATS_CUDA_ROW_ENGINE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "agent/stats/cuda/cuda_api.h"
#include "agent/stats/cuda/matrix_rows.h"
#include "agent/stats/rows.h"
#include "common/status.h"
#include "common/thread_annotations.h"

namespace statcollect::stats::cuda {

// Some rows of a matrix: rows index[begin], index[begin + 1], ..., or begin, begin + 1, ...
struct RowChoice {
  const std::int64_t* index = nullptr;  // each below the number of rows
  std::size_t begin = 0, count = 0;
};

// Everything but tables, records and ticket. Precondition: ValidateRows(rows, first) is OK.
RowLaunch MakeRowLaunch(const CpuTensor& rows, std::uint64_t first, const RowChoice& choice);
RowStats ToRowStats(const RowRecord& record);

class RowEngine {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // The rows that Enqueue left under `cookie`, in their order; none, and why, if they are lost.
  using Done = std::function<void(std::uint64_t cookie, std::span<const RowRecord>, const Status&)>;
  static constexpr std::chrono::milliseconds kHealthInterval{100};
  static constexpr std::size_t kRowsMax = 4096;                          // of a launch
  static constexpr std::size_t kRowsInFlightMax = std::size_t{1} << 19;  // 36 MiB of pinned memory

  // `api` may be null: then every device is refused.
  explicit RowEngine(std::unique_ptr<CudaApi> api) : api_(std::move(api)) {}
  // Memory that a device may still write is leaked, not freed.
  ~RowEngine();
  RowEngine(const RowEngine&) = delete;
  RowEngine& operator=(const RowEngine&) = delete;

  // Whether rows of the matrix can be computed in the stream now. The first call for a device
  // prepares it. kFailedPrecondition: the stream is being captured into a graph. Precondition:
  // ValidateRows(rows) is OK.
  Status Check(const CpuTensor& rows, int device, void* stream);

  // Computes the rows, parts of longer ones from component `first` on, in the stream; Poll gives
  // them under `cookie`. The index is not needed afterwards. Precondition: Check was OK; at most
  // kRowsMax rows. Errors (nothing comes from Poll):
  // kResourceExhausted, too many rows are in flight; kInternal, CUDA refuses; kAborted, abandoned.
  Status Enqueue(const CpuTensor& rows, std::uint64_t first, const RowChoice& choice, int device,
                 void* stream, std::uint64_t cookie);

  // Calls `done` for what has arrived, or is lost because its device has failed for good. Returns
  // how many launches are still on their way. Never waits.
  std::size_t Poll(TimePoint now, const Done& done);
  // Forgets what is on its way, and refuses what comes.
  void Abandon();

 private:
  // Pinned memory: records, and behind them indices.
  struct Chunk {
    unsigned char* memory = nullptr;
    std::size_t rows = 0;
    RowRecord* records() const { return reinterpret_cast<RowRecord*>(memory); }
    std::int64_t* index() const { return reinterpret_cast<std::int64_t*>(records() + rows); }
  };
  struct Flight {
    int device = 0;
    Chunk chunk;
    std::size_t count = 0, arrived = 0;
    std::uint64_t ticket = 0, cookie = 0;
    bool enqueued = false;
  };

  Result<Chunk> TakeChunkLocked(int device, std::size_t count) STATCOLLECT_REQUIRES(mutex_);
  static bool HasArrived(Flight& flight);
  // Takes the flights of devices that have failed.
  std::list<Flight> TakeFailedLocked(TimePoint now, std::map<int, Status>* failures)
      STATCOLLECT_REQUIRES(mutex_);

  const std::unique_ptr<CudaApi> api_;
  Mutex mutex_;  // guards what follows
  std::map<int, KernelTables*> tables_ STATCOLLECT_GUARDED_BY(mutex_);
  std::map<std::size_t, std::vector<Chunk>> free_ STATCOLLECT_GUARDED_BY(mutex_);  // by rows
  std::vector<std::pair<int, void*>> memory_ STATCOLLECT_GUARDED_BY(mutex_);       // pinned
  std::size_t rows_ STATCOLLECT_GUARDED_BY(mutex_) = 0;                            // in memory_
  std::list<Flight> flights_ STATCOLLECT_GUARDED_BY(mutex_);
  std::uint64_t tickets_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  TimePoint asked_ STATCOLLECT_GUARDED_BY(mutex_){};  // about devices' health
  bool abandoned_ STATCOLLECT_GUARDED_BY(mutex_) = false, lost_ STATCOLLECT_GUARDED_BY(mutex_) =
                                                              false;  // memory is never given back
};

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_ROW_ENGINE_H_
