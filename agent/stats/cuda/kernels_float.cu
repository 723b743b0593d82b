#include "agent/stats/cuda/kernel.cuh"

namespace statcollect::stats::cuda {

template const void* KernelAddress<F32>();
template const void* KernelAddress<F64>();

}  // namespace statcollect::stats::cuda
