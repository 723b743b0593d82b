#include "agent/stats/cuda/shard_kernel.cuh"

namespace statcollect::stats::cuda {

template const void* ShardKernelAddress<F16>();
template const void* ShardKernelAddress<Bf16>();

}  // namespace statcollect::stats::cuda
