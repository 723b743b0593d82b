#include "agent/stats/cuda/kernel.cuh"

namespace statcollect::stats::cuda {

template const void* KernelAddress<I16>();
template const void* KernelAddress<U16>();
template const void* KernelAddress<I32>();
template const void* KernelAddress<U32>();
template const void* KernelAddress<I64>();
template const void* KernelAddress<U64>();

}  // namespace statcollect::stats::cuda
