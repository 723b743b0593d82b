// The kernels by dtype. No CUDA headers.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_KERNELS_H_
#define STATCOLLECT_AGENT_STATS_CUDA_KERNELS_H_

#include <cstdint>

#include "common/types.h"

namespace statcollect::stats::cuda {

// What cudaLaunchKernel takes to reduce tensors of this dtype (kernel.cuh: ReduceTensors), null if
// there is none. Its only parameter is a Launch (launch.h).
const void* KernelOf(DType dtype);
// The same for shards (ReduceShards). Its only parameter is a ShardLaunch, all of whose tasks have
// maps.
const void* ShardKernelOf(DType dtype);

// What counts exponents of tensors of this dtype (exponents.h), null if there is none. Its only
// parameter is an ExponentLaunch; kExponentBlockThreads threads a block, four bytes of shared
// memory a bin. *vector_components: how many components a thread takes at a time.
const void* ExponentKernelOf(DType dtype, std::uint32_t* vector_components);

// What computes statistics of rows of matrices of this dtype (matrix_rows.h), null if there is
// none. Its only parameter is a RowLaunch; kRowsThreads threads a block, kRowsSharedBytes of shared
// memory.
const void* RowKernelOf(DType dtype);

// Kernels of one thread (replay.h). Parameters: a Mark; and two pointers, ReplayControl* to and
// from.
const void* MarkKernel();
const void* LatchKernel();

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_KERNELS_H_
