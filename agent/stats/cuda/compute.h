// Statistics of one CUDA tensor at a time, and of rows of one matrix, through engines of the
// process's own. Threads: any; one computes, the others wait for their turn.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_COMPUTE_H_
#define STATCOLLECT_AGENT_STATS_CUDA_COMPUTE_H_

#include <chrono>
#include <cstdint>
#include <span>

#include "agent/stats/cuda/engine.h"
#include "agent/stats/rows.h"
#include "common/status.h"

namespace statcollect::stats::cuda {

// Waits for one tensor's statistics. `output` as for CudaEngine, without its options: sketch of 0,
// 16, 32, 64, up to kSamplesMax samples, and no exponents or kExponentCount of them, from
// kExponentMin on. `placement` as for CudaEngine::Enqueue. kDeadlineExceeded: not there in time.
Status ComputeCuda(const CpuTensor& tensor, int device, void* stream, const Output& output,
                   std::chrono::milliseconds timeout, const Placement* placement = nullptr);

// Waits for the statistics of all rows of a matrix, one for each of `out`. Precondition:
// ValidateRows(rows, first) is OK. kDeadlineExceeded as above.
Status ComputeRowsCuda(const CpuTensor& rows, std::uint64_t first, int device, void* stream,
                       std::span<RowStats> out, std::chrono::milliseconds timeout);

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_COMPUTE_H_
