#include "agent/stats/cuda/kernel.cuh"

namespace statcollect::stats::cuda {

template const void* KernelAddress<F8E4M3>();
template const void* KernelAddress<F8E5M2>();
template const void* KernelAddress<I8>();
template const void* KernelAddress<U8>();
template const void* KernelAddress<Bool>();

}  // namespace statcollect::stats::cuda
