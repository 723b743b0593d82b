// From a tensor's description to a task of the CUDA engine, and from its raw result to statistics.
// Host code without CUDA.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_PLAN_H_
#define STATCOLLECT_AGENT_STATS_CUDA_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "agent/stats/accumulate.h"
#include "agent/stats/cuda/index_map.h"
#include "agent/stats/cuda/task.h"
#include "agent/stats/stats.h"
#include "common/status.h"

namespace statcollect::stats::cuda {

// Everything of `task` but scratch, record, ticket and first_unit. Precondition: Validate(tensor)
// is OK (the data are not touched). kUnimplemented: more than kTaskDims dimensions that do not
// join.
Status MakeTask(const CpuTensor& tensor, Task* task);

// The index_map.h of a shard; no words if it begins with the logical tensor's first component and
// has no gaps: then its hash and sketch are those of a whole tensor. Precondition: Validate(tensor,
// placement) is OK. kUnimplemented: more than kMapNumbersMax numbers, or more than kMapDims
// dimensions that do not join.
Status MakeIndexMap(const CpuTensor& tensor, const Placement& placement,
                    std::vector<std::uint64_t>* words);

// Width of the sketch that a launch computes for a sketch of `width` sums: at least the smallest
// there is.
constexpr std::uint32_t LaunchWidth(std::uint32_t width) { return width < 16 ? 16 : width; }

// What a record says, for a tensor of `numel` elements. `sketch` is overwritten.
TensorStats FinishRecord(const Totals& totals, std::span<const double> sums, std::uint64_t numel,
                         std::span<double> sketch) noexcept;

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_PLAN_H_
