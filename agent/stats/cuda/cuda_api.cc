#include "agent/stats/cuda/cuda_api.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <map>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "agent/stats/cuda/kernels.h"
#include "common/names.h"
#include "common/thread_annotations.h"

namespace statcollect::stats::cuda {
namespace {

constexpr int kCapabilityMin = 80;

Status Failure(const std::string& attempted, cudaError_t error) {
  return {Code::kInternal,
          attempted + ": CUDA says " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")"};
}

// The device is the calling thread's current one meanwhile.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    error_ = cudaGetDevice(&before_);
    if (error_ == cudaSuccess && before_ != device) {
      error_ = cudaSetDevice(device);
      changed_ = error_ == cudaSuccess;
    }
  }
  ~CurrentDevice() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  cudaError_t error() const { return error_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t error_;
};

// Calls that a capture elsewhere in the process would otherwise forbid or be broken by.
class OutsideCaptures {
 public:
  OutsideCaptures() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~OutsideCaptures() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  OutsideCaptures(const OutsideCaptures&) = delete;
  OutsideCaptures& operator=(const OutsideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

class RuntimeApi final : public CudaApi {
 public:
  Status Open(int device) override {
    const OutsideCaptures outside;
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      int driver = 0;
      (void)cudaDriverGetVersion(&driver);
      const std::string found =
          driver == 0 ? "no driver was found" : "the driver supports CUDA " + Version(driver);
      return {Code::kUnimplemented, "statistics of a CUDA tensor: " + found + " (" + cudaGetErrorName(error) +
                                        "); expected a driver for CUDA " +
                                        Version(CUDART_VERSION / 1000 * 1000) +
                                        " or newer, and a device; copy the tensor to the CPU first"};
    }
    if (device < 0 || device >= count) {
      return {Code::kInvalidArgument, "statistics of a CUDA tensor: its device is " + std::to_string(device) +
                                          "; expected 0.." + std::to_string(count - 1)};
    }
    const CurrentDevice current(device);
    if (current.error() != cudaSuccess)
      return Failure("open CUDA device " + std::to_string(device), current.error());
    int major = 0, minor = 0, processors = 0;
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    (void)cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (major * 10 + minor < kCapabilityMin) {
      return {Code::kUnimplemented, "statistics of a CUDA tensor: device " + std::to_string(device) +
                                        " has compute capability " + std::to_string(major) + "." +
                                        std::to_string(minor) +
                                        "; expected 8.0 or newer; copy the tensor to the CPU first"};
    }
    // Kernels are loaded here, as loading may wait for the device.
    std::vector<const void*> kernels = {MarkKernel(), LatchKernel()};
    for (int dtype = 1; dtype < kDTypeCount; ++dtype) {
      std::uint32_t vector_components = 0;
      kernels.push_back(KernelOf(static_cast<DType>(dtype)));
      kernels.push_back(ExponentKernelOf(static_cast<DType>(dtype), &vector_components));
    }
    for (const void* kernel : kernels) {
      cudaFuncAttributes attributes{};
      const cudaError_t loaded = cudaFuncGetAttributes(&attributes, kernel);
      if (loaded != cudaSuccess) {
        (void)cudaGetLastError();
        return Failure("load the kernels on CUDA device " + std::to_string(device), loaded);
      }
    }
    cudaStream_t probe = nullptr;
    const cudaError_t created = cudaStreamCreateWithFlags(&probe, cudaStreamNonBlocking);
    if (created != cudaSuccess) return Failure("open CUDA device " + std::to_string(device), created);
    MutexLock lock(mutex_);
    State& state = devices_[device];
    state.processors = processors;
    state.probe = probe;
    return Status::Ok();
  }

  Result<void*> AllocateOnDevice(int device, std::size_t bytes) override {
    const OutsideCaptures outside;
    const CurrentDevice current(device);
    void* memory = nullptr;
    cudaError_t error = current.error();
    if (error == cudaSuccess) error = cudaMalloc(&memory, bytes);
    if (error == cudaSuccess) error = cudaMemsetAsync(memory, 0, bytes, Probe(device));
    if (error == cudaSuccess) error = cudaStreamSynchronize(Probe(device));
    if (error == cudaSuccess) return memory;
    (void)cudaGetLastError();
    return Failure("allocate " + std::to_string(bytes) + " bytes on CUDA device " + std::to_string(device),
                   error);
  }

  Result<void*> AllocateOnHost(int device, std::size_t bytes) override {
    const OutsideCaptures outside;
    const CurrentDevice current(device);
    void* memory = nullptr;
    cudaError_t error = current.error();
    if (error == cudaSuccess)
      error = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (error == cudaSuccess) return memory;
    (void)cudaGetLastError();
    return Failure("allocate " + std::to_string(bytes) + " bytes of pinned memory", error);
  }

  void FreeOnDevice(int device, void* memory) noexcept override {
    const OutsideCaptures outside;
    const CurrentDevice current(device);
    (void)cudaFree(memory);
    (void)cudaGetLastError();
  }

  void FreeOnHost(int device, void* memory) noexcept override {
    const OutsideCaptures outside;
    const CurrentDevice current(device);
    (void)cudaFreeHost(memory);
    (void)cudaGetLastError();
  }

  Status CopyToDevice(int device, void* to, const void* from, std::size_t bytes) override {
    const OutsideCaptures outside;
    const CurrentDevice current(device);
    cudaError_t error = current.error();
    if (error == cudaSuccess) error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, Probe(device));
    if (error == cudaSuccess) error = cudaStreamSynchronize(Probe(device));
    return error == cudaSuccess ? Status::Ok()
                                : Failure("copy to CUDA device " + std::to_string(device), error);
  }

  Status CheckMemory(int device, const void* data) noexcept override {
    cudaPointerAttributes found{};
    const cudaError_t error = cudaPointerGetAttributes(&found, data);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      return Failure("look at the memory of a CUDA tensor", error);
    }
    if (found.type == cudaMemoryTypeUnregistered) {
      return {Code::kInvalidArgument,
              "statistics of a CUDA tensor: its data are in ordinary host memory; expected memory of CUDA "
              "device " +
                  std::to_string(device) + "; pass the tensor's own device"};
    }
    if (found.type == cudaMemoryTypeDevice && found.device != device) {
      return {Code::kInvalidArgument, "statistics of a CUDA tensor: its data are on device " +
                                          std::to_string(found.device) + "; expected device " +
                                          std::to_string(device) + "; pass the tensor's own device"};
    }
    return Status::Ok();
  }

  bool IsCapturing(int device, void* stream) noexcept override {
    const CurrentDevice current(device);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) != cudaSuccess) {
      // The legacy stream says so while another stream is captured: nothing may be enqueued in it either.
      (void)cudaGetLastError();
      return true;
    }
    return status != cudaStreamCaptureStatusNone;
  }

  Result<std::uint64_t> CaptureOf(int device, void* stream) noexcept override {
    const CurrentDevice current(device);
    const Capture capture = CaptureIn(stream);
    if (!capture.status.ok()) return capture.status;
    return capture.id;
  }

  Status TieToGraph(int device, void* stream, std::shared_ptr<std::atomic<bool>> gone) noexcept override {
    const OutsideCaptures outside;
    const CurrentDevice current(device);
    const Capture capture = CaptureIn(stream);
    STATCOLLECT_RETURN_IF_ERROR(capture.status);
    auto* const told = new (std::nothrow) std::shared_ptr<std::atomic<bool>>(std::move(gone));
    if (told == nullptr) return {Code::kResourceExhausted, "observe a CUDA tensor: out of memory"};
    cudaUserObject_t object = nullptr;
    cudaError_t error = cudaUserObjectCreate(&object, told, TellGone, 1, cudaUserObjectNoDestructorSync);
    if (error != cudaSuccess) {
      delete told;
    } else {
      error = cudaGraphRetainUserObject(capture.graph, object, 1, cudaGraphUserObjectMove);
      if (error != cudaSuccess) (void)cudaUserObjectRelease(object, 1);
    }
    if (error == cudaSuccess) return Status::Ok();
    (void)cudaGetLastError();
    return Failure("follow a graph on CUDA device " + std::to_string(device), error);
  }

  Status CopyInStream(int device, void* to, const void* from, std::size_t bytes,
                      void* stream) noexcept override {
    const CurrentDevice current(device);
    cudaError_t error = current.error();
    if (error == cudaSuccess) {
      error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream));
    }
    if (error == cudaSuccess) return Status::Ok();
    (void)cudaGetLastError();
    return Failure("copy to CUDA device " + std::to_string(device), error);
  }

  Result<void*> CopyToHostInStream(int device, void* to, const void* from, std::size_t bytes,
                                   void* stream) noexcept override {
    const OutsideCaptures outside;
    const CurrentDevice current(device);
    cudaEvent_t event = nullptr;
    cudaError_t error = current.error();
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (error == cudaSuccess) {
      error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream));
      if (error == cudaSuccess) error = cudaEventRecord(event, static_cast<cudaStream_t>(stream));
      if (error == cudaSuccess) return static_cast<void*>(event);
      (void)cudaEventDestroy(event);
    }
    (void)cudaGetLastError();
    return Failure("copy from CUDA device " + std::to_string(device), error);
  }

  Result<bool> IsDone(int device, void* copy) noexcept override {
    const OutsideCaptures outside;
    const CurrentDevice current(device);
    auto* const event = static_cast<cudaEvent_t>(copy);
    const cudaError_t error = current.error() == cudaSuccess ? cudaEventQuery(event) : current.error();
    if (error == cudaErrorNotReady) return false;
    (void)cudaEventDestroy(event);
    if (error == cudaSuccess) return true;
    (void)cudaGetLastError();
    return Failure("copy from CUDA device " + std::to_string(device), error);
  }

  Status Enqueue(int device, DType dtype, const Launch& launch, void* stream) noexcept override {
    const CurrentDevice current(device);
    if (current.error() != cudaSuccess) return Failure("compute statistics", current.error());
    const void* kernel = KernelOf(dtype);
    const std::size_t shared = BlockBytes(launch.width);
    int blocks = 0;
    cudaError_t error = ResidentBlocks(device, dtype, kernel, launch.width, &blocks);
    if (error == cudaSuccess) {
      const std::uint32_t wanted = (launch.units + kBlockWarps - 1) / kBlockWarps;
      const std::uint32_t grid = std::min<std::uint32_t>(wanted, static_cast<std::uint32_t>(blocks));
      Launch parameters = launch;
      void* arguments[] = {&parameters};
      error = cudaLaunchKernel(kernel, dim3(grid), dim3(kBlockThreads), arguments, shared,
                               static_cast<cudaStream_t>(stream));
    }
    if (error == cudaSuccess) return Status::Ok();
    (void)cudaGetLastError();
    return Failure("compute statistics on CUDA device " + std::to_string(device), error);
  }

  Status EnqueueExponents(int device, DType dtype, const ExponentLaunch& launch,
                          void* stream) noexcept override {
    const CurrentDevice current(device);
    cudaError_t error = current.error();
    if (error == cudaSuccess) {
      std::uint32_t vector_components = 1;
      const void* kernel = ExponentKernelOf(dtype, &vector_components);
      const std::uint64_t wanted =
          DivideUp(launch.task.components, std::uint64_t{vector_components} * kExponentBlockThreads);
      const auto most = static_cast<std::uint64_t>(Processors(device)) * kExponentBlocksPerProcessor;
      const auto grid = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(wanted, 1, most));
      ExponentLaunch parameters = launch;
      void* arguments[] = {&parameters};
      error = cudaLaunchKernel(kernel, dim3(grid), dim3(kExponentBlockThreads), arguments,
                               launch.bins * sizeof(std::uint32_t), static_cast<cudaStream_t>(stream));
    }
    if (error == cudaSuccess) return Status::Ok();
    (void)cudaGetLastError();
    return Failure("count exponents on CUDA device " + std::to_string(device), error);
  }

  Status EnqueueMark(int device, const Mark& mark, void* stream) noexcept override {
    Mark parameters = mark;
    void* arguments[] = {&parameters};
    return EnqueueOne(device, MarkKernel(), arguments, stream);
  }

  Status EnqueueLatch(int device, ReplayControl* to, const ReplayControl* from,
                      void* stream) noexcept override {
    void* arguments[] = {&to, &from};
    return EnqueueOne(device, LatchKernel(), arguments, stream);
  }

  void* OwnStream(int device) noexcept override { return Probe(device); }

  Status Health(int device) noexcept override {
    const OutsideCaptures outside;
    const CurrentDevice current(device);
    if (current.error() != cudaSuccess)
      return Failure("ask CUDA device " + std::to_string(device), current.error());
    const cudaError_t error = cudaStreamQuery(Probe(device));
    if (error == cudaSuccess || error == cudaErrorNotReady) return Status::Ok();
    return Failure("ask CUDA device " + std::to_string(device), error);
  }

 private:
  struct State {
    int processors = 0;
    cudaStream_t probe = nullptr;  // for set-up, and to ask for errors; waits for no other stream
    std::array<int, kDTypeCount * 3> blocks{};  // resident at once, by dtype and width; 0: not asked yet
  };

  struct Capture {
    Status status;
    std::uint64_t id = 0;
    cudaGraph_t graph = nullptr;
  };

  // The device is the stream's.
  static Capture CaptureIn(void* stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    Capture capture;
#if CUDART_VERSION >= 13000
    const cudaError_t error =
        cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream), &status, &id, &capture.graph);
#else
    const cudaError_t error =
        cudaStreamGetCaptureInfo_v2(static_cast<cudaStream_t>(stream), &status, &id, &capture.graph);
#endif
    if (error != cudaSuccess) (void)cudaGetLastError();
    if (error != cudaSuccess || status != cudaStreamCaptureStatusActive) {
      capture.status = {Code::kFailedPrecondition,
                        "observe a CUDA tensor: nothing can be added to the graph that is being captured"};
    }
    capture.id = id;
    return capture;
  }

  // Runs in a thread of CUDA's.
  static void CUDART_CB TellGone(void* told) {
    auto* const gone = static_cast<std::shared_ptr<std::atomic<bool>>*>(told);
    (*gone)->store(true);
    delete gone;
  }

  static Status EnqueueOne(int device, const void* kernel, void** arguments, void* stream) noexcept {
    const CurrentDevice current(device);
    cudaError_t error = current.error();
    if (error == cudaSuccess) {
      error = cudaLaunchKernel(kernel, dim3(1), dim3(1), arguments, 0, static_cast<cudaStream_t>(stream));
    }
    if (error == cudaSuccess) return Status::Ok();
    (void)cudaGetLastError();
    return Failure("tell CUDA device " + std::to_string(device) + " which step it is", error);
  }

  static std::string Version(int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  }

  cudaStream_t Probe(int device) {
    MutexLock lock(mutex_);
    return devices_[device].probe;
  }

  int Processors(int device) {
    MutexLock lock(mutex_);
    return std::max(devices_[device].processors, 1);
  }

  cudaError_t ResidentBlocks(int device, DType dtype, const void* kernel, std::uint32_t width, int* blocks) {
    MutexLock lock(mutex_);
    State& state = devices_[device];
    int& known = state.blocks[static_cast<std::size_t>(dtype) * 3 + (width >= 64 ? 2 : width >= 32 ? 1 : 0)];
    if (known == 0) {
      const auto shared = static_cast<int>(BlockBytes(width));
      cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
      int each = 0;
      if (error == cudaSuccess) {
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, kBlockThreads,
                                                              static_cast<std::size_t>(shared));
      }
      if (error != cudaSuccess) return error;
      if (each == 0) return cudaErrorLaunchOutOfResources;
      known = each * state.processors;
    }
    *blocks = known;
    return cudaSuccess;
  }

  Mutex mutex_;
  std::map<int, State> devices_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<CudaApi> MakeCudaApi() { return std::make_unique<RuntimeApi>(); }

}  // namespace statcollect::stats::cuda
