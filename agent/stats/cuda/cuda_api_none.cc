#include "agent/stats/cuda/cuda_api.h"

namespace statcollect::stats::cuda {

std::unique_ptr<CudaApi> MakeCudaApi() { return nullptr; }

}  // namespace statcollect::stats::cuda
