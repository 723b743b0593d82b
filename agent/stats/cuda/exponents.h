// Parameters of the kernel that counts the binary exponents of a tensor (kernels_exponents.cu).
// Counts are whole numbers, so that their order changes nothing.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_EXPONENTS_H_
#define STATCOLLECT_AGENT_STATS_CUDA_EXPONENTS_H_

#include <cstddef>
#include <cstdint>

#include "agent/stats/cuda/task.h"

namespace statcollect::stats::cuda {

// Blocks of the kernel that a multiprocessor is given at most: its shared memory is a few KiB a
// block.
inline constexpr int kExponentBlocksPerProcessor = 8;
inline constexpr int kExponentBlockThreads = 256;

// Blocks of a launch for so many components on a device of so many multiprocessors.
constexpr std::uint32_t ExponentBlocks(std::uint64_t components, std::uint32_t vector_components,
                                       std::uint32_t processors) {
  const std::uint64_t wanted =
      DivideUp(components, std::uint64_t{vector_components} * kExponentBlockThreads);
  const std::uint64_t most = std::uint64_t{processors} * kExponentBlocksPerProcessor;
  return static_cast<std::uint32_t>(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

struct ExponentLaunch {
  Task task;  // data, components and strides of it
  std::int32_t lowest = 0;
  std::uint32_t bins = 0;  // BinOf(exponent, lowest, bins)
  // Device memory, zero between launches, of one stream at a time: blocks that are done, then the
  // counts.
  std::uint64_t* scratch = nullptr;
  // Host memory that the device can write: the ticket, last, then the counts.
  std::uint64_t* row = nullptr;
  std::uint64_t ticket = 0;
};

// Words of a scratch and of a row.
STATCOLLECT_HD constexpr std::size_t ExponentWords(std::uint32_t bins) {
  return std::size_t{bins} + 1;
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_EXPONENTS_H_
