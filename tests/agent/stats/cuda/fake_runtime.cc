#include "tests/agent/stats/cuda/fake_runtime.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "agent/stats/cuda/kernels.h"
#include "tests/agent/stats/cuda/fake_cuda.h"
#include "tests/agent/stats/cuda/kernels_on_host.h"

namespace statcollect::stats::cuda {
namespace {

// Which of the shipped kernels, compiled for the host, an address is.
enum class KernelKind { kReduce, kShards, kExponents, kRows, kMark, kLatch };
struct Kernel {
  KernelKind kind;
  DType dtype = DType::kUnspecified;
};
Kernel KernelAt(const void* address) {
  for (int number = 1; number < kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    std::uint32_t vector_components = 0;
    if (address == KernelOf(dtype)) return {KernelKind::kReduce, dtype};
    if (address == ShardKernelOf(dtype)) return {KernelKind::kShards, dtype};
    if (address == ExponentKernelOf(dtype, &vector_components))
      return {KernelKind::kExponents, dtype};
    if (address == RowKernelOf(dtype)) return {KernelKind::kRows, dtype};
  }
  if (address == MarkKernel()) return {KernelKind::kMark};
  if (address != LatchKernel()) std::abort();
  return {KernelKind::kLatch};
}

constexpr int kNoContext = -1;

// A thread's device, and its stack of current contexts: each the primary one of a device.
struct Thread {
  int device = 0;
  std::vector<int> contexts = {kNoContext};
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
};
thread_local Thread thread;

// The device of a call that needs a context: as CUDA, it makes one on the thread's device.
int Current() {
  FakeRuntime& runtime = FakeRuntime::Get();
  if (thread.contexts.back() == kNoContext) {
    thread.contexts.back() = thread.device;
    runtime.active.insert(thread.device);
  }
  return thread.contexts.back();
}

// A call that needs a context; kUnsafe: which a capture in global mode forbids.
enum class Kind { kSafe, kUnsafe };
cudaError_t Enter(const char* name, Kind kind = Kind::kSafe) {
  FakeRuntime& runtime = FakeRuntime::Get();
  const int device = Current();
  const cudaError_t error = runtime.Call(name);
  if (error != cudaSuccess) return error;
  if (const auto dead = runtime.dead.find(device); dead != runtime.dead.end()) return dead->second;
  if (kind == Kind::kUnsafe && !runtime.captured.empty() &&
      thread.mode != cudaStreamCaptureModeRelaxed) {
    runtime.capture_invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

// Of a call that enqueues something in a stream: it must be of the thread's device.
cudaError_t EnterStream(const char* name, cudaStream_t stream) {
  FakeRuntime& runtime = FakeRuntime::Get();
  const cudaError_t error = Enter(name);
  if (error != cudaSuccess || reinterpret_cast<std::uintptr_t>(stream) <= 2) return error;
  const auto found = runtime.streams.find(stream);
  if (found == runtime.streams.end() || found->second.device != Current())
    return cudaErrorInvalidResourceHandle;
  return cudaSuccess;
}

void RunAt(const void* address, const std::vector<std::shared_ptr<void>>& arguments) {
  const Kernel kernel = KernelAt(address);
  switch (kernel.kind) {
    case KernelKind::kReduce:
      return FakeDevice::Run(kernel.dtype, {*static_cast<Launch*>(arguments[0].get()), {}}, false);
    case KernelKind::kShards:
      return FakeDevice::Run(kernel.dtype, *static_cast<ShardLaunch*>(arguments[0].get()), true);
    case KernelKind::kExponents:
      return RunKernel(kernel.dtype, *static_cast<ExponentLaunch*>(arguments[0].get()));
    case KernelKind::kRows:
      return RunKernel(kernel.dtype, *static_cast<RowLaunch*>(arguments[0].get()));
    case KernelKind::kMark:
      return RunKernel(*static_cast<Mark*>(arguments[0].get()));
    case KernelKind::kLatch:
      return RunLatch(*static_cast<ReplayControl**>(arguments[0].get()),
                      *static_cast<const ReplayControl**>(arguments[1].get()));
  }
}

// What the kernel is launched with, as it is now.
std::vector<std::shared_ptr<void>> Copied(const void* address, void** arguments) {
  switch (KernelAt(address).kind) {
    case KernelKind::kReduce:
      return {std::make_shared<Launch>(*static_cast<Launch*>(arguments[0]))};
    case KernelKind::kShards:
      return {std::make_shared<ShardLaunch>(*static_cast<ShardLaunch*>(arguments[0]))};
    case KernelKind::kExponents:
      return {std::make_shared<ExponentLaunch>(*static_cast<ExponentLaunch*>(arguments[0]))};
    case KernelKind::kRows:
      return {std::make_shared<RowLaunch>(*static_cast<RowLaunch*>(arguments[0]))};
    case KernelKind::kMark:
      return {std::make_shared<Mark>(*static_cast<Mark*>(arguments[0]))};
    case KernelKind::kLatch:
      break;
  }
  return {
      std::make_shared<ReplayControl*>(*static_cast<ReplayControl**>(arguments[0])),
      std::make_shared<const ReplayControl*>(*static_cast<const ReplayControl**>(arguments[1]))};
}

// The scratch that a kernel uses which reduces one tensor.
const void* ScratchOf(const void* address, void** arguments) {
  const KernelKind kind = KernelAt(address).kind;
  if (kind != KernelKind::kReduce && kind != KernelKind::kShards) return nullptr;
  return static_cast<const Launch*>(arguments[0])->only.scratch.tickets;
}

cudaError_t RunOrHold(std::function<void()> what) {
  FakeRuntime& runtime = FakeRuntime::Get();
  if (runtime.holds) {
    runtime.held.push_back(std::move(what));
  } else {
    what();
  }
  return cudaSuccess;
}

cudaError_t Allocate(void** memory, std::size_t bytes, cudaMemoryType type) {
  FakeRuntime& runtime = FakeRuntime::Get();
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*memory, 0xa5, bytes);  // neither is zeroed by CUDA
  runtime.memory[*memory] = {bytes, type, Current()};
  (type == cudaMemoryTypeDevice ? runtime.device_bytes : runtime.host_bytes) += bytes;
  return cudaSuccess;
}

cudaError_t Free(void* memory) {
  FakeRuntime& runtime = FakeRuntime::Get();
  ++runtime.waited_for_all;
  const auto found = runtime.memory.find(memory);
  if (found == runtime.memory.end()) return cudaErrorInvalidValue;
  (found->second.type == cudaMemoryTypeDevice ? runtime.device_bytes : runtime.host_bytes) -=
      found->second.bytes;
  std::free(memory);
  runtime.memory.erase(found);
  return cudaSuccess;
}

// --- the driver's functions

int DeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int PrimaryContextRetain(void** context, int device) {
  FakeRuntime& runtime = FakeRuntime::Get();
  std::lock_guard lock(runtime.mutex);
  (void)runtime.Call("cuDevicePrimaryCtxRetain");
  runtime.active.insert(device);
  *context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(device) + 1);
  return 0;
}
int PushContext(void* context) {
  FakeRuntime& runtime = FakeRuntime::Get();
  std::lock_guard lock(runtime.mutex);
  if (const cudaError_t error = runtime.Call("cuCtxPushCurrent"); error != cudaSuccess)
    return error;
  const int device = static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1;
  thread.contexts.push_back(device);
  runtime.active.insert(device);  // it was, or the test has begun a new process
  return 0;
}
int PopContext(void** context) {
  FakeRuntime& runtime = FakeRuntime::Get();
  std::lock_guard lock(runtime.mutex);
  (void)runtime.Call("cuCtxPopCurrent");
  if (thread.contexts.size() < 2) std::abort();  // nothing was pushed
  *context = nullptr;
  thread.contexts.pop_back();
  return 0;
}

}  // namespace

FakeRuntime& FakeRuntime::Get() {
  static auto* const runtime = new FakeRuntime;
  return *runtime;
}

void FakeRuntime::Reset() {
  std::lock_guard lock(mutex);
  calls.clear();
  active.clear();
  driver = 12080;
  driver_too_old = holds = capture_invalid = false;
  waited_for_all = 0;
  dead.clear();
  errors.clear();
  held.clear();
  launches.clear();
  captured.clear();
  thread = Thread();
}

int FakeRuntime::DriverCalls() const {
  int sum = 0;
  for (const auto& [name, count] : calls) sum += name == "cudaGetDevice" ? 0 : count;
  return sum;
}

cudaStream_t FakeRuntime::NewStream(int device) {
  std::lock_guard lock(mutex);
  const cudaStream_t handle =
      free_handle != nullptr ? free_handle : reinterpret_cast<cudaStream_t>(next_handle += 0x100);
  free_handle = nullptr;
  streams[handle] = {device, ++next_id};
  return handle;
}

void FakeRuntime::DestroyStream(cudaStream_t stream) {
  std::lock_guard lock(mutex);
  streams.erase(stream);
  free_handle = stream;
}

void FakeRuntime::BeginCapture(cudaStream_t stream) {
  std::lock_guard lock(mutex);
  captured.insert(stream);
}

void FakeRuntime::EndCapture() {
  std::lock_guard lock(mutex);
  captured.clear();
}

void* FakeRuntime::NewMemory(int device, std::size_t bytes) {
  std::lock_guard lock(mutex);
  constexpr std::size_t kPage = std::size_t{2} << 20;  // devices share none
  void* const address = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  memory[address] = {bytes, cudaMemoryTypeDevice, device};
  return address;
}

void FakeRuntime::RunAll() {
  std::lock_guard lock(mutex);
  for (; !held.empty(); held.pop_front()) held.front()();
}

cudaError_t FakeRuntime::Call(const char* name) {
  ++calls[name];
  const auto injected = errors.find(name);
  if (injected == errors.end() || injected->second.empty()) return cudaSuccess;
  const cudaError_t error = injected->second.front();
  injected->second.pop_front();
  return error;
}

}  // namespace statcollect::stats::cuda

// --- the runtime's functions

using statcollect::stats::cuda::Current;
using statcollect::stats::cuda::Enter;
using statcollect::stats::cuda::EnterStream;
using statcollect::stats::cuda::FakeRuntime;
using statcollect::stats::cuda::Kind;
using statcollect::stats::cuda::kNoContext;
using statcollect::stats::cuda::thread;

#define CALL(name)                              \
  FakeRuntime& runtime = FakeRuntime::Get();    \
  const std::lock_guard lock(runtime.mutex);    \
  const cudaError_t error = runtime.Call(name); \
  if (error != cudaSuccess) return error
#define ENTER(...)                              \
  FakeRuntime& runtime = FakeRuntime::Get();    \
  const std::lock_guard lock(runtime.mutex);    \
  const cudaError_t error = Enter(__VA_ARGS__); \
  if (error != cudaSuccess) return error
#define ENTER_STREAM(name, stream)                     \
  FakeRuntime& runtime = FakeRuntime::Get();           \
  const std::lock_guard lock(runtime.mutex);           \
  const cudaError_t error = EnterStream(name, stream); \
  if (error != cudaSuccess) return error

extern "C" {

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}  // each call of the engine's looks at its own
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorInsufficientDriver ? "cudaErrorInsufficientDriver" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t) { return "asked for by a test"; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = FakeRuntime::Get().driver;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  CALL("cudaGetDeviceCount");
  *count = FakeRuntime::kDevices;
  return runtime.driver_too_old ? cudaErrorInsufficientDriver : cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  CALL("cudaGetDevice");
  *device = thread.contexts.back() == kNoContext ? thread.device : thread.contexts.back();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  CALL("cudaSetDevice");
  if (device < 0 || device >= FakeRuntime::kDevices) return cudaErrorInvalidDevice;
  thread.device = device;
  thread.contexts.back() = device;
  runtime.active.insert(device);  // since CUDA 12
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  CALL("cudaDeviceGetAttribute");
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9
           : attribute == cudaDevAttrMultiProcessorCount  ? 132
                                                          : 0;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  CALL("cudaGetDriverEntryPointByVersion");
  const std::string name = symbol;
  *function = nullptr;
  if (name == "cuDeviceGet")
    *function = reinterpret_cast<void*>(&statcollect::stats::cuda::DeviceGet);
  if (name == "cuDevicePrimaryCtxRetain")
    *function = reinterpret_cast<void*>(&statcollect::stats::cuda::PrimaryContextRetain);
  if (name == "cuCtxPushCurrent")
    *function = reinterpret_cast<void*>(&statcollect::stats::cuda::PushContext);
  if (name == "cuCtxPopCurrent")
    *function = reinterpret_cast<void*>(&statcollect::stats::cuda::PopContext);
  *found = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  ENTER("cudaFuncGetAttributes", Kind::kUnsafe);
  *attributes = {};
  return function != nullptr ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute, int value) {
  ENTER("cudaFuncSetAttribute");
  runtime.shared[{Current(), function}] = static_cast<std::size_t>(value);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int,
                                                          std::size_t shared) {
  ENTER("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  const auto limit = runtime.shared.find({Current(), function});
  const std::size_t most =
      limit == runtime.shared.end() ? FakeRuntime::kSharedDefault : limit->second;
  *blocks = shared > most ? 0 : static_cast<int>((std::size_t{227} << 10) / (shared + 1024));
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, std::size_t shared,
                             cudaStream_t stream) {
  ENTER_STREAM("cudaLaunchKernel", stream);
  const auto limit = runtime.shared.find({Current(), function});
  const std::size_t most =
      limit == runtime.shared.end() ? FakeRuntime::kSharedDefault : limit->second;
  if (shared > most) return cudaErrorInvalidValue;
  const auto copied = statcollect::stats::cuda::Copied(function, arguments);
  runtime.launches.push_back(
      {function, Current(), statcollect::stats::cuda::ScratchOf(function, arguments)});
  return statcollect::stats::cuda::RunOrHold(
      [function, copied] { statcollect::stats::cuda::RunAt(function, copied); });
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  ENTER("cudaMalloc", Kind::kUnsafe);
  return statcollect::stats::cuda::Allocate(memory, bytes, cudaMemoryTypeDevice);
}
cudaError_t cudaFree(void* memory) {
  ENTER("cudaFree", Kind::kUnsafe);
  return statcollect::stats::cuda::Free(memory);
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  ENTER("cudaHostAlloc", Kind::kUnsafe);
  return statcollect::stats::cuda::Allocate(memory, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaFreeHost(void* memory) {
  ENTER("cudaFreeHost", Kind::kUnsafe);
  return statcollect::stats::cuda::Free(memory);
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  ENTER_STREAM("cudaMemsetAsync", stream);
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  ENTER_STREAM("cudaMemcpyAsync", stream);
  return statcollect::stats::cuda::RunOrHold([=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  ENTER("cudaPointerGetAttributes", Kind::kUnsafe);
  *attributes = {};
  const auto after = runtime.memory.upper_bound(memory);
  if (after == runtime.memory.begin()) return cudaSuccess;
  const auto& [begin, found] = *std::prev(after);
  if (static_cast<const char*>(memory) >= static_cast<const char*>(begin) + found.bytes)
    return cudaSuccess;
  attributes->type = found.type;
  attributes->device = found.device;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  ENTER("cudaStreamCreateWithFlags", Kind::kUnsafe);
  *stream = runtime.NewStream(Current());
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ENTER_STREAM("cudaStreamSynchronize", stream);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  ENTER_STREAM("cudaStreamQuery", stream);
  return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  ENTER_STREAM("cudaStreamGetId", stream);
  *id = reinterpret_cast<std::uintptr_t>(stream) <= 2 ? 1 : runtime.streams.at(stream).id;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  ENTER("cudaStreamIsCapturing");
  if (stream == nullptr && !runtime.captured.empty()) return cudaErrorStreamCaptureImplicit;
  *status = runtime.captured.contains(stream) ? cudaStreamCaptureStatusActive
                                              : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                        unsigned long long* id, cudaGraph_t* graph,
                                        const cudaGraphNode_t**, std::size_t*) {
  ENTER("cudaStreamGetCaptureInfo");
  *status = runtime.captured.contains(stream) ? cudaStreamCaptureStatusActive
                                              : cudaStreamCaptureStatusNone;
  *id = 1;
  if (graph != nullptr) *graph = nullptr;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  CALL("cudaThreadExchangeStreamCaptureMode");
  std::swap(*mode, thread.mode);
  return cudaSuccess;
}
cudaError_t cudaUserObjectCreate(cudaUserObject_t*, void*, cudaHostFn_t, unsigned, unsigned) {
  CALL("cudaUserObjectCreate");
  return cudaSuccess;
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned) { return cudaSuccess; }
cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) {
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  ENTER("cudaEventCreateWithFlags", Kind::kUnsafe);
  *event = reinterpret_cast<cudaEvent_t>(new FakeRuntime::Event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ENTER_STREAM("cudaEventRecord", stream);
  auto* const recorded = reinterpret_cast<FakeRuntime::Event*>(event);
  recorded->done = false;
  return statcollect::stats::cuda::RunOrHold([recorded] { recorded->done = true; });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  ENTER("cudaEventQuery", Kind::kUnsafe);
  return reinterpret_cast<FakeRuntime::Event*>(event)->done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  ENTER("cudaEventDestroy", Kind::kUnsafe);
  delete reinterpret_cast<FakeRuntime::Event*>(event);
  return cudaSuccess;
}

}  // extern "C"
