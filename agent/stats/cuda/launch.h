// Parameters of a launch, shared by host and device.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_LAUNCH_H_
#define STATCOLLECT_AGENT_STATS_CUDA_LAUNCH_H_

#include <cstddef>
#include <cstdint>

#include "agent/stats/cuda/piece.h"
#include "agent/stats/cuda/task.h"

namespace statcollect::stats::cuda {

inline constexpr int kBlockWarps = 4;
inline constexpr int kBlockThreads = kBlockWarps * kWarpLanes;

inline constexpr int kBlocksPerProcessor =
    5;  // that registers and, for sketches of 16 sums, shared memory allow

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
  return kBlockWarps * WarpBytes(width);
}

struct Launch {
  const std::uint64_t* keys = nullptr;  // HashKeys::pairs, in device memory
  const Task* tasks = nullptr;          // in device memory, sorted by first_unit; null: `only`
  std::uint32_t task_count = 1;
  std::uint32_t units = 0;  // of all tasks
  std::uint32_t width = 0;  // of the sketches: 16, 32, 64
  Task only;
};

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_LAUNCH_H_
