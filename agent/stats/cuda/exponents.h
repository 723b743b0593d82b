// Counting the binary exponents of a tensor: what one thread does with sixteen bytes, shared by the kernel
// (kernels_exponents.cu) and the tests. Counts are whole numbers, so that their order changes nothing.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_EXPONENTS_H_
#define STATCOLLECT_AGENT_STATS_CUDA_EXPONENTS_H_

#include <cstddef>
#include <cstdint>

#include "agent/stats/cuda/reduce.h"
#include "agent/stats/cuda/task.h"
#include "agent/stats/exponent_of.h"

namespace statcollect::stats::cuda {

// Blocks of the kernel that a multiprocessor is given at most: its shared memory is a few KiB a block.
inline constexpr int kExponentBlocksPerProcessor = 8;
inline constexpr int kExponentBlockThreads = 256;

struct ExponentLaunch {
  Task task;  // data, components and strides of it
  std::int32_t lowest = 0;
  std::uint32_t bins = 0;  // BinOf(exponent, lowest, bins)
  // Device memory, zero between launches, of one stream at a time: blocks that are done, then the counts.
  std::uint64_t* scratch = nullptr;
  // Host memory that the device can write: the ticket, last, then the counts.
  std::uint64_t* row = nullptr;
  std::uint64_t ticket = 0;
};

// Words of a scratch and of a row.
STATCOLLECT_HD constexpr std::size_t ExponentWords(std::uint32_t bins) { return std::size_t{bins} + 1; }

// Vectors of sixteen bytes that the tensor has, the last one perhaps not full.
template <typename C>
STATCOLLECT_HD std::uint64_t VectorsOf(const Task& task) {
  return DivideUp(task.components, kVectorComponents<C>);
}

// Vector `index` of the tensor; components that it has not got are 0.
template <typename C>
STATCOLLECT_WARP Vector LoadVector(const Task& task, std::uint64_t index) {
  if (LiesInVectors(task) && (index + 1) * kVectorComponents<C> <= task.components)
    return *reinterpret_cast<const Vector*>(task.data + index * kVectorBytes);
  Vector vector;
  GatherVector<C>(task, index / kPieceVectors, static_cast<int>(index % kPieceVectors), &vector);
  return vector;
}

// Calls add(bin) for each of the vector's components that is finite and not 0.
template <typename C, typename Add>
STATCOLLECT_WARP void CountVector(const ExponentLaunch& launch, std::uint64_t index, Add&& add) {
  const Vector vector = C::Clean(LoadVector<C>(launch.task, index));
  STATCOLLECT_UNROLL
  for (int j = 0; j < static_cast<int>(kVectorComponents<C>); ++j) {
    const std::int32_t exponent = ExponentOf(C::Value(vector, j));
    if (exponent != kNoExponent) add(BinOf(exponent, launch.lowest, launch.bins));
  }
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_EXPONENTS_H_
