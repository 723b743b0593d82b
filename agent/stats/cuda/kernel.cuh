// The kernel, and how a warp stages pieces in shared memory. Included by one .cu file a group of
// dtypes.
//
// A launch is a list of tasks of one dtype (one, in the launch's own parameters, or a table in
// device memory), whose units are numbered through. Warp w of the grid takes units w, w + warps,
// ...; a warp shares nothing with the others of its block but the block's shared memory. While a
// warp finishes a piece, its next one is already on the way (cp.async).
#ifndef STATCOLLECT_AGENT_STATS_CUDA_KERNEL_CUH_
#define STATCOLLECT_AGENT_STATS_CUDA_KERNEL_CUH_

#include <cstdint>
#include <utility>

#include "agent/stats/cuda/device.h"
#include "agent/stats/cuda/launch.h"
#include "agent/stats/cuda/narrow.h"
#include "agent/stats/cuda/reduce.h"
#include "agent/stats/cuda/replay.h"
#include "agent/stats/cuda/wide.h"

namespace statcollect::stats::cuda {

template <typename C>
STATCOLLECT_CALL void GatherPiece(const Task& task, std::uint64_t piece, Vector* staged) {
  STATCOLLECT_UNROLL_BY(1)
  for (int v = Lane(); v < kPieceVectors; v += kWarpLanes) {
    GatherVector<C>(task, piece, v, staged + v);
  }
}

// Of a whole piece that lies in vectors: this lane's, of all rows.
template <int... kRow>
STATCOLLECT_WARP void CopyRows(Vector* to, const unsigned char* from,
                               std::integer_sequence<int, kRow...>) {
  (CopyAsyncBehind<kRow * kWarpLanes * kVectorBytes>(to, from), ...);
}

// A tensor's last piece, and pieces of tensors that do not lie in vectors.
template <typename C>
STATCOLLECT_CALL void StageUnusual(const Task& task, std::uint64_t piece, Vector* staged) {
  if (!LiesInVectors(task)) return GatherPiece<C>(task, piece, staged);
  const unsigned char* from = PieceBytes<C>(task, piece);
  STATCOLLECT_UNROLL_BY(1)
  for (int v = Lane(); v < kPieceVectors; v += kWarpLanes) {
    const int bytes = BytesIn<C>(task, piece, v);
    // An address must be valid even if nothing is read from it.
    CopyAsync(staged + v, bytes > 0 ? from + v * kVectorBytes : task.data, bytes);
  }
}

// Starts to copy a piece; what the tensor has not got becomes 0. Each lane stages the vectors that
// it will read.
template <typename C>
STATCOLLECT_WARP void StagePiece(const Task& task, std::uint64_t piece, Vector* staged) {
  if (LiesInVectors(task) && (piece + 1) * kPieceComponents<C> <= task.components) {
    CopyRows(staged + Lane(), PieceBytes<C>(task, piece) + Lane() * kVectorBytes,
             std::make_integer_sequence<int, kRows>());
  } else {
    StageUnusual<C>(task, piece, staged);
  }
  CommitCopies();
}

STATCOLLECT_WARP void AwaitStaged() {
  AwaitCopies();
  __syncwarp();
}

STATCOLLECT_WARP const Task& TaskOf(const Launch& launch, std::uint32_t unit) {
  if (launch.tasks == nullptr) return launch.only;
  std::uint32_t low = 0, high = launch.task_count - 1;
  while (low < high) {
    const std::uint32_t middle = (low + high + 1) / 2;
    if (launch.tasks[middle].first_unit <= unit) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return launch.tasks[low];
}

static STATCOLLECT_CALL void Publish(const Task& task, UnitSums unit, std::uint32_t width) {
  PublishResult(task, unit, width);
}

// Hands a finished unit over; whoever brings a node's last child goes on with the node.
static STATCOLLECT_CALL void FinishUnit(const Task& task, std::uint32_t node, UnitSums unit,
                                        std::uint32_t width) {
  const std::uint32_t lane = threadIdx.x % kWarpLanes;
  std::uint32_t nodes = task.units, first = 0;  // of the node's level
  while (nodes > 1) {
    const std::size_t at = first + node;
    for (std::uint32_t i = lane; i < width; i += kWarpLanes)
      task.scratch.sums[at * width + i] = unit.sums[i];
    if (lane == 0) task.scratch.totals[at] = *unit.totals;
    __syncwarp();
    const std::uint32_t parent = node / kNodeChildren, oldest = parent * kNodeChildren;
    const std::uint32_t children = nodes - oldest < kNodeChildren ? nodes - oldest : kNodeChildren;
    std::uint32_t arrived = 0;
    if (lane == 0) {
      // One lane's fences count for the warp, as barriers stand between them and what the others
      // write and read.
      std::uint32_t* ticket = task.scratch.tickets + (first + nodes + parent - task.units);
      __threadfence();
      arrived = atomicAdd(ticket, 1u) + 1;
      __threadfence();
      if (arrived == children) *ticket = 0;  // for the next launch
    }
    arrived = FromLane(arrived, 0);
    __syncwarp();
    if (arrived != children) return;
    CombineNodes(task.scratch.totals + first + oldest,
                 task.scratch.sums + std::size_t{first + oldest} * width, children, width, unit);
    node = parent;
    first += nodes;
    nodes = (nodes + kNodeChildren - 1) / kNodeChildren;
  }
  Publish(task, unit, width);
}

// The tensor's first components, as float64, from its first piece.
template <typename C>
STATCOLLECT_CALL void CopySamples(const Task& task, const Vector* staged) {
  constexpr std::uint32_t n = kVectorComponents<C>;
  for (std::uint32_t v = threadIdx.x % kWarpLanes; v * n < task.sample_count; v += kWarpLanes) {
    const Vector vector = C::Clean(staged[v]);
    STATCOLLECT_UNROLL
    for (std::uint32_t j = 0; j < n; ++j) {
      if (v * n + j < task.sample_count)
        task.samples[v * n + j] = static_cast<double>(C::Value(vector, static_cast<int>(j)));
    }
  }
}

static STATCOLLECT_CALL void FlushHeld(SketchSlots sketch, UnitSums unit) {
  FlushSlots(sketch.slots, sketch.width, unit.sums);
}

// What the lanes have kept of the unit's pieces in range.
static STATCOLLECT_CALL void AppendLanes(NarrowSums sums, UnitSums unit) {
  FinishNarrow(sums, unit);
}

// What a warp needs of its launch for any piece.
struct WarpTools {
  const LaneKeys& keys;
  const float* signs;  // of the block
  const WarpMemory& own;
};

// --- pieces of whole tensors

// The pieces that are not the rule: a tensor's last, or out of range.
template <typename C>
STATCOLLECT_CALL void AppendUnusual(Piece piece, const KernelTables& tables, const float* signs,
                                    SketchSlots sketch, UnitSums unit) {
  const LaneKeys keys = KeysOf(tables);
  if constexpr (!C::kWide) {
    NarrowSums sums;
    const auto reduce = [&] {
      const FingerprintOfRows<C> fingerprint = {keys, signs, sketch, PieceMixes<C>(piece.number)};
      return ReduceNarrow<C, true>(piece, fingerprint);
    };
    if (piece.components < kPieceComponents<C> &&
        AddNarrow<C, true>(piece, sketch, 0, &sums, reduce, [] {})) {
      FlushHeld(sketch, unit);
      return AppendLanes(sums, unit);
    }
  }
  if constexpr (!C::kAlwaysInRange) AppendWide<C>(piece, WideRows{keys, signs, sketch}, unit);
}

template <typename C>
struct OfTensors {
  using Parameters = Launch;

  // Adds a whole piece if it is in range.
  template <typename Released>
  STATCOLLECT_WARP static bool Add(const Launch&, const Task&, const WarpTools& tools,
                                   const Piece& piece, std::uint32_t held, NarrowSums* sums,
                                   const Released& released) {
    const auto reduce = [&] {
      const FingerprintOfRows<C> fingerprint = {tools.keys, tools.signs, tools.own.sketch,
                                                PieceMixes<C>(piece.number)};
      return ReduceNarrow<C, false>(piece, fingerprint);
    };
    return AddNarrow<C, false>(piece, tools.own.sketch, held, sums, reduce, released);
  }
  STATCOLLECT_WARP static void Append(const Launch& launch, const Task&, const WarpTools& tools,
                                      const Piece& piece) {
    AppendUnusual<C>(piece, *launch.tables, tools.signs, tools.own.sketch, tools.own.unit);
  }
};

// --- the kernels

// The pieces that a warp works on, in order.
struct Place {
  const Task* task;
  std::uint32_t unit;        // in the launch
  std::uint64_t piece, end;  // the unit's next piece, and behind its last

  STATCOLLECT_WARP static Place AtUnit(const Launch& launch, std::uint32_t unit) {
    Place place;
    place.unit = unit;
    place.task = &TaskOf(launch, unit);
    place.piece =
        static_cast<std::uint64_t>(unit - place.task->first_unit) * place.task->unit_pieces;
    const std::uint64_t end = place.piece + place.task->unit_pieces;
    place.end = end < place.task->pieces ? end : place.task->pieces;
    return place;
  }
};

// Of: how pieces are reduced, OfTensors<C> or OfShards<C>.
template <typename C, typename Of>
STATCOLLECT_WARP void ReduceUnits(const typename Of::Parameters& launch) {
  const std::uint32_t warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  if (!IsWanted(launch.only)) return;
  auto* const signs = reinterpret_cast<float*>(BlockMemory());
  WriteSigns(*launch.tables, signs);
  __syncthreads();
  const WarpMemory own(BlockMemory() + kSignBytes + warp * WarpBytes(launch.width), launch.width);
  const LaneKeys keys = KeysOf(*launch.tables);
  const WarpTools tools = {keys, signs, own};
  const std::uint32_t warps = gridDim.x * kBlockWarps;
  const std::uint32_t first_unit = blockIdx.x * kBlockWarps + warp;
  if (first_unit >= launch.units) return;

  Place now = Place::AtUnit(launch, first_unit);
  if (now.piece < now.end) StagePiece<C>(*now.task, now.piece, own.staged);
  while (true) {
    for (std::uint32_t i = lane; i < launch.width; i += kWarpLanes) own.unit.sums[i] = 0;
    if (lane == 0) *own.unit.totals = Totals();
    __syncwarp();
    const bool last = launch.units - now.unit <= warps;
    const Place next_unit = last ? now : Place::AtUnit(launch, now.unit + warps);
    bool staged_ahead = false;
    std::uint32_t held = 0;
    NarrowSums sums;
    while (now.piece < now.end) {
      AwaitStaged();
      const Piece piece = PieceOf<C>(*now.task, now.piece, own.staged);
      if (now.piece == 0 && now.task->sample_count != 0) CopySamples<C>(*now.task, own.staged);
      const auto stage_next = [&] {
        ++now.piece;
        const bool stays = now.piece < now.end;
        const Task* const task = stays ? now.task : next_unit.task;
        const std::uint64_t next = stays ? now.piece : next_unit.piece;
        if (stays || (!last && next < next_unit.end)) StagePiece<C>(*task, next, own.staged);
        staged_ahead = true;
      };
      bool done = false;
      if constexpr (!C::kWide) {
        if (piece.components == kPieceComponents<C>) {
          done = Of::Add(launch, *now.task, tools, piece, held, &sums, stage_next);
          held += done ? 1 : 0;
        }
      }
      if (held != 0 && (!done || held == kHeldMax || now.piece == now.end)) {
        FlushHeld(own.sketch, own.unit);
        held = 0;
      }
      if (!done) {
        Of::Append(launch, *now.task, tools, piece);
        stage_next();
      }
    }
    if (!staged_ahead && !last && next_unit.piece < next_unit.end) {  // after an empty tensor
      StagePiece<C>(*next_unit.task, next_unit.piece, own.staged);
    }
    if constexpr (!C::kWide) AppendLanes(sums, own.unit);
    FinishUnit(*now.task, now.unit - now.task->first_unit, own.unit, launch.width);
    __syncwarp();
    if (last) return;
    now = next_unit;
  }
}

template <typename C>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerProcessor)
    ReduceTensors(const __grid_constant__ Launch launch) {
  ReduceUnits<C, OfTensors<C>>(launch);
}

// See kernels.h.
template <typename C>
const void* KernelAddress() {
  return reinterpret_cast<const void*>(&ReduceTensors<C>);
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_KERNEL_CUH_
