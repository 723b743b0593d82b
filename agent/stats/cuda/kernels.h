// The kernels by dtype. No CUDA headers.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_KERNELS_H_
#define STATCOLLECT_AGENT_STATS_CUDA_KERNELS_H_

#include "common/types.h"

namespace statcollect::stats::cuda {

// What cudaLaunchKernel takes to reduce tensors of this dtype (kernel.cuh: ReduceTensors), null if there is
// none. Its only parameter is a Launch (launch.h).
const void* KernelOf(DType dtype);

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_KERNELS_H_
