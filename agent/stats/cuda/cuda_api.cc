#include "agent/stats/cuda/cuda_api.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "agent/stats/cuda/cuda_process.h"
#include "agent/stats/cuda/kernels.h"
#include "common/names.h"

namespace statcollect::stats::cuda {
namespace {

constexpr int kCapabilityMin = 80;

Status Failure(const std::string& attempted, cudaError_t error) {
  return {Code::kInternal, attempted + ": CUDA says " + cudaGetErrorName(error) + " (" +
                               cudaGetErrorString(error) + ")"};
}

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
    if (Process::Get().StateOf(device) != nullptr) return Status::Ok();
    const OutsideCaptures outside;
    STATCOLLECT_RETURN_IF_ERROR(CheckDevice(device));
    return Process::Get().OpenOnce(device, [&](const Driver& driver, DeviceState& state) -> Status {
      const std::string attempted = "open CUDA device " + std::to_string(device);
      int number = 0;
      int failed = driver.get_device(&number, device);
      if (failed == 0) failed = driver.retain_primary(&state.context, number);
      if (failed != 0) return Failure(attempted, static_cast<cudaError_t>(failed));
      const CurrentDevice current(device, state.context);
      if (current.error() != cudaSuccess) return Failure(attempted, current.error());
      (void)cudaDeviceGetAttribute(&state.processors, cudaDevAttrMultiProcessorCount, device);
      const cudaError_t loaded = LoadKernels(state);
      if (loaded != cudaSuccess) {
        (void)cudaGetLastError();
        return Failure("load the kernels on CUDA device " + std::to_string(device), loaded);
      }
      const cudaError_t created = cudaStreamCreateWithFlags(&state.probe, cudaStreamNonBlocking);
      return created == cudaSuccess ? Status::Ok() : Failure(attempted, created);
    });
  }

  Result<void*> AllocateOnDevice(int device, std::size_t bytes) override {
    const OutsideCaptures outside;
    const CurrentDevice current(device);
    void* memory = Process::Get().TakeKept(device, bytes);
    cudaError_t error = current.error();
    if (error == cudaSuccess && memory == nullptr) {
      error = cudaMalloc(&memory, bytes);
      if (error == cudaSuccess) Process::Get().Took(device, memory, bytes);
    }
    if (error == cudaSuccess) error = cudaMemsetAsync(memory, 0, bytes, Probe(device));
    if (error == cudaSuccess) error = cudaStreamSynchronize(Probe(device));
    if (error == cudaSuccess) return memory;
    Process::Get().Keep(memory);
    (void)cudaGetLastError();
    return Failure(
        "allocate " + std::to_string(bytes) + " bytes on CUDA device " + std::to_string(device),
        error);
  }

  Result<void*> AllocateOnHost(int device, std::size_t bytes) override {
    if (void* const kept = Process::Get().TakeKept(Process::kHost, bytes)) return kept;
    const OutsideCaptures outside;
    const CurrentDevice current(device);
    void* memory = nullptr;
    cudaError_t error = current.error();
    if (error == cudaSuccess)
      error = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (error == cudaSuccess) {
      Process::Get().Took(Process::kHost, memory, bytes);
      return memory;
    }
    (void)cudaGetLastError();
    return Failure("allocate " + std::to_string(bytes) + " bytes of pinned memory", error);
  }

  void FreeOnDevice(int, void* memory) noexcept override { Process::Get().Keep(memory); }

  void FreeOnHost(int, void* memory) noexcept override { Process::Get().Keep(memory); }

  Status CopyToDevice(int device, void* to, const void* from, std::size_t bytes) override {
    const OutsideCaptures outside;
    const CurrentDevice current(device);
    cudaError_t error = current.error();
    if (error == cudaSuccess)
      error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, Probe(device));
    if (error == cudaSuccess) error = cudaStreamSynchronize(Probe(device));
    return error == cudaSuccess ? Status::Ok()
                                : Failure("copy to CUDA device " + std::to_string(device), error);
  }

  Status CheckMemory(int device, const void* data) noexcept override {
    DeviceState* const state = Process::Get().StateOf(device);
    if (state != nullptr && state->known.Has(data)) return Status::Ok();
    const OutsideCaptures outside;
    const CurrentDevice current(device);
    cudaPointerAttributes found{};
    cudaError_t error = current.error();
    if (error == cudaSuccess) error = cudaPointerGetAttributes(&found, data);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      return Failure("look at the memory of a CUDA tensor", error);
    }
    if (found.type == cudaMemoryTypeUnregistered) {
      return {Code::kInvalidArgument,
              "statistics of a CUDA tensor: its data are in ordinary host memory; expected memory "
              "of CUDA "
              "device " +
                  std::to_string(device) + "; pass the tensor's own device"};
    }
    if (found.type == cudaMemoryTypeDevice && found.device != device) {
      return {Code::kInvalidArgument, "statistics of a CUDA tensor: its data are on device " +
                                          std::to_string(found.device) + "; expected device " +
                                          std::to_string(device) +
                                          "; pass the tensor's own device"};
    }
    if (state != nullptr && found.type == cudaMemoryTypeDevice) state->known.Add(data);
    return Status::Ok();
  }

  bool IsCapturing(int device, void* stream) noexcept override {
    const CurrentDevice current(device);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t error = cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status);
    if (error == cudaSuccess) return status != cudaStreamCaptureStatusNone;
    (void)cudaGetLastError();
    // The legacy stream says so while another stream is captured: nothing may be enqueued in it
    // either. A device that has failed is found when something is enqueued.
    return error == cudaErrorStreamCaptureImplicit;
  }

  Result<std::uint64_t> CaptureOf(int device, void* stream) noexcept override {
    const CurrentDevice current(device);
    const Capture capture = CaptureIn(stream);
    if (!capture.status.ok()) return capture.status;
    return capture.id;
  }

  Status TieToGraph(int device, void* stream,
                    std::shared_ptr<std::atomic<bool>> gone) noexcept override {
    const OutsideCaptures outside;
    const CurrentDevice current(device);
    const Capture capture = CaptureIn(stream);
    STATCOLLECT_RETURN_IF_ERROR(capture.status);
    auto* const told = new (std::nothrow) std::shared_ptr<std::atomic<bool>>(std::move(gone));
    if (told == nullptr) return {Code::kResourceExhausted, "observe a CUDA tensor: out of memory"};
    cudaUserObject_t object = nullptr;
    cudaError_t error =
        cudaUserObjectCreate(&object, told, TellGone, 1, cudaUserObjectNoDestructorSync);
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
      error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice,
                              static_cast<cudaStream_t>(stream));
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
      error =
          cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream));
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
    const cudaError_t error =
        current.error() == cudaSuccess ? cudaEventQuery(event) : current.error();
    if (error == cudaErrorNotReady) return false;
    (void)cudaEventDestroy(event);
    if (error == cudaSuccess) return true;
    (void)cudaGetLastError();
    return Failure("copy from CUDA device " + std::to_string(device), error);
  }

  Status Enqueue(int device, DType dtype, const Launch& launch, void* stream) noexcept override {
    Launch parameters = launch;
    return EnqueueReduce(device, KernelOf(dtype), BlocksIndex(dtype, launch.width, false),
                         &parameters, stream);
  }

  Status EnqueueShards(int device, DType dtype, const ShardLaunch& launch,
                       void* stream) noexcept override {
    ShardLaunch parameters = launch;
    return EnqueueReduce(device, ShardKernelOf(dtype), BlocksIndex(dtype, launch.width, true),
                         &parameters, stream);
  }

  Status EnqueueExponents(int device, DType dtype, const ExponentLaunch& launch,
                          void* stream) noexcept override {
    const CurrentDevice current(device);
    cudaError_t error = current.error();
    if (error == cudaSuccess) {
      std::uint32_t vector_components = 1;
      const void* kernel = ExponentKernelOf(dtype, &vector_components);
      const std::uint32_t grid =
          ExponentBlocks(launch.task.components, vector_components,
                         static_cast<std::uint32_t>(Process::Get().StateOf(device)->processors));
      ExponentLaunch parameters = launch;
      void* arguments[] = {&parameters};
      error =
          cudaLaunchKernel(kernel, dim3(grid), dim3(kExponentBlockThreads), arguments,
                           launch.bins * sizeof(std::uint32_t), static_cast<cudaStream_t>(stream));
    }
    if (error == cudaSuccess) return Status::Ok();
    (void)cudaGetLastError();
    return Failure("count exponents on CUDA device " + std::to_string(device), error);
  }

  Status EnqueueRows(int device, DType dtype, const RowLaunch& launch,
                     void* stream) noexcept override {
    const CurrentDevice current(device);
    cudaError_t error = current.error();
    if (error == cudaSuccess) {
      const int component_bytes = static_cast<int>(DTypeBytes(dtype) / launch.parts);
      RowLaunch parameters = launch;
      void* arguments[] = {&parameters};
      error = cudaLaunchKernel(RowKernelOf(dtype), dim3(RowsGrid(launch, component_bytes)),
                               dim3(kRowsThreads), arguments, kRowsSharedBytes,
                               static_cast<cudaStream_t>(stream));
    }
    if (error == cudaSuccess) return Status::Ok();
    (void)cudaGetLastError();
    return Failure("compute rows on CUDA device " + std::to_string(device), error);
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
    const cudaError_t error = cudaStreamGetCaptureInfo_v2(static_cast<cudaStream_t>(stream),
                                                          &status, &id, &capture.graph);
#endif
    if (error != cudaSuccess) (void)cudaGetLastError();
    if (error != cudaSuccess || status != cudaStreamCaptureStatusActive) {
      capture.status = {
          Code::kFailedPrecondition,
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

  // `parameters`: what the kernel takes, a Launch or more.
  static Status EnqueueReduce(int device, const void* kernel, std::size_t blocks_index,
                              Launch* parameters, void* stream) noexcept {
    const CurrentDevice current(device);
    if (current.error() != cudaSuccess) return Failure("compute statistics", current.error());
    const int blocks = Process::Get().StateOf(device)->blocks[blocks_index];
    const std::uint32_t grid = GridBlocks(parameters->units, static_cast<std::uint32_t>(blocks));
    void* arguments[] = {parameters};
    const cudaError_t error =
        cudaLaunchKernel(kernel, dim3(grid), dim3(kBlockThreads), arguments,
                         BlockBytes(parameters->width), static_cast<cudaStream_t>(stream));
    if (error == cudaSuccess) return Status::Ok();
    (void)cudaGetLastError();
    return Failure("compute statistics on CUDA device " + std::to_string(device), error);
  }

  static Status EnqueueOne(int device, const void* kernel, void** arguments,
                           void* stream) noexcept {
    const CurrentDevice current(device);
    cudaError_t error = current.error();
    if (error == cudaSuccess) {
      error = cudaLaunchKernel(kernel, dim3(1), dim3(1), arguments, 0,
                               static_cast<cudaStream_t>(stream));
    }
    if (error == cudaSuccess) return Status::Ok();
    (void)cudaGetLastError();
    return Failure("tell CUDA device " + std::to_string(device) + " which step it is", error);
  }

  static std::string Version(int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  }

  static cudaStream_t Probe(int device) {
    const DeviceState* const state = Process::Get().StateOf(device);
    return state == nullptr ? nullptr : state->probe;
  }

  // Whether the device is there and new enough for the kernels. Makes no context.
  static Status CheckDevice(int device) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      return WithoutDriver(error);
    }
    count = std::min(count, Process::kDevicesMax);
    if (device < 0 || device >= count) {
      return {Code::kInvalidArgument, "statistics of a CUDA tensor: its device is " +
                                          std::to_string(device) + "; expected 0.." +
                                          std::to_string(count - 1)};
    }
    int major = 0, minor = 0;
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (major * 10 + minor >= kCapabilityMin) return Status::Ok();
    return {Code::kUnimplemented, "statistics of a CUDA tensor: device " + std::to_string(device) +
                                      " has compute capability " + std::to_string(major) + "." +
                                      std::to_string(minor) +
                                      "; expected 8.0 or newer; copy the tensor to the CPU first"};
  }

  static Status WithoutDriver(cudaError_t error) {
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    const std::string found =
        driver == 0 ? "no driver was found" : "the driver supports CUDA " + Version(driver);
    // Drivers run programs of their own and of later minor versions; these are the first of each
    // major one.
    constexpr bool kCuda12 = CUDART_VERSION < 13000;
    std::string next = "; update the driver";
    if (!kCuda12) next += ", or use a build with CUDA 12.8, for which 525 is enough";
    return {Code::kUnimplemented,
            "statistics of a CUDA tensor: " + found + " (" + cudaGetErrorName(error) +
                "); expected a GPU and, as this build has the runtime of CUDA " +
                Version(CUDART_VERSION) + ", driver " + (kCuda12 ? "525" : "580") + " or newer" +
                next + ", or copy the tensor to the CPU first"};
  }

  // Loads a kernel that reduces tensors. *blocks: as many as are resident, for sketches of 16, 32
  // and 64 sums.
  static cudaError_t Prepare(const void* kernel, const DeviceState& state, int* blocks) {
    cudaFuncAttributes attributes{};
    cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error == cudaSuccess) {
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(BlockBytes(kSketchSums)));
    }
    for (const std::uint32_t width : {16u, 32u, 64u}) {
      int each = 0;
      if (error == cudaSuccess) {
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, kBlockThreads,
                                                              BlockBytes(width));
      }
      if (error != cudaSuccess) return error;
      if (each == 0) return cudaErrorLaunchOutOfResources;
      *blocks++ = each * state.processors;
    }
    return cudaSuccess;
  }

  // Loading may wait for the device, so all kernels are loaded now. The limit of shared memory
  // belongs to the kernel in the whole process, so it is set once, to what the widest sketch needs:
  // a limit for each width would take another agent's away.
  static cudaError_t LoadKernels(DeviceState& state) {
    std::vector<const void*> kernels = {MarkKernel(), LatchKernel()};
    for (int dtype = 1; dtype < kDTypeCount; ++dtype) {
      std::uint32_t vector_components = 0;
      kernels.push_back(ExponentKernelOf(static_cast<DType>(dtype), &vector_components));
      kernels.push_back(RowKernelOf(static_cast<DType>(dtype)));
    }
    cudaFuncAttributes attributes{};
    for (const void* kernel : kernels) {
      const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
      if (error != cudaSuccess) return error;
    }
    for (int number = 1; number < kDTypeCount; ++number) {
      const auto dtype = static_cast<DType>(number);
      for (const bool shards : {false, true}) {
        const cudaError_t error = Prepare(shards ? ShardKernelOf(dtype) : KernelOf(dtype), state,
                                          &state.blocks[BlocksIndex(dtype, 16, shards)]);
        if (error != cudaSuccess) return error;
      }
    }
    return cudaSuccess;
  }
};

}  // namespace

std::unique_ptr<CudaApi> MakeCudaApi() { return std::make_unique<RuntimeApi>(); }

}  // namespace statcollect::stats::cuda
