// What the kernels compute, computed on the host by the kernels themselves (shim/cuda_shim.h).
#ifndef STATCOLLECT_TESTS_AGENT_STATS_CUDA_EMULATION_H_
#define STATCOLLECT_TESTS_AGENT_STATS_CUDA_EMULATION_H_

#include <cstdint>
#include <vector>

#include "agent/stats/cuda/row_engine.h"
#include "agent/stats/stats.h"

namespace statcollect::stats::cuda {

struct Emulated {
  TensorStats stats;
  std::vector<double> sketch;
};

// One tensor, alone; a shard, if it has a placement. `unit_pieces`: as large tensors have them; 0:
// as this one has. Tests on a GPU, which link the device's kernels too, have it from a shared
// library.
__attribute__((visibility("default"))) Emulated Emulate(const CpuTensor& tensor,
                                                        std::uint32_t sketch_width,
                                                        std::uint32_t unit_pieces = 0,
                                                        const Placement* placement = nullptr);

// Rows of a matrix.
__attribute__((visibility("default"))) std::vector<RowRecord> EmulateRows(const CpuTensor& rows,
                                                                          std::uint64_t first,
                                                                          const RowChoice& choice);

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_TESTS_AGENT_STATS_CUDA_EMULATION_H_
