// Statistics of one CUDA tensor at a time, through an engine of the process's own. Threads: any;
// one computes, the others wait for their turn.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_COMPUTE_H_
#define STATCOLLECT_AGENT_STATS_CUDA_COMPUTE_H_

#include <chrono>

#include "agent/stats/cuda/engine.h"
#include "common/status.h"

namespace statcollect::stats::cuda {

// Waits for one tensor's statistics. `output` as for CudaEngine, without its options: sketch of 0,
// 16, 32, 64, up to kSamplesMax samples, and no exponents or kExponentCount of them, from
// kExponentMin on. `placement` as for CudaEngine::Enqueue. kDeadlineExceeded: not there in time.
Status ComputeCuda(const CpuTensor& tensor, int device, void* stream, const Output& output,
                   std::chrono::milliseconds timeout, const Placement* placement = nullptr);

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_COMPUTE_H_
