// The kernel that counts binary exponents: see exponents.h.
#include "agent/stats/cuda/components.h"
#include "agent/stats/cuda/exponents.h"
#include "agent/stats/cuda/kernels.h"
#include "agent/stats/cuda/replay.h"

namespace statcollect::stats::cuda {
namespace {

__device__ __forceinline__ void AddTo(std::uint64_t* counter, std::uint64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(counter), static_cast<unsigned long long>(value));
}

// The block that is done last writes what all have counted, and leaves the scratch as it was found.
__device__ __noinline__ void Publish(const ExponentLaunch& launch) {
  for (std::uint32_t i = threadIdx.x; i < launch.bins; i += blockDim.x) {
    launch.row[1 + i] = LoadFresh(launch.scratch + 1 + i);
    launch.scratch[1 + i] = 0;
  }
  FenceForHost();
  __syncthreads();
  if (threadIdx.x != 0) return;
  launch.scratch[0] = 0;
  FenceForHost();
  *reinterpret_cast<volatile std::uint64_t*>(launch.row) = launch.ticket;
}

// A block has fewer than 2^32 components: the grid is as large as the device takes.
template <typename C>
__global__ void __launch_bounds__(kExponentBlockThreads)
    CountExponents(const __grid_constant__ ExponentLaunch launch) {
  extern __shared__ std::uint32_t counts[];
  __shared__ bool is_last;
  for (std::uint32_t i = threadIdx.x; i < launch.bins; i += blockDim.x) counts[i] = 0;
  __syncthreads();
  const std::uint64_t vectors = VectorsOf<C>(launch.task);
  const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t v = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; v < vectors; v += threads)
    CountVector<C>(launch, v, [&](std::uint32_t bin) { atomicAdd(counts + bin, 1u); });
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < launch.bins; i += blockDim.x) {
    if (counts[i] != 0) AddTo(launch.scratch + 1 + i, counts[i]);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = FetchAndIncrement(launch.scratch) + 1 == gridDim.x;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  Publish(launch);
}

template <typename C>
const void* Address() {
  return reinterpret_cast<const void*>(&CountExponents<C>);
}

}  // namespace

const void* ExponentKernelOf(DType dtype, std::uint32_t* vector_components) {
  const void* kernel = nullptr;
  WithComponent(dtype, [&](auto component) {
    kernel = Address<decltype(component)>();
    *vector_components = static_cast<std::uint32_t>(kVectorComponents<decltype(component)>);
  });
  return kernel;
}

}  // namespace statcollect::stats::cuda
