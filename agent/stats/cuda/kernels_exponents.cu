// The kernel that counts binary exponents: see exponents.h.
#include "agent/stats/cuda/components.h"
#include "agent/stats/cuda/device.h"
#include "agent/stats/cuda/exponents.h"
#include "agent/stats/cuda/kernels.h"
#include "agent/stats/cuda/reduce.h"
#include "agent/stats/exponent_of.h"

namespace statcollect::stats::cuda {
namespace {

// Vectors of sixteen bytes that the tensor has, the last one perhaps not full.
template <typename C>
STATCOLLECT_WARP std::uint64_t VectorsOf(const Task& task) {
  return DivideUp(task.components, kVectorComponents<C>);
}

// Vector `index` of the tensor; components that it has not got are 0.
template <typename C>
STATCOLLECT_WARP Vector LoadVector(const Task& task, std::uint64_t index) {
  if (LiesInVectors(task) && (index + 1) * kVectorComponents<C> <= task.components)
    return *reinterpret_cast<const Vector*>(task.data + index * kVectorBytes);
  Vector vector;
  GatherVector<C>(task, index / kPieceVectors, static_cast<int>(index % kPieceVectors), &vector);
  return vector;
}

// Adds the vector's components that are finite and not 0 to the block's counts.
template <typename C>
STATCOLLECT_WARP void CountVector(const ExponentLaunch& launch, std::uint64_t index,
                                  std::uint32_t* counts) {
  const Vector vector = C::Clean(LoadVector<C>(launch.task, index));
  STATCOLLECT_UNROLL
  for (int j = 0; j < kVectorComponents<C>; ++j) {
    const std::int32_t exponent = ExponentOf(C::Value(vector, j));
    if (exponent != kNoExponent)
      atomicAdd(counts + BinOf(exponent, launch.lowest, launch.bins), 1u);
  }
}

// The block that is done last writes what all have counted, and leaves the scratch as it was found.
STATCOLLECT_CALL void Publish(const ExponentLaunch& launch) {
  for (std::uint32_t i = threadIdx.x; i < launch.bins; i += blockDim.x) {
    launch.row[1 + i] = LoadFresh(launch.scratch + 1 + i);
    launch.scratch[1 + i] = 0;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  launch.scratch[0] = 0;
  FenceForHost();  // of what the block has written
  StoreForHost(launch.row, launch.ticket);
}

// A block has fewer than 2^32 components: the grid is as large as the device takes.
template <typename C>
__global__ void __launch_bounds__(kExponentBlockThreads)
    CountExponents(const __grid_constant__ ExponentLaunch launch) {
  auto* const counts = reinterpret_cast<std::uint32_t*>(BlockMemory());
  for (std::uint32_t i = threadIdx.x; i < launch.bins; i += blockDim.x) counts[i] = 0;
  __syncthreads();
  const std::uint64_t vectors = VectorsOf<C>(launch.task);
  const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t v = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; v < vectors;
       v += threads)
    CountVector<C>(launch, v, counts);
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < launch.bins; i += blockDim.x) {
    if (counts[i] != 0) (void)FetchAndAdd(launch.scratch + 1 + i, counts[i]);
  }
  __syncthreads();
  bool is_last = false;
  if (threadIdx.x == 0) {
    __threadfence();  // of what the block has counted
    is_last = FetchAndIncrement(launch.scratch) + 1 == gridDim.x;
    __threadfence();
  }
  if (!__syncthreads_or(is_last)) return;
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
