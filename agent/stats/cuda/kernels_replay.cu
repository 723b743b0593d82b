// Marks and latches: see replay.h.
#include "agent/stats/cuda/kernels.h"
#include "agent/stats/cuda/replay.h"

namespace statcollect::stats::cuda {
namespace {

__global__ void MarkReplays(const __grid_constant__ Mark mark) { WriteMark(mark); }

__global__ void LatchControl(ReplayControl* to, const ReplayControl* from) { *to = *from; }

}  // namespace

const void* MarkKernel() { return reinterpret_cast<const void*>(&MarkReplays); }
const void* LatchKernel() { return reinterpret_cast<const void*>(&LatchControl); }

}  // namespace statcollect::stats::cuda
