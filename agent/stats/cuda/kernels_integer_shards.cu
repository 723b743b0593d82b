#include "agent/stats/cuda/shard_kernel.cuh"

namespace statcollect::stats::cuda {

template const void* ShardKernelAddress<I16>();
template const void* ShardKernelAddress<U16>();
template const void* ShardKernelAddress<I32>();
template const void* ShardKernelAddress<U32>();
template const void* ShardKernelAddress<I64>();
template const void* ShardKernelAddress<U64>();

}  // namespace statcollect::stats::cuda
