// What the engine's host side needs of CUDA, as an interface: tests run it on a device made of host
// code.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_CUDA_API_H_
#define STATCOLLECT_AGENT_STATS_CUDA_CUDA_API_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "agent/stats/cuda/exponents.h"
#include "agent/stats/cuda/launch.h"
#include "agent/stats/cuda/matrix_rows.h"
#include "common/status.h"
#include "common/types.h"

namespace statcollect::stats::cuda {

// Threads: any. No function waits for the device, except Free.
class CudaApi {
 public:
  virtual ~CudaApi() = default;

  // OK if the device is there and can run the kernels; what was found and what to do otherwise.
  // Slow at first.
  virtual Status Open(int device) = 0;
  // Zeroed memory of the device; memory of the host that the device can write. May be called while
  // any stream is captured.
  virtual Result<void*> AllocateOnDevice(int device, std::size_t bytes) = 0;
  virtual Result<void*> AllocateOnHost(int device, std::size_t bytes) = 0;
  virtual void FreeOnDevice(int device, void* memory) noexcept = 0;
  virtual void FreeOnHost(int device, void* memory) noexcept = 0;
  // Copies before it returns; for set-up.
  virtual Status CopyToDevice(int device, void* to, const void* from, std::size_t bytes) = 0;

  // OK if a kernel on the device can read at this address; kInvalidArgument says what it is.
  virtual Status CheckMemory(int device, const void* data) noexcept = 0;
  // Whether what is enqueued in the stream goes into a graph instead of being run (or must not be
  // enqueued because another stream is being captured).
  virtual bool IsCapturing(int device, void* stream) noexcept = 0;
  // The number of that capture, unique in the process; kFailedPrecondition if nothing can be added
  // to it.
  virtual Result<std::uint64_t> CaptureOf(int device, void* stream) noexcept = 0;
  // *gone becomes true once the graph that the stream is captured into, its copies and whatever was
  // made of it to be run are destroyed and run no more; also if the capture fails.
  virtual Status TieToGraph(int device, void* stream,
                            std::shared_ptr<std::atomic<bool>> gone) noexcept = 0;
  // Enqueues a copy from memory of AllocateOnHost to memory of AllocateOnDevice. kInternal as
  // Enqueue.
  virtual Status CopyInStream(int device, void* to, const void* from, std::size_t bytes,
                              void* stream) noexcept = 0;
  // Enqueues a copy from memory that the device can read to memory of AllocateOnHost of any device.
  // Gives what IsDone asks about; it is released when IsDone has told the end. kInternal as
  // Enqueue.
  virtual Result<void*> CopyToHostInStream(int device, void* to, const void* from,
                                           std::size_t bytes, void* stream) noexcept = 0;
  // Whether that copy has ended. kInternal: the device has failed. Not asked again after either.
  virtual Result<bool> IsDone(int device, void* copy) noexcept = 0;
  // Enqueues a kernel of this dtype. kInternal: the device reports an error, of this or of an
  // earlier launch.
  virtual Status Enqueue(int device, DType dtype, const Launch& launch, void* stream) noexcept = 0;
  // The same for shards, whose tasks all have maps. Errors as Enqueue.
  virtual Status EnqueueShards(int device, DType dtype, const ShardLaunch& launch,
                               void* stream) noexcept = 0;
  // Enqueues the kernel of exponents.h for tensors of this dtype. Errors as Enqueue.
  virtual Status EnqueueExponents(int device, DType dtype, const ExponentLaunch& launch,
                                  void* stream) noexcept = 0;
  // Enqueues the kernel of matrix_rows.h for matrices of this dtype. Errors as Enqueue.
  virtual Status EnqueueRows(int device, DType dtype, const RowLaunch& launch,
                             void* stream) noexcept = 0;
  // Enqueue the kernels of replay.h. Errors as Enqueue.
  virtual Status EnqueueMark(int device, const Mark& mark, void* stream) noexcept = 0;
  virtual Status EnqueueLatch(int device, ReplayControl* to, const ReplayControl* from,
                              void* stream) noexcept = 0;
  // A stream of the engine's own on an opened device; never captured, waits for no other one.
  virtual void* OwnStream(int device) noexcept = 0;
  // The error that has stopped the device for good, if any.
  virtual Status Health(int device) noexcept = 0;
};

// Null if the library was built without CUDA.
std::unique_ptr<CudaApi> MakeCudaApi();

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_CUDA_API_H_
