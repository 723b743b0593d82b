#include "agent/stats/cuda/shard_kernel.cuh"

namespace statcollect::stats::cuda {

template const void* ShardKernelAddress<F8E4M3>();
template const void* ShardKernelAddress<F8E5M2>();
template const void* ShardKernelAddress<I8>();
template const void* ShardKernelAddress<U8>();
template const void* ShardKernelAddress<Bool>();

}  // namespace statcollect::stats::cuda
