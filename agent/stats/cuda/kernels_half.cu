#include "agent/stats/cuda/kernel.cuh"

namespace statcollect::stats::cuda {

template const void* KernelAddress<F16>();
template const void* KernelAddress<Bf16>();

}  // namespace statcollect::stats::cuda
