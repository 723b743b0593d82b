// The kernel for shards of a logical tensor. Included by one .cu file a group of dtypes.
//
// Moments and counts of a shard are those of a tensor; hash and sketch take each component at its
// index in the logical tensor. Where a piece's blocks are blocks there, the usual loop computes
// them, with the mixes of those blocks. Other pieces are gone through once more, in shared memory
// (fingerprint_runs.h).
#ifndef STATCOLLECT_AGENT_STATS_CUDA_SHARD_KERNEL_CUH_
#define STATCOLLECT_AGENT_STATS_CUDA_SHARD_KERNEL_CUH_

#include "agent/stats/cuda/fingerprint_runs.h"
#include "agent/stats/cuda/kernel.cuh"

namespace statcollect::stats::cuda {

STATCOLLECT_WARP const std::uint64_t* MapOf(const ShardLaunch& launch, const Task& task) {
  return task.map != nullptr ? task.map : launch.map;
}

// As AppendUnusual.
template <typename C>
STATCOLLECT_CALL void AppendUnusualOfShard(Piece piece, const std::uint64_t* map,
                                           const KernelTables* tables, const float* signs,
                                           SketchSlots sketch, UnitSums unit) {
  if constexpr (!C::kWide) {
    NarrowSums sums;
    const auto reduce = [&] {
      NarrowLane lane = ReduceNarrow<C, true>(piece, NoFingerprint<C>());
      lane.hash = AddRuns<C, float>(piece, map, 1.0,
                                    {tables, signs, sketch.slots, sketch.width, 0, sketch.width});
      return lane;
    };
    if (piece.components < kPieceComponents<C> &&
        AddNarrow<C, true>(piece, sketch, 0, &sums, reduce, [] {})) {
      FlushHeld(sketch, unit);
      return AppendLanes(sums, unit);
    }
  }
  if constexpr (!C::kAlwaysInRange)
    AppendWide<C>(piece, WideRuns{map, tables, signs, sketch}, unit);
}

template <typename C>
struct OfShards {
  using Parameters = ShardLaunch;

  template <typename Released>
  STATCOLLECT_WARP static bool Add(const ShardLaunch& launch, const Task& task,
                                   const WarpTools& tools, const Piece& piece, std::uint32_t held,
                                   NarrowSums* sums, const Released& released) {
    const SketchSlots& sketch = tools.own.sketch;
    const auto reduce = [&] {
      const std::uint64_t* const map = MapOf(launch, task);
      std::uint64_t block;
      if (LiesInBlocks<C>(map, piece, &block)) {
        const FingerprintOfRows<C> fingerprint = {tools.keys, tools.signs, sketch,
                                                  PieceMixes<C>::AtBlock(block)};
        return ReduceNarrow<C, false>(piece, fingerprint);
      }
      NarrowLane lane = ReduceNarrow<C, false>(piece, NoFingerprint<C>());
      lane.hash = AddRuns<C, float>(
          piece, map, 1.0,
          {launch.tables, tools.signs, sketch.slots, sketch.width, 0, sketch.width});
      return lane;
    };
    return AddNarrow<C, false>(piece, sketch, held, sums, reduce, released);
  }
  STATCOLLECT_WARP static void Append(const ShardLaunch& launch, const Task& task,
                                      const WarpTools& tools, const Piece& piece) {
    AppendUnusualOfShard<C>(piece, MapOf(launch, task), launch.tables, tools.signs,
                            tools.own.sketch, tools.own.unit);
  }
};

template <typename C>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    ReduceShards(const __grid_constant__ ShardLaunch launch) {
  ReduceUnits<C, OfShards<C>>(launch);
}

// See kernels.h.
template <typename C>
const void* ShardKernelAddress() {
  return reinterpret_cast<const void*>(&ReduceShards<C>);
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_SHARD_KERNEL_CUH_
