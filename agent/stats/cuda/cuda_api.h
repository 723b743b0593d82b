// What the engine's host side needs of CUDA, as an interface: tests run it on a device made of host code.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_CUDA_API_H_
#define STATCOLLECT_AGENT_STATS_CUDA_CUDA_API_H_

#include <cstddef>
#include <memory>

#include "agent/stats/cuda/launch.h"
#include "common/status.h"
#include "common/types.h"

namespace statcollect::stats::cuda {

// Threads: any. No function waits for the device, except Free.
class CudaApi {
 public:
  virtual ~CudaApi() = default;

  // OK if the device is there and can run the kernels; what was found and what to do otherwise. Slow at
  // first.
  virtual Status Open(int device) = 0;
  // Zeroed memory of the device; memory of the host that the device can write. May be called while any stream
  // is captured.
  virtual Result<void*> AllocateOnDevice(int device, std::size_t bytes) = 0;
  virtual Result<void*> AllocateOnHost(int device, std::size_t bytes) = 0;
  virtual void FreeOnDevice(int device, void* memory) noexcept = 0;
  virtual void FreeOnHost(int device, void* memory) noexcept = 0;
  // Copies before it returns; for set-up.
  virtual Status CopyToDevice(int device, void* to, const void* from, std::size_t bytes) = 0;

  // OK if a kernel on the device can read at this address; kInvalidArgument says what it is.
  virtual Status CheckMemory(int device, const void* data) noexcept = 0;
  // Whether what is enqueued in the stream goes into a graph instead of being run.
  virtual bool IsCapturing(int device, void* stream) noexcept = 0;
  // Enqueues a copy from memory of AllocateOnHost to memory of AllocateOnDevice. kInternal as Enqueue.
  virtual Status CopyInStream(int device, void* to, const void* from, std::size_t bytes,
                              void* stream) noexcept = 0;
  // Enqueues a kernel of this dtype. kInternal: the device reports an error, of this or of an earlier launch.
  virtual Status Enqueue(int device, DType dtype, const Launch& launch, void* stream) noexcept = 0;
  // The error that has stopped the device for good, if any.
  virtual Status Health(int device) noexcept = 0;
};

// Null if the library was built without CUDA.
std::unique_ptr<CudaApi> MakeCudaApi();

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_CUDA_API_H_
