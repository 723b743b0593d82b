#include "agent/stats/cuda/shard_kernel.cuh"

namespace statcollect::stats::cuda {

template const void* ShardKernelAddress<F32>();
template const void* ShardKernelAddress<F64>();

}  // namespace statcollect::stats::cuda
