// How a tensor is cut for the kernels, in the small: vectors, rows and pieces, and what a warp
// keeps of them in shared memory. For host and device.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_LAYOUT_H_
#define STATCOLLECT_AGENT_STATS_CUDA_LAYOUT_H_

#include <cstdint>

#include "agent/stats/accumulate.h"
#include "agent/stats/cuda/device.h"
#include "agent/stats/fingerprint.h"

namespace statcollect::stats::cuda {

inline constexpr int kVectorBytes = 16;

struct alignas(kVectorBytes) Vector {
  std::uint32_t words[4];
};

inline constexpr int kRows = 16;
inline constexpr int kPieceVectors = kRows * kWarpLanes;
inline constexpr int kPieceBytes = kPieceVectors * kVectorBytes;

// C: a type of components.h.
template <typename C>
inline constexpr int kVectorComponents = kVectorBytes / C::kBytes;
template <typename C>
inline constexpr int kPieceComponents = kPieceBytes / C::kBytes;

// What the kernels look up, in device memory.
struct KernelTables {
  HashKeys keys;
  SketchSigns signs;
};
inline constexpr KernelTables kKernelTables = {kHashKeys, kSketchSigns};

// A piece and where it lies in the tensor. What the tensor lacks of it is staged as zero bytes.
struct Piece {
  const Vector* vectors;     // kPieceVectors
  std::uint32_t components;  // 1 .. kPieceComponents
  std::uint64_t number;      // of the piece in the tensor, from 0
};

// A sketch of `width` sums under construction. A lane owns one slot of each sum: slot (sum, lane)
// lies at sum * 32 + lane, so that lanes never wait for each other or for a bank.
struct SketchSlots {
  float* slots;  // width * kWarpLanes; room for half as many doubles
  std::uint32_t width;
};

// Where a unit's results grow: memory of the warp.
struct UnitSums {
  Totals* totals;
  double* sums;  // of the sketch, of totals' level
};

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_LAYOUT_H_
