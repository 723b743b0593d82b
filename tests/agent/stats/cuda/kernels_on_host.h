// Launches of the shipped kernels on the host (shim/cuda_shim.h).
#ifndef STATCOLLECT_TESTS_AGENT_STATS_CUDA_KERNELS_ON_HOST_H_
#define STATCOLLECT_TESTS_AGENT_STATS_CUDA_KERNELS_ON_HOST_H_

#include "agent/stats/cuda/exponents.h"
#include "agent/stats/cuda/launch.h"
#include "agent/stats/cuda/matrix_rows.h"
#include "common/types.h"

namespace statcollect::stats::cuda {

// Tests that link the device's kernels, too, have these from a shared library.
#define STATCOLLECT_ON_HOST __attribute__((visibility("default")))

// As if the device held 1 .. 5 blocks at once: what is computed must not depend on it.
STATCOLLECT_ON_HOST void RunKernel(DType dtype, const Launch& launch);
STATCOLLECT_ON_HOST void RunShardKernel(DType dtype, const ShardLaunch& launch);
STATCOLLECT_ON_HOST void RunKernel(DType dtype, const ExponentLaunch& launch);
STATCOLLECT_ON_HOST void RunKernel(DType dtype, const RowLaunch& launch);
STATCOLLECT_ON_HOST void RunKernel(const Mark& mark);
STATCOLLECT_ON_HOST void RunLatch(ReplayControl* to, const ReplayControl* from);

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_TESTS_AGENT_STATS_CUDA_KERNELS_ON_HOST_H_
