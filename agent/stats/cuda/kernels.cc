#include "agent/stats/cuda/kernels.h"

#include "agent/stats/cuda/components.h"

namespace statcollect::stats::cuda {

// The .cu files define it for each component type.
template <typename C>
const void* KernelAddress();
template <typename C>
const void* ShardKernelAddress();

const void* KernelOf(DType dtype) {
  const void* kernel = nullptr;
  WithComponent(dtype, [&](auto component) { kernel = KernelAddress<decltype(component)>(); });
  return kernel;
}

const void* ShardKernelOf(DType dtype) {
  const void* kernel = nullptr;
  WithComponent(dtype, [&](auto component) { kernel = ShardKernelAddress<decltype(component)>(); });
  return kernel;
}

}  // namespace statcollect::stats::cuda
