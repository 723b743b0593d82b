// Parameters of a launch, shared by host and device.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_LAUNCH_H_
#define STATCOLLECT_AGENT_STATS_CUDA_LAUNCH_H_

#include <cstddef>
#include <cstdint>

#include "agent/stats/cuda/index_map.h"
#include "agent/stats/cuda/layout.h"
#include "agent/stats/cuda/task.h"

namespace statcollect::stats::cuda {

inline constexpr int kBlockWarps = 4;
inline constexpr int kBlockThreads = kBlockWarps * kWarpLanes;

// That registers and, for sketches of 16 sums, shared memory allow.
inline constexpr int kBlocksPerProcessor = 4;

// Signs of the sketch, which the warps of a block share: +1 and -1 by frame, row and lane. Frames
// begin 64 bytes further than they must, so that half of them lie in other banks.
inline constexpr int kFrameFloats = kSketchRows * kLanes + 16;
inline constexpr std::size_t kSignBytes = kSketchFrames * kFrameFloats * sizeof(float);

// Shared memory of one warp: the staged piece, the sketch's slots, the unit's totals and sums.
STATCOLLECT_HD constexpr std::size_t WarpBytes(std::uint32_t width) {
  return kPieceBytes + width * (kWarpLanes * sizeof(float) + sizeof(double)) + sizeof(Totals);
}
struct WarpMemory {
  Vector* staged;
  SketchSlots sketch;
  UnitSums unit;

  STATCOLLECT_HD WarpMemory(unsigned char* memory, std::uint32_t width) {
    staged = reinterpret_cast<Vector*>(memory);
    sketch.slots = reinterpret_cast<float*>(memory + kPieceBytes);
    sketch.width = width;
    unit.sums = reinterpret_cast<double*>(sketch.slots + width * kWarpLanes);
    unit.totals = reinterpret_cast<Totals*>(unit.sums + width);
  }
};
STATCOLLECT_HD constexpr std::size_t BlockBytes(std::uint32_t width) {
  return kSignBytes + kBlockWarps * WarpBytes(width);
}

// Blocks of a launch of so many units on a device that holds `resident` blocks at once.
constexpr std::uint32_t GridBlocks(std::uint32_t units, std::uint32_t resident) {
  const std::uint32_t wanted = (units + kBlockWarps - 1) / kBlockWarps;
  return wanted < resident ? wanted : resident;
}

struct Launch {
  const KernelTables* tables = nullptr;  // kKernelTables, in device memory
  const Task* tasks = nullptr;           // in device memory, sorted by first_unit; null: `only`
  std::uint32_t task_count = 1;
  std::uint32_t units = 0;  // of all tasks
  std::uint32_t width = 0;  // of the sketches: 16, 32, 64
  Task only;
};

// A launch of shards.
struct ShardLaunch : Launch {
  std::uint64_t map[kMapWordsInLaunch] =
      {};  // of the only task, unless that has one in device memory
};
static_assert(sizeof(ShardLaunch) <= 4096, "parameters of a kernel");

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_LAUNCH_H_
